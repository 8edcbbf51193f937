"""Draft an xRegistry 1.0 message definition from the common properties of a bundle of records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from catalog.linting.events import is_media_type
from catalog.model import CLOUDEVENTS
from catalog.protocols.properties import ATTRIBUTE_TYPES, PROTOCOL_OPTIONS
from catalog.values import is_timestamp, is_valid
from router.commands.dead_letters.suggesting.bundles import Bundle, Column, Gap, analyze_property
from router.commands.dead_letters.suggesting.sampling import Hides, hide_nothing, looks_like_id, to_singular

# Names for the gaps of a draft, taken from the preceding word; gaps that are always equal share a name.

_MIN_EQUAL_RECORDS: Final = 3
"""Minimum records for gaps that are always equal to share a name."""
_NOT_NAME: Final = re.compile(r"[^A-Za-z0-9_]+")
_VERSION: Final = re.compile(r"v?\d+(?:\.\d+)*|api|rest|rpc|urn|https?", re.IGNORECASE | re.ASCII)
_MAX_NAME: Final = 40
_DATE: Final = re.compile(r"\d{4}-\d{2}", re.ASCII)
GapPlace = tuple[int, int]
"""The number of a column, and of a gap in it."""


def find_shared_gaps(columns: Sequence[Column]) -> dict[GapPlace, GapPlace]:
    """Return for each gap the first gap with the same value in every record, which may be itself."""
    first: dict[tuple[str, ...], GapPlace] = {}
    shared: dict[GapPlace, GapPlace] = {}
    for place, gap in _iter_gaps(columns):
        certain = gap.varies and len(gap.values) >= _MIN_EQUAL_RECORDS and not any("%" in value for value in gap.values)
        shared[place] = first.setdefault(gap.values, place) if certain else place
    return shared


def name_gaps(columns: Sequence[Column], shared: dict[GapPlace, GapPlace]) -> dict[GapPlace, str]:
    """Name the gaps of *columns*, earlier columns first; different gaps have different names."""
    proposals: dict[GapPlace, tuple[int, str]] = {}
    for place, gap in _iter_gaps(columns):
        rank, name = _propose_name(columns[place[0]], gap)
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


def _iter_gaps(columns: Sequence[Column]) -> Iterator[tuple[GapPlace, Gap]]:
    for number, column in enumerate(columns):
        for place, gap in enumerate(column.gaps):
            yield (number, place), gap


def _propose_name(column: Column, gap: Gap) -> tuple[int, str]:
    """Return the rank of a proposed name (smaller is better), and the name."""
    before = to_singular(gap.before)
    if before and not looks_like_id(before) and not _VERSION.fullmatch(before):
        name = _to_identifier(before)
        if name:
            return 0, name
    if column.pieces is not None and len(column.pieces) == 1:
        name = _to_identifier(column.key.rpartition(".")[2].removeprefix("x-").removeprefix("X-"))
        if name and column.key not in ("p.topic", "p.topic_name", "p.path", "p.subject"):
            return 1, name
    if gap.values and _DATE.match(gap.values[0]):
        return 2, "date"
    return 3, "id" if all(map(looks_like_id, gap.values)) else "name"


def _to_identifier(text: str) -> str:
    return _NOT_NAME.sub("_", text).strip("_")[:_MAX_NAME]


# A JSON Schema (2020-12) drafted from documents: the narrowest that is justified and that all of them conform to.

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
FORMAT: Final = "JsonSchema/draft-2020-12"
_MAX_DEPTH: Final = 12
_MAX_MEMBERS: Final = 200
_MAP_MEMBERS: Final = 5
_MAP_SHARE: Final = 0.8
_ENUM_VALUES: Final = 8
_ENUM_RECORDS: Final = 50
_ENUM_TIMES: Final = 10
_ENUM_LENGTH: Final = 40
_FORMAT_TIMES: Final = 3
_ITEMS: Final = 100
"""Maximum items of an array that are examined."""
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9 _.\-]*")
_FORMATS: Final[tuple[tuple[str, Callable[[str], object]], ...]] = (
    ("date-time", is_timestamp),
    ("date", re.compile(r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])", re.ASCII).fullmatch),
    ("uuid", re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}").fullmatch),
    ("uri", re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s<>\"{}|\\^`]+").fullmatch),
    ("email", re.compile(r"[A-Za-z0-9._%+\-]+@[A-Za-z0-9\-]+(?:\.[A-Za-z0-9\-]+)+").fullmatch),
)


def _hide_nothing(name: str) -> bool:
    return False


_TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")


@dataclass(slots=True)
class ObservedValues:
    """The values seen at one location of the documents, in bounded memory.

    ``hides`` selects members whose values must not be shown; ``hidden`` is whether this is inside such a member.
    """

    times: dict[str, int] = field(default_factory=dict)
    members: dict[str, ObservedValues] = field(default_factory=dict)
    map_values: ObservedValues | None = None
    items: ObservedValues | None = None
    texts: dict[str, None] = field(default_factory=dict)
    formats: set[str] = field(default_factory=lambda: {name for name, _ in _FORMATS})
    hides: Callable[[str], bool] = _hide_nothing
    hidden: bool = False

    def add_value(self, value: Any, depth: int = 0) -> None:
        """Record one value."""
        kind = _json_type(value)
        self.times[kind] = self.times.get(kind, 0) + 1
        if kind == "string":
            self._add_text(value)
        elif depth < _MAX_DEPTH and kind == "object":
            self._add_object(value, depth)
        elif depth < _MAX_DEPTH and kind == "array":
            for each in value[:_ITEMS]:
                self.items = self.items or self._make_child(self.hidden)
                self.items.add_value(each, depth + 1)

    def make_schema(self) -> dict[str, Any]:
        """Return the schema of the recorded values."""
        kinds = [kind for kind in _TYPES if kind in self.times]
        if "number" in kinds and "integer" in kinds:
            kinds.remove("integer")
        if not kinds or kinds == ["null"]:
            return {}  # only null was seen, so any other value may follow
        drafted: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
        if "object" in kinds:
            drafted.update(self._make_object_schema())
        if self.items is not None:
            drafted["items"] = self.items.make_schema()
        if "string" in kinds:
            drafted.update(self._make_text_schema(alone=len(kinds) == 1))
        return drafted

    def _add_text(self, text: str) -> None:
        if len(self.texts) <= _ENUM_VALUES:
            self.texts[text if len(text) <= _ENUM_LENGTH else text[: _ENUM_LENGTH + 1]] = None
        self.formats.difference_update([name for name, fits in _FORMATS if name in self.formats and not fits(text)])

    def _add_object(self, value: Mapping[str, Any], depth: int) -> None:
        if self.map_values is None and len(self.members.keys() | value.keys()) > _MAX_MEMBERS:
            self._convert_to_map()
        for name, member in value.items():
            if self.map_values is not None:
                self.map_values.add_value(member, depth + 1)
            else:
                self._get_member(name).add_value(member, depth + 1)

    def _get_member(self, name: str) -> ObservedValues:
        known = self.members.get(name)
        if known is None:
            known = self.members[name] = self._make_child(self.hidden or self.hides(name))
        return known

    def _make_child(self, hidden: bool) -> ObservedValues:
        return ObservedValues(hides=self.hides, hidden=hidden)

    def _convert_to_map(self) -> None:
        self.map_values = merge_observed(self.members.values())
        self.map_values.hides = self.hides
        self.map_values.hidden = self.hidden or any(each.hidden for each in self.members.values())
        self.members = {}

    def _make_object_schema(self) -> dict[str, Any]:
        ids = sum(map(looks_like_id, self.members))
        if self.map_values is None and ids >= _MAP_MEMBERS and ids >= _MAP_SHARE * len(self.members):
            self._convert_to_map()
        if self.map_values is not None:
            return {"additionalProperties": self.map_values.make_schema()}
        if not self.members:
            return {}
        always = [name for name, each in self.members.items() if sum(each.times.values()) == self.times["object"]]
        drafted: dict[str, Any] = {
            "properties": {name: self.members[name].make_schema() for name in sorted(self.members)}
        }
        return {**drafted, "required": sorted(always)} if always else drafted

    def _make_text_schema(self, *, alone: bool) -> dict[str, Any]:
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


def merge_observed(several: Iterable[ObservedValues]) -> ObservedValues:
    """Merge the values seen at several locations."""
    observations = list(several)
    united = ObservedValues(hidden=any(each.hidden for each in observations))
    maps: list[ObservedValues] = []
    items: list[ObservedValues] = []
    members: dict[str, list[ObservedValues]] = {}
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
    united.items = merge_observed(items) if items else None
    if maps or len(members) > _MAX_MEMBERS:
        united.map_values = merge_observed([*maps, *(one for each in members.values() for one in each)])
    else:
        united.members = {name: merge_observed(each) for name, each in members.items()}
    return united


def draft_schema(documents: Iterable[Any], hides: Callable[[str], bool] = _hide_nothing) -> dict[str, Any]:
    """Return a schema that all *documents* conform to, without values of members that *hides* selects.

    Other members are allowed.
    """
    seen = ObservedValues(hides=hides)
    for document in documents:
        seen.add_value(document)
    return {"$schema": DIALECT, **seen.make_schema()}


def _json_type(value: Any) -> str:
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


MAX_PROPERTIES: Final = 32
_MIN_SHARE: Final = 0.05
_MIN_JSON_SHARE: Final = 0.95
"""Minimum share of JSON bodies for a schema to be drafted."""
_ABSOLUTE: Final = ("e.dataschema",)
_URIS: Final = frozenset({"uri", "urireference", "uritemplate"})


@dataclass(frozen=True, slots=True)
class DraftProperty:
    """One property of a draft, written as ``{type, value, required}`` under its key."""

    key: str
    value: str | None = None
    type: str | None = None
    required: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the property as JSON, without its name."""
        written = {"type": self.type, "value": self.value, "required": True if self.required else None}
        return {name: value for name, value in written.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Draft:
    """One drafted definition and its bundle. ``messageid`` is set when the draft is placed in a group."""

    bundle: Bundle
    messageid: str
    datacontenttype: str | None
    properties: tuple[DraftProperty, ...]
    schema: Mapping[str, Any] | None = None

    @property
    def address(self) -> str:
        """The required address or, if there is none, the required event type."""
        by_key = {each.key: each.value for each in self.properties if each.value is not None}
        return by_key.get(self.bundle.records[0].address) or by_key.get("e.type") or ""


def draft_definition(bundle: Bundle, hides: Hides = hide_nothing) -> Draft:
    """Draft the definition of a bundle, without values of body members that *hides* selects."""
    columns = sorted(
        _iter_columns(bundle), key=lambda column: (column.key not in (bundle.records[0].address, "e.type"), column.key)
    )
    shared = find_shared_gaps(columns)
    telling = _find_required_columns(columns, shared, bundle.records[0].address)
    names = name_gaps(
        [column if number in telling else _drop_pieces(column) for number, column in enumerate(columns)], shared
    )
    drafted = [_draft_property(columns[number], number, names) for number in sorted(telling)]
    asked = [each for each in drafted if each is not None]
    asked += _iter_valueless(columns, telling, {each.key for each in asked})
    if bundle.pinned and bundle.shape.media and bundle.records[0].content_key:
        asked.append(DraftProperty(bundle.records[0].content_key, bundle.shape.media))
    media = bundle.shape.media if is_media_type(bundle.shape.media) else None
    media = None if media and media.startswith("application/cloudevents") else media
    return Draft(bundle, "", media, tuple(asked), _draft_body_schema(bundle, hides))


def message_to_json(draft: Draft, schemaxid: str | None) -> dict[str, Any]:
    """Return the message as JSON; *schemaxid* is the xid of its data schema, if any.

    A draft for native records declares the event that they become, with its own type. So it does not match events on
    the same channel, and plain JSON bodies that are events stay events (MATCHING.md#cloudevents).
    """
    shape = draft.bundle.shape
    metadata = {each.key[2:]: each.to_json() for each in draft.properties if each.key.startswith("e.")}
    if not shape.event:
        metadata = {"type": {"value": draft.messageid}}
    # A protocol that an event's draft declares would make it one for native records too.
    options = _make_protocol_options(draft)
    protocol = {} if shape.event and not options else {"protocol": shape.protocol}
    place = f" at {shape.endpoint}" if shape.endpoint else ""
    return {
        "messageid": draft.messageid,
        "description": f"Drafted from {draft.bundle.letter_count} dead letters{place}; review before use.",
        "envelope": CLOUDEVENTS,
        "envelopemetadata": metadata,
        **protocol,
        **({"protocoloptions": options} if options else {}),
        **({"datacontenttype": draft.datacontenttype} if draft.datacontenttype else {}),
        **({"dataschemaformat": FORMAT, "dataschemaxid": schemaxid} if schemaxid else {}),
    }


def _iter_columns(bundle: Bundle) -> Iterator[Column]:
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
        yield analyze_property(key, values, missing, bundle.shape.protocol, pattern=pattern, pinned=pinned)


def _find_required_columns(columns: list[Column], shared: dict[GapPlace, GapPlace], address: str) -> set[int]:
    """Return the numbers of the columns whose value is required.

    These are the address, and columns that have a literal word or only gaps that also occur in other columns.
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
        if column.key == address or column.has_literal_word or elsewhere:
            telling.add(number)
    return telling


def _drop_pieces(column: Column) -> Column:
    return replace(column, pieces=None)


def _draft_property(column: Column, number: int, names: Mapping[GapPlace, str]) -> DraftProperty | None:
    """Return a property with its literal or template; None if it could not be valid."""
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
    kind = _default_type(column.key)
    valid = gap or is_valid(kind, value)
    return DraftProperty(column.key, value, None if valid else "string")


def _iter_valueless(columns: list[Column], telling: set[int], known: set[str]) -> Iterator[DraftProperty]:
    """Yield properties without a required value: those present in all records, then frequent ones."""
    rest = [
        column
        for number, column in enumerate(columns)
        if number not in telling and column.key not in known and column.is_text and not column.is_id
    ]
    rest = [column for column in rest if column.key not in ("e.source", "e.type", *_ABSOLUTE)]
    always = [column for column in rest if column.is_in_all]
    often = [column for column in rest if not column.is_in_all and column.share >= _MIN_SHARE]
    for column in (always + often)[: max(0, MAX_PROPERTIES - len(known))]:
        kind = _default_type(column.key)
        yield DraftProperty(column.key, None, "string" if kind not in ("string", "symbol") else None, column.is_in_all)


def _default_type(key: str) -> str:
    """Return the type of a property that declares none."""
    side, _, path = key.partition(".")
    if side == "e":
        return ATTRIBUTE_TYPES.get(path, "string")
    holder, _, name = path.partition(".")
    for shape in PROTOCOL_OPTIONS.values():
        table = shape.sections.get(holder)
        kind = shape.scalars.get(path) or (table.get(name) if table is not None else None)
        if kind is not None:
            return kind
    return "string"


def _make_protocol_options(draft: Draft) -> dict[str, Any]:
    """Return the protocol options as scalars, lists of named values, and maps."""
    protocol = PROTOCOL_OPTIONS[draft.bundle.shape.protocol]
    options: dict[str, Any] = {}
    for each in draft.properties:
        if not each.key.startswith("p."):
            continue
        holder, dot, name = each.key[2:].partition(".")
        if not dot:
            options[holder] = each.to_json()
        elif holder in protocol.lists:
            options.setdefault(holder, []).append({"name": name, **each.to_json()})
        else:
            options.setdefault(holder, {})[name] = each.to_json()
    return options


def _draft_body_schema(bundle: Bundle, hides: Hides) -> Mapping[str, Any] | None:
    """Draft the data schema; return None unless nearly all bodies are JSON with a common structure."""
    bodies = [record for record in bundle.records if record.body]
    documents = [record.document[0] for record in bodies if record.document is not None]
    if not documents or "json" not in bundle.shape.media or len(documents) < _MIN_JSON_SHARE * len(bodies):
        return None
    if len(documents) < _MIN_JSON_SHARE * len(bundle.records):
        return None
    schema = draft_schema(documents, lambda name: hides(name, ""))
    return schema if len(schema) > 1 else None
