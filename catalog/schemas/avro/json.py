"""Validate JSON values against an Avro type and convert them: Avro's JSON encoding, or plain JSON.

Both are accepted, also mixed. In the JSON encoding, bytes and fixed are strings of the characters U+0000 to U+00FF, and
a union value other than null is ``{"branch": value}``. In plain JSON, a union value may be written without its branch;
a field may be absent if it has a default or allows null; dates and timestamps may be ISO 8601 text, and decimals
numbers. An unknown member is invalid in both, because members distinguish one record type from another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from catalog.schemas.avro.types import (
    MAX_LEVELS,
    TypeMismatch,
    Walk,
    branch_label,
    bytes_converter,
    check_decimal,
    decimal_bound,
    logical_type,
    number_converter,
    number_range,
    parse_iso_text,
)
from catalog.schemas.contract import CostExceeded, UnfitValue, clip

MAX_TRIED: Final = 200_000
"""Maximum number of attempts to match values to one of several possible union branches."""
_NOT_FINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
_NAMES: Final = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


class _Mismatches:
    """Collects the mismatches of one value's members, and raises them together."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._united: TypeMismatch | None = None

    def add(self, mismatch: TypeMismatch) -> UnfitValue:
        """Add a mismatch, and raise all when the limit is reached; if not strict, return its placeholder."""
        if not self._walk.strict:
            return UnfitValue(mismatch.message)
        self._united = mismatch if self._united is None else self._united.add_mismatch(mismatch)
        if len(self._united.others) + 1 >= self._walk.left:
            raise self._united
        return UnfitValue("")  # never used, because raise_if_any raises

    def raise_if_any(self) -> None:
        """Raise the collected mismatches, if there are any."""
        if self._united is not None:
            raise self._united


Check = Callable[[Any, Walk], Any]
"""JSON value, walk -> value as :mod:`catalog.schemas.avro.binary` describes them.

Raises :class:`TypeMismatch`, and :class:`CostExceeded` past MAX_TRIED.
"""


def _may_be_absent(each: Mapping[str, Any]) -> bool:
    kinds = each["type"] if isinstance(each["type"], list) else [each["type"]]
    return "default" in each or any(kind == "null" or kind == {"type": "null"} for kind in kinds)


class JsonMaker:
    """Makes functions that validate and convert one JSON value of a schema by itself."""

    def record(
        self, written: Mapping[str, Any], fields: Sequence[tuple[str | None, Check]], defaults: Mapping[str, Any]
    ) -> Check:
        name, checks = written["name"], dict(fields)
        needed = [each["name"] for each in written["fields"] if not _may_be_absent(each)]
        own = {each["name"]: each["default"] for each in written["fields"] if "default" in each}

        def check(value: Any, walk: Walk) -> Any:
            if not isinstance(value, dict):
                raise _mismatch_error(value, f"the record {name}")
            if walk.level >= MAX_LEVELS:
                raise TypeMismatch(f"records nest more than {MAX_LEVELS} levels")
            mismatches = _Mismatches(walk)
            for each in needed:
                if each not in value and walk.strict:
                    mismatches.add(TypeMismatch(f"the field {each} of {name} is missing"))
            members = {}
            walk.level += 1
            try:
                for member, inner in value.items():
                    try:
                        checked = checks.get(member)
                        if checked is not None:
                            members[member] = checked(inner, walk)
                        elif walk.strict:
                            raise TypeMismatch(f"{name} has no such field")
                    except TypeMismatch as mismatch:
                        members[member] = mismatches.add(mismatch.add_step(f".{member}"))
            finally:
                walk.level -= 1
            mismatches.raise_if_any()
            if walk.fills:
                absent = {member: default for member, default in own.items() if member not in members}
                members |= {member: checks[member](default, walk) for member, default in absent.items()}
            return members

        return check

    def union(self, written: Sequence[Any], branches: Sequence[Check]) -> Check:
        labels = [branch_label(branch) for branch in written]
        concrete = {label: check for label, check in zip(labels, branches, strict=True) if label != "null"}

        def check(value: Any, walk: Walk) -> Any:
            if value is None and "null" in labels:
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
            if not walk.strict and label in concrete:  # the branch is known; the mismatch is inside it
                checked = concrete[label](inner, walk)
                return checked if len(concrete) == 1 else {label: checked}
            raise mismatches[0] if label in concrete else _mismatch_error(value, f"any of {', '.join(labels)}")

        return check

    def array(self, item: Check) -> Check:
        def check(value: Any, walk: Walk) -> Any:
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

    def map(self, value: Check) -> Check:
        def check(found: Any, walk: Walk) -> Any:
            if not isinstance(found, dict):
                raise _mismatch_error(found, "a map")
            entries = {}
            mismatches = _Mismatches(walk)
            for key, each in found.items():
                try:
                    entries[key] = value(each, walk)
                except TypeMismatch as mismatch:
                    entries[key] = mismatches.add(mismatch.add_step(f".{key}"))
            mismatches.raise_if_any()
            return entries

        return check

    def leaf(self, written: Any, kind: str, schema: Any, into: str) -> Check:
        if kind in ("int", "long"):
            return _make_number(*number_range(schema, kind), logical_type(schema), number_converter(schema))
        if kind in ("float", "double"):
            return _check_float
        if kind == "string":
            return _check_string
        if kind in ("bytes", "fixed"):
            size = schema["size"] if kind == "fixed" else None
            return _make_bytes(size, decimal_bound(schema), logical_type(schema), bytes_converter(schema))
        expected = type(None) if kind == "null" else bool

        def check(value: Any, walk: Walk) -> Any:
            if type(value) is not expected:
                raise _mismatch_error(value, _NAMES[expected])
            return value

        return check

    def enum(self, symbols: Sequence[str | None], written: Sequence[str]) -> Check:
        known, expected = frozenset(written), clip(", ".join(sorted(written)))

        def check(value: Any, walk: Walk) -> Any:
            if not isinstance(value, str) or value not in known:
                raise TypeMismatch(f"{_describe_value(value)} is none of the symbols {expected}")
            return value

        return check

    def branch(self, function: Check, label: str | None) -> Check:
        return function

    def failing(self, why: str) -> Check:
        raise AssertionError("a schema can always be read with itself")

    def reference(self, table: Mapping[str, Check], name: str) -> Check:
        return lambda value, walk: table[name](value, walk)


def _try_branch(branch: Check, value: Any, walk: Walk) -> tuple[TypeMismatch | None, Any]:
    """Return why a value does not match a branch, or the converted value; results are cached."""
    key = (id(branch), id(value))  # both exist until validation ends
    if key in walk.tried:
        known, checked = walk.tried[key]
        return known and known.copy(), checked
    walk.tries += 1
    if walk.tries > MAX_TRIED:
        raise CostExceeded
    why = checked = None
    before = walk.left, walk.strict
    walk.left, walk.strict = 1, True
    try:
        checked = branch(value, walk)
    except TypeMismatch as mismatch:
        why = mismatch
    finally:
        walk.left, walk.strict = before
    if isinstance(value, dict | list):
        walk.tried[key] = why and why.copy(), checked
    return why, checked


def _make_number(low: int, end: int, name: str, form: Callable[[int], Any] | None) -> Check:
    def check(value: Any, walk: Walk) -> Any:
        if type(value) is int:
            if not low <= value < end:
                raise TypeMismatch(f"{_describe_value(value)} is out of the range of {name}")
            return value if form is None else form(value)
        instant = parse_iso_text(name, value) if isinstance(value, str) else None
        if instant is None:
            raise _mismatch_error(value, name)
        return instant

    return check


def _check_float(value: Any, walk: Walk) -> Any:
    if type(value) not in (int, float, Decimal) and not (isinstance(value, str) and value in _NOT_FINITE):
        raise _mismatch_error(value, "a number")
    try:
        number = float(value)
        if not isinstance(value, Decimal) or math.isfinite(number):
            return number
        raise OverflowError
    except OverflowError:
        raise TypeMismatch(f"{_describe_value(value)} is out of the range of double") from None


def _check_string(value: Any, walk: Walk) -> Any:
    if not isinstance(value, str):
        raise _mismatch_error(value, "a string")
    return value


def _make_bytes(size: int | None, bound: int, name: str, form: Callable[[bytes], Any] | None) -> Check:
    def check(value: Any, walk: Walk) -> Any:
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


def _mismatch_error(value: Any, expected: str) -> TypeMismatch:
    return TypeMismatch(f"{_describe_value(value)} is not {expected}")


def _describe_value(value: Any) -> str:
    if isinstance(value, str):
        return repr(value[:60])
    if type(value) is int and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    return _NAMES.get(type(value)) or str(value)
