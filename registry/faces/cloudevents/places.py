"""What a request is directed at: a place of the core, under its older path, and the flags of this face."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from registry.core.places import Place, place_of
from registry.errors import Refusal
from registry.faces.cloudevents.names import GROUPS, RESOURCES, newer_name
from registry.http.face import Call
from registry.http.requests import decoded, limit_of, query_of
from registry.model.types import Model

MAX_SEGMENTS: Final = 6
_METHODS: Final = {
    "registry": ("GET", "HEAD"),
    "groups": ("GET", "HEAD", "POST", "DELETE"),
    "group": ("GET", "HEAD", "PUT", "DELETE"),
    "resources": ("GET", "HEAD", "POST", "DELETE"),
    "resource": ("GET", "HEAD", "PUT", "POST", "DELETE"),
    "versions": ("GET", "HEAD", "DELETE"),
    "version": ("GET", "HEAD", "PUT", "DELETE"),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request taken apart. ``meta``, ``inline`` and ``model`` are flags, whatever their values."""

    path: str
    place: Place
    meta: bool
    inline: bool
    model: bool
    epoch: int | None
    limit: int
    cursor: str

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that the place takes."""
        return _METHODS[self.place.kind]


def asked(call: Call, model: Model) -> Asked:
    """Take a request apart.

    Raises:
        Refusal: it cannot be read, or there is no such path.
    """
    path = decoded(call.path, "/")
    segments = [decoded(part, path) for part in call.path.split(b"/") if part]
    if len(segments) > MAX_SEGMENTS:
        raise Refusal("api_not_found", path)
    place = place_of(model, [_named(each, index, path) for index, each in enumerate(segments)], path)
    given = query_of(call.head.query)
    flags = {name: values[-1] for name, values in given.items()}
    cursor = flags.get("cursor", "")
    if not (cursor.isascii() and cursor.isprintable()):
        raise Refusal("bad_request", path, error_detail="the cursor is not from this registry")
    limit = min(limit_of(flags.get("limit"), path) or call.pages.usual, call.pages.most)
    meta = "meta" in flags and place.kind in ("resource", "version")
    epoch = _epoch(flags.get("epoch"), path)
    return Asked(path, place, meta, "inline" in flags, "model" in flags, epoch, limit, cursor)


def _named(segment: str, index: int, path: str) -> str:
    """Return what a segment of a path is in the core: ids as they are, collections by their names of 1.0."""
    if index % 2:
        return segment
    name = newer_name(segment)
    if name is None or name not in ((*GROUPS,), (*RESOURCES,), ("versions",))[index // 2]:
        raise Refusal("api_not_found", path)
    return name


def _epoch(text: str | None, path: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise Refusal("bad_flag", path, detail="epoch needs to be an unsigned integer", flag="epoch")
    return int(text)
