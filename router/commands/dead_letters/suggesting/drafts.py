"""Drafts: what a bundle of records has in common, as a message definition in the spelling of xRegistry 1.0."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from catalog.linting.events import is_media_type
from catalog.model import CLOUDEVENTS
from catalog.protocols.properties import ATTRIBUTE_TYPES, VOCABULARIES
from catalog.values import is_timestamp, is_valid
from router.commands.dead_letters.suggesting.bundles import Bundle, Column, Gap, column_of
from router.commands.dead_letters.suggesting.sampling import Hides, looks_like_id, never, singular

# Names for the gaps of a draft: after what stands before them, the same for values that are always equal.

_EQUAL: Final = 3
"""From so many records on, gaps that are always equal are taken to be the same thing."""
_NOT_NAME: Final = re.compile(r"[^A-Za-z0-9_]+")
_VERSION: Final = re.compile(r"v?\d+(?:\.\d+)*|api|rest|rpc|urn|https?", re.IGNORECASE | re.ASCII)
_LONGEST: Final = 40
_DATE: Final = re.compile(r"\d{4}-\d{2}", re.ASCII)
GapPlace = tuple[int, int]
"""The number of a column, and of a gap in it."""


def shared_gaps(columns: Sequence[Column]) -> dict[GapPlace, GapPlace]:
    """Return, for each gap, the first one that has the same value in every record; itself when there is none."""
    first: dict[tuple[str, ...], GapPlace] = {}
    shared: dict[GapPlace, GapPlace] = {}
    for place, gap in _gaps(columns):
        certain = gap.varies and len(gap.values) >= _EQUAL and not any("%" in value for value in gap.values)
        shared[place] = first.setdefault(gap.values, place) if certain else place
    return shared


def names_of(columns: Sequence[Column], shared: dict[GapPlace, GapPlace]) -> dict[GapPlace, str]:
    """Name the gaps of *columns*, whose order is the order of their say; no two that differ have one name."""
    proposals: dict[GapPlace, tuple[int, str]] = {}
    for place, gap in _gaps(columns):
        rank, name = _proposal(columns[place[0]], gap)
        known = proposals.get(shared[place])
        if known is None or rank < known[0]:
            proposals[shared[place]] = (rank, name)
    taken: set[str] = set()
    names: dict[GapPlace, str] = {}
    for place, (_, name) in proposals.items():
        chosen, number = name, 2
        while chosen in taken:
            chosen, number = f"{name}{number}", number + 1
        taken.add(chosen)
        names[place] = chosen
    return {place: names[owner] for place, owner in shared.items() if owner in names}


def _gaps(columns: Sequence[Column]) -> Iterator[tuple[GapPlace, Gap]]:
    for number, column in enumerate(columns):
        for place, gap in enumerate(column.gaps):
            yield (number, place), gap


def _proposal(column: Column, gap: Gap) -> tuple[int, str]:
    """Return a name and how good it is; the smaller the better."""
    before = singular(gap.before)
    if before and not looks_like_id(before) and not _VERSION.fullmatch(before):
        name = _clean(before)
        if name:
            return 0, name
    if column.pieces is not None and len(column.pieces) == 1:
        name = _clean(column.key.rpartition(".")[2].removeprefix("x-").removeprefix("X-"))
        if name and column.key not in ("p.topic", "p.topic_name", "p.path", "p.subject"):
            return 1, name
    if gap.values and _DATE.match(gap.values[0]):
        return 2, "date"
    return 3, "id" if all(map(looks_like_id, gap.values)) else "name"


def _clean(text: str) -> str:
    return _NOT_NAME.sub("_", text).strip("_")[:_LONGEST]


# A JSON Schema (2020-12) drafted from documents: all of them conform to it, and they justify no narrower one.

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


MOST_PROPERTIES: Final = 32
_OFTEN: Final = 0.05
_DOCUMENTS: Final = 0.95
"""Share of bodies that must be JSON for a schema to be drafted."""
_ABSOLUTE: Final = ("e.dataschema",)
_URIS: Final = frozenset({"uri", "urireference", "uritemplate"})


@dataclass(frozen=True, slots=True)
class AskedProperty:
    """One property of a draft: what definitions write as ``{type, value, required}``, under its key."""

    key: str
    value: str | None = None
    type: str | None = None
    required: bool = False

    def form(self) -> dict[str, Any]:
        """Return this draft as JSON, without its name."""
        written = {"type": self.type, "value": self.value, "required": True if self.required else None}
        return {name: value for name, value in written.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Draft:
    """One drafted definition and the bundle it is for. ``messageid`` is unique in its group once it is placed there."""

    bundle: Bundle
    messageid: str
    datacontenttype: str | None
    asked: tuple[AskedProperty, ...]
    schema: Mapping[str, Any] | None = None

    @property
    def address(self) -> str:
        """What the draft asks of the address, or of the type of the event when it asks nothing there."""
        by_key = {each.key: each.value for each in self.asked if each.value is not None}
        return by_key.get(self.bundle.records[0].address) or by_key.get("e.type") or ""


def draft_of(bundle: Bundle, hides: Hides = never) -> Draft:
    """Draft the definition of a bundle; no value is shown of members of bodies that *hides* names."""
    columns = sorted(
        _columns(bundle), key=lambda column: (column.key not in (bundle.records[0].address, "e.type"), column.key)
    )
    shared = shared_gaps(columns)
    telling = _telling(columns, shared, bundle.records[0].address)
    names = names_of([column if number in telling else _mute(column) for number, column in enumerate(columns)], shared)
    drafted = [_asked(columns[number], number, names) for number in sorted(telling)]
    asked = [each for each in drafted if each is not None]
    asked += _presence(columns, telling, {each.key for each in asked})
    if bundle.pinned and bundle.shape.media and bundle.records[0].content_key:
        asked.append(AskedProperty(bundle.records[0].content_key, bundle.shape.media))
    media = bundle.shape.media if is_media_type(bundle.shape.media) else None
    media = None if media and media.startswith("application/cloudevents") else media
    return Draft(bundle, "", media, tuple(asked), _schema(bundle, hides))


def message_form(draft: Draft, schemaxid: str | None) -> dict[str, Any]:
    """Return the message as a document has it; *schemaxid* names its data schema, if it has one.

    A draft for native records declares the event that they become, with a type of its own: so it takes no events that
    come the same way, and plain JSON bodies that are events stay events (MATCHING.md#cloudevents).
    """
    shape = draft.bundle.shape
    metadata = {each.key[2:]: each.form() for each in draft.asked if each.key.startswith("e.")}
    if not shape.event:
        metadata = {"type": {"value": draft.messageid}}
    # A protocol that an event's draft declares would make it one for native records too.
    options = _options(draft)
    protocol = {} if shape.event and not options else {"protocol": shape.protocol}
    place = f" at {shape.endpoint}" if shape.endpoint else ""
    return {
        "messageid": draft.messageid,
        "description": f"Drafted from {draft.bundle.seen} dead letters{place}; review before use.",
        "envelope": CLOUDEVENTS,
        "envelopemetadata": metadata,
        **protocol,
        **({"protocoloptions": options} if options else {}),
        **({"datacontenttype": draft.datacontenttype} if draft.datacontenttype else {}),
        **({"dataschemaformat": FORMAT, "dataschemaxid": schemaxid} if schemaxid else {}),
    }


def _columns(bundle: Bundle) -> Iterator[Column]:
    texts: dict[str, list[str | None]] = {}
    for record in bundle.records:
        for key, text in record.properties.items():
            wanted = key.startswith("e.") or not bundle.shape.event or bundle.pinned
            if wanted and key not in bundle.barred:
                texts.setdefault(key, []).append(text)
    address = bundle.records[0].address
    for key, values in texts.items():
        missing = len(bundle.records) - len(values)
        pattern = bundle.pattern if key == address else None
        pinned = any(key == pin for pin, _ in bundle.pins)
        yield column_of(key, values, missing, bundle.shape.protocol, pattern=pattern, pinned=pinned)


def _telling(columns: list[Column], shared: dict[GapPlace, GapPlace], address: str) -> set[int]:
    """Return the numbers of the columns whose value is worth asking for.

    The address always is; others when a part of them is literal, or when all they hold occurs elsewhere too.
    """
    uses: dict[GapPlace, set[int]] = {}
    for place, owner in shared.items():
        uses.setdefault(owner, set()).add(place[0])
    telling: set[int] = set()
    for number, column in enumerate(columns):
        if column.pieces is None:
            continue
        places = [(number, gap) for gap in range(len(column.gaps))]
        elsewhere = bool(places) and all(len(uses[shared[place]]) > 1 for place in places)
        if column.key == address or column.says_something or elsewhere:
            telling.add(number)
    return telling


def _mute(column: Column) -> Column:
    return replace(column, pieces=None)


def _asked(column: Column, number: int, names: Mapping[GapPlace, str]) -> AskedProperty | None:
    """Return a property with its literal or template; None for one that cannot be written as valid."""
    texts: list[str] = []
    gap = 0
    for piece in column.pieces or ():
        if isinstance(piece, Gap):
            texts.append(f"{{{names[number, gap]}}}")
            gap += 1
        else:
            texts.append(piece)
    value = "".join(texts)
    if column.key in _ABSOLUTE and ":" not in value.partition("{")[0]:
        return None
    kind = _type(column.key)
    valid = gap or is_valid(kind, value)
    return AskedProperty(column.key, value, None if valid else "string")


def _presence(columns: list[Column], telling: set[int], known: set[str]) -> Iterator[AskedProperty]:
    """Give the properties that are asked for without a value: those always there, then some that often are."""
    rest = [
        column
        for number, column in enumerate(columns)
        if number not in telling and column.key not in known and column.askable and not column.identity
    ]
    rest = [column for column in rest if column.key not in ("e.source", "e.type", *_ABSOLUTE)]
    always = [column for column in rest if column.always]
    often = [column for column in rest if not column.always and column.share >= _OFTEN]
    for column in (always + often)[: max(0, MOST_PROPERTIES - len(known))]:
        kind = _type(column.key)
        yield AskedProperty(column.key, None, "string" if kind not in ("string", "symbol") else None, column.always)


def _type(key: str) -> str:
    """Return the type that a property has when none is written."""
    side, _, path = key.partition(".")
    if side == "e":
        return ATTRIBUTE_TYPES.get(path, "string")
    holder, _, name = path.partition(".")
    for shape in VOCABULARIES.values():
        table = shape.sections.get(holder)
        kind = shape.scalars.get(path) or (table.get(name) if table is not None else None)
        if kind is not None:
            return kind
    return "string"


def _options(draft: Draft) -> dict[str, Any]:
    """Return the protocol options: scalars, lists of named values, and sections that are maps."""
    protocol = VOCABULARIES[draft.bundle.shape.protocol]
    options: dict[str, Any] = {}
    for each in draft.asked:
        if not each.key.startswith("p."):
            continue
        holder, dot, name = each.key[2:].partition(".")
        if not dot:
            options[holder] = each.form()
        elif holder in protocol.lists:
            options.setdefault(holder, []).append({"name": name, **each.form()})
        else:
            options.setdefault(holder, {})[name] = each.form()
    return options


def _schema(bundle: Bundle, hides: Hides) -> Mapping[str, Any] | None:
    """Draft the data schema, when nearly all bodies are JSON and say more than that."""
    bodies = [record for record in bundle.records if record.body]
    documents = [record.document[0] for record in bodies if record.document is not None]
    if not documents or "json" not in bundle.shape.media or len(documents) < _DOCUMENTS * len(bodies):
        return None
    if len(documents) < _DOCUMENTS * len(bundle.records):
        return None
    schema = schema_of(documents, lambda name: hides(name, ""))
    return schema if len(schema) > 1 else None
