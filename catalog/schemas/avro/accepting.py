"""Many Avro bodies held against a type at once: the same walk as :mod:`catalog.schemas.avro.binary`, a field at a time
over whole columns.

It says which bodies conform for sure. One that it does not accept may conform as well: the walk over that body alone
decides, and says what is wrong. A few bodies that differ from the others (long lists, deep nesting) are left to it, and
so is all that is left when a batch has taken :data:`MAX_STEPS`; no body makes this take longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from catalog.schemas.avro.types import MAX_LEVELS, AvroSchema, TypeCompiler, decimal_bound, number_range

MAX_STEPS: Final = 4_000
"""Steps over columns that one batch may take."""
FEW: Final = 16
"""Bodies that are not worth a step."""
_ROOM: Final = 16
"""Bytes behind the last body, so that a number may be read at any end."""
_TOP: Final = 0x80
Int = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(slots=True)
class BodyCursors:
    """The bytes of many bodies, with room behind them, and the steps that are left."""

    data: npt.NDArray[np.uint8]
    beyond: npt.NDArray[np.int32] | None
    """How many bytes before each place are no ASCII; None where all are."""
    left: int = MAX_STEPS

    @classmethod
    def of(cls, data: npt.NDArray[np.uint8]) -> BodyCursors:
        """Return a batch of such bytes."""
        room = np.concatenate((data, np.zeros(_ROOM, np.uint8)))
        high = room >= _TOP
        beyond = np.concatenate(([0], np.cumsum(high, dtype=np.int32))) if high.any() else None
        return cls(room, beyond)


Step = Callable[[BodyCursors, Int, Int, int], tuple[Int, Bool]]
"""Batch, where values begin, where their bodies end, level -> where they end, and which of them conform for sure."""


def compile_accepting(schema: AvroSchema) -> Step:
    """Compile a type to a step over many values of it."""
    return AcceptingMakers(schema).plain.compiled(schema.root)


def accepted(step: Step, data: npt.NDArray[np.uint8], begins: Int, ends: Int) -> Bool:
    """Return which bodies, from *begins* to *ends* in *data*, are surely one value each and nothing behind it."""
    if len(begins) < FEW:
        return np.zeros(len(begins), bool)
    at, ok = step(BodyCursors.of(data), begins, ends, 0)
    whole: Bool = ok & (at == ends)
    return whole


class AcceptingMakers:
    """Makes steps over values of a writer's schema that its reader can have for sure."""

    def __init__(self, writer: AvroSchema) -> None:
        self.plain: TypeCompiler[Step] = TypeCompiler(writer.named, _record, _union, _array, _map, _leaf, _deferred)

    def record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, Step]], given: Mapping[str, Any]
    ) -> Step:
        return _record(written, [step for _, step in fields])

    def enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> Step:
        return _enum(np.array([symbol is not None for symbol in symbols], bool))

    def leaf(self, written: Any, kind: str, schema: Any, into: str) -> Step:
        if kind in ("int", "long"):
            low, end = number_range(kind, kind)
            first, last = number_range(schema, into) if into in ("int", "long") else (low, end)
            return _number(max(low, first), min(end, last))
        if kind in ("string", "bytes") and "string" in (kind, into):
            return _string
        return _leaf(schema if kind in ("bytes", "fixed") else kind, kind)

    def branch(self, function: Step, label: str | None) -> Step:
        return function

    def failing(self, why: str) -> Step:
        return _refusing


def _numbers(batch: BodyCursors, at: Int) -> tuple[Int, Int, Bool]:
    """Read variable-length zig-zag numbers; return them, where they end, and which have at most 64 bits."""
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


def _spend(batch: BodyCursors, rows: int) -> bool:
    batch.left -= 1
    return rows >= FEW and batch.left > 0


def _refuse(at: Int) -> tuple[Int, Bool]:
    return at, np.zeros(len(at), bool)


def _refusing(batch: BodyCursors, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
    return _refuse(at)


def _within(at: Int, ends: Int, ok: Bool) -> tuple[Int, Bool]:
    """Refuse what ends behind its body, and let it lead no step astray."""
    ok &= at <= ends
    return np.where(ok, at, ends), ok


def _record(schema: Mapping[str, Any], steps: Sequence[Step]) -> Step:
    def step(batch: BodyCursors, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
        if level > MAX_LEVELS or not _spend(batch, len(at)):
            return _refuse(at)
        ok = np.ones(len(at), bool)
        for each in steps:
            at, fits = each(batch, at, ends, level + 1)
            ok &= fits
        return at, ok

    return step


def _deferred(table: Mapping[str, Step], name: str) -> Step:
    return lambda batch, at, ends, level: table[name](batch, at, ends, level)


def _union(schema: Sequence[Any], branches: Sequence[Step]) -> Step:
    nothing = [branch in ("null", {"type": "null"}) for branch in schema]

    def step(batch: BodyCursors, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
        chosen, after, ok = _numbers(batch, at)
        after, ok = _within(after, ends, ok)
        fits = np.zeros(len(at), bool)
        for number, branch in enumerate(branches):
            mine = np.flatnonzero(chosen == number)
            if nothing[number] and branch is _null:
                fits[mine] = True
            elif len(mine) >= FEW:
                after[mine], fits[mine] = branch(batch, after[mine], ends[mine], level)
        return after, ok & fits

    return step


def _blocks(batch: BodyCursors, at: Int, ends: Int, item: Callable[[Int, Int], tuple[Int, Bool]]) -> tuple[Int, Bool]:
    """Read blocks of items until the empty one; *item* reads one item of some of them."""
    at, ok = at.copy(), np.ones(len(at), bool)
    left = np.zeros(len(at), np.int64)
    waiting = np.arange(len(at))
    while len(waiting):
        if not _spend(batch, len(waiting)):
            ok[waiting] = False
            break
        empty = waiting[left[waiting] == 0]
        counts, after, fits = _numbers(batch, at[empty])
        # A block that says how many bytes it has is left to the walk.
        after, fits = _within(after, ends[empty], fits & (counts >= 0))
        at[empty], ok[empty], left[empty] = after, fits, np.where(fits, counts, 0)
        waiting = waiting[left[waiting] > 0]
        after, fits = item(at[waiting], ends[waiting])
        fits &= after > at[waiting]  # items without bytes may be as many as are claimed
        at[waiting], ok[waiting] = after, fits
        left[waiting] -= 1
        waiting = waiting[fits]
    return at, ok


def _array(item: Step) -> Step:
    def step(batch: BodyCursors, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
        return _blocks(batch, at, ends, lambda at, ends: item(batch, at, ends, level))

    return step


def _map(value: Step) -> Step:
    def step(batch: BodyCursors, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
        def entry(at: Int, ends: Int) -> tuple[Int, Bool]:
            at, ok = _string(batch, at, ends, level)
            at, fits = value(batch, at, ends, level)
            return at, ok & fits

        return _blocks(batch, at, ends, entry)

    return step


def _null(batch: BodyCursors, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
    return at, np.ones(len(at), bool)


def _leaf(schema: Any, kind: str) -> Step:
    if kind in ("int", "long"):
        return _number(*number_range(schema, kind))
    if kind == "string":
        return _string
    if kind in ("bytes", "fixed") and decimal_bound(schema):
        return _refusing
    if kind == "bytes":
        return _sized
    if kind == "enum":
        return _enum(np.ones(len(schema["symbols"]), bool))
    if kind == "boolean":
        return _boolean
    if kind == "null":
        return _null
    return _fixed({"float": 4, "double": 8}.get(kind) or schema["size"])


def _number(low: int, end: int) -> Step:
    def step(batch: BodyCursors, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
        value, after, ok = _numbers(batch, at)
        return _within(after, ends, ok & (value >= low) & (value <= end - 1))

    return step


def _sized(batch: BodyCursors, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
    length, after, ok = _numbers(batch, at)
    ok &= (length >= 0) & (length <= ends - after)
    return np.where(ok, after + length, ends), ok


def _string(batch: BodyCursors, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
    length, after, ok = _numbers(batch, at)
    ok &= (length >= 0) & (length <= ends - after)
    behind = np.where(ok, after + length, ends)
    if batch.beyond is not None:
        after = np.minimum(after, behind)
        doubtful = np.flatnonzero(ok & (batch.beyond[behind] > batch.beyond[after]))
        for row in doubtful.tolist():
            ok[row] = _is_text(batch.data[after[row] : behind[row]].tobytes())
    return behind, ok


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _enum(known: Bool) -> Step:
    def step(batch: BodyCursors, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
        value, after, ok = _numbers(batch, at)
        ok &= (value >= 0) & (value < len(known))
        ok &= known[np.where(ok, value, 0)] if len(known) else ok
        return _within(after, ends, ok)

    return step


def _boolean(batch: BodyCursors, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
    return _within(at + 1, ends, batch.data[at] < 2)


def _fixed(size: int) -> Step:
    def step(batch: BodyCursors, at: Int, ends: Int, level: int) -> tuple[Int, Bool]:
        return _within(at + size, ends, np.ones(len(at), bool))

    return step
