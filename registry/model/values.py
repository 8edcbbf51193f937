"""Whether one value is of a type of the model (core ``spec.md``, Data Types); the members of maps and objects too."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from registry.model.attributes import ANYTHING, Attribute
from registry.model.moments import moment_of

KEY: Final = re.compile(r"[a-z0-9][a-z0-9:\-_.]{0,62}")
NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
MAX_SCALAR: Final = 4096
"""Bytes that the name of a scalar attribute and its value have together."""
MAX_DEPTH: Final = 32
_URI: Final = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*", re.ASCII)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")


def fault_of(value: Any, attribute: Attribute, depth: int = 0) -> str:
    """Return what is wrong with a value, '' when nothing is; it reads after ``the attribute``."""
    if depth > MAX_DEPTH:
        return "is nested too deeply"
    if value is None:
        return "is null"
    if attribute.type == "any":
        return ""
    if attribute.scalar:
        return _scalar_fault(value, attribute)
    if attribute.type == "array":
        return _array_fault(value, attribute, depth)
    if attribute.type == "map":
        return _map_fault(value, attribute, depth)
    return _object_fault(value, attribute, depth)


def active(attributes: Mapping[str, Attribute], values: Mapping[str, Any]) -> dict[str, Attribute]:
    """Return the attributes that hold for these values: the declared ones and those that ``ifvalues`` add.

    Raises:
        ValueError: two ``ifvalues`` add the same name; it is the message.
    """
    in_force = dict(attributes)
    waiting = list(attributes.values())
    while waiting:
        each = waiting.pop()
        value = values.get(each.name, each.default)
        if not each.ifvalues or value is None:
            continue
        text = _text(value).lower()
        for wanted, siblings in each.ifvalues.items():
            if wanted.lower() != text:
                continue
            if twice := siblings.keys() & in_force.keys():
                raise ValueError(sorted(twice)[0])
            in_force.update(siblings)
            waiting.extend(siblings.values())
    return in_force


def _scalar_fault(value: Any, attribute: Attribute) -> str:
    why = _CHECKS[attribute.type](value)
    if why:
        return why
    if attribute.name and len(attribute.name) + len(_text(value).encode("utf-8", "replace")) > MAX_SCALAR:
        return f"is longer than {MAX_SCALAR} bytes with its name"
    if attribute.enum and attribute.strict and value not in attribute.enum:
        return f"needs to be one of {', '.join(map(_text, attribute.enum))}"
    return ""


def _array_fault(value: Any, attribute: Attribute, depth: int) -> str:
    if not isinstance(value, list):
        return "needs to be an array"
    assert attribute.item is not None
    for index, each in enumerate(value):
        if why := fault_of(each, attribute.item, depth + 1):
            return f"[{index}] {why}"
        if attribute.enum and attribute.strict and each not in attribute.enum:
            return f"[{index}] needs to be one of {', '.join(map(_text, attribute.enum))}"
    return ""


def _map_fault(value: Any, attribute: Attribute, depth: int) -> str:
    if not isinstance(value, Mapping):
        return "needs to be a map"
    assert attribute.item is not None
    for key, each in value.items():
        if not KEY.fullmatch(key):
            return f"has a key {key!r}, which is not of a-z, 0-9, ':', '-', '_' and '.', or too long"
        if why := fault_of(each, attribute.item, depth + 1):
            return f".{key} {why}"
        if attribute.enum and attribute.strict and each not in attribute.enum:
            return f".{key} needs to be one of {', '.join(map(_text, attribute.enum))}"
    return ""


def _object_fault(value: Any, attribute: Attribute, depth: int) -> str:
    if not isinstance(value, Mapping):
        return "needs to be an object"
    try:
        known = active(attribute.attributes, value)
    except ValueError as error:
        return f".{error} is declared twice for these values"
    for name, each in value.items():
        if name not in known and ANYTHING not in known:
            return f".{name} is unknown"
        if name not in known and not KEY.fullmatch(name) and not NAME.fullmatch(name):
            return f"has a member {name!r}, which is no name of an attribute"
        why = "" if each is None else fault_of(each, known.get(name) or known[ANYTHING], depth + 1)
        if why:
            return f".{name} {why}"
    for name, member in known.items():
        if member.required and member.default is None and value.get(name) is None:
            return f".{name} is missing"
    return ""


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _boolean(value: Any) -> str:
    return "" if isinstance(value, bool) else "needs to be true or false"


def _number(value: Any) -> str:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return "" if fits else "needs to be a number"


def _integer(value: Any) -> str:
    return "" if isinstance(value, int) and not isinstance(value, bool) else "needs to be an integer"


def _uinteger(value: Any) -> str:
    return "needs to be an unsigned integer" if _integer(value) or value < 0 else ""


def _string(value: Any) -> str:
    return "" if isinstance(value, str) else "needs to be a string"


def _timestamp(value: Any) -> str:
    fits = isinstance(value, str) and moment_of(value) is not None
    return "" if fits else "needs to be an RFC 3339 timestamp"


def _uri(value: Any) -> str:
    fits = isinstance(value, str) and value and _URI.fullmatch(value)
    return "" if fits else "needs to be a URI"


def _absolute(value: Any) -> str:
    return _uri(value) or ("" if _SCHEME.match(value) else "needs to be an absolute URI")


def _relative(value: Any) -> str:
    return _uri(value) or ("needs to be a relative URI" if _SCHEME.match(value) else "")


def _xid(value: Any) -> str:
    return "" if isinstance(value, str) and value.startswith("/") else "needs to be an xid, which begins with /"


_CHECKS: Final[Mapping[str, Callable[[Any], str]]] = {
    "boolean": _boolean,
    "decimal": _number,
    "integer": _integer,
    "string": _string,
    "timestamp": _timestamp,
    "uinteger": _uinteger,
    "uri": _uri,
    "uriabsolute": _absolute,
    "urirelative": _relative,
    "uritemplate": _string,
    "url": _uri,
    "urlabsolute": _absolute,
    "urlrelative": _relative,
    "xid": _xid,
    "xidtype": _xid,
}
