"""Places of a message catalog: its paths (section 4.1), and the URIs of versions (section 2.2.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

from registry.errors import Refusal
from registry.http.requests import decoded

Kind = Literal["catalog", "group", "definitions", "definition", "versions", "version"]
GROUPS: Final = "messagegroups"
MESSAGES: Final = "messages"
DEFINITIONS: Final = "messagedefinitions"
VERSIONS: Final = "versions"
_SEGMENT: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2}){1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names; ids are '' where it is not so deep."""

    kind: Kind
    group: str = ""
    definition: str = ""
    version: str = ""

    @property
    def segments(self) -> tuple[str, ...]:
        """The path in the core API."""
        named: tuple[str, ...] = (GROUPS,)
        if self.group:
            named = (*named, self.group)
        if self.kind == "definitions" or self.definition:
            named = (*named, MESSAGES)
        if self.definition:
            named = (*named, self.definition)
        if self.kind in ("versions", "version"):
            named = (*named, VERSIONS)
        return (*named, self.version) if self.version else named

    @property
    def xid(self) -> str:
        """The xid in the core API, that of a collection included."""
        return "/" + "/".join(self.segments)

    @property
    def path(self) -> str:
        """The path below the catalog, which begins with a slash where there is one."""
        parts = [self.group]
        if self.kind != "group" and self.group:
            parts.append(DEFINITIONS)
        parts.append(self.definition)
        if self.kind in ("versions", "version"):
            parts.append(VERSIONS)
        parts.append(self.version)
        return "".join(f"/{quote(part, safe='@:!$&()*+,;=~')}" for part in parts if part)

    def below(self, kind: Kind, *, definition: str = "", version: str = "") -> Target:
        """Return a place further down, in the same group."""
        return Target(kind, self.group, definition or self.definition, version)


def target_of(path: bytes) -> Target:
    """Read the raw path below the catalog.

    Raises:
        Refusal: there is nothing like it.
    """
    text = decoded(path, "/")
    parts = [decoded(part, text) for part in path.split(b"/")]
    if parts and not parts[0]:
        parts = parts[1:]
    if parts and not parts[-1]:
        parts = parts[:-1]
    if not parts:
        return Target("catalog")
    if not all(parts) or len(parts) > 5 or any("/" in part for part in parts):
        raise Refusal("api_not_found", text)
    if len(parts) == 1:
        return Target("group", parts[0])
    if parts[1] != DEFINITIONS or (len(parts) > 3 and parts[3] != VERSIONS):
        raise Refusal("api_not_found", text)
    kinds: tuple[Kind, ...] = ("definitions", "definition", "versions", "version")
    return Target(kinds[len(parts) - 2], parts[0], *parts[2:3], *parts[4:5])


def check_new_id(name: object, subject: str) -> str:
    """Return the id of something new.

    Raises:
        Refusal: it is no ``segment-nz-nc`` of RFC 3986; the core says what else it cannot be.
    """
    if not isinstance(name, str) or not _SEGMENT.fullmatch(name):
        why = "it needs to be a segment without colon of RFC 3986, of at most 128 characters"
        raise Refusal("malformed_id", subject, id=str(name), error_detail=why)
    return name


def split_uri(uri: str) -> tuple[str, Target] | None:
    """Return the authority and the place that a version's URI is made of; None when it is none."""
    head, marker, tail = uri.rpartition(f"/{DEFINITIONS}/")
    parts = tail.split("/")
    cut = max(head.rfind("/"), head.rfind(":") if head.lower().startswith("urn:") else -1)
    if not marker or cut <= 0 or not head[cut + 1 :]:
        return None
    try:
        target = target_of(f"/{head[cut + 1 :]}/{DEFINITIONS}/{tail}".encode())
    except Refusal:
        return None
    return (head[:cut], target) if len(parts) in (1, 3) and target.kind in ("definition", "version") else None
