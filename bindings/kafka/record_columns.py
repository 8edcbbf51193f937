"""The record columns that matching needs, read from whole batches of Kafka records.

Columns decide most records. Others (an event in a JSON body, a batch, repeated or malformed names, values that are not
text) are *fallback* rows: the exact codec reads their whole row. A fallback row only costs time,
so a condition may mark a row needlessly, but must never miss one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import (
    Bool,
    Entries,
    any_true,
    decode_utf8,
    encode_base64,
    find_invalid_strings,
    is_not_null,
    is_valid_string,
    which_meet,
)
from bindings.columns.envelopes import may_be_events
from bindings.envelope import ATTRIBUTE_NAME, DATA, REQUIRED
from bindings.parts import CODING_HEADER

ENTRIES: Final = "headers"
SOURCE_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        (ENTRIES, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""Rows as the codec expects them: Spark's Kafka source with ``timestamp`` in milliseconds."""
HEADER: Final = "p.headers."
HEADER_BYTES: Final = "b.headers."
ATTRIBUTE: Final = "ce_"
"""Prefix of attributes in Kafka's binary mode. A stray header with this prefix would become part of the event."""
CONTENT_TYPE: Final = "content-type"
VERSION: Final = "ce_specversion"
LINEAGE: Final = "xrouter-"
"""Prefix of the headers this router adds. Those of an earlier router are not passed on."""
# Python strips its own white space before a media type; here it is all that is not visible ASCII.
_EVENT_MEDIA: Final = r"(?i)^[^!-~]*application/cloudevents"
_JSON_MEDIA: Final = r"(?is)^[^!-~]*(application/json[^!-~]*(;.*)?)?$"


@dataclass(frozen=True, slots=True)
class KafkaColumns:
    """The columns of a batch: texts by property, and which rows need the exact codec.

    ``texts`` are by ``e.NAME``, ``p.PATH``, ``b.PATH`` and ``d``; ``content`` is the content type,
    ``content_codings`` the content coding. ``events`` marks the rows that are CloudEvents in binary mode.
    """

    texts: dict[str, pa.StringArray]
    content: pa.StringArray
    events: Bool
    odd: Bool
    entries: Entries

    @property
    def content_codings(self) -> pa.StringArray:
        return decode_utf8(self.entries.values_at(self.entries.first_entries(CODING_HEADER)))


class KafkaColumnReader:
    """Reads the columns of Kafka rows for the properties that a plan uses."""

    def __init__(self, keys: Iterable[str], *, sniffs: bool) -> None:
        """``sniffs``: some channel accepts an event in a JSON body without its media type."""
        self._keys = tuple(dict.fromkeys(keys))
        self.sniffs = sniffs
        headers = (key for key in self._keys if key.startswith((HEADER, HEADER_BYTES)))
        self._constrained = frozenset(key[len(HEADER) :] for key in headers)
        self._texts = sorted(key[len(HEADER) :] for key in self._keys if key.startswith(HEADER))
        self._needs_key = any(key in ("p.key", "p.key_base64") for key in self._keys)

    def read_columns(self, rows: pa.RecordBatch) -> KafkaColumns:
        """Return the columns of rows of ``SOURCE_SCHEMA``."""
        seen = _CachedBatch(rows)
        texts = {key: text for key in self._keys if (text := seen.property_column(key)) is not None}
        version = seen.text_column(VERSION)
        events = is_not_null(version)
        odd = any_true(self._iter_fallback_rules(seen, version, events), rows.num_rows)
        return KafkaColumns(texts, seen.text_column(CONTENT_TYPE), events, odd, seen.entries)

    def _iter_fallback_rules(self, seen: _CachedBatch, version: pa.StringArray, events: Bool) -> Iterable[Bool]:
        entries, rows = seen.entries, seen.rows
        yield which_meet(seen.text_column(CONTENT_TYPE), lambda media: pc.match_substring_regex(media, _EVENT_MEDIA))
        for name in dict.fromkeys((VERSION, CONTENT_TYPE, *self._texts)):
            yield (seen.first_entries(name) >= 0) & ~is_not_null(seen.text_column(name))
        yield entries.rows_with(entries.find_entries(_needs_exact_codec))
        # If a header repeats, the first one with a value counts.
        yield entries.rows_with_repeats(entries.find_entries(self._is_decisive_name), entries.codes)
        attributes = entries.find_entries(lambda name: name.startswith(ATTRIBUTE))
        # A native record must not pass these on: they would describe the event that it becomes.
        yield entries.rows_with(attributes) & ~events
        yield entries.rows_with(find_invalid_strings(entries.values, attributes))
        yield events & which_meet(seen.text_column(CONTENT_TYPE), lambda media: pc.invert(is_valid_string(media)))
        yield events & ~which_meet(version, lambda texts: pc.equal(texts, "1.0"))
        for name in REQUIRED:
            filled = pc.fill_null(pc.greater(pc.binary_length(seen.text_column(f"{ATTRIBUTE}{name}")), 0), False)
            yield events & ~filled.to_numpy(zero_copy_only=False)
        if self._needs_key:
            yield is_not_null(rows.column("key")) & ~is_not_null(seen.key_column)
        if self.sniffs:
            yield self._may_be_event(seen, events)

    def _may_be_event(self, seen: _CachedBatch, events: Bool) -> Bool:
        media = seen.text_column(CONTENT_TYPE)
        plain = which_meet(media, lambda texts: pc.match_substring_regex(texts, _JSON_MEDIA)) | ~is_not_null(media)
        at = np.flatnonzero(~events & plain)
        sniffable = np.zeros(len(events), bool)
        sniffable[at] = may_be_events(seen.rows.column("value").take(pa.array(at)))
        return sniffable

    def _is_decisive_name(self, name: str) -> bool:
        return name in self._constrained or name == CONTENT_TYPE or name.startswith(ATTRIBUTE)


class _CachedBatch:
    """A batch, with a cache of the columns that several conditions use."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows
        self.entries = Entries(rows.column(ENTRIES))
        self.first_entries = cache(self.entries.first_entries)
        self._texts: dict[str, pa.StringArray] = {}

    def text_column(self, name: str) -> pa.StringArray:
        """Return the text of each row's first entry with that name; null if it is missing, empty, or not UTF-8."""
        if name not in self._texts:
            self._texts[name] = decode_utf8(self.entries.values_at(self.first_entries(name)))
        return self._texts[name]

    @cached_property
    def key_column(self) -> pa.StringArray:
        """The key as text; null for none and for bytes that are not UTF-8."""
        return decode_utf8(self.rows.column("key"))

    def property_column(self, key: str) -> pa.StringArray | None:
        """Return a property as a column: ``e.NAME``, ``p.PATH``, ``b.PATH`` or ``d``; None if Kafka has
        none.
        """
        if key in ("e.datacontenttype", "d", f"{HEADER}{CONTENT_TYPE}"):
            return self.text_column(CONTENT_TYPE)
        if key.startswith("e."):
            return self.text_column(f"{ATTRIBUTE}{key[2:]}")
        if key.startswith(HEADER):
            return self.text_column(key.removeprefix(HEADER))
        if key.startswith(HEADER_BYTES):
            return encode_base64(self.entries.values_at(self.first_entries(key.removeprefix(HEADER_BYTES))))
        return self._member_column(key)

    def _member_column(self, key: str) -> pa.StringArray | None:
        if key == "p.key":
            return self.key_column
        if key in ("p.key_base64", "b.key"):
            return encode_base64(self.rows.column("key"))
        if key in ("p.topic", "p.partition"):
            return self.rows.column(key[2:]).cast(pa.string())
        if key in ("b.topic", "b.partition"):
            return encode_base64(self.rows.column(key[2:]).cast(pa.string()).cast(pa.binary()))
        return None


def _needs_exact_codec(name: str) -> bool:
    """Whether the exact codec must read a record with a header of that name."""
    if name.startswith(ATTRIBUTE):
        attribute = name.removeprefix(ATTRIBUTE)
        return not ATTRIBUTE_NAME.fullmatch(attribute) or attribute == DATA
    return name.startswith(LINEAGE) or (name != CONTENT_TYPE and name.lower() == CONTENT_TYPE)
