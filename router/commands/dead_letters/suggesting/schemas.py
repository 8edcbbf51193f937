"""A JSON Schema (2020-12) drafted from documents: all of them conform to it, and they justify no narrower one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from catalog.values import is_timestamp
from router.commands.dead_letters.suggesting.words import looks_like_id

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
FORMAT: Final = "JsonSchema/draft-2020-12"
_DEPTH: Final = 12
_MOST_MEMBERS: Final = 200
_MAP_MEMBERS: Final = 5
_MAP_SHARE: Final = 0.8
_ENUM_VALUES: Final = 8
_ENUM_RECORDS: Final = 50
_ENUM_TIMES: Final = 10
_ENUM_LENGTH: Final = 40
_FORMAT_TIMES: Final = 3
_ITEMS: Final = 100
"""Items of one array that are looked at."""
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9 _.\-]*")
_FORMATS: Final[tuple[tuple[str, Callable[[str], object]], ...]] = (
    ("date-time", is_timestamp),
    ("date", re.compile(r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])", re.ASCII).fullmatch),
    (
        "uuid",
        re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}").fullmatch,
    ),
    ("uri", re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s<>\"{}|\\^`]+").fullmatch),
    ("email", re.compile(r"[A-Za-z0-9._%+\-]+@[A-Za-z0-9\-]+(?:\.[A-Za-z0-9\-]+)+").fullmatch),
)


def _shows(name: str) -> bool:
    return False


_TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")


@dataclass(slots=True)
class Observed:
    """What was seen at one place of the documents; its memory is bounded, whatever the documents hold.

    ``hides`` names members whose values are not shown; what is ``hidden`` is in one of them.
    """

    times: dict[str, int] = field(default_factory=dict)
    members: dict[str, Observed] = field(default_factory=dict)
    map_values: Observed | None = None
    items: Observed | None = None
    texts: dict[str, None] = field(default_factory=dict)
    formats: set[str] = field(default_factory=lambda: {name for name, _ in _FORMATS})
    hides: Callable[[str], bool] = _shows
    hidden: bool = False

    def add(self, value: Any, depth: int = 0) -> None:
        """Look at one value."""
        kind = _kind(value)
        self.times[kind] = self.times.get(kind, 0) + 1
        if kind == "string":
            self._text(value)
        elif depth < _DEPTH and kind == "object":
            self._object(value, depth)
        elif depth < _DEPTH and kind == "array":
            for each in value[:_ITEMS]:
                self.items = self.items or self._inner(self.hidden)
                self.items.add(each, depth + 1)

    def schema(self) -> dict[str, Any]:
        """Return the schema of what was seen."""
        kinds = [kind for kind in _TYPES if kind in self.times]
        if "number" in kinds and "integer" in kinds:
            kinds.remove("integer")
        if not kinds or kinds == ["null"]:
            return {}  # only null was seen, so any other value may come
        drafted: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
        if "object" in kinds:
            drafted.update(self._object_schema())
        if self.items is not None:
            drafted["items"] = self.items.schema()
        if "string" in kinds:
            drafted.update(self._text_schema(alone=len(kinds) == 1))
        return drafted

    def _text(self, text: str) -> None:
        if len(self.texts) <= _ENUM_VALUES:
            self.texts[text if len(text) <= _ENUM_LENGTH else text[: _ENUM_LENGTH + 1]] = None
        self.formats.difference_update([name for name, fits in _FORMATS if name in self.formats and not fits(text)])

    def _object(self, value: Mapping[str, Any], depth: int) -> None:
        if self.map_values is None and len(self.members.keys() | value.keys()) > _MOST_MEMBERS:
            self._to_map()
        for name, member in value.items():
            if self.map_values is not None:
                self.map_values.add(member, depth + 1)
            else:
                self._member(name).add(member, depth + 1)

    def _member(self, name: str) -> Observed:
        known = self.members.get(name)
        if known is None:
            known = self.members[name] = self._inner(self.hidden or self.hides(name))
        return known

    def _inner(self, hidden: bool) -> Observed:
        return Observed(hides=self.hides, hidden=hidden)

    def _to_map(self) -> None:
        self.map_values = merged(self.members.values())
        self.map_values.hides = self.hides
        self.map_values.hidden = self.hidden or any(each.hidden for each in self.members.values())
        self.members = {}

    def _object_schema(self) -> dict[str, Any]:
        ids = sum(map(looks_like_id, self.members))
        if self.map_values is None and ids >= _MAP_MEMBERS and ids >= _MAP_SHARE * len(self.members):
            self._to_map()
        if self.map_values is not None:
            return {"additionalProperties": self.map_values.schema()}
        if not self.members:
            return {}
        always = [name for name, each in self.members.items() if sum(each.times.values()) == self.times["object"]]
        drafted: dict[str, Any] = {"properties": {name: self.members[name].schema() for name in sorted(self.members)}}
        return {**drafted, "required": sorted(always)} if always else drafted

    def _text_schema(self, *, alone: bool) -> dict[str, Any]:
        times = self.times["string"]
        if times >= _FORMAT_TIMES and self.formats:
            return {"format": next(name for name, _ in _FORMATS if name in self.formats)}
        words = (
            not self.hidden
            and len(self.texts) <= _ENUM_VALUES
            and all(
                len(text) <= _ENUM_LENGTH and _WORD.fullmatch(text) and not looks_like_id(text) for text in self.texts
            )
        )
        few = times >= _ENUM_RECORDS and times >= _ENUM_TIMES * len(self.texts)
        return {"enum": sorted(self.texts)} if alone and words and few and len(self.texts) > 1 else {}


def merged(several: Iterable[Observed]) -> Observed:
    """Return what was seen at several places as if it had been at one."""
    observations = list(several)
    united = Observed(hidden=any(each.hidden for each in observations))
    maps: list[Observed] = []
    items: list[Observed] = []
    members: dict[str, list[Observed]] = {}
    for each in observations:
        for kind, times in each.times.items():
            united.times[kind] = united.times.get(kind, 0) + times
        for text in each.texts:
            if len(united.texts) <= _ENUM_VALUES:
                united.texts[text] = None
        united.formats &= each.formats
        maps += [each.map_values] if each.map_values is not None else []
        items += [each.items] if each.items is not None else []
        for name, member in each.members.items():
            members.setdefault(name, []).append(member)
    united.items = merged(items) if items else None
    if maps or len(members) > _MOST_MEMBERS:
        united.map_values = merged([*maps, *(one for each in members.values() for one in each)])
    else:
        united.members = {name: merged(each) for name, each in members.items()}
    return united


def schema_of(documents: Iterable[Any], hides: Callable[[str], bool] = _shows) -> dict[str, Any]:
    """Return a schema that all *documents* conform to; it shows no value of members that *hides* names.

    Members that are not named in it are allowed.
    """
    seen = Observed(hides=hides)
    for document in documents:
        seen.add(document)
    return {"$schema": DIALECT, **seen.schema()}


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
