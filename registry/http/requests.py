"""From an HTTP request to what the registry is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_plus, unquote_to_bytes

import msgspec

from bindings.http.request import Head
from catalog.errors import DocumentError
from catalog.parsing.texts import parse_text
from registry.core.documents import Given
from registry.core.places import Place
from registry.core.requests import ABSENT, Flags, Request, Verb
from registry.errors import Refusal
from registry.http import headers

VERBS: Final[dict[str, Verb]] = {
    "GET": "read",
    "HEAD": "read",
    "PUT": "replace",
    "PATCH": "patch",
    "POST": "add",
    "DELETE": "delete",
}
DETAILS: Final = "$details"
FORM: Final = "application/x-www-form-urlencoded"
MAX_SEGMENTS: Final = 8
MAX_REPEATED: Final = 20
"""Repeated keys of one body that are reported."""
_ONE: Final = ("sort", "epoch", "setdefaultversionid", "specversion", "limit", "cursor")


@dataclass(frozen=True, slots=True)
class Writer:
    """Who sends a request: a name for history, and what it may do; ``writes`` is whether to any group at all."""

    name: str
    administrator: bool
    may_write: Callable[[str], bool]
    writes: bool = False


@dataclass(frozen=True, slots=True)
class Pages:
    """How many entities a page has: without ``limit`` in the request, and at most."""

    usual: int = 500
    most: int = 1000


@dataclass(frozen=True, slots=True)
class Asked:
    """A request's path and query, taken apart."""

    path: str
    segments: tuple[str, ...]
    details: bool
    flags: Flags
    limit: int | None
    cursor: str


def asked(head: Head) -> Asked:
    """Take path and query apart.

    Raises:
        Refusal: one of them cannot be read.
    """
    path = decoded(head.path, "/")
    segments = tuple(decoded(part, path) for part in head.path.split(b"/") if part)
    if len(segments) > MAX_SEGMENTS:
        raise Refusal("api_not_found", path)
    details = bool(segments) and segments[-1].endswith(DETAILS)
    if details:
        segments = (*segments[:-1], segments[-1].removesuffix(DETAILS))
    if any(DETAILS in part for part in segments) or (details and len(segments) not in (4, 6)):
        raise Refusal("bad_details", path)
    given = query_of(head.query)
    single = {name: once(given, name, path) for name in _ONE}
    flags = Flags(
        inline=tuple(given.get("inline", ())),
        filter=tuple(given.get("filter", ())),
        ignore=tuple(given.get("ignore", ())),
        sort=single["sort"],
        epoch=single["epoch"],
        setdefaultversionid=single["setdefaultversionid"],
        specversion=single["specversion"],
        doc="doc" in given,
        collections="collections" in given,
        binary="binary" in given,
    )
    return Asked(
        path.rstrip("/") or "/", segments, details, flags, limit_of(single["limit"], path), single["cursor"] or ""
    )


def request_of(
    head: Head, body: bytes, given: Asked, place: Place | str, base: str, writer: Writer, pages: Pages, max_answer: int
) -> Request:
    """Return what is asked for at a place, which is that of the path.

    Raises:
        Refusal: it cannot be read.
    """
    verb = VERBS[head.method]
    document, tree = None, ABSENT
    kind = place.resource_type if isinstance(place, Place) and place.kind in ("resource", "version") else None
    if kind is not None and kind.hasdocument and not given.details and verb in ("replace", "patch", "add"):
        if verb == "patch":
            raise Refusal("details_required", given.path)
        tree, document = _document(head, body, place, given.path)
    elif verb != "read":
        tree = _tree(head, body, given.path)
    return Request(
        verb,
        given.segments,
        given.path,
        base,
        given.flags,
        given.details,
        tree,
        document,
        _media(head, body) or "application/json",
        min(given.limit or pages.usual, pages.most),
        given.cursor,
        writer.name,
        writer.administrator,
        writer.may_write,
        tags(head.header(b"if-match")) if verb != "read" else None,
        max_answer,
        tags(head.header(b"if-none-match")) or (),
        from_client=True,
    )


def _document(head: Head, body: bytes, place: Any, path: str) -> tuple[dict[str, Any], Given]:
    kind = place.resource
    attributes = headers.given(head.headers, kind, path)
    attributes["contenttype"] = _media(head, body)
    url = kind.document_names[2]
    if attributes.get(url) is None:
        attributes[url] = None
        return attributes, Given(body)
    if body:
        why = "the document is elsewhere, so the body needs to be empty"
        raise Refusal("extra_xregistry_header", path, name=f"xRegistry-{url}", error_detail=why)
    return attributes, Given(None, url=True)


def _tree(head: Head, body: bytes, path: str) -> Any:
    extra = next((name for name, _ in head.headers if name.lower().startswith(headers.PREFIX.encode())), None)
    if extra is not None:
        why = "the metadata is the body"
        raise Refusal("extra_xregistry_header", path, name=extra.decode("latin-1"), error_detail=why)
    return tree_of(body, path)


def tree_of(body: bytes, path: str) -> Any:
    """Return the JSON of a body, ABSENT for an empty one.

    Raises:
        Refusal: ``parsing_data``.
    """
    if not body.strip():
        return ABSENT
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("parsing_data", path, error_detail=str(error)) from None


def repeated_keys(body: bytes) -> tuple[dict[str, str], ...]:
    """Return findings about keys that occur twice in one object of a JSON body: the last value counts."""
    try:
        places = parse_text("", body).duplicates[:MAX_REPEATED]
    except DocumentError:
        return ()  # its own error says more
    message, hint = "the key occurs twice; the last value counts", "remove one of them"
    found = {"severity": "warning", "rule": "duplicate-key", "message": message, "hint": hint}
    return tuple({**found, "place": each.pointer} for each in places)


def query_of(text: bytes) -> dict[str, list[str]]:
    """Return the values of a raw query by their names; a name without ``=`` has ''."""
    values: dict[str, list[str]] = {}
    for part in text.decode("latin-1").split("&"):
        if part:
            name, _, value = part.partition("=")
            values.setdefault(unquote_plus(name), []).append(unquote_plus(value))
    return values


def once(given: dict[str, list[str]], name: str, path: str) -> str | None:
    """Return the value of a flag, None without it.

    Raises:
        Refusal: ``bad_flag``: it is given more than once.
    """
    values = given.get(name, [])
    if len(values) > 1:
        raise Refusal("bad_flag", path, detail="it is given more than once", flag=name)
    return values[0] if values else None


def limit_of(text: str | None, path: str) -> int | None:
    """Return the flag ``limit`` as a number, None without it.

    Raises:
        Refusal: it is no number above 0.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 10 and int(text)):
        raise Refusal("bad_request", path, error_detail="limit needs to be a number above 0")
    return int(text)


def decoded(text: bytes, path: str) -> str:
    """Return a part of a raw path as text; *path* is for errors.

    Raises:
        Refusal: it is no UTF-8, or has a NUL.
    """
    try:
        part = unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal("bad_request", path, error_detail="the path is no UTF-8") from None
    if "\0" in part:  # which no text of PostgreSQL can hold
        raise Refusal("bad_request", path, error_detail="the path has a NUL character")
    return part


def _media(head: Head, body: bytes) -> str | None:
    """Return the content type of a body; of what a form claims to be, as ``curl -d`` does, JSON or none."""
    value = head.header(b"content-type")
    media = None if value is None else value.decode("latin-1").strip()
    if media is None or media.partition(";")[0].strip().lower() != FORM:
        return media
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return "application/json"


def tags(value: bytes | None) -> tuple[str, ...] | None:
    """Return the ETags of a header, None without it."""
    if value is None:
        return None
    return tuple(part.strip().removeprefix("W/") for part in value.decode("latin-1").split(","))


def seen_before(head: Head, etag: str) -> bool:
    """Tell whether the sender has what an ETag names (``If-None-Match``)."""
    known = tags(head.header(b"if-none-match"))
    return bool(etag) and known is not None and (etag in known or "*" in known)
