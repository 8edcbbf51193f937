"""Map native records to CloudEvents, in whole batches (MATCHING.md#mapping).

The parts of an attribute are determined once per definition and channel: literal text, placeholders and defaults,
joined. Whether every placeholder is supplied is determined there too, so a definition that can never be mapped is known
before the first record. Attributes that CloudEvents forbids are never sent: a definition that always gives one is
unmappable, a record that gives one becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import is_valid_string
from bindings.envelope import ATTRIBUTE_NAME
from bindings.events import FORBIDDEN_CHARS
from catalog.definitions.constraints import MatchCandidate, parse_cached_template
from catalog.model import Definition, Property, PropertyType
from catalog.schemas.families import inferred_content_type
from catalog.schemas.library import is_absolute
from catalog.templates import TEMPLATE_TYPES, Placeholder
from catalog.values import is_any_timestamp, is_valid, percent_encode, to_text
from router.matching.context import Slot
from router.matching.index.classes import BatchColumns, IntArray, Ragged
from router.matching.winners import WinnerChooser

# The rules of CloudEvents 1.0.2 for attributes: the last check before a mapped event is sent (MATCHING.md#mapping).
#
# Names are lower-case letters and digits, a String has neither control characters nor noncharacters, the core
# attributes are not empty, and each value is valid for its CloudEvents and declared types. Constants are checked once,
# when a definition is compiled; of the others, only values of types that can be invalid. Plain ASCII text passes
# by two reductions over a whole batch.

Bool = npt.NDArray[np.bool_]
Types = tuple[str, ...]
"""Types that a value must be valid for; ``VERSION`` and ``ABSOLUTE`` are our own."""
VERSION: Final = "specversion"
ABSOLUTE: Final = "absolute URI"
"""The type of ``dataschema``: a URI may be relative in a catalog, but not in an event that is sent."""
CORE_TYPES: Final = {"source": "urireference", "dataschema": ABSOLUTE, "time": "timestamp", VERSION: VERSION}
NOT_EMPTY: Final = frozenset({"id", "type", "subject", "datacontenttype", *CORE_TYPES})
RESERVED: Final = frozenset({"data", "data_base64"})
"""Members of the JSON format, which are therefore not names of attributes."""
_SHOWN: Final = 60
_ANY_TEXT: Final = frozenset({"any", "string"})
_SURE_REFERENCE: Final = (
    r"^(?:[A-Za-z][A-Za-z0-9+.\-]*:(?://)?[A-Za-z0-9\-._~/]*|/?[A-Za-z0-9\-._~]+(?:/[A-Za-z0-9\-._~]*)*)$"
)
_SURE: Final = {
    "uri": _SURE_REFERENCE,
    ABSOLUTE: r"^[A-Za-z][A-Za-z0-9+\-]*:(?://)?[A-Za-z0-9\-._~/]+$",
    "urireference": _SURE_REFERENCE,
    "uritemplate": _SURE_REFERENCE,
    "timestamp": (
        r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?"
        r"(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$"
    ),
    "symbol": r"^[!-~]*$",
}
"""Expressions for values that are certainly valid; the others are checked one by one."""


def name_fault(name: str) -> str:
    """Return what is wrong with an attribute's name; empty if nothing is."""
    if name in RESERVED:
        return "the name is reserved for data"
    return "" if ATTRIBUTE_NAME.fullmatch(name) else "not a valid attribute name; use lower-case letters and digits"


def types_of(name: str, declared: PropertyType) -> Types:
    """Return the types that values of an attribute must be valid for, unless any text is."""
    return tuple(dict.fromkeys(each for each in (CORE_TYPES.get(name), declared) if each and each not in _ANY_TEXT))


def value_fault(name: str, types: Types, text: str) -> str:
    """Return what is wrong with an attribute's value; empty if nothing is."""
    if not text and name in NOT_EMPTY:
        return "must not be empty"
    if FORBIDDEN_CHARS.search(text):
        return f"{_quote_short(text)} contains a control character or a noncharacter"
    for each in types:
        if not _is_of_type(each, text):
            return f"{_quote_short(text)} is not a valid {each}"
    return ""


def is_always_valid(name: str, types: Types, text_with: Sequence[str]) -> bool:
    """Whether a template that encodes all its values gives only valid ones.

    ``text_with`` are its expansions with a letter and with an escape for every placeholder. An encoded value has only
    these and other characters that URIs allow wherever they allow both.
    """
    uris = all(each in ("uri", "urireference", "uritemplate", ABSOLUTE) for each in types)
    return uris and not any(value_fault(name, types, text) for text in text_with)


def drop_unusable(values: pa.StringArray) -> pa.StringArray:
    """Return values without those that no attribute may have; a Kafka key of control characters is not a text key."""
    return pc.if_else(pc.and_(is_valid_string(values), pc.not_equal(values, "")), values, pa.scalar(None, pa.string()))


def check_types(values: pa.StringArray, types: Types) -> pa.BooleanArray:
    """Return which values are valid for all of these types; null for a null."""
    are_valid = pa.array(np.ones(len(values), bool))
    for each in types:
        sure = pc.match_substring_regex(values, _SURE[each]) if each in _SURE else pc.equal(values, "1.0")
        are_valid = pc.and_(are_valid, _check_unsure(values, sure, each))
    return are_valid


def _check_unsure(values: pa.StringArray, sure: pa.BooleanArray, kind: str) -> pa.BooleanArray:
    """Check the values that are not certainly valid, each distinct one once."""
    if pc.all(sure, min_count=0).as_py():
        return sure
    doubtful = pc.dictionary_encode(values.filter(pc.invert(sure)))
    verdicts = pa.array([_is_of_type(kind, text) for text in doubtful.dictionary.to_pylist()], pa.bool_())
    return pc.replace_with_mask(sure, pc.fill_null(pc.invert(sure), False), verdicts.take(doubtful.indices.drop_null()))


def _is_of_type(kind: str, text: str) -> bool:
    if kind == ABSOLUTE:
        return is_absolute(text) and is_valid("uri", text)
    return text == "1.0" if kind == VERSION else is_valid(kind, text, bits32=True)


def _quote_short(text: str) -> str:
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return repr(shown)


Default = Literal["id", "time", "datacontenttype", "partitionkey"]
DEFAULTS: Final[tuple[Default, ...]] = ("id", "time", "datacontenttype", "partitionkey")
FALLBACKS: Final = frozenset({"id", "source", "time"})
REQUIRED: Final = frozenset({"id", "source", "type"})
ATTRIBUTES: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_RESERVED: Final = r"[^A-Za-z0-9\-._~]"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an attribute's value: ``text``, or the value of the placeholder ``name``, or a default."""

    text: str = ""
    name: str = ""
    encode: bool = False
    default: Default | None = None


@dataclass(frozen=True, slots=True)
class MappedAttribute:
    """One attribute of a mapped event: its pieces, and the types that its values must be valid for.

    A ``needed`` attribute makes the record unmappable if its default is absent.
    """

    name: str
    pieces: tuple[Piece, ...]
    types: Types = ()
    needed: bool = False

    @property
    def constant(self) -> str | None:
        """The value, if it is the same for every record."""
        if any(piece.name or piece.default for piece in self.pieces):
            return None
        return "".join(piece.text for piece in self.pieces)

    def expand(self, value: str) -> str:
        """Return the attribute with *value* for each placeholder."""
        return "".join(value if piece.name else piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Program:
    """How one definition is mapped on one channel: attributes in order, or the unmappable one and why."""

    attributes: tuple[MappedAttribute, ...] = ()
    content_type: str | None = None
    unmappable: str = ""


@dataclass(frozen=True, slots=True)
class ChannelOrigin:
    """What a channel adds: the default ``source``, and context attributes from settings."""

    source: str
    context: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Defaults:
    """Per row of a batch, the values that the protocol supplies; null where it has none.

    ``id`` and ``time`` are always valid; of the others, invalid values count as absent.
    """

    id: pa.StringArray
    time: pa.StringArray
    datacontenttype: pa.StringArray
    partitionkey: pa.StringArray


def compile_program(
    definition: Definition, supplied: frozenset[str], origin: ChannelOrigin, *, envelope: bool = True
) -> Program:
    """Compile the mapping of a definition, given the names of the placeholders that matching supplies.

    ``envelope`` says whether it declares the CloudEvents envelope on this channel, itself or by default.
    """
    mapped = {"specversion": MappedAttribute("specversion", (Piece("1.0"),))}
    declared = {prop.name: _resolve_uri(prop, definition) for prop in definition.envelopemetadata} if envelope else {}
    for name, prop in declared.items():
        pieces, missing = _declared_pieces(prop, supplied, origin)
        if missing and name not in FALLBACKS:
            return Program(unmappable=f"{name}: nothing supplies {{{missing}}}")
        if pieces and not missing:
            mapped[name] = MappedAttribute(name, pieces, types_of(name, prop.type))
    content = definition.datacontenttype or inferred_content_type(definition.dataschemaformat)
    for name, pieces in _default_pieces(definition, origin).items():
        # Every source has an arrival time, so only records of `match` may lack one.
        needed = name in declared and declared[name].required and name != "time"
        mapped.setdefault(name, MappedAttribute(name, pieces, needed=needed))
    for name, prop in declared.items():
        if (prop.required or name in REQUIRED) and name not in mapped:
            return Program(unmappable=f"{name}: required, but has neither a value nor a default")
    attributes = [_check_attribute(each) for each in mapped.values()]
    fault = next((each for each in attributes if isinstance(each, str)), "")
    valid = tuple(each for each in attributes if isinstance(each, MappedAttribute))
    return Program(unmappable=fault) if fault else Program(valid, content_type=content)


def _check_attribute(attribute: MappedAttribute) -> MappedAttribute | str:
    """Return the attribute without types that it cannot violate, or why it is never valid."""
    fault, constant = name_fault(attribute.name), attribute.constant
    if not fault and constant is not None:
        fault = value_fault(attribute.name, attribute.types or types_of(attribute.name, "any"), constant)
    if fault:
        return f"{attribute.name}: {fault}"
    encoded = all(piece.encode or not piece.name for piece in attribute.pieces)
    probes = [attribute.expand(value) for value in ("a", "%20")]
    if constant is not None or (encoded and is_always_valid(attribute.name, attribute.types, probes)):
        return replace(attribute, types=())
    return attribute


def _resolve_uri(prop: Property, definition: Definition) -> Property:
    """Return a declared ``dataschema`` with the absolute URI that it means, if there is one."""
    return replace(prop, value=definition.schemauri) if prop.name == "dataschema" else prop


def _declared_pieces(prop: Property, supplied: frozenset[str], origin: ChannelOrigin) -> tuple[tuple[Piece, ...], str]:
    """Return the pieces of a declared attribute, and the first placeholder that nothing supplies."""
    if prop.value is None or (prop.type == "timestamp" and is_any_timestamp(prop.value)):
        return (), ""
    text = to_text(prop.value)
    template = parse_cached_template(text, False)
    if prop.type not in TEMPLATE_TYPES or template.is_literal:
        return (Piece(text),), ""
    pieces: list[Piece] = []
    encode = prop.type == "uritemplate"
    for part in template.parts:
        if not isinstance(part, Placeholder):
            pieces.append(Piece(part))
        elif part.name in supplied:
            pieces.append(Piece(name=part.name, encode=encode))
        elif part.name in origin.context:
            value = origin.context[part.name]
            pieces.append(Piece(percent_encode(value) if encode else value))
        else:
            return (), part.name
    return tuple(pieces), ""


def _default_pieces(definition: Definition, origin: ChannelOrigin) -> dict[str, tuple[Piece, ...]]:
    pieces: dict[str, tuple[Piece, ...]] = {name: (Piece(default=name),) for name in DEFAULTS}
    pieces["source"] = (Piece(origin.source),)
    pieces["type"] = (Piece(definition.messageid),)
    if definition.schemauri and not any(prop.name == "dataschema" for prop in definition.envelopemetadata):
        pieces["dataschema"] = (Piece(definition.schemauri),)
    return pieces


class Mapper:
    """Maps the native rows of a batch. One per plan; programs are compiled on first use and cached."""

    def __init__(
        self, chooser: WinnerChooser, targets: Sequence[MatchCandidate], origins: Sequence[ChannelOrigin]
    ) -> None:
        self._chooser = chooser
        self._targets = targets
        self._origins = origins
        self._programs: dict[tuple[int, int], int] = {}
        self.programs: list[Program] = []
        self._slots: list[dict[str, Slot]] = []
        self._constants: dict[int, list[str | None]] = {}
        self._arrays: _ProgramArrays | None = None

    def program_number(self, target: int, channel: int) -> int:
        """Return the number of the program that maps this target's native records on that channel."""
        known = self._programs.get((target, channel))
        if known is None:
            slots = {slot.name: slot for slot in self._chooser.slots(target, event=False)}
            seen = self._targets[target]
            origin = self._origins[channel]
            compiled = compile_program(seen.definition, frozenset(slots), origin, envelope=seen.envelope)
            known = self._programs[(target, channel)] = len(self.programs)
            self.programs.append(compiled)
            self._slots.append(slots)
            self._arrays = None
        return known

    def map_record(
        self, target: int, channel: int, context: Mapping[str, str | None], defaults: Sequence[str | None]
    ) -> dict[str, str] | None:
        """Return what :meth:`map` does for one record, None if it is unmappable.

        *context* has the values of its placeholders, *defaults* are in the order of :data:`DEFAULTS`.
        """
        number = self.program_number(target, channel)
        program = self.programs[number]
        constants = self._constants.get(number)
        if constants is None:
            constants = self._constants[number] = [each.constant for each in program.attributes]
        identity, time, content, key = defaults
        supplied = (identity, time, _usable(content) or program.content_type, _usable(key))
        values: dict[str, str | None] = dict(zip(DEFAULTS, supplied, strict=True))
        mapped: dict[str, str] = {}
        for attribute, text in zip(program.attributes, constants, strict=True):
            if text is None:
                text = _join_pieces(attribute.pieces, context, values)
                if text is not None and value_fault(attribute.name, attribute.types, text):
                    return None
            if text is not None:
                mapped[attribute.name] = text
            elif attribute.needed:
                return None
        return None if program.unmappable else mapped

    def map(
        self, columns: BatchColumns, rows: IntArray, programs: IntArray, defaults: Defaults
    ) -> tuple[pa.ListArray, dict[int, str]]:
        """Return, for each of *rows*, its attributes in order; unmappable programs give an empty list.

        Rows whose values do not make a valid event are returned by index in *rows*, with the attribute and why.
        """
        arrays = self._program_arrays()
        owners, attributes = arrays.attributes.expand(programs)
        holders, pieces = arrays.pieces.expand(attributes)
        values = self._piece_values(arrays, columns, rows, programs, owners[holders], pieces, defaults)
        counts = arrays.pieces.counts[attributes]
        offsets = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
        joined = pc.binary_join(pa.ListArray.from_arrays(offsets, values), "")
        faults = arrays.find_faults(joined, attributes, owners)
        present = pc.is_valid(joined)
        names = arrays.names.take(pa.array(attributes)).filter(present)
        entries = pa.StructArray.from_arrays([names, joined.filter(present).cast(pa.binary())], names=["key", "value"])
        per_row = np.bincount(owners[present.to_numpy(zero_copy_only=False)], minlength=len(rows))
        starts = pa.array(np.concatenate(([0], np.cumsum(per_row))).astype(np.int32))
        return pa.ListArray.from_arrays(starts, entries), faults

    def _program_arrays(self) -> _ProgramArrays:
        if self._arrays is None:
            self._arrays = _ProgramArrays(self.programs, self._slots, self._chooser)
        return self._arrays

    def _piece_values(
        self,
        arrays: _ProgramArrays,
        columns: BatchColumns,
        rows: IntArray,
        programs: IntArray,
        owners: IntArray,
        pieces: IntArray,
        defaults: Defaults,
    ) -> pa.StringArray:
        """Return the value of each piece in the row of its owner (owners index into *rows*)."""
        kinds = arrays.kinds[pieces]
        indices = np.full(len(pieces), -1, np.int64)
        texts = kinds == _TEXT
        indices[texts] = arrays.arguments[pieces[texts]]
        slots = np.flatnonzero(kinds == _SLOT)
        taken = self._chooser.slot_values(columns, rows[owners[slots]], arrays.arguments[pieces[slots]])
        taken = _encode_percent(taken, arrays.encodes[pieces[slots]])
        indices[slots] = len(arrays.texts) + np.arange(len(slots))
        pools = [arrays.texts, taken]
        start = len(arrays.texts) + len(taken)
        for number, column in enumerate(self._default_columns(arrays, rows, programs, defaults)):
            mine = np.flatnonzero((kinds == _DEFAULT) & (arrays.arguments[pieces] == number))
            indices[mine] = start + owners[mine]
            pools.append(column)
            start += len(column)
        return pa.concat_arrays(pools).take(pa.array(indices))

    def _default_columns(
        self, arrays: _ProgramArrays, rows: IntArray, programs: IntArray, defaults: Defaults
    ) -> list[pa.StringArray]:
        at = pa.array(rows)
        types = arrays.content_types.take(pa.array(programs))
        content = pc.coalesce(drop_unusable(defaults.datacontenttype.take(at)), types)
        return [defaults.id.take(at), defaults.time.take(at), content, drop_unusable(defaults.partitionkey.take(at))]


_TEXT, _SLOT, _DEFAULT = 0, 1, 2


class _ProgramArrays:
    """Programs as flat arrays: programs -> attributes -> pieces."""

    def __init__(
        self, programs: Sequence[Program], slots: Sequence[Mapping[str, Slot]], chooser: WinnerChooser
    ) -> None:
        lists: list[list[int]] = []
        attributes: list[MappedAttribute] = []
        piece_lists: list[list[int]] = []
        texts: dict[str, int] = {}
        flat: list[tuple[int, int, bool]] = []
        for program, named in zip(programs, slots, strict=True):
            lists.append(list(range(len(attributes), len(attributes) + len(program.attributes))))
            for attribute in program.attributes:
                attributes.append(attribute)
                piece_lists.append(list(range(len(flat), len(flat) + len(attribute.pieces))))
                flat.extend(_flatten_piece(piece, named, texts, chooser) for piece in attribute.pieces)
        self.attributes = Ragged(lists)
        self.pieces = Ragged(piece_lists)
        self._mapped = attributes
        self.names = pa.array([attribute.name for attribute in attributes], pa.string())
        self._types = list(dict.fromkeys(attribute.types for attribute in attributes))
        self._type_numbers = np.array([self._types.index(attribute.types) for attribute in attributes], np.int64)
        self._needed = np.array([attribute.needed for attribute in attributes], bool)
        self.texts = pa.array(list(texts), pa.string())
        self.content_types = pa.array([program.content_type for program in programs], pa.string())
        self.kinds = np.array([kind for kind, _, _ in flat], np.int64)
        self.arguments = np.array([argument for _, argument, _ in flat], np.int64)
        self.encodes = np.array([encode for _, _, encode in flat], bool)

    def find_faults(self, values: pa.StringArray, attributes: IntArray, owners: IntArray) -> dict[int, str]:
        """Return per owner the first of its values that violates a rule, and which rule."""
        bad = pc.fill_null(pc.invert(is_valid_string(values)), False).to_numpy(zero_copy_only=False).copy()
        bad |= self._needed[attributes] & pc.is_null(values).to_numpy(zero_copy_only=False)
        for number, types in enumerate(self._types):
            places = np.flatnonzero(self._type_numbers[attributes] == number) if types else ()
            if len(places):
                held = pc.fill_null(check_types(values.take(pa.array(places)), types), True)
                bad[places] |= ~held.to_numpy(zero_copy_only=False)
        faults: dict[int, str] = {}
        for place in np.flatnonzero(bad).tolist():
            attribute, text = self._mapped[int(attributes[place])], values[place].as_py()
            absent = "required, but has neither a value nor a default"
            fault = absent if text is None else value_fault(attribute.name, attribute.types, text)
            faults.setdefault(int(owners[place]), f"{attribute.name}: {fault}")
        return faults


def _flatten_piece(
    piece: Piece, named: Mapping[str, Slot], texts: dict[str, int], chooser: WinnerChooser
) -> tuple[int, int, bool]:
    if piece.default is not None:
        return _DEFAULT, DEFAULTS.index(piece.default), False
    if piece.name:
        return _SLOT, chooser.slot_number(named[piece.name]), piece.encode
    return _TEXT, texts.setdefault(piece.text, len(texts)), False


def _usable(text: str | None) -> str | None:
    """Return a text that an attribute may have; see :func:`drop_unusable`."""
    return None if not text or FORBIDDEN_CHARS.search(text) else text


def _join_pieces(
    pieces: Sequence[Piece], context: Mapping[str, str | None], defaults: Mapping[str, str | None]
) -> str | None:
    """Return the value of an attribute; None if a piece has none."""
    texts: list[str] = []
    for piece in pieces:
        text: str | None = piece.text
        if piece.default is not None:
            text = defaults[piece.default]
        elif piece.name:
            text = context[piece.name]
        if text is None:
            return None
        texts.append(percent_encode(text) if piece.encode else text)
    return "".join(texts)


def _encode_percent(values: pa.StringArray, encodes: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.StringArray:
    reserved = pc.fill_null(pc.match_substring_regex(values, _RESERVED), False).to_numpy(zero_copy_only=False)
    where = reserved & encodes
    if not where.any():
        return values
    replacement = [percent_encode(values[int(at)].as_py()) for at in np.flatnonzero(where)]
    return pc.replace_with_mask(values, pa.array(where), pa.array(replacement, pa.string()))
