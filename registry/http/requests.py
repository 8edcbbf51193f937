"""From an HTTP request to what the registry is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote_plus, unquote_to_bytes

import msgspec

from bindings.http.request import RequestHead
from catalog.errors import DocumentError
from catalog.parsing.texts import parse_text
from registry.core.requests import ABSENT, Flags, Given, RegistryRequest, ResourcePath, Verb
from registry.errors import Refusal
from registry.model.attributes import ModelAttribute
from registry.model.types import ResourceType

# Attributes as ``xRegistry-`` headers (``http.md``, HTTP Header Values).

PREFIX: Final = "xregistry-"
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


def encoded(value: Any) -> bytes:
    """Write a scalar as the value of a header."""
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return quote(text, safe=_SAFE).encode("ascii")


def decoded(value: bytes, name: str, path: str) -> str:
    """Read the value of a header.

    Raises:
        Refusal: ``header_error``.
    """
    text = value.strip()
    if len(text) > 1 and text[:1] == text[-1:] == b'"':
        text = _unquoted(text[1:-1])
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal("header_error", path, name=name, error_detail="it is no UTF-8") from None


def shown(attributes: Mapping[str, Any], kind: ResourceType) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers that show attributes: scalars, and maps of scalars; a document is not among them."""
    tree, encoded_name, _ = kind.document_names
    for name, value in attributes.items():
        if name in (tree, encoded_name, "contenttype"):
            continue
        if isinstance(value, Mapping):
            declared = kind.attributes.get(name)
            if declared is None or declared.type != "map":
                continue
            for key, each in value.items():
                if not isinstance(each, dict | list):
                    yield f"xRegistry-{name}.{key}".encode("ascii"), encoded(each)
        elif not isinstance(value, list):
            yield f"xRegistry-{name}".encode("ascii"), encoded(value)


def given(headers: tuple[tuple[bytes, bytes], ...], kind: ResourceType, path: str) -> dict[str, Any]:
    """Return the attributes that headers give, with values of their types; ``null`` is None.

    Raises:
        Refusal: ``header_error``, ``extra_xregistry_header``.
    """
    attributes: dict[str, Any] = {}
    for raw, value in headers:
        name = raw.decode("latin-1").lower()
        if not name.startswith(PREFIX):
            continue
        name = name.removeprefix(PREFIX)
        if name in kind.document_names[:2]:
            why = "a document is the body, and never a header"
            raise Refusal("extra_xregistry_header", path, name=name, error_detail=why)
        text = decoded(value, name, path)
        plural, dot, key = name.partition(".")
        if dot:
            members = attributes.setdefault(plural, {})
            if not isinstance(members, dict):
                raise Refusal("header_error", path, name=name, error_detail="it is a map and a scalar at once")
            declared = kind.attributes.get(plural)
            if text != "null":
                members[key] = _typed(text, declared.item if declared is not None else None)
        elif text == "null":
            attributes[name] = None
        else:
            attributes[name] = _typed(text, kind.attributes.get(name))
    return {name: value or None if value == {} else value for name, value in attributes.items()}


def _typed(text: str, attribute: ModelAttribute | None) -> Any:
    """Return a value of the attribute's type; a text of no such value stays text, and is refused as such."""
    kind = attribute.type if attribute is not None else "string"
    if kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    if kind in ("integer", "uinteger", "decimal"):
        try:
            return float(text) if kind == "decimal" and not text.lstrip("-").isdecimal() else int(text)
        except ValueError:
            return text
    return text


def _unquoted(text: bytes) -> bytes:
    unquoted, escaped = bytearray(), False
    for byte in text:
        if byte == 0x5C and not escaped:
            escaped = True
        else:
            unquoted.append(byte)
            escaped = False
    return bytes(unquoted)


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
class RequestSender:
    """Who sends a request: a name for history, and what it may do; ``writes`` is whether to any group at all."""

    name: str
    administrator: bool
    may_write: Callable[[str], bool]
    writes: bool = False


@dataclass(frozen=True, slots=True)
class PageSizes:
    """How many entities a page has: without ``limit`` in the request, and at most."""

    usual: int = 500
    most: int = 1000


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """A request's path and query, taken apart."""

    path: str
    segments: tuple[str, ...]
    details: bool
    flags: Flags
    limit: int | None
    cursor: str


def asked(head: RequestHead) -> RequestTarget:
    """Take path and query apart.

    Raises:
        Refusal: one of them cannot be read.
    """
    path = decoded_request(head.path, "/")
    segments = tuple(decoded_request(part, path) for part in head.path.split(b"/") if part)
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
    return RequestTarget(
        path.rstrip("/") or "/", segments, details, flags, limit_of(single["limit"], path), single["cursor"] or ""
    )


def request_of(
    head: RequestHead,
    body: bytes,
    given: RequestTarget,
    place: ResourcePath | str,
    base: str,
    writer: RequestSender,
    pages: PageSizes,
    max_answer: int,
) -> RegistryRequest:
    """Return what is asked for at a place, which is that of the path.

    Raises:
        Refusal: it cannot be read.
    """
    verb = VERBS[head.method]
    document, tree = None, ABSENT
    kind = place.resource_type if isinstance(place, ResourcePath) and place.kind in ("resource", "version") else None
    if kind is not None and kind.hasdocument and not given.details and verb in ("replace", "patch", "add"):
        if verb == "patch":
            raise Refusal("details_required", given.path)
        tree, document = _document(head, body, place, given.path)
    elif verb != "read":
        tree = _tree(head, body, given.path)
    return RegistryRequest(
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


def _document(head: RequestHead, body: bytes, place: Any, path: str) -> tuple[dict[str, Any], Given]:
    kind = place.resource
    attributes = given(head.headers, kind, path)
    attributes["contenttype"] = _media(head, body)
    url = kind.document_names[2]
    if attributes.get(url) is None:
        attributes[url] = None
        return attributes, Given(body)
    if body:
        why = "the document is elsewhere, so the body needs to be empty"
        raise Refusal("extra_xregistry_header", path, name=f"xRegistry-{url}", error_detail=why)
    return attributes, Given(None, url=True)


def _tree(head: RequestHead, body: bytes, path: str) -> Any:
    extra = next((name for name, _ in head.headers if name.lower().startswith(PREFIX.encode())), None)
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


def decoded_request(text: bytes, path: str) -> str:
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


def _media(head: RequestHead, body: bytes) -> str | None:
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


def seen_before(head: RequestHead, etag: str) -> bool:
    """Tell whether the sender has what an ETag names (``If-None-Match``)."""
    known = tags(head.header(b"if-none-match"))
    return bool(etag) and known is not None and (etag in known or "*" in known)
