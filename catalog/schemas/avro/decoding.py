"""Values of Avro bodies, built by a walk of our own for the reasons in :mod:`catalog.schemas.avro.values`.

Records are dicts by field name, arrays lists, maps dicts, enums their symbols; a value of a union is bare when null is
the only other branch, else it is ``{branch: value}``, the branch by its type's full name, as in the JSON encoding.
Logical types are as :mod:`catalog.schemas.avro.logical` says. Bodies in JSON come out the same; fields that they leave
out are not in the dict, and a member that is not of its type is an :class:`~catalog.schemas.bodies.UnfitValue`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from catalog.schemas.avro.binary import read_block, read_long, read_text, skip_bytes
from catalog.schemas.avro.compiler import TypeCompiler
from catalog.schemas.avro.container import ReadValue
from catalog.schemas.avro.json import Check, Walk, compile_json
from catalog.schemas.avro.logical import bytes_form, number_form
from catalog.schemas.avro.types import AvroSchema
from catalog.schemas.avro.validating import AvroBodies, WrittenBodies
from catalog.schemas.avro.values import (
    MAX_LEVELS,
    Misfit,
    branch_labels,
    number_range,
)
from catalog.schemas.bodies import UnfitValue
from catalog.schemas.contract import Written

MAX_EMPTY: Final = 100_000
"""Records and items of a body beyond one for each of its bytes: those without bytes may be claimed in any number."""
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


@dataclass(slots=True)
class _Room:
    """One body under way: the level of records, and how many more records and items it may have."""

    left: int
    level: int = 0

    def spend(self, values: int = 1) -> None:
        self.left -= values
        if self.left < 0:
            raise Misfit("more values than bytes")


Decode = Callable[[bytes, int, _Room], tuple[Any, int]]
"""Bytes, position, room -> value and the position after it; raises :class:`Misfit`."""


class AvroDecoder:
    """Builds the values of bodies of one schema, which was compiled before and so is sound.

    Bodies that were *written* with another are read as values of this one.
    """

    def __init__(self, schema: AvroSchema, written: Written | None = None) -> None:
        self._bodies: WrittenBodies | AvroBodies
        if written is not None:
            self._bodies = WrittenBodies.of(schema, written, _Resolved, _room_for)
            return
        compiler = TypeCompiler(schema.named, _record, _union, _array, _map, _leaf, _deferred)
        decode = compiler.compiled(schema.root)
        check = compile_json(schema.root, schema.named)
        self._bodies = AvroBodies(
            schema,
            _room_for(decode),
            lambda value: _lenient(check, value),
            single=True,
        )

    def value(self, body: bytes | None, content_type: str | None) -> Any:
        """Return the value of a body; no body is the empty datum. A container file must hold exactly one.

        Raises:
            Misfit: the body does not conform.
        """
        return self._bodies.value(body, content_type)


def _lenient(check: Check, value: Any) -> Any:
    try:
        return check(value, Walk(lenient=True))
    except Misfit as misfit:
        return UnfitValue(misfit.message)


def _room_for(decode: Decode) -> ReadValue:
    return lambda data, at: decode(data, at, _Room(len(data) + MAX_EMPTY))


class _Resolved:
    """Makes functions that build values of a reader's schema from bytes of a writer's."""

    def __init__(self, writer: AvroSchema) -> None:
        self.plain: TypeCompiler[Decode] = TypeCompiler(
            writer.named, _record, _plain_union, _array, _map, _leaf, _deferred
        )

    def record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, Decode]], given: Mapping[str, Any]
    ) -> Decode:
        types = [{**each, "name": name} for (name, _), each in zip(fields, written["fields"], strict=True)]
        return _record({"fields": types}, [decode for _, decode in fields], given)

    def enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> Decode:
        return _enum(list(symbols), written)

    def leaf(self, written: Any, kind: str, schema: Any, into: str) -> Decode:
        if kind in ("int", "long"):
            low, end = number_range(kind, kind)
            if into not in ("int", "long"):
                return _number(low, end, kind, float)
            first, last = number_range(into, into)
            return _number(max(low, first), min(end, last), into, number_form(schema))
        if kind in ("string", "bytes"):
            return _leaf(schema, into)
        return _leaf(schema if kind == "fixed" else kind, kind)

    def branch(self, function: Decode, label: str | None) -> Decode:
        if label is None:
            return function

        def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
            value, at = function(data, at, room)
            return {label: value}, at

        return decode

    def failing(self, why: str) -> Decode:
        def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
            raise Misfit(why)

        return decode


def _plain_union(schema: Sequence[Any], branches: Sequence[Decode]) -> Decode:
    """Return what reads a union whose branches bring their labels with them."""
    return _union(["null"] * len(schema), branches)


def _deferred(table: Mapping[str, Decode], name: str) -> Decode:
    return lambda data, at, room: table[name](data, at, room)


def _union(schema: Sequence[Any], branches: Sequence[Decode]) -> Decode:
    labels = branch_labels(schema)

    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        index, at = read_long(data, at)
        if not 0 <= index < len(branches):
            raise Misfit(f"the union has no branch {index}")
        value, at = branches[index](data, at, room)
        label = labels[index]
        return (value if label is None else {label: value}), at

    return decode


def _record(
    schema: Mapping[str, Any], decodes: Sequence[Decode], given: Mapping[str, Any] = MappingProxyType({})
) -> Decode:
    """Return what reads a record: *given* are the values of more fields; one without a name is passed over."""
    names = [each["name"] for each in schema["fields"]]
    fields = list(zip(names, decodes, strict=True))
    nulls = sum(each["type"] in ("null", {"type": "null"}) for each in schema["fields"])

    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        if room.level > MAX_LEVELS:
            raise Misfit(f"records nest more than {MAX_LEVELS} levels")
        room.spend(1 + nulls)
        room.level += 1
        value: dict[str, Any] = dict(given)
        name = ""
        try:
            for name, inner in fields:
                value[name], at = inner(data, at, room)
        except Misfit as misfit:
            misfit.steps.append(f".{name}")
            raise
        value.pop(None, None)  # type: ignore[call-overload]
        room.level -= 1
        return value, at

    return decode


def _array(item: Decode) -> Decode:
    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        values: list[Any] = []
        try:
            count, at = read_block(data, at)
            while count:
                room.spend()
                value, at = item(data, at, room)
                values.append(value)
                count -= 1
                if not count:
                    count, at = read_block(data, at)
        except Misfit as misfit:
            misfit.steps.append(f"[{len(values)}]")
            raise
        return values, at

    return decode


def _map(inner: Decode) -> Decode:
    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        key = ""
        count, at = read_block(data, at)
        while count:
            for _ in range(count):
                begin, at = skip_bytes(data, at)
                key = read_text(data, begin, at)
                try:
                    values[key], at = inner(data, at, room)
                except Misfit as misfit:
                    misfit.steps.append(f".{key}")
                    raise
            count, at = read_block(data, at)
        return values, at

    return decode


def _leaf(schema: Any, kind: str) -> Decode:
    if kind in ("int", "long"):
        return _number(*number_range(kind, kind), kind, number_form(schema))
    if kind in ("bytes", "fixed"):
        return _bytes(schema["size"] if kind == "fixed" else None, bytes_form(schema))
    if kind == "string":
        return _string
    if kind == "enum":
        return _enum(schema["symbols"])
    if kind == "null":
        return lambda data, at, room: (None, at)
    return _boolean if kind == "boolean" else _floating(_FLOAT if kind == "float" else _DOUBLE)


def _number(low: int, end: int, name: str, form: Callable[[int], Any] | None) -> Decode:
    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        value, at = read_long(data, at)
        if not low <= value < end:
            raise Misfit(f"{value} is out of the range of {name}")
        return (value if form is None else form(value)), at

    return decode


def _string(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
    begin, end = skip_bytes(data, at)
    return read_text(data, begin, end), end


def _bytes(size: int | None, form: Callable[[bytes], Any] | None) -> Decode:
    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        begin, end = skip_bytes(data, at) if size is None else (at, at + size)
        if end > len(data):
            raise Misfit(f"{size} bytes wanted, and {len(data) - at} are left")
        value = data[begin:end]
        return (value if form is None else form(value)), end

    return decode


def _enum(symbols: Sequence[str | None], written: Sequence[str] = ()) -> Decode:
    """Return what reads an enum; symbols that were *written* and that its reader has not are None."""

    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        index, at = read_long(data, at)
        if not 0 <= index < len(symbols):
            raise Misfit(f"the enum has no symbol {index}")
        symbol = symbols[index]
        if symbol is None:
            raise Misfit(f"the definition's enum has no symbol {written[index]}, and no default")
        return symbol, at

    return decode


def _boolean(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
    if data[at : at + 1] not in (b"\x00", b"\x01"):
        raise Misfit("no boolean" if at < len(data) else "the body ends before a boolean")
    return data[at] == 1, at + 1


def _floating(form: struct.Struct) -> Decode:
    def decode(data: bytes, at: int, room: _Room) -> tuple[Any, int]:
        if form.size > len(data) - at:
            raise Misfit(f"{form.size} bytes wanted, and {len(data) - at} are left")
        return form.unpack_from(data, at)[0], at + form.size

    return decode
