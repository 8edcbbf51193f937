"""The compiled model: attributes, validation of values, group and resource types, and the default model."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.resources import files
from typing import Any, Final

import msgspec

from registry.errors import Refusal, invalid_value, join_values

SCALARS: Final = frozenset(
    "boolean decimal integer string timestamp uinteger uri uriabsolute urirelative uritemplate url urlabsolute "
    "urlrelative xid xidtype".split()
)
TYPES: Final = SCALARS | {"any", "array", "map", "object"}
TYPES_WITH_TARGET: Final = frozenset(("uri", "uriabsolute", "urirelative", "url", "urlabsolute", "urlrelative", "xid"))
WILDCARD: Final = "*"
"""The name of the wildcard attribute: all attributes that the model does not name."""


@dataclass(frozen=True, slots=True)
class ModelAttribute:
    """One attribute, or the item of an array or map (``model.md``, attributes).

    ``ifvalues`` has, by value in lower case, the additional sibling attributes. ``served`` attributes are written only
    by the server and not stored; the code that sets them checks them.
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
    def is_scalar(self) -> bool:
        """Whether its values are scalars."""
        return self.type in SCALARS


def show_attribute(attribute: ModelAttribute) -> dict[str, Any]:
    """Return an attribute as ``/model`` shows it, without defaults."""
    names = ("name", "type", "description", "target", "matchversions", "readonly", "immutable", "required")
    members = {key: getattr(attribute, key) for key in names if getattr(attribute, key)}
    if attribute.extended:
        members["namecharset"] = "extended"
    if attribute.enum:
        members["enum"] = list(attribute.enum)
    if not attribute.strict:
        members["strict"] = False
    if attribute.default is not None:
        members["default"] = attribute.default
    if attribute.attributes:
        members["attributes"] = show_attributes(attribute.attributes)
    if attribute.item is not None:
        members["item"] = show_attribute(attribute.item)
    if attribute.ifvalues:
        members["ifvalues"] = {
            value: {"siblingattributes": show_attributes(siblings)} for value, siblings in attribute.ifvalues.items()
        }
    return members


def show_attributes(attributes: Mapping[str, ModelAttribute]) -> dict[str, Any]:
    """Return attributes as ``/model`` shows them."""
    return {name: show_attribute(each) for name, each in attributes.items()}


# Timestamps: RFC 3339 in, UTC out; ordered by the instant and not by the text.

_TIME_FORM: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,12})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)?", re.ASCII | re.IGNORECASE
)


def parse_time(text: str) -> datetime | None:
    """Parse a timestamp (without a zone: UTC); None if it is not valid."""
    if not _TIME_FORM.fullmatch(text):
        return None
    if text[17:19] == "60":  # a leap second
        text = f"{text[:17]}59{text[19:]}"
    try:
        instant = datetime.fromisoformat(text.upper())
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def format_time(instant: datetime) -> str:
    """Format an instant in UTC, with the fraction that it has."""
    text = instant.astimezone(UTC).replace(tzinfo=None).isoformat()
    return f"{text.rstrip('0') if instant.microsecond else text}Z"


def to_utc(text: str) -> str:
    """Convert a valid timestamp to UTC."""
    instant = parse_time(text)
    assert instant is not None
    return format_time(instant)


def later_time(one: str, other: str) -> str:
    """Return the later of two UTC timestamps; '' is the earliest."""
    first, second = parse_time(one), parse_time(other)
    return other if second is not None and (first is None or first < second) else one


def current_time() -> str:
    """Return the current time."""
    return format_time(datetime.now(UTC))


# Validation of a value by its type (core ``spec.md``, Data Types), including members of maps and objects.

KEY: Final = re.compile(r"[a-z0-9][a-z0-9:\-_.]{0,62}")
NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
MAX_SCALAR: Final = 4096
"""Maximum bytes of the name and value of a scalar attribute together."""
_URI: Final = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*", re.ASCII)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")


def find_fault(value: Any, attribute: ModelAttribute) -> str:
    """Return why a value is not valid, '' if it is; the text continues ``the attribute``.

    It goes as deep as the model, which is limited.
    """
    if value is None:
        return "is null"
    if attribute.type == "any":
        return ""
    if attribute.is_scalar:
        return _scalar_fault(value, attribute)
    if attribute.type in ("array", "map"):
        return _members_fault(value, attribute)
    return _object_fault(value, attribute)


def active_attributes(attributes: Mapping[str, ModelAttribute], values: Mapping[str, Any]) -> dict[str, ModelAttribute]:
    """Return the attributes for these values: the declared ones and those added by ``ifvalues``.

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
        text = _text_fault(value).lower()
        for wanted, siblings in each.ifvalues.items():
            if wanted.lower() != text:
                continue
            if twice := siblings.keys() & in_force.keys():
                raise ValueError(sorted(twice)[0])
            in_force.update(siblings)
            waiting.extend(siblings.values())
    return in_force


def _scalar_fault(value: Any, attribute: ModelAttribute) -> str:
    is_valid, why = _SCALAR_CHECKS[attribute.type]
    if not is_valid(value):
        return why
    if attribute.name and len(attribute.name) + len(_text_fault(value).encode("utf-8", "replace")) > MAX_SCALAR:
        return f"is longer than {MAX_SCALAR} bytes with its name"
    if attribute.enum and attribute.strict and value not in attribute.enum:
        return f"must be one of {', '.join(map(_text_fault, attribute.enum))}"
    return ""


def _members_fault(value: Any, attribute: ModelAttribute) -> str:
    """Return why an array or a map is not valid."""
    listed = attribute.type == "array"
    if not isinstance(value, list if listed else Mapping):
        return "must be an array" if listed else "must be a map"
    assert attribute.item is not None
    members: Any = enumerate(value) if isinstance(value, list) else value.items()
    for key, each in members:
        if not listed and not KEY.fullmatch(key):
            return f"has the key {key!r}, which is too long or not made of a-z, 0-9, ':', '-', '_' and '.'"
        place = f"[{key}]" if listed else f".{key}"
        if why := find_fault(each, attribute.item):
            return f"{place} {why}"
        if attribute.enum and attribute.strict and each not in attribute.enum:
            return f"{place} must be one of {', '.join(map(_text_fault, attribute.enum))}"
    return ""


def _object_fault(value: Any, attribute: ModelAttribute) -> str:
    if not isinstance(value, Mapping):
        return "must be an object"
    try:
        known = active_attributes(attribute.attributes, value)
    except ValueError as error:
        return f".{error} is declared twice for these values"
    for name, each in value.items():
        if name not in known and WILDCARD not in known:
            return f".{name} is unknown"
        if name not in known and not KEY.fullmatch(name) and not NAME.fullmatch(name):
            return f"has a member {name!r}, which is not a valid attribute name"
        why = "" if each is None else find_fault(each, known.get(name) or known[WILDCARD])
        if why:
            return f".{name} {why}"
    for name, member in known.items():
        if member.required and member.default is None and value.get(name) is None:
            return f".{name} is missing"
    return ""


def _text_fault(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_uri(value: Any) -> bool:
    return isinstance(value, str) and bool(value and _URI.fullmatch(value))


_STRING: Final = (lambda value: isinstance(value, str)), "must be a string"
_RELATIVE: Final = (lambda value: _is_uri(value) and not _SCHEME.match(value)), "must be a relative URI"
_ABSOLUTE: Final = (lambda value: _is_uri(value) and bool(_SCHEME.match(value))), "must be an absolute URI"
_XID: Final = (lambda value: isinstance(value, str) and value.startswith("/")), "must be an xid, which begins with /"
_SCALAR_CHECKS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "boolean": (lambda value: isinstance(value, bool), "must be true or false"),
    "decimal": (
        lambda value: _is_integer(value) or (type(value) is float and math.isfinite(value)),
        "must be a number",
    ),
    "integer": (_is_integer, "must be an integer"),
    "string": _STRING,
    "timestamp": (
        lambda value: isinstance(value, str) and parse_time(value) is not None,
        "must be an RFC 3339 timestamp",
    ),
    "uinteger": (lambda value: _is_integer(value) and value >= 0, "must be an unsigned integer"),
    "uri": (_is_uri, "must be a URI"),
    "uriabsolute": _ABSOLUTE,
    "urirelative": _RELATIVE,
    "uritemplate": _STRING,
    "url": (_is_uri, "must be a URI"),
    "urlabsolute": _ABSOLUTE,
    "urlrelative": _RELATIVE,
    "xid": _XID,
    "xidtype": _XID,
}
"""By scalar type: whether a value is valid, and what to say if it is not."""

# Validation of an entity's attributes; defaults are filled in.


def check_values(subject: str, values: Mapping[str, Any], attributes: Mapping[str, ModelAttribute]) -> dict[str, Any]:
    """Return the validated values of an entity, with defaults; attributes written only by the server are skipped.

    Raises:
        Refusal: a name is unknown, a value is not valid, or a required one is missing.
    """
    stored = {name: value for name, value in values.items() if value is not None}
    try:
        known = active_attributes(attributes, stored)
    except ValueError as error:
        raise invalid_value(subject, str(error), "it is declared twice for these values") from None
    missing = []
    for name, attribute in known.items():
        if attribute.served or name == WILDCARD:
            continue
        if name not in stored and attribute.default is not None:
            stored[name] = attribute.default
        if name not in stored and attribute.required:
            missing.append(name)
    if missing:
        raise Refusal("required_attribute_missing", subject, list=join_values(missing))
    for name, value in stored.items():
        declared = known.get(name) or known.get(WILDCARD)
        if declared is None:
            raise Refusal("unknown_attribute", subject, name=name)
        if name not in known and not NAME.fullmatch(name):
            raise invalid_value(subject, name, "names have up to 63 of a-z, 0-9 and '_', and do not begin with a digit")
        if why := find_fault(value, declared) or (_times_fault(value) if name == "deprecated" else ""):
            raise invalid_value(subject, name, why)
        stored[name] = _fill_defaults(value, declared)
    return stored


def _times_fault(deprecated: Any) -> str:
    """Return why the times of ``deprecated`` are not valid: removal must not be before deprecation."""
    if not isinstance(deprecated, Mapping):
        return ""
    first, last = (parse_time(str(deprecated.get(name))) for name in ("effective", "removal"))
    return ".removal is before .effective" if first is not None and last is not None and last < first else ""


def _fill_defaults(value: Any, attribute: ModelAttribute) -> Any:
    """Return a value with defaults of nested objects, and without null members."""
    if attribute.type == "timestamp":
        return to_utc(value)
    if attribute.type == "object" and isinstance(value, Mapping):
        known = active_attributes(attribute.attributes, value)
        members = {
            name: _fill_defaults(each, known.get(name) or known[WILDCARD])
            for name, each in value.items()
            if each is not None
        }
        defaults = {name: each.default for name, each in known.items() if each.default is not None}
        return {**members, **{name: each for name, each in defaults.items() if name not in members}}
    if attribute.item is not None and attribute.item.type in ("object", "map", "array"):
        if attribute.type == "map":
            return {name: _fill_defaults(each, attribute.item) for name, each in value.items()}
        return [_fill_defaults(each, attribute.item) for each in value]
    return value


# Group types and resource types.

FLAGS: Final = tuple(
    "setversionid hasdocument singleversionroot validateformat validatecompatibility strictvalidation".split()
)
_SHOWN: Final = ("maxversions", *FLAGS[:2], "versionmode", *FLAGS[2:])
_DEFAULT_TYPEMAP: Final = {"application/json": "json", "*+json": "json", "text/plain": "string"}


@dataclass(frozen=True, slots=True)
class ModelConstraint:
    """A group's constraint on an attribute of its resources, at ``path`` within the resource (``model.md``)."""

    resources: str
    path: str
    default: Any = None
    enum: tuple[Any, ...] = ()
    equals: str = ""

    @property
    def key(self) -> str:
        """The key in ``constraints``."""
        return f"{self.resources}.{self.path}"


@dataclass(frozen=True, slots=True)
class ResourceType:
    """A resource type, as in ``model.md``; ``attributes`` are those of versions, ``meta`` of the resource.

    ``home`` is the group type that defines it: types imported from the same home are equal.
    """

    plural: str
    singular: str
    home: str
    attributes: Mapping[str, ModelAttribute]
    meta: Mapping[str, ModelAttribute]
    resource: Mapping[str, ModelAttribute]
    maxversions: int = 0
    setversionid: bool = True
    hasdocument: bool = True
    versionmode: str = "manual"
    singleversionroot: bool = False
    validateformat: bool = False
    validatecompatibility: bool = False
    strictvalidation: bool = False
    typemap: Mapping[str, str] = field(default_factory=dict)
    descriptive: Mapping[str, Any] = field(default_factory=dict)

    @property
    def document_names(self) -> tuple[str, str, str]:
        """The three attributes of a document: JSON, base64, and URL."""
        return self.singular, f"{self.singular}base64", f"{self.singular}url"

    def representation_of(self, contenttype: str | None) -> str:
        """Return the representation of a content type: ``json``, ``string`` or ``binary`` (typemap)."""
        media = (contenttype or "").partition(";")[0].strip().lower()
        for given in (self.typemap, _DEFAULT_TYPEMAP):
            forms = {form for key, form in given.items() if _matches_media(key.lower(), media)}
            if forms:
                return forms.pop() if len(forms) == 1 else "binary"
        return "binary"

    def to_document(self) -> dict[str, Any]:
        """Return the type as ``/model`` shows it."""
        return {
            "plural": self.plural,
            "singular": self.singular,
            **self.descriptive,
            **{name: getattr(self, name) for name in _SHOWN},
            **({"typemap": dict(self.typemap)} if self.typemap else {}),
            "attributes": show_attributes(self.attributes),
            "resourceattributes": show_attributes(self.resource),
            "metaattributes": show_attributes(self.meta),
        }


@dataclass(frozen=True, slots=True)
class GroupType:
    """A group type; ``descriptive`` are the descriptive aspects of its source."""

    plural: str
    singular: str
    attributes: Mapping[str, ModelAttribute]
    resources: Mapping[str, ResourceType]
    constraints: tuple[ModelConstraint, ...] = ()
    descriptive: Mapping[str, Any] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        """Return the type as ``/model`` shows it."""
        shown: dict[str, Any] = {"plural": self.plural, "singular": self.singular, **self.descriptive}
        if self.constraints:
            shown["constraints"] = {each.key: _show_constraint(each) for each in self.constraints}
        shown["attributes"] = show_attributes(self.attributes)
        shown["resources"] = {name: each.to_document() for name, each in self.resources.items()}
        return shown


@dataclass(frozen=True)
class Model:
    """The whole model; ``source`` is its model source."""

    attributes: Mapping[str, ModelAttribute]
    groups: Mapping[str, GroupType]
    source: Mapping[str, Any]

    @cached_property
    def document(self) -> dict[str, Any]:
        """The document at ``/model``."""
        said = {key: self.source[key] for key in ("description", "documentation", "labels") if key in self.source}
        groups = {name: each.to_document() for name, each in self.groups.items()}
        return {**said, "attributes": show_attributes(self.attributes), "groups": groups}


def _show_constraint(constraint: ModelConstraint) -> dict[str, Any]:
    given = {"default": constraint.default, "enum": list(constraint.enum), "equals": constraint.equals}
    return {name: value for name, value in given.items() if value not in (None, [], "")}


def _matches_media(key: str, media: str) -> bool:
    before, star, after = key.partition("*")
    if not star:
        return key == media
    return len(media) >= len(before) + len(after) and media.startswith(before) and media.endswith(after)


# The initial model: endpoints, message groups and schema groups.
#
# It follows the specifications of messages, endpoints and schemas. Protocol options and envelope constraints, which
# differ between versions of the specifications, are open: lint checks them. Messages may have several versions, as in
# older specifications.


def model_source() -> dict[str, Any]:
    """Return the model source of a new registry."""
    source: dict[str, Any] = msgspec.json.decode(files("registry.model").joinpath("initial.json").read_bytes())
    return source
