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

from bindings.envelope import ATTRIBUTE_NAME, DATA, EVENT_MEDIA, AttributeRule, attribute_name, header_text
from bindings.kafka.codec import RULE
from bindings.protocols import BINDINGS, binding_of
from catalog.values import media_type_of
from router.rendering.entries import Entries, entries_of
from router.rendering.exact import Source, attribute_of
from router.rendering.texts import Bool, Int, as_text, replaced

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

    ``codes`` are places in ``names``. ``odd`` tells which rows have none here, because the exact reading has to say.
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


def attributes_of_rows(kind: Source, raw: pa.StructArray, given: pa.ListArray, place: pa.Int32Array) -> Attributes:
    """Return the attributes of routed rows; for what the arrays are see :func:`router.rendering.events.event_columns`.

    In rows that are not odd they are those of :func:`router.rendering.exact.attributes_of`, in the same order.
    """
    own = given.is_null().to_numpy(zero_copy_only=False)
    if not own.any():
        return _given(given)
    alone = place.is_null().to_numpy(zero_copy_only=False)
    if kind == "kafka":
        entries, rules = entries_of(pc.struct_field(raw, "headers")), [RULE]
        carried = _carried(entries, rules, np.zeros(len(raw), np.int64), own & alone, "headers.")
    else:
        carried = _carried_by_parts(raw, own & alone)
    carried.odd[own & ~alone] = True
    return carried if own.all() else _joined(_given(given), carried)


def _given(lists: pa.ListArray) -> Attributes:
    """Return attributes that stand as headers of Kafka's binary mode."""
    entries = entries_of(lists)
    names, codes = _numbered([attribute_of(name) for name in entries.names])
    texts, _ = as_text(entries.values)
    attributes = Attributes(
        entries.rows, entries.owners, names, np.append(codes, _ODD)[entries.codes], texts, np.zeros(entries.rows, bool)
    )
    return _sound(attributes, texts.is_null().to_numpy(zero_copy_only=False))


def _carried_by_parts(raw: pa.StructArray, mine: Bool) -> Attributes:
    protocols = pc.struct_field(raw, "protocol").dictionary_encode()
    bindings = [binding_of(name) or BINDINGS["HTTP"] for name in protocols.dictionary.to_pylist()]
    numbers = protocols.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    has_headers = np.array([binding.binary for binding in bindings], bool)[numbers]
    entries = entries_of(pc.struct_field(raw, "properties"))
    return _carried(entries, [binding.rule for binding in bindings], numbers, mine & has_headers, "")


def _carried(entries: Entries, rules: Sequence[AttributeRule], numbers: Int, mine: Bool, prefix: str) -> Attributes:
    """Return the attributes of binary mode, as :meth:`bindings.protocols.Binding.envelope` says without a body.

    *numbers* name each row's rule; *mine* are the rows to be read; *prefix* stands before the names in part keys.
    """
    names, table = _numbered([_attribute(f"{prefix}{name}", rule) for rule in rules for name in entries.names])
    # One more column, which entries without a name fall into.
    codes = np.full((len(rules), len(entries.names) + 1), _ODD)
    codes[:, :-1] = table.reshape(len(rules), -1)
    media = np.zeros(codes.shape, bool)
    media[:, :-1] = [[_is_media(f"{prefix}{name}", rule) for name in entries.names] for rule in rules]
    owners = entries.owners
    found = codes[numbers[owners], entries.codes]
    # A header without a value counts as absent.
    kept = np.flatnonzero((found != _NONE) & mine[owners] & entries.values.is_valid().to_numpy(zero_copy_only=False))
    last = media[numbers[owners[kept]], entries.codes[kept]]
    order = np.argsort(owners[kept] * 2 + last, kind="stable")
    kept, last = kept[order], last[order]
    values = entries.values.take(pa.array(kept))
    texts, _ = as_text(values)
    attributes = Attributes(entries.rows, owners[kept], names, found[kept], texts, np.zeros(entries.rows, bool))
    doubtful = texts.is_null().to_numpy(zero_copy_only=False) | _unusual_kinds(entries, rules, numbers, kept, values)
    doubtful[last] |= _event_media(texts.filter(pa.array(last)))
    encoded = np.array([rule.encoded for rule in rules])[numbers[owners[kept]]] & ~last
    attributes = _decoded(attributes, encoded, doubtful)
    return _events_only(_sound(attributes, doubtful))


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


def _unusual_kinds(
    entries: Entries, rules: Sequence[AttributeRule], numbers: Int, kept: Int, values: pa.BinaryArray
) -> Bool:
    """Return which values are of a kind of their own, or may be: where values are typed, ``NaN`` may be a number."""
    unusual = np.zeros(len(kept), bool)
    if entries.kinds is not None:
        unusual = entries.kinds.is_valid().to_numpy(zero_copy_only=False)[kept]
    if any(rule.typed for rule in rules):
        unusual = unusual | pc.is_in(values, _NO_NUMBERS).to_numpy(zero_copy_only=False)
    return unusual


def _event_media(texts: pa.StringArray) -> Bool:
    """Return which content types are of whole events, whose attributes are in the body."""
    distinct = texts.dictionary_encode()
    events = [
        text is not None and media_type_of(text).startswith(EVENT_MEDIA) for text in distinct.dictionary.to_pylist()
    ]
    found: Bool = np.array([*events, False])[pc.fill_null(distinct.indices, -1).to_numpy(zero_copy_only=False)]
    return found


def _decoded(attributes: Attributes, encoded: Bool, doubtful: Bool) -> Attributes:
    """Return the attributes with header values decoded, but for those that the marks of an encoding are not in."""
    if not encoded.any():
        return attributes
    texts = attributes.texts
    marked = pc.or_(pc.match_substring(texts, "%"), pc.starts_with(texts, '"'))
    at = np.flatnonzero(encoded & pc.fill_null(marked, False).to_numpy(zero_copy_only=False))
    plain = [header_text(text) for text in texts.take(pa.array(at)).to_pylist()]
    doubtful[at] |= np.array([text is None for text in plain], bool)
    return Attributes(
        attributes.rows,
        attributes.owners,
        attributes.names,
        attributes.codes,
        replaced(texts, at, pa.array(plain, pa.string())),
        attributes.odd,
    )


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
