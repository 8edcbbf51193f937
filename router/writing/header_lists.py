"""Lists of headers, and texts in them, for whole batches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.texts import raw
from bindings.entries import Bool, Entries
from router.judging.carried import HEADERS
from router.matching.index.ragged import spread

_ESCAPED: Final = re.compile(r'[\x00-\x1f"\\]')
_ESCAPED_RE2: Final = r'[\x00-\x1f"\\]'
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def lists_of(named: Mapping[str, pa.StringArray | str | None], rows: int, only: Mapping[str, Bool]) -> pa.ListArray:
    """Return a header list per row with these names and values, in order; a null value stays a header without one.

    *only* maps some of the names to the rows that have such a header; all rows have the others.
    """
    texts = [each if isinstance(each, pa.Array) else pa.array([each] * rows, pa.string()) for each in named.values()]
    there = np.ones((rows, len(named)), bool)
    for place, name in enumerate(named):
        if name in only:
            there[:, place] = only[name]
    owners, names = np.nonzero(there)
    values = pa.concat_arrays(texts).take(pa.array(names * rows + owners)).cast(pa.binary())
    entries = pa.StructArray.from_arrays([pa.array(list(named)).take(pa.array(names)), values], names=["key", "value"])
    offsets = np.concatenate(([0], np.cumsum(there.sum(1)))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), entries).cast(HEADERS)


def joined(one: pa.ListArray, other: pa.ListArray) -> pa.ListArray:
    """Return per row the entries of one list and then those of the other; a null list has none."""
    lengths = (pc.fill_null(pc.list_value_length(each), 0).cast(pa.int64()) for each in (one, other))
    counts = [each.to_numpy(zero_copy_only=False) for each in lengths]
    pool = pa.concat_arrays([one.flatten(), other.flatten()])
    offsets = np.concatenate(([0], np.cumsum(counts[0] + counts[1])))
    # Entries of the first list stand at the beginning of each row's share, those of the other behind them.
    firsts = np.cumsum(counts[0]) - counts[0]
    others = np.cumsum(counts[1]) - counts[1] + int(counts[0].sum())
    indices = np.empty(int(offsets[-1]), np.int64)
    indices[spread(offsets[:-1], counts[0])[1]] = spread(firsts, counts[0])[1]
    indices[spread(offsets[:-1] + counts[0], counts[1])[1]] = spread(others, counts[1])[1]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pool.take(pa.array(indices)))


def without(lists: pa.ListArray, name: str) -> pa.ListArray:
    """Return header lists without the first entry of that name; a null list becomes an empty one."""
    entries = Entries(lists)
    kept = np.ones(len(entries.codes), bool)
    first = entries.first(name)
    kept[first[first >= 0]] = False
    counts = np.bincount(entries.owners[kept], minlength=len(lists))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), lists.flatten().filter(pa.array(kept)))


def context_json(contexts: pa.MapArray) -> pa.StringArray:
    """Return context attributes as JSON objects, as Spark writes them."""
    if contexts.items.null_count:
        return pa.array([_object(dict(each or ())) for each in contexts.to_pylist()], pa.string())
    bounds = contexts.offsets.to_numpy().astype(np.int64)
    counts, entries = np.diff(bounds), int(bounds[-1] - bounds[0])
    names = contexts.keys.slice(bounds[0], entries).dictionary_encode()
    heads = [pc.binary_join_element_wise(start, _escaped(names.dictionary), '":"', "") for start in ('{"', '","')]
    pool = pa.concat_arrays([*heads, pa.array(['"}', "{}"]), _escaped(contexts.items.slice(bounds[0], entries))])
    several, ends = len(heads[0]), 2 * len(heads[0])
    # The pieces of a row are a name and a value for each attribute, and an end. Taken in order they lie one behind the
    # other, so that the text of a row is where those of its pieces are.
    starts = 2 * (bounds - bounds[0]) + np.arange(len(bounds))
    owners = np.repeat(np.arange(len(counts)), counts)
    heads_at = 2 * np.arange(entries) + owners
    pieces = np.empty(int(starts[-1]), np.int64)
    pieces[heads_at] = names.indices.to_numpy() + several
    pieces[heads_at + 1] = ends + 2 + np.arange(entries)
    pieces[starts[:-1][counts > 0]] -= several
    pieces[starts[1:] - 1] = np.where(counts > 0, ends, ends + 1)
    texts = pool.take(pa.array(pieces))
    return pa.StringArray.from_buffers(len(counts), pa.py_buffer(raw(texts)[1][starts]), texts.buffers()[2])


def _escaped(texts: pa.StringArray) -> pa.StringArray:
    """Return texts, none of them null, as they stand between the quotes of JSON."""
    data, bounds = raw(texts)
    held = data[bounds[0] : bounds[-1]]
    if not ((held < ord(" ")) | (held == ord('"')) | (held == ord("\\"))).any():
        return texts
    special = pc.match_substring_regex(texts, _ESCAPED_RE2)
    changed = [_escaped_text(text) for text in texts.filter(special).to_pylist()]
    return pc.replace_with_mask(texts, special, pa.array(changed, pa.string()))


def _escaped_text(text: str) -> str:
    return _ESCAPED.sub(lambda match: _SHORT.get(match[0]) or f"\\u{ord(match[0]):04X}", text)


def _object(members: Mapping[str, str | None]) -> str:
    texts = ((name, "null" if text is None else f'"{_escaped_text(text)}"') for name, text in members.items())
    return "{" + ",".join(f'"{_escaped_text(name)}":{text}' for name, text in texts) + "}"
