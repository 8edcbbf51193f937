"""Checks JSON values against an Avro type, and gives the values they stand for: the JSON encoding of the specification,
or JSON as people write it.

Both are taken in one pass, and may be mixed. Of the JSON encoding: bytes and fixed are strings of the characters U+0000
to U+00FF, and a value of a union other than null is ``{"branch": value}``. As people write it: a value of a union may
stand bare when it fits some branch; a field may be absent when it has a default or takes null; dates and timestamps
may be ISO 8601 text, and decimals numbers. A member that is no field is a fault in both: it is what tells one
record from another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from catalog.schemas.avro.types import (
    MAX_LEVELS,
    TypeCompiler,
    TypeMismatch,
    bytes_converter,
    check_decimal,
    decimal_bound,
    is_instant,
    logical_type,
    number_converter,
    number_range,
    parse_iso_text,
)
from catalog.schemas.contract import CostExceeded, UnfitValue, clip

MAX_TRIED: Final = 200_000
"""Values held against one of several branches of a union that come into question."""
_NOT_FINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
_NAMES: Final = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


@dataclass(slots=True)
class WalkState:
    """State while one body is validated: record depth, and which branches of unions its values match.

    What came of it is the misfit, or else the value.

    Without that memory, unions within unions would be tried as often as there are ways to read them.

    ``left`` is how many misfits are still to be found before the walk ends with them; within a branch of a union that
    is tried, the first ends the try. A *lenient* walk has an ``UnfitValue`` in the place of each, and misses no field.
    """

    left: int = 1
    lenient: bool = False
    level: int = 0
    tries: int = 0
    tried: dict[tuple[int, int], tuple[TypeMismatch | None, Any]] = field(default_factory=dict)


class _Mismatches:
    """The misfits of the members of one value, raised as one when no more are to be found or no member is left."""

    def __init__(self, walk: WalkState) -> None:
        self._walk = walk
        self._united: TypeMismatch | None = None

    def add(self, mismatch: TypeMismatch) -> UnfitValue:
        """Keep one, and raise all when there are enough; in a lenient walk, return what stands in its place."""
        if self._walk.lenient:
            return UnfitValue(mismatch.message)
        self._united = mismatch if self._united is None else self._united.add_mismatch(mismatch)
        if len(self._united.others) + 1 >= self._walk.left:
            raise self._united
        return UnfitValue("")  # which nobody sees: the end raises

    def raise_if_any(self) -> None:
        """Raise what was found, if anything was."""
        if self._united is not None:
            raise self._united


Check = Callable[[Any, WalkState], Any]
"""JSON value, walk -> value as :mod:`catalog.schemas.avro.columns` describes them.

Raises :class:`TypeMismatch`, and :class:`CostExceeded` past MAX_TRIED.
"""


def compile_json(root: Any, named: Mapping[str, Any]) -> Check:
    """Compile a type to a function that checks and converts one JSON value; the type was compiled for bytes before."""
    return TypeCompiler(
        named, _compile_record, _compile_union, _compile_array, _compile_map, _compile_leaf, _compile_reference
    ).compile(root)


def _compile_reference(table: Mapping[str, Check], name: str) -> Check:
    return lambda value, walk: table[name](value, walk)


def _branch_label(branch: Any) -> str:
    if isinstance(branch, str):
        return branch
    return str(branch.get("name", branch["type"])) if isinstance(branch, dict) else "union"


def _may_be_absent(each: Mapping[str, Any]) -> bool:
    kinds = each["type"] if isinstance(each["type"], list) else [each["type"]]
    return "default" in each or any(kind == "null" or kind == {"type": "null"} for kind in kinds)


def _compile_record(schema: Mapping[str, Any], checks: Sequence[Check]) -> Check:
    name = schema["name"]
    fields = {each["name"]: check for each, check in zip(schema["fields"], checks, strict=True)}
    needed = [each["name"] for each in schema["fields"] if not _may_be_absent(each)]

    def check(value: Any, walk: WalkState) -> Any:
        if not isinstance(value, dict):
            raise _mismatch_error(value, f"the record {name}")
        if walk.level >= MAX_LEVELS:
            raise TypeMismatch(f"records nest more than {MAX_LEVELS} levels")
        mismatches = _Mismatches(walk)
        for each in needed:
            if each not in value and not walk.lenient:
                mismatches.add(TypeMismatch(f"the field {each} of {name} is missing"))
        members = {}
        walk.level += 1
        try:
            for member, inner in value.items():
                try:
                    checked = fields.get(member)
                    if checked is not None:
                        members[member] = checked(inner, walk)
                    elif not walk.lenient:
                        raise TypeMismatch(f"{name} has no such field")
                except TypeMismatch as mismatch:
                    members[member] = mismatches.add(mismatch.add_step(f".{member}"))
        finally:
            walk.level -= 1
        mismatches.raise_if_any()
        return members

    return check


def _compile_union(schema: Sequence[Any], checks: Sequence[Check]) -> Check:
    branches = {_branch_label(branch): check for branch, check in zip(schema, checks, strict=True)}
    concrete = {label: branch for label, branch in branches.items() if label != "null"}

    def check(value: Any, walk: WalkState) -> Any:
        if value is None and "null" in branches:
            return None
        label, inner = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else ("", None)
        tries = [(name, value) for name in concrete]
        if label in concrete:
            tries.insert(0, (label, inner))
        if len(tries) == 1:
            return concrete[tries[0][0]](value, walk)
        mismatches = []
        for name, tried in tries:
            mismatch, checked = _try_branch(concrete[name], tried, walk)
            if mismatch is None:
                return checked if len(concrete) == 1 else {name: checked}
            mismatches.append(mismatch)
        if walk.lenient and label in concrete:  # the branch is known, and what is wrong lies within
            checked = concrete[label](inner, walk)
            return checked if len(concrete) == 1 else {label: checked}
        raise mismatches[0] if label in concrete else _mismatch_error(value, f"any of {', '.join(branches)}")

    return check


def _try_branch(branch: Check, value: Any, walk: WalkState) -> tuple[TypeMismatch | None, Any]:
    """Return why a value does not fit a branch, or else what it stands for; the same pair is looked into only once."""
    key = (id(branch), id(value))  # both live as long as the walk
    if key in walk.tried:
        known, checked = walk.tried[key]
        return known and known.copy(), checked
    walk.tries += 1
    if walk.tries > MAX_TRIED:
        raise CostExceeded
    why = checked = None
    before = walk.left, walk.lenient
    walk.left, walk.lenient = 1, False
    try:
        checked = branch(value, walk)
    except TypeMismatch as mismatch:
        why = mismatch
    finally:
        walk.left, walk.lenient = before
    if isinstance(value, dict | list):
        walk.tried[key] = why and why.copy(), checked
    return why, checked


def _compile_array(item: Check) -> Check:
    def check(value: Any, walk: WalkState) -> Any:
        if not isinstance(value, list):
            raise _mismatch_error(value, "an array")
        items: list[Any] = []
        mismatches = _Mismatches(walk)
        for place, each in enumerate(value):
            try:
                items.append(item(each, walk))
            except TypeMismatch as mismatch:
                items.append(mismatches.add(mismatch.add_step(f"[{place}]")))
        mismatches.raise_if_any()
        return items

    return check


def _compile_map(inner: Check) -> Check:
    def check(value: Any, walk: WalkState) -> Any:
        if not isinstance(value, dict):
            raise _mismatch_error(value, "a map")
        entries = {}
        mismatches = _Mismatches(walk)
        for key, each in value.items():
            try:
                entries[key] = inner(each, walk)
            except TypeMismatch as mismatch:
                entries[key] = mismatches.add(mismatch.add_step(f".{key}"))
        mismatches.raise_if_any()
        return entries

    return check


def _compile_leaf(schema: Any, kind: str) -> Check:
    if kind in ("int", "long"):
        return _compile_number(*number_range(schema, kind), logical_type(schema), number_converter(schema))
    if kind in ("float", "double"):
        return _check_float
    if kind == "string":
        return _check_string
    if kind in ("bytes", "fixed"):
        size = schema["size"] if kind == "fixed" else None
        return _compile_bytes(size, decimal_bound(schema), logical_type(schema), bytes_converter(schema))
    if kind == "enum":
        return _compile_enum(frozenset(schema["symbols"]))
    expected = type(None) if kind == "null" else bool

    def check(value: Any, walk: WalkState) -> Any:
        if type(value) is not expected:
            raise _mismatch_error(value, _NAMES[expected])
        return value

    return check


def _compile_number(low: int, end: int, name: str, form: Callable[[int], Any] | None) -> Check:
    def check(value: Any, walk: WalkState) -> Any:
        if type(value) is int:
            if not low <= value < end:
                raise TypeMismatch(f"{_describe_value(value)} is out of the range of {name}")
            return value if form is None else form(value)
        if not (isinstance(value, str) and is_instant(value, name)):
            raise _mismatch_error(value, name)
        return parse_iso_text(name, value)

    return check


def _check_float(value: Any, walk: WalkState) -> Any:
    if type(value) not in (int, float, Decimal) and not (isinstance(value, str) and value in _NOT_FINITE):
        raise _mismatch_error(value, "a number")
    try:
        number = float(value)
        if not isinstance(value, Decimal) or math.isfinite(number):
            return number
        raise OverflowError
    except OverflowError:
        raise TypeMismatch(f"{_describe_value(value)} is out of the range of double") from None


def _check_string(value: Any, walk: WalkState) -> Any:
    if not isinstance(value, str):
        raise _mismatch_error(value, "a string")
    return value


def _compile_bytes(size: int | None, bound: int, name: str, form: Callable[[bytes], Any] | None) -> Check:
    def check(value: Any, walk: WalkState) -> Any:
        if bound and type(value) in (int, float, Decimal):
            return Decimal(
                repr(value) if type(value) is float else value
            )  # as written: 0.1 is no 0.1000000000000000055
        if not isinstance(value, str):
            raise _mismatch_error(value, name)
        if not value.isascii() and max(value) > "\xff":
            raise TypeMismatch(f"a character above U+00FF is not a byte of {name}")
        if size is not None and len(value) != size:
            raise TypeMismatch(f"{len(value)} bytes where {name} has {size}")
        if bound and _NUMBER.fullmatch(value):
            return Decimal(value)
        data = value.encode("latin-1")
        if bound:
            check_decimal(data, bound)
        return data if form is None else form(data)

    return check


def _compile_enum(symbols: frozenset[str]) -> Check:
    expected = clip(", ".join(sorted(symbols)))

    def check(value: Any, walk: WalkState) -> Any:
        if not isinstance(value, str) or value not in symbols:
            raise TypeMismatch(f"{_describe_value(value)} is none of the symbols {expected}")
        return value

    return check


def _mismatch_error(value: Any, expected: str) -> TypeMismatch:
    return TypeMismatch(f"{_describe_value(value)} is not {expected}")


def _describe_value(value: Any) -> str:
    if isinstance(value, str):
        return repr(value[:60])
    if type(value) is int and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    return _NAMES.get(type(value)) or str(value)
