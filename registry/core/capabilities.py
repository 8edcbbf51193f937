"""What this registry can do; the offer has no choices, so an update may only say what is so (core ``spec.md``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.compatibility.formats import FORMATS
from registry.compatibility.rules import CHECKERS, RULES
from registry.core.merging import IGNORABLE
from registry.core.views import SPECVERSION
from registry.errors import Refusal, listed
from registry.model.reading import MODES

FLAGS: Final = (
    "binary",
    "collections",
    "doc",
    "epoch",
    "filter",
    "ignore",
    "inline",
    "setdefaultversionid",
    "sort",
    "specversion",
)
_MUTABLE: Final = ("entities", "modelsource")
_AVAILABLE: Final = ("capabilities", "capabilitiesoffered", "entities", "export", "model", "modelsource")
CAPABILITIES: Final[Mapping[str, Any]] = {
    "available": {name: {"mutable": name in _MUTABLE} for name in _AVAILABLE},
    "compatibilities": {f"{family}*": list(RULES) for family in CHECKERS},
    "flags": list(FLAGS),
    "formats": list(FORMATS),
    "ignores": list(IGNORABLE),
    "mutable": list(_MUTABLE),
    "pagination": True,
    "shortself": False,
    "specversions": [SPECVERSION],
    "versionmodes": list(MODES),
}


def offered() -> dict[str, Any]:
    """Return the offer: each capability with the values that it may have."""
    boolean = {"type": "boolean"}
    found: dict[str, Any] = {
        "available": {
            "type": "object",
            "attributes": {
                name: {"type": "object", "attributes": {"mutable": {**boolean, "enum": [value["mutable"]]}}}
                for name, value in CAPABILITIES["available"].items()
            },
        },
        "compatibilities": {
            "type": "object",
            "attributes": {
                name: {"type": "array", "item": {"type": "string"}, "enum": rules}
                for name, rules in CAPABILITIES["compatibilities"].items()
            },
        },
    }
    for name, value in CAPABILITIES.items():
        if isinstance(value, bool):
            found[name] = {**boolean, "enum": [value]}
        elif isinstance(value, list):
            found[name] = {"type": "array", "item": {"type": "string"}, "enum": value}
    return found


def check_capabilities(given: object) -> None:
    """Make sure that capabilities that a client sets are those that there are; None asks for the default ones.

    Raises:
        Refusal: one is unknown, has a value that is not offered, or would be changed.
    """
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise Refusal("capability_error", "/capabilities", error_detail="they need to be an object")
    for name, value in given.items():
        if name not in CAPABILITIES:
            raise Refusal("capability_unknown", "/capabilities", field=name)
        _check(name, value, CAPABILITIES[name])


def _check(name: str, value: Any, present: Any) -> None:
    if value is None or value == present:
        return
    if isinstance(present, bool):
        raise _value(name, str(value), [str(present).lower()])
    if isinstance(present, Mapping):
        raise Refusal("capability_error", "/capabilities", error_detail=f"{name} cannot be changed")
    if not isinstance(value, list):
        raise _value(name, str(value), present)
    folded = [str(each).lower() for each in value]
    if "*" in folded:
        if len(folded) > 1:
            raise Refusal("capability_wildcard", "/capabilities", field=name)
        return
    known = [each.lower() for each in present]
    for each in folded:
        if each not in known:
            raise _value(name, each, present)
    for each in present:
        if each.lower() not in folded:
            if name == "specversions":
                raise Refusal("capability_missing_value", "/capabilities", name=name, value=each)
            raise Refusal("capability_error", "/capabilities", error_detail=f"{each} of {name} cannot be turned off")


def _value(name: str, value: str, allowed: list[str]) -> Refusal:
    return Refusal("capability_value", "/capabilities", value=value, field=name, list=listed(allowed))
