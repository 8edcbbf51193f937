"""What this registry can do, and which of it clients may turn off: flags, values of ``ignore``, and pages.

The rest is fixed: an update may only repeat it (core ``spec.md``, Updating the Capabilities).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from registry.compatibility.formats import FORMATS
from registry.compatibility.rules import CHECKERS, RULES
from registry.core.merging import IGNORABLE
from registry.core.requests import Flags, Request
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
_PAGING: Final[Mapping[str, Any]] = {"limit": None, "cursor": ""}
"""Parameters of pages, and what a request has without them."""
_CHOICES: Final = ("flags", "ignores", "pagination")
_MUTABLE: Final = ("capabilities", "entities", "modelsource")
_AVAILABLE: Final = ("capabilities", "capabilitiesoffered", "entities", "export", "model", "modelsource")
CAPABILITIES: Final[Mapping[str, Any]] = {
    "available": {name: {"mutable": name in _MUTABLE} for name in _AVAILABLE},
    "compatibilities": {f"{family}*": list(RULES) for family in CHECKERS},
    "flags": list(FLAGS),
    "formats": list(FORMATS),
    "ignores": list(IGNORABLE),
    "pagination": True,
    "shortself": False,
    "specversions": [SPECVERSION],
    "versionmodes": list(MODES),
}


def offered() -> dict[str, Any]:
    """Return the offer: each capability with the values that it may have; only some of a list may be left out."""
    boolean = {"type": "boolean"}
    offer: dict[str, Any] = {
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
            offer[name] = {**boolean, "enum": [False, True] if name in _CHOICES else [value]}
        elif isinstance(value, list):
            offer[name] = {"type": "array", "item": {"type": "string"}, "enum": value}
    return offer


def capabilities_of(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return all capabilities, with the values that clients have *chosen* in place of the defaults.

    For a list *chosen* has the values that are ``off``, so that values which a later release adds are on.
    """
    capabilities = dict(CAPABILITIES)
    for name, value in chosen.items():
        if isinstance(value, Mapping):
            capabilities[name] = [each for each in CAPABILITIES[name] if each not in value["off"]]
        else:
            capabilities[name] = value
    return capabilities


def is_on(parameter: str, capabilities: Mapping[str, Any]) -> bool:
    """Tell whether a parameter of a request's query counts; one that no capability controls always does."""
    if parameter in _PAGING:
        return bool(capabilities["pagination"])
    return parameter not in FLAGS or parameter in capabilities["flags"]


def counting(request: Request, chosen: Mapping[str, Any]) -> Request:
    """Return a request as it counts: parameters that are turned off are as if not given (``http.md``)."""
    if not chosen or not request.from_client:
        return request
    have = capabilities_of(chosen)
    none = Flags()
    off = {name: getattr(none, name) for name in FLAGS if not is_on(name, have)}
    pages = {name: value for name, value in _PAGING.items() if not is_on(name, have)}
    return replace(request, flags=replace(request.flags, **off), **pages)


def ignorable(request: Request, chosen: Mapping[str, Any]) -> Sequence[str]:
    """Return what the flag ``ignore`` of a request may name."""
    return capabilities_of(chosen)["ignores"] if request.from_client else IGNORABLE


def chosen_of(given: object, present: Mapping[str, Any], *, patch: bool) -> dict[str, Any]:
    """Return what differs from the defaults after a client wrote capabilities; None asks for the defaults.

    What the client does not name gets its default, or with *patch* keeps its value at *present*.

    Raises:
        Refusal: one is unknown, has a value that is not offered, or cannot be changed.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise Refusal("capability_error", "/capabilities", error_detail="they need to be an object")
    chosen = dict(present) if patch else {}
    for name, value in given.items():
        if name not in CAPABILITIES:
            raise Refusal("capability_unknown", "/capabilities", field=name)
        first = CAPABILITIES[name]
        wanted = first if value is None else _read(name, value, first)
        chosen.pop(name, None)
        if wanted != first:
            listed = isinstance(first, list)
            chosen[name] = {"off": [each for each in first if each not in wanted]} if listed else wanted
    return chosen


def _read(name: str, value: Any, first: Any) -> Any:
    """Return the value of a capability in the form in which it is shown; *first* is its default."""
    if isinstance(first, bool):
        return _read_boolean(name, value, first)
    if isinstance(first, Mapping):
        if value != first:
            raise Refusal("capability_error", "/capabilities", error_detail=f"{name} cannot be changed")
        return first
    if not isinstance(value, list):
        raise _value(name, str(value), first)
    folded = [str(each).lower() for each in value]
    if "*" in folded:
        if len(folded) > 1:
            raise Refusal("capability_wildcard", "/capabilities", field=name)
        return first
    known = [each.lower() for each in first]
    for each in folded:
        if each not in known:
            raise _value(name, each, first)
    off = [each for each in first if each.lower() not in folded]
    if off and name == "specversions":
        raise Refusal("capability_missing_value", "/capabilities", name=name, value=off[0])
    if off and name not in _CHOICES:
        raise Refusal("capability_error", "/capabilities", error_detail=f"{off[0]} of {name} cannot be turned off")
    return [each for each in first if each not in off]


def _read_boolean(name: str, value: Any, first: bool) -> bool:
    allowed = [False, True] if name in _CHOICES else [first]
    if not isinstance(value, bool) or value not in allowed:
        raise _value(name, str(value).lower(), [str(each).lower() for each in allowed])
    return value


def _value(name: str, value: str, allowed: list[str]) -> Refusal:
    return Refusal("capability_value", "/capabilities", value=value, field=name, list=listed(allowed))
