"""Whether the attributes of an entity keep to its type; defaults are filled in on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.errors import Refusal, invalid, listed
from registry.model.attributes import ANYTHING, Attribute
from registry.model.moments import moment_of, normalized
from registry.model.values import NAME, active, fault_of


def settled(subject: str, values: Mapping[str, Any], attributes: Mapping[str, Attribute]) -> dict[str, Any]:
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


def _filled(value: Any, attribute: Attribute) -> Any:
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
