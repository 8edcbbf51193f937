"""Validate many Avro bodies at once: as :mod:`catalog.schemas.avro.binary` does, but a field at a time over all bodies.

The result says which bodies are certainly valid. The others may be valid too, and are validated one by one, which also
finds what is wrong. That includes bodies that differ much from the rest of the batch (long lists, deep nesting), and
everything left after :data:`MAX_STEPS`. The time is bounded, whatever the bodies contain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from catalog.schemas.avro.types import MAX_LEVELS, decimal_bound, number_range
from catalog.schemas.contract import is_utf8

MAX_STEPS: Final = 4_000
"""Maximum number of steps for one batch."""
FEW: Final = 16
"""Fewer bodies than this are validated one by one, which is faster."""
_ROOM: Final = 16
"""Padding after the last body, so that a number can be read at any position."""
_TOP: Final = 0x80
Int = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Bodies:
    """The bytes of many bodies with padding at the end, and the number of steps left."""

    data: npt.NDArray[np.uint8]
    non_ascii: npt.NDArray[np.int32] | None
    """The number of bytes before each position that are not ASCII; None if all are."""
    steps_left: int = MAX_STEPS


Step = Callable[[Bodies, Int, Int, int], tuple[Int, Bool]]
"""Bodies, value starts, body ends and level -> value ends, and which values are certainly valid."""


def find_valid_bodies(step: Step, data: npt.NDArray[np.uint8], begins: Int, ends: Int) -> Bool:
    """Return which bodies, from *begins* to *ends* in *data*, are certainly exactly one value each."""
    if len(begins) < FEW:
        return np.zeros(len(begins), bool)
    padded = np.concatenate((data, np.zeros(_ROOM, np.uint8)))
    high = padded >= _TOP
    non_ascii = np.concatenate(([0], np.cumsum(high, dtype=np.int32))) if high.any() else None
    at, ok = step(Bodies(padded, non_ascii), begins, ends, 0)
    whole: Bool = ok & (at == ends)
    return whole


def _read_numbers(batch: Bodies, at: Int) -> tuple[Int, Int, Bool]:
    """Read variable-length zigzag numbers; return them, their ends, and which have at most 64 bits."""
    bytes_ = batch.data[at]
    value = (bytes_ & 0x7F).astype(np.uint64)
    after = at + 1
    ok = np.ones(len(at), bool)
    more = np.flatnonzero(bytes_ >= _TOP)
    shift = 7
    while len(more):
        if shift == 70:
            ok[more] = False
            break
        # What a body claims may lead a step past the last byte: then it is refused, wherever it reads.
        bytes_ = batch.data[np.minimum(after[more], len(batch.data) - 1)]
        if shift == 63:
            ok[more[bytes_ > 1]] = False
        value[more] |= (bytes_ & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[more] += 1
        more = more[bytes_ >= _TOP]
        shift += 7
    signed: Int = (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(np.int64)
    return signed, after, ok


def _spend_step(batch: Bodies, rows: int) -> bool:
    batch.steps_left -= 1
    return rows >= FEW and batch.steps_left > 0


def _reject_all(at: Int) -> tuple[Int, Bool]:
    return at, np.zeros(len(at), bool)


def _reject_step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
    return _reject_all(at)


def _clip_to_bodies(at: Int, ends: Int, ok: Bool) -> tuple[Int, Bool]:
    """Reject values that end after their body, and move their end back into it."""
    ok &= at <= ends
    return np.where(ok, at, ends), ok


class BatchStepMaker:
    """Makes steps for values of a writer's schema; they accept what is certainly valid for the reader's schema."""

    def record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, Step]], defaults: Mapping[str, Any]
    ) -> Step:
        def step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
            if level > MAX_LEVELS or not _spend_step(batch, len(at)):
                return _reject_all(at)
            ok = np.ones(len(at), bool)
            for _, each in fields:
                at, fits = each(batch, at, ends, level + 1)
                ok &= fits
            return at, ok

        return step

    def union(self, written: Sequence[Any], branches: Sequence[Step]) -> Step:
        nothing = [branch in ("null", {"type": "null"}) for branch in written]

        def step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
            chosen, after, ok = _read_numbers(batch, at)
            after, ok = _clip_to_bodies(after, ends, ok)
            fits = np.zeros(len(at), bool)
            for number, branch in enumerate(branches):
                mine = np.flatnonzero(chosen == number)
                if nothing[number] and branch is _read_null:
                    fits[mine] = True
                elif len(mine) >= FEW:
                    after[mine], fits[mine] = branch(batch, after[mine], ends[mine], level)
            return after, ok & fits

        return step

    def array(self, item: Step) -> Step:
        def step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
            return _read_blocks(batch, at, ends, lambda at, ends: item(batch, at, ends, level))

        return step

    def map(self, value: Step) -> Step:
        def step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
            def entry(at: Int, ends: Int) -> tuple[Int, Bool]:
                at, ok = _read_string(batch, at, ends, level)
                at, fits = value(batch, at, ends, level)
                return at, ok & fits

            return _read_blocks(batch, at, ends, entry)

        return step

    def enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> Step:
        known = np.array([symbol is not None for symbol in symbols], bool)

        def step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
            value, after, ok = _read_numbers(batch, at)
            ok &= (value >= 0) & (value < len(known))
            ok &= known[np.where(ok, value, 0)] if len(known) else ok
            return _clip_to_bodies(after, ends, ok)

        return step

    def leaf(self, written: Any, kind: str, schema: Any, into: str) -> Step:
        if kind in ("int", "long"):
            low, end = number_range(kind, kind)
            first, last = number_range(schema, into) if into in ("int", "long") else (low, end)
            return _make_number(max(low, first), min(end, last))
        if "string" in (kind, into):
            return _read_string
        if kind in ("bytes", "fixed") and decimal_bound(schema):
            return _reject_step
        if kind == "bytes":
            return _read_bytes
        if kind in ("null", "boolean"):
            return _read_null if kind == "null" else _read_boolean
        return _make_fixed({"float": 4, "double": 8}.get(kind) or schema["size"])

    def branch(self, function: Step, label: str | None) -> Step:
        return function

    def failing(self, why: str) -> Step:
        return _reject_step

    def reference(self, table: Mapping[str, Step], name: str) -> Step:
        return lambda batch, at, ends, level: table[name](batch, at, ends, level)


def _read_blocks(batch: Bodies, at: Int, ends: Int, item: Callable[[Int, Int], tuple[Int, Bool]]) -> tuple[Int, Bool]:
    """Read blocks of items up to the empty block; *item* reads one item of each of several bodies."""
    at, ok = at.copy(), np.ones(len(at), bool)
    left = np.zeros(len(at), np.int64)
    waiting = np.arange(len(at))
    while len(waiting):
        if not _spend_step(batch, len(waiting)):
            ok[waiting] = False
            break
        empty = waiting[left[waiting] == 0]
        counts, after, fits = _read_numbers(batch, at[empty])
        # A block that says how many bytes it has is left to the walk.
        after, fits = _clip_to_bodies(after, ends[empty], fits & (counts >= 0))
        at[empty], ok[empty], left[empty] = after, fits, np.where(fits, counts, 0)
        waiting = waiting[left[waiting] > 0]
        after, fits = item(at[waiting], ends[waiting])
        fits &= after > at[waiting]  # items without bytes may be as many as are claimed
        at[waiting], ok[waiting] = after, fits
        left[waiting] -= 1
        waiting = waiting[fits]
    return at, ok


def _read_null(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
    return at, np.ones(len(at), bool)


def _make_number(low: int, end: int) -> Step:
    def step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
        value, after, ok = _read_numbers(batch, at)
        return _clip_to_bodies(after, ends, ok & (value >= low) & (value <= end - 1))

    return step


def _read_bytes(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
    length, after, ok = _read_numbers(batch, at)
    ok &= (length >= 0) & (length <= ends - after)
    return np.where(ok, after + length, ends), ok


def _read_string(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
    length, after, ok = _read_numbers(batch, at)
    ok &= (length >= 0) & (length <= ends - after)
    behind = np.where(ok, after + length, ends)
    if batch.non_ascii is not None:
        after = np.minimum(after, behind)
        doubtful = np.flatnonzero(ok & (batch.non_ascii[behind] > batch.non_ascii[after]))
        for row in doubtful.tolist():
            ok[row] = is_utf8(batch.data[after[row] : behind[row]].tobytes())
    return behind, ok


def _read_boolean(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
    return _clip_to_bodies(at + 1, ends, batch.data[at] < 2)


def _make_fixed(size: int) -> Step:
    def step(batch: Bodies, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
        return _clip_to_bodies(at + size, ends, np.ones(len(at), bool))

    return step
