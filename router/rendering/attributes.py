"""The attributes of many events at once: those that outcomes give, else what the records themselves carry.

Columns settle ordinary rows. A row is *odd* where they may not: repeated or malformed names, values that are no UTF-8,
media types of whole events. Being odd costs time and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.entries import Bool, Entries, Int
from bindings.envelope import ATTRIBUTE_NAME, DATA, EVENT_MEDIA, AttributeRule, attribute_name, header_text
from bindings.kafka.codec import RULE
from bindings.protocols import BINDINGS, binding_of
from catalog.values import media_type_of
from router.rendering.exact import Source, attribute_of
from router.rendering.texts import as_text, replaced

CONTENT_TYPE: Final = "datacontenttype"
_VERSION: Final = "specversion"
_NONE: Final = -1
"""The code of what is no attribute."""
_ODD: Final = -2
"""The code of what the exact reading has to look at."""
_NO_NUMBERS: Final = pa.array([b"NaN", b"Infinity", b"-Infinity"])


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of *rows* events, in the order of the rows and within a row as the event has them.

    ``codes`` are places in ``names``. ``odd`` marks the rows that have none here: the exact reading decides.
    """

    rows: int
    owners: Int
    names: tuple[str, ...]
    codes: Int
    texts: pa.StringArray
    odd: Bool

    def of(self, name: str) -> Bool:
        """Return which entries are of that attribute."""
        entries: Bool = self.codes == (self.names.index(name) if name in self.names else _NONE)
        return entries


@dataclass(frozen=True, slots=True)
class _Carriers:
    """Entries that may carry attributes: ``numbers`` name each row's rule, *prefix* stands before names in part keys.

    ``kinds`` are those of parts (:mod:`bindings.parts`), None where all values are texts.
    """

    entries: Entries
    rules: Sequence[AttributeRule]
    numbers: Int
    prefix: str
    kinds: pa.StringArray | None = None

    def unusual(self, kept: Int, values: pa.BinaryArray) -> Bool:
        """Return which of the entries *kept* are of a kind of their own, or may be: ``NaN`` where values are typed."""
        unusual = np.zeros(len(kept), bool)
        if self.kinds is not None and self.kinds.null_count < len(self.kinds):
            unusual |= self.kinds.is_valid().to_numpy(zero_copy_only=False)[kept]
        if any(rule.typed for rule in self.rules):
            unusual |= pc.is_in(values, _NO_NUMBERS).to_numpy(zero_copy_only=False)
        return unusual


def attributes_of_rows(kind: Source, raw: pa.StructArray, given: pa.ListArray, place: pa.Int32Array) -> Attributes:
    """Return the attributes of routed rows; for what the arrays are see :func:`router.rendering.events.event_columns`.

    In rows that are not odd they are those of :func:`router.rendering.exact.attributes_of`, in the same order.
    """
    own = given.is_null().to_numpy(zero_copy_only=False)
    if not own.any():
        return _given(given)
    alone = place.is_null().to_numpy(zero_copy_only=False)
    if kind == "kafka":
        entries = Entries(pc.struct_field(raw, "headers"))
        carried = _carried(_Carriers(entries, [RULE], np.zeros(len(raw), np.int64), "headers."), own & alone)
    else:
        carried = _carried_by_parts(raw, own & alone)
    carried.odd[own & ~alone] = True
    return carried if own.all() else _joined(_given(given), carried)


def _given(lists: pa.ListArray) -> Attributes:
    """Return attributes that stand as headers of Kafka's binary mode."""
    entries = Entries(lists)
    names, codes = _numbered([attribute_of(name) for name in entries.names])
    texts, _ = as_text(entries.values)
    attributes = Attributes(
        entries.rows, entries.owners, names, codes[entries.codes], texts, np.zeros(entries.rows, bool)
    )
    return _sound(attributes, texts.is_null().to_numpy(zero_copy_only=False))


def _carried_by_parts(raw: pa.StructArray, mine: Bool) -> Attributes:
    protocols = pc.fill_null(pc.struct_field(raw, "protocol"), "").dictionary_encode()
    bindings = [binding_of(name) or BINDINGS["HTTP"] for name in protocols.dictionary.to_pylist()]
    numbers = protocols.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    has_headers = np.array([binding.binary for binding in bindings], bool)[numbers]
    lists = pc.struct_field(raw, "properties")
    rules, kinds = [binding.rule for binding in bindings], lists.flatten().field("type")
    return _carried(_Carriers(Entries(lists), rules, numbers, "", kinds), mine & has_headers)


def _carried(carriers: _Carriers, mine: Bool) -> Attributes:
    """Return the attributes of binary mode in rows that are *mine*, as ``Binding.envelope`` has them without a body."""
    entries, rules, numbers = carriers.entries, carriers.rules, carriers.numbers
    pairs, places = entries.meanings(numbers)
    asked = [(f"{carriers.prefix}{name}", rules[number]) for number, name in pairs]
    names, codes = _numbered([_attribute(key, rule) for key, rule in asked])
    entry_codes = codes[places]
    # A header without a value counts as absent.
    there = entries.values.is_valid().to_numpy(zero_copy_only=False)
    kept = np.flatnonzero((entry_codes != _NONE) & mine[entries.owners] & there)
    last = np.array([_is_media(key, rule) for key, rule in asked], bool)[places[kept]]
    order = np.argsort(entries.owners[kept] * 2 + last, kind="stable")
    kept, last = kept[order], last[order]
    values = entries.values.take(pa.array(kept))
    texts, _ = as_text(values)
    doubtful = texts.is_null().to_numpy(zero_copy_only=False) | carriers.unusual(kept, values)
    doubtful[last] |= _event_media(texts.filter(pa.array(last)))
    encoded = np.array([rule.encoded for rule in rules], bool)[numbers[entries.owners[kept]]] & ~last
    texts = _decoded(texts, encoded, doubtful)
    odd = np.zeros(entries.rows, bool)
    return _events_only(
        _sound(Attributes(entries.rows, entries.owners[kept], names, entry_codes[kept], texts, odd), doubtful)
    )


def _attribute(key: str, rule: AttributeRule) -> str | int:
    """Return the attribute that parts of that key give, or the code of none or of odd."""
    if _is_media(key, rule):
        return CONTENT_TYPE
    name = attribute_name(key, rule)
    if name is None or (name == CONTENT_TYPE and not rule.own_datacontenttype):
        return _NONE
    if name == DATA or not ATTRIBUTE_NAME.fullmatch(name):
        return _ODD if rule.strict else _NONE
    return name


def _is_media(key: str, rule: AttributeRule) -> bool:
    return key == rule.content_type or key.lower() == rule.content_type == "headers.content-type"


def _numbered(attributes: Sequence[str | int]) -> tuple[tuple[str, ...], Int]:
    """Return the names among these, and for each its place there; codes stay what they are."""
    places: dict[str, int] = {}
    codes = [each if isinstance(each, int) else places.setdefault(each, len(places)) for each in attributes]
    return tuple(places), np.array(codes, np.int64)


def _event_media(texts: pa.StringArray) -> Bool:
    """Return which content types are of whole events, whose attributes are in the body."""
    distinct = texts.dictionary_encode()
    events = [
        text is not None and media_type_of(text).startswith(EVENT_MEDIA) for text in distinct.dictionary.to_pylist()
    ]
    whole: Bool = np.array([*events, False])[pc.fill_null(distinct.indices, -1).to_numpy(zero_copy_only=False)]
    return whole


def _decoded(texts: pa.StringArray, encoded: Bool, doubtful: Bool) -> pa.StringArray:
    """Return header values decoded, of which most have none of the marks of an encoding."""
    if not encoded.any():
        return texts
    marked = pc.or_(pc.match_substring(texts, "%"), pc.starts_with(texts, '"'))
    at = np.flatnonzero(encoded & pc.fill_null(marked, False).to_numpy(zero_copy_only=False))
    plain = [header_text(text) for text in texts.take(pa.array(at)).to_pylist()]
    doubtful[at] |= np.array([text is None for text in plain], bool)
    return replaced(texts, at, pa.array(plain, pa.string()))


def _sound(attributes: Attributes, doubtful: Bool) -> Attributes:
    """Return the attributes without those of rows that are odd: with a doubtful entry, or one name twice."""
    owners, codes, odd = attributes.owners, attributes.codes, attributes.odd
    odd[owners[doubtful | (codes == _ODD)]] = True
    width = len(attributes.names) - _ODD
    ordered = np.sort(owners * width + codes - _ODD)
    odd[ordered[1:][ordered[1:] == ordered[:-1]] // width] = True
    return _kept(attributes, ~odd[owners]) if odd.any() else attributes


def _events_only(attributes: Attributes) -> Attributes:
    """Return the attributes without those of rows that are no events in binary mode."""
    events = np.zeros(attributes.rows, bool)
    events[attributes.owners[attributes.of(_VERSION)]] = True
    kept = events[attributes.owners]
    return attributes if kept.all() else _kept(attributes, kept)


def _kept(attributes: Attributes, kept: Bool) -> Attributes:
    return Attributes(
        attributes.rows,
        attributes.owners[kept],
        attributes.names,
        attributes.codes[kept],
        attributes.texts.filter(pa.array(kept)),
        attributes.odd,
    )


def _joined(one: Attributes, other: Attributes) -> Attributes:
    """Return the attributes of two groups of rows of one batch."""
    names, codes = _numbered((*one.names, *other.names))
    owners = np.concatenate((one.owners, other.owners))
    order = np.argsort(owners, kind="stable")
    mine, others = codes[: len(one.names)], codes[len(one.names) :]
    return Attributes(
        one.rows,
        owners[order],
        names,
        np.concatenate((mine[one.codes], others[other.codes]))[order],
        pa.concat_arrays([one.texts, other.texts]).take(pa.array(order)),
        one.odd | other.odd,
    )
