"""Members of JSON objects, as texts of a whole array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.entries import Int
from router.rendering.texts import escaped, or_null, runs, together

Pieces = list[pa.Array | str]
"""Texts that stand side by side; a ``str`` is the same in all rows. Few joins of many pieces take the least time."""


def string_member(name: str, texts: pa.StringArray, *, plain: bool = False) -> Pieces:
    """Return the member of that name, ``null`` where there is no text; *plain* texts have nothing to escape."""
    if texts.null_count == len(texts):
        return [f'"{name}":null']
    texts = texts if plain else escaped(texts)
    if texts.null_count == 0:
        return [f'"{name}":"', texts, '"']
    return [f'"{name}":', or_null(together('"', texts, '"'))]


def string_member_if_any(name: str, texts: pa.StringArray) -> Pieces:
    """Return the member of that name with a comma before it; nothing where there is no text."""
    if texts.null_count == len(texts):
        return []
    if texts.null_count == 0:
        return [f',"{name}":"', escaped(texts), '"']
    return [pc.fill_null(together(f',"{name}":"', escaped(texts), '"'), "")]


def entry_texts(
    names: Sequence[str],
    codes: npt.NDArray[np.integer[Any]],
    offsets: Int,
    opened: Callable[[str], str],
    values: pa.StringArray,
    end: str,
    *,
    leading: bool = False,
) -> pa.StringArray:
    """Return the entries of each row as one text: what *opened* gives of the escaped name, then value and *end*.

    *codes* are places in *names*; the entries of row *i* stand from ``offsets[i]`` to ``offsets[i + 1]``.
    There is a comma between entries, and with *leading* before the first as well. No value may be null.
    """
    known = escaped(pa.array(names, pa.string())).to_pylist()
    pieces = [f"{comma}{opened(name)}" for name in known for comma in ("", ",")]
    follows = np.ones(len(codes), np.int64)
    if not leading:
        follows[offsets[:-1][np.diff(offsets) > 0]] = 0
    begins = pa.array(pieces, pa.string()).take(pa.array(codes.astype(np.int64) * 2 + follows))
    return runs(together(begins, values, end), offsets)
