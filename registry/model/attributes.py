"""What an attribute may be: its type, what its value must keep to, and the members of objects, maps and arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from registry.errors import Refusal, invalid, listed

SCALARS: Final = frozenset(
    "boolean decimal integer string timestamp uinteger uri uriabsolute urirelative uritemplate url urlabsolute "
    "urlrelative xid xidtype".split()
)
TYPES: Final = SCALARS | {"any", "array", "map", "object"}
TARGETED: Final = frozenset(("uri", "uriabsolute", "urirelative", "url", "urlabsolute", "urlrelative", "xid"))
ANYTHING: Final = "*"
"""The name that stands for all attributes which the model does not name."""


@dataclass(frozen=True, slots=True)
class ModelAttribute:
    """One attribute, or the item of an array or map (``model.md``, attributes).

    ``ifvalues`` gives, by value in lower case, the attributes that stand beside it then. ``served`` tells what only the
    server writes and no entity stores; those are checked by the code that knows them.
    """

    name: str
    type: str = "any"
    description: str = ""
    target: str = ""
    extended: bool = False
    enum: tuple[Any, ...] = ()
    strict: bool = True
    matchversions: bool = False
    readonly: bool = False
    immutable: bool = False
    required: bool = False
    default: Any = None
    attributes: Mapping[str, ModelAttribute] = field(default_factory=dict)
    item: ModelAttribute | None = None
    ifvalues: Mapping[str, Mapping[str, ModelAttribute]] = field(default_factory=dict)
    served: bool = False

    @property
    def scalar(self) -> bool:
        """Whether its values are scalars."""
        return self.type in SCALARS


def written(attribute: ModelAttribute) -> dict[str, Any]:
    """Return an attribute as ``/model`` shows it, with what is not at its default."""
    members: dict[str, Any] = {"name": attribute.name} if attribute.name else {}
    members["type"] = attribute.type
    for key in ("description", "target"):
        if getattr(attribute, key):
            members[key] = getattr(attribute, key)
    if attribute.extended:
        members["namecharset"] = "extended"
    if attribute.enum:
        members["enum"] = list(attribute.enum)
    if not attribute.strict:
        members["strict"] = False
    for key in ("matchversions", "readonly", "immutable", "required"):
        if getattr(attribute, key):
            members[key] = True
    if attribute.default is not None:
        members["default"] = attribute.default
    if attribute.attributes:
        members["attributes"] = all_written(attribute.attributes)
    if attribute.item is not None:
        members["item"] = written(attribute.item)
    if attribute.ifvalues:
        members["ifvalues"] = {
            value: {"siblingattributes": all_written(siblings)} for value, siblings in attribute.ifvalues.items()
        }
    return members


def all_written(attributes: Mapping[str, ModelAttribute]) -> dict[str, Any]:
    """Return attributes as ``/model`` shows them."""
    return {name: written(each) for name, each in attributes.items()}


# Timestamps: RFC 3339 in, UTC out; ordered by the instant and not by the text.

_FORM: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d):(\d\d)(?:\.(\d{1,12}))?(?:([Zz])|([+-])(\d\d):(\d\d))?", re.ASCII
)


def moment_of(text: str) -> datetime | None:
    """Read a timestamp; one without a zone is UTC. None when it is none."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    day, minute, second, fraction, _, sign, hours, minutes = match.groups()
    try:
        instant = datetime.fromisoformat(f"{day}T{minute}:{'59' if second == '60' else second}+00:00")
        instant = instant.replace(microsecond=int((fraction or "0")[:6].ljust(6, "0")))
        if sign:
            if int(hours) > 23 or int(minutes) > 59:
                return None
            offset = timedelta(hours=int(hours), minutes=int(minutes))
            instant = instant - offset if sign == "+" else instant + offset
    except (ValueError, OverflowError):
        return None
    return instant


def written_time(instant: datetime) -> str:
    """Write an instant in UTC, with as much of a fraction as it has."""
    text = instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    if instant.year < 1000:
        text = f"{instant.year:04d}{text[text.index('-') :]}"
    fraction = f".{instant.microsecond:06d}".rstrip("0") if instant.microsecond else ""
    return f"{text}{fraction}Z"


def normalized(text: str) -> str:
    """Write a timestamp that :func:`moment_of` reads in UTC."""
    instant = moment_of(text)
    assert instant is not None
    return written_time(instant)


def later(one: str, other: str) -> str:
    """Return the later of two timestamps in UTC; '' is before all others."""
    first, second = moment_of(one), moment_of(other)
    return other if second is not None and (first is None or first < second) else one


def now() -> str:
    """Return the present instant."""
    return written_time(datetime.now(UTC))


# Whether one value is of a type of the model (core ``spec.md``, Data Types); the members of maps and objects too.

KEY: Final = re.compile(r"[a-z0-9][a-z0-9:\-_.]{0,62}")
NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
MAX_SCALAR: Final = 4096
"""Bytes that the name of a scalar attribute and its value have together."""
MAX_DEPTH: Final = 32
_URI: Final = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*", re.ASCII)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")


def fault_of(value: Any, attribute: ModelAttribute, depth: int = 0) -> str:
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


def active(attributes: Mapping[str, ModelAttribute], values: Mapping[str, Any]) -> dict[str, ModelAttribute]:
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


def _scalar_fault(value: Any, attribute: ModelAttribute) -> str:
    why = _CHECKS[attribute.type](value)
    if why:
        return why
    if attribute.name and len(attribute.name) + len(_text(value).encode("utf-8", "replace")) > MAX_SCALAR:
        return f"is longer than {MAX_SCALAR} bytes with its name"
    if attribute.enum and attribute.strict and value not in attribute.enum:
        return f"needs to be one of {', '.join(map(_text, attribute.enum))}"
    return ""


def _array_fault(value: Any, attribute: ModelAttribute, depth: int) -> str:
    if not isinstance(value, list):
        return "needs to be an array"
    assert attribute.item is not None
    for index, each in enumerate(value):
        if why := fault_of(each, attribute.item, depth + 1):
            return f"[{index}] {why}"
        if attribute.enum and attribute.strict and each not in attribute.enum:
            return f"[{index}] needs to be one of {', '.join(map(_text, attribute.enum))}"
    return ""


def _map_fault(value: Any, attribute: ModelAttribute, depth: int) -> str:
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


def _object_fault(value: Any, attribute: ModelAttribute, depth: int) -> str:
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


# Whether the attributes of an entity keep to its type; defaults are filled in on the way.


def settled(subject: str, values: Mapping[str, Any], attributes: Mapping[str, ModelAttribute]) -> dict[str, Any]:
    """Return the values that an entity stores: checked, with defaults; those that only the server writes are not asked.

    Raises:
        Refusal: a name is unknown, a value is invalid, or one that is required is missing.
    """
    stored = {name: value for name, value in values.items() if value is not None}
    try:
        known = active(attributes, stored)
    except ValueError as error:
        raise invalid(subject, str(error), "it is declared twice for these values") from None
    missing = []
    for name, attribute in known.items():
        if attribute.served or name == ANYTHING:
            continue
        if name not in stored and attribute.default is not None:
            stored[name] = attribute.default
        if name not in stored and attribute.required:
            missing.append(name)
    if missing:
        raise Refusal("required_attribute_missing", subject, list=listed(missing))
    for name, value in stored.items():
        declared = known.get(name) or known.get(ANYTHING)
        if declared is None:
            raise Refusal("unknown_attribute", subject, name=name)
        if name not in known and not NAME.fullmatch(name):
            raise invalid(subject, name, "names have a-z, 0-9 and '_', begin with no digit, and have 63 at most")
        if why := fault_of(value, declared) or (_times_fault(value) if name == "deprecated" else ""):
            raise invalid(subject, name, why)
        stored[name] = _filled(value, declared)
    return stored


def _times_fault(deprecated: Any) -> str:
    """Return what is wrong with the times of ``deprecated``: nothing is removed before it is deprecated."""
    if not isinstance(deprecated, Mapping):
        return ""
    first, last = (moment_of(str(deprecated.get(name))) for name in ("effective", "removal"))
    return ".removal is before .effective" if first is not None and last is not None and last < first else ""


def _filled(value: Any, attribute: ModelAttribute) -> Any:
    """Return a value with the defaults of the objects in it, and without members that are null."""
    if attribute.type == "timestamp":
        return normalized(value)
    if attribute.type == "object" and isinstance(value, Mapping):
        known = active(attribute.attributes, value)
        members = {
            name: _filled(each, known.get(name) or known[ANYTHING]) for name, each in value.items() if each is not None
        }
        defaults = {name: each.default for name, each in known.items() if each.default is not None}
        return {**members, **{name: each for name, each in defaults.items() if name not in members}}
    if attribute.item is not None and attribute.item.type in ("object", "map", "array"):
        if attribute.type == "map":
            return {name: _filled(each, attribute.item) for name, each in value.items()}
        return [_filled(each, attribute.item) for each in value]
    return value
