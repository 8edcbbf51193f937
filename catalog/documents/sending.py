"""Requests to registries whose answers count whatever their status; pages of collections; Message Catalog 0.1's API."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from catalog.documents.connecting import Asking, Credentials, Reach, asked, origin_of
from catalog.documents.fetching import MAX_BYTES, Fetcher, FetchLimits, HttpResponse
from catalog.errors import DocumentError
from catalog.findings import Findings, SourceLocation
from catalog.parsing.texts import parse_catalog_text
from catalog.values import whole_number

if TYPE_CHECKING:
    import httpx

# One request to a registry whose answer counts whatever its status, with logins; redirects are not followed.

SEND_SECONDS: Final = 300.0
"""How long a registry may take for one write."""
_UNAUTHORIZED: Final = 401


class AnswerTooLarge(DocumentError):
    """An answer of more bytes than it may have; another try would end the same."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a registry answered to a write: any status, its body, and the notes that it gives in headers."""

    status: int
    data: bytes
    notes: tuple[str, ...] = ()


def post(url: str, body: bytes, by: Fetcher, *, note: str) -> Receipt:
    """Send JSON to *url* with the logins and the reach of *by*, as :func:`exchange` does.

    Raises:
        DocumentError: no answer came, or it is too large. Then it is not known what the registry did.
    """
    address = by.address(url)
    try:
        return exchange(address, by.credentials, by.reach, FetchLimits(MAX_BYTES, SEND_SECONDS), body=body, note=note)
    except DocumentError as error:
        hint = "check the address and the network, and what the registry has now" if error.transient else error.hint
        raise DocumentError(f"{error}", file=address, hint=hint) from error


def exchange(
    url: str, credentials: Credentials, reach: Reach, limits: FetchLimits, *, body: bytes | None = None, note: str = ""
) -> Receipt:
    """Return the answer to the POST of JSON, or to a GET where there is no *body*, with the headers called *note*.

    A token that is refused is replaced once, so the request is sent twice at most, and the second time only when the
    first did nothing.

    Raises:
        DocumentError: no answer came (``transient``).
        AnswerTooLarge: more bytes came than *limits* allow.
    """
    import httpx  # only who uses the network pays for it

    try:
        return asyncio.run(_within(url, body, credentials, reach, limits, note))
    except TimeoutError as error:
        message = f"{url} took longer than {limits.seconds:g} s"
        hint = "see what it has now before you try again" if body is not None else "try again"
        raise DocumentError(message, file=url, hint=hint, transient=True) from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        wanted = "asked" if body is None else "written to"
        hint = "check the address and the network"
        raise DocumentError(f"{url} cannot be {wanted}: {reason}", file=url, hint=hint, transient=True) from error


async def _within(
    url: str, body: bytes | None, credentials: Credentials, reach: Reach, limits: FetchLimits, note: str
) -> Receipt:
    origin, refused = origin_of(url), ""
    headers = {"Accept": "application/json", **({} if body is None else {"Content-Type": "application/json"})}
    async with asyncio.timeout(limits.seconds):
        while True:
            shown = await credentials.authorization(origin, limits.seconds, refused)
            sent = {**headers, "Authorization": shown} if shown else headers
            context = credentials.logins.context(origin)
            async with asked(Asking(url, sent, context, limits.seconds, body=body), reach) as response:
                if response.status_code == _UNAUTHORIZED and shown and not refused:
                    refused = shown
                    if await credentials.authorization(origin, limits.seconds, refused) != refused:
                        continue
                return await _receipt(response, url, limits.document_bytes, note)


async def _receipt(response: httpx.Response, url: str, most: int, note: str) -> Receipt:
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > most:
            message = f"{url} answers with more than {most} bytes"
            raise AnswerTooLarge(message, file=url, hint="see what it has now")
    notes = tuple(response.headers.get_list(note)) if note else ()
    return Receipt(response.status_code, bytes(data), notes)


# Pages of one collection: each names the next by a Link header (``rel=next``), and none may lead us astray.

MAX_PAGES: Final = 500
"""Pages of one collection."""
_LINK: Final = re.compile(r'<([^<>]*+)>((?:\s*+;\s*+[^\s;,="]++(?:\s*+=\s*+(?:"[^"]*+"|[^\s;,"]*+))?+)*+)')
_NEXT: Final = re.compile(r';\s*rel\s*=\s*(?:"(?:[^"]*\s)?next(?:\s[^"]*)?"|next\b)', re.IGNORECASE)


def next_page(link: str) -> str | None:
    """Return the target of ``rel=next`` in a Link header."""
    return next((match.group(1) for match in _LINK.finditer(link) if _NEXT.search(match.group(2))), None)


def following(
    url: str, first: HttpResponse, fetcher: Fetcher, origins: Collection[str]
) -> Iterator[tuple[str, HttpResponse]]:
    """Give the pages after the *first* of the collection at *url*, each with its address.

    Raises:
        DocumentError: a page cannot be fetched, was read before, is one too many, or is not at one of *origins*.
    """
    answer, seen = first, {url, first.url}
    while (written := next_page(answer.link)) is not None:
        page = fetcher.resolve(written, answer.url)
        trouble = _astray(page, seen, origins)
        if trouble:
            raise DocumentError(f"the next page of {url} {trouble}", file=url, hint="mend the registry's paging")
        seen.add(page)
        answer = own(fetcher.answer(page), page, origins)
        yield page, answer


def own(answer: HttpResponse, url: str, origins: Collection[str]) -> HttpResponse:
    """Return an answer of the registry whose origins these are.

    Raises:
        DocumentError: the registry sends us to somebody else for it.
    """
    landed = origin_of(answer.url)
    if landed not in origins:
        hint = "give the address of the registry that has it as a source of its own"
        raise DocumentError(f"{url} is redirected to {landed}, another origin", file=url, hint=hint)
    return answer


def _astray(page: str, seen: Collection[str], origins: Collection[str]) -> str:
    """Say why a page is not read; empty when it is."""
    if origin_of(page) not in origins:
        return "is at another origin"
    if page in seen:
        return "was read before"
    return f"would be more than {MAX_PAGES}" if len(seen) > MAX_PAGES else ""


# The HTTP API of CNCF Message Catalog 0.1 as a document: groups, their definitions, and the latest version of each.
#
# ``/messagecatalog`` lists groups and ``/messagecatalog/G/messagedefinitions`` definitions, as ids or as objects, page
# by page where the server likes. What an object does not show is fetched below its own path, at the origin of the
# source only. Of several versions the one with the highest number counts, which is what the path of a definition gives.

ROOT: Final = "messagecatalog"
DEFINITIONS: Final = "messagedefinitions"
_GROUP_LISTS: Final = frozenset({"groups", "messagegroups"})
_DEFINITION_LISTS: Final = frozenset({"definitions", DEFINITIONS, "messages"})
_VERSION_LISTS: Final = frozenset({"versions"})
_PATHLESS: Final = frozenset({"", ".", ".."})
Entry = tuple[str, dict[str, Any]]
"""The id of a member of a list, and what the list shows of it."""


@dataclass(frozen=True, slots=True)
class ServedCatalog:
    """What was put together; ``mounts`` are those of :class:`catalog.documents.documents.Document`."""

    tree: dict[str, Any]
    mounts: Mapping[tuple[str, str], SourceLocation] = field(default_factory=dict)


def read(url: str, answer: HttpResponse, fetcher: Fetcher, findings: Findings) -> ServedCatalog | None:
    """Return the catalog, or the one group of it, whose API answers at *url*; None for anything else.

    What can never be read is a finding, the rest is kept.

    Raises:
        DocumentError: transient; the catalog cannot be read whole now, and half of it would be a wrong one.
    """
    segments = urlsplit(url).path.rstrip("/").split("/")
    if ROOT not in segments[-2:] and segments[-3:-2] != [ROOT]:
        return None
    tree = parse_catalog_text(url, answer.data).tree
    reader = _Reader(url, answer, fetcher, findings)
    if segments[-1] == ROOT:
        groups = _entries(tree, _GROUP_LISTS)
        if groups is None or any(_is_whole(group) for _, group in groups):
            return None  # a document that is whole as it stands
        reader.groups([*groups, *reader.more(url, answer, _GROUP_LISTS)])
    elif segments[-2] == ROOT and isinstance(tree, dict) and _is_bare_group(tree):
        reader.group(url, tree)
    elif segments[-1] == DEFINITIONS and _entries(tree, _DEFINITION_LISTS) is not None:
        reader.group(url.partition("?")[0].rstrip("/").rpartition("/")[0], {"id": segments[-2]})
    else:
        return None
    return ServedCatalog({"specversion": "0.1", "groups": reader.group_documents}, reader.mounts)


class _Reader:
    """Reads one catalog. ``group_documents`` are its groups; ``mounts`` says where each definition is written."""

    def __init__(self, url: str, answer: HttpResponse, fetcher: Fetcher, findings: Findings) -> None:
        self.group_documents: list[dict[str, Any]] = []
        self.mounts: dict[tuple[str, str], SourceLocation] = {}
        self._url = url
        self._origins = {origin_of(url), origin_of(answer.url)}
        self._fetcher = fetcher
        self._findings = findings

    def groups(self, listed: Sequence[Entry]) -> None:
        """Read the groups that the catalog lists."""
        base = urlsplit(self._url)._replace(query="", fragment="").geturl().rstrip("/")
        for name, shown in listed:
            address = self._below(base, name)
            group = shown if "format" in shown else self._object(address)
            if address is not None and group is not None:
                self.group(address, {"id": name, **group})

    def group(self, address: str, shown: dict[str, Any]) -> None:
        """Read one group, whose attributes are *shown*, with its definitions."""
        collection = f"{address}/{DEFINITIONS}"
        definitions: list[dict[str, Any]] = []
        at = f"/groups/{len(self.group_documents)}"
        self.mounts[self._url, at] = SourceLocation(address)
        for name, entry in self._list(collection, _DEFINITION_LISTS):
            where = self._below(collection, name)
            definition = entry if _defines(entry) else self._definition(where, entry)
            if where is not None and definition is not None:
                # Places go by the document that a member is written in, and the group is written at its own address.
                self.mounts[address, f"/definitions/{len(definitions)}"] = SourceLocation(where)
                definitions.append({"id": name, **definition})
        own_attributes = {key: value for key, value in shown.items() if key.lower() not in _DEFINITION_LISTS}
        self.group_documents.append({**own_attributes, "definitions": definitions})

    def more(self, url: str, answer: HttpResponse, names: frozenset[str]) -> Iterator[Entry]:
        """Give the members that the pages after the first list; a page that can never be read ends them."""
        try:
            for page, each in following(url, answer, self._fetcher, self._origins):
                yield from self._members(page, each, names)
        except DocumentError as error:
            self._report(error, url)

    def _list(self, url: str, names: frozenset[str]) -> Iterator[Entry]:
        try:
            answer = own(self._fetcher.answer(url), url, self._origins)
            yield from self._members(url, answer, names)
        except DocumentError as error:
            self._report(error, url)
            return
        yield from self.more(url, answer, names)

    def _members(self, url: str, answer: HttpResponse, names: frozenset[str]) -> list[Entry]:
        entries = _entries(parse_catalog_text(url, answer.data).tree, names)
        if entries is None:
            hint = "check that a message catalog answers there"
            raise DocumentError(f"{url} lists nothing that has an id", file=url, hint=hint)
        return entries

    def _definition(self, url: str | None, entry: dict[str, Any]) -> dict[str, Any] | None:
        """Return the latest version of a definition of which only *entry* is shown."""
        definition = self._object(url)
        if url is None or definition is None or _defines(definition):
            return definition if definition is None else {**entry, **definition}
        numbered = [(whole_number(name), name, shown) for name, shown in self._list(f"{url}/versions", _VERSION_LISTS)]
        known = [(number, name, shown) for number, name, shown in numbered if number is not None]
        if not known:
            text = f"{url} shows neither its definition nor a numbered version of it"
            self._report(DocumentError(text, file=url, hint="check that a message catalog answers there"), url)
            return None
        _, name, latest = max(known, key=lambda each: each[0])
        version = latest if _defines(latest) else self._object(self._below(f"{url}/versions", name))
        return None if version is None else {**entry, **definition, **version}

    def _object(self, url: str | None) -> dict[str, Any] | None:
        if url is None:
            return None
        try:
            tree = parse_catalog_text(url, own(self._fetcher.answer(url), url, self._origins).data).tree
            if isinstance(tree, dict):
                return tree
            hint = "check that a message catalog answers there"
            raise DocumentError(f"{url} holds no JSON object", file=url, hint=hint)
        except DocumentError as error:
            self._report(error, url)
            return None

    def _below(self, base: str, name: str) -> str | None:
        """Return the address of a member; None for an id that would lead elsewhere."""
        if name not in _PATHLESS:
            return f"{base}/{quote(name, safe='')}"
        text = f"{base} lists the id {name!r}, which no path can end with"
        self._report(DocumentError(text, file=base, hint="give it another id"), base)
        return None

    def _report(self, error: DocumentError, url: str) -> None:
        """Report what can never be read.

        Raises:
            DocumentError: the error, when it is transient: half a catalog would be a wrong one.
        """
        if error.transient:
            raise error
        self._findings.error(SourceLocation(error.file or url), "unreadable-document", str(error), error.hint)


def _entries(tree: Any, names: frozenset[str]) -> list[Entry] | None:
    """Return the members of a list, under one of *names* or as the whole answer; None when it is no list of members."""
    if isinstance(tree, dict):
        tree = next((value for key, value in tree.items() if key.lower() in names), tree)
    if isinstance(tree, dict):
        shown = [(key, value) for key, value in tree.items() if isinstance(value, dict)]
        return shown if shown and len(shown) == len(tree) else None
    if not isinstance(tree, list):
        return None
    entries = [_entry(each, names) for each in tree]
    return [each for each in entries if each is not None] if None not in entries else None


def _entry(member: Any, names: frozenset[str]) -> Entry | None:
    key = "version" if names is _VERSION_LISTS else "id"
    name = member.get(key) if isinstance(member, dict) else member
    if isinstance(name, bool) or not isinstance(name, str | int):
        return None
    return str(name), member if isinstance(member, dict) else {}


def _is_bare_group(tree: Mapping[str, Any]) -> bool:
    """Tell a group that shows no definition from one that does, and from a definition by itself."""
    return "format" in tree and not _is_whole(tree) and not _defines(tree)


def _is_whole(group: Mapping[str, Any]) -> bool:
    """Tell a group that shows what its definitions hold."""
    shown = [value for key, value in group.items() if key.lower() in _DEFINITION_LISTS]
    lists = [each for each in shown if isinstance(each, dict | list)]
    members = [each for held in lists for each in (held.values() if isinstance(held, dict) else held)]
    return any(isinstance(each, dict) and _defines(each) for each in members)


def _defines(definition: Mapping[str, Any]) -> bool:
    """Tell whether the content of a definition is shown, itself or in one of its versions."""
    versions = definition.get("versions")
    bodies = [definition, *(versions if isinstance(versions, list) else ())]
    return any(isinstance(body, dict) and isinstance(body.get("definition"), dict) for body in bodies)
