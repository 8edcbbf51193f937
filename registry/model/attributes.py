"""What an attribute may be: its type, what its value must keep to, and the members of objects, maps and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SCALARS: Final = frozenset(
    "boolean decimal integer string timestamp uinteger uri uriabsolute urirelative uritemplate url urlabsolute "
    "urlrelative xid xidtype".split()
)
TYPES: Final = SCALARS | {"any", "array", "map", "object"}
TARGETED: Final = frozenset(("uri", "uriabsolute", "urirelative", "url", "urlabsolute", "urlrelative", "xid"))
ANYTHING: Final = "*"
"""The name that stands for all attributes which the model does not name."""


@dataclass(frozen=True, slots=True)
class Attribute:
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
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    item: Attribute | None = None
    ifvalues: Mapping[str, Mapping[str, Attribute]] = field(default_factory=dict)
    served: bool = False

    @property
    def scalar(self) -> bool:
        """Whether its values are scalars."""
        return self.type in SCALARS


def written(attribute: Attribute) -> dict[str, Any]:
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


def all_written(attributes: Mapping[str, Attribute]) -> dict[str, Any]:
    """Return attributes as ``/model`` shows them."""
    return {name: written(each) for name, each in attributes.items()}
