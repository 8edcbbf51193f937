"""The attributes that the specification itself gives each kind of entity (core ``spec.md``, Common Attributes)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from registry.model.attributes import ANYTHING, Attribute

_STRING: Final = Attribute("", "string")


def _named(attributes: Iterable[Attribute]) -> dict[str, Attribute]:
    return {each.name: each for each in attributes}


def _identity(name: str) -> list[Attribute]:
    return [
        Attribute(name, "string", immutable=True, required=True, served=True),
        Attribute("self", "url", readonly=True, immutable=True, required=True, served=True),
        Attribute("shortself", "url", readonly=True, immutable=True, served=True),
        Attribute("xid", "xid", readonly=True, immutable=True, required=True, served=True),
    ]


def _times() -> list[Attribute]:
    return [
        Attribute("epoch", "uinteger", readonly=True, required=True, served=True),
        Attribute("createdat", "timestamp", required=True, served=True),
        Attribute("modifiedat", "timestamp", required=True, served=True),
    ]


def _described() -> list[Attribute]:
    return [
        Attribute("name", "string"),
        Attribute("description", "string"),
        Attribute("documentation", "url"),
        Attribute("icon", "url"),
        _labels(),
    ]


def _labels() -> Attribute:
    return Attribute("labels", "map", item=_STRING)


def _deprecated() -> Attribute:
    times = [Attribute("effective", "timestamp"), Attribute("removal", "timestamp")]
    links = [Attribute("alternative", "url"), Attribute("documentation", "url"), Attribute(ANYTHING, "any")]
    return Attribute("deprecated", "object", attributes=_named([*times, *links]))


def collection(plural: str) -> list[Attribute]:
    """Return the three attributes of a nested collection."""
    return [
        Attribute(f"{plural}url", "url", readonly=True, immutable=True, required=True, served=True),
        Attribute(f"{plural}count", "uinteger", readonly=True, required=True, served=True),
        Attribute(
            plural, "map", item=Attribute("", "object", attributes=_named([Attribute(ANYTHING, "any")])), served=True
        ),
    ]


def of_registry(groups: Iterable[str]) -> dict[str, Attribute]:
    """Return the attributes of the registry."""
    anything = _named([Attribute(ANYTHING, "any")])
    inlined = [
        Attribute(name, "object", attributes=anything, readonly=name == "model", served=True)
        for name in ("capabilities", "model", "modelsource")
    ]
    nested = [each for plural in groups for each in collection(plural)]
    version = Attribute("specversion", "string", readonly=True, immutable=True, required=True, served=True)
    return _named([version, *_identity("registryid"), *_times(), *_described(), *inlined, *nested])


def of_group(singular: str, resources: Iterable[str]) -> dict[str, Attribute]:
    """Return the attributes of a type of group."""
    anything = _named([Attribute(ANYTHING, "any")])
    constraints = Attribute("constraints", "map", item=Attribute("", "object", attributes=anything))
    nested = [each for plural in resources for each in collection(plural)]
    return _named([*_identity(f"{singular}id"), *_times(), *_described(), _deprecated(), constraints, *nested])


def of_version(singular: str, *, hasdocument: bool) -> dict[str, Attribute]:
    """Return the attributes of the versions of a type of resource."""
    attributes = [
        *_identity(f"{singular}id"),
        Attribute("versionid", "string", immutable=True, required=True, served=True),
        *_times(),
        *_described(),
        Attribute("isdefault", "boolean", readonly=True, required=True, default=False, served=True),
        Attribute("ancestorid", "string", required=True, served=True),
        Attribute("contenttype", "string"),
        Attribute("format", "string"),
        Attribute("formatvalidated", "boolean", readonly=True, served=True),
        Attribute("formatvalidatedreason", "string", readonly=True, served=True),
        Attribute("compatibilityvalidated", "boolean", readonly=True, served=True),
        Attribute("compatibilityvalidatedreason", "string", readonly=True, served=True),
    ]
    if hasdocument:
        attributes += [
            Attribute(f"{singular}url", "uri"),
            Attribute(singular, "any", served=True),
            Attribute(f"{singular}base64", "string", served=True),
        ]
    return _named(attributes)


def of_resource(singular: str) -> dict[str, Attribute]:
    """Return the attributes that a resource has beside those of its default version."""
    anything = _named([Attribute(ANYTHING, "any")])
    metaurl = Attribute("metaurl", "url", readonly=True, immutable=True, required=True, served=True)
    meta = Attribute("meta", "object", attributes=anything, served=True)
    return _named([*_identity(f"{singular}id"), metaurl, meta, *collection("versions")])


def of_meta(singular: str) -> dict[str, Attribute]:
    """Return the attributes of the ``meta`` of a type of resource."""
    rules = ("backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive")
    return _named(
        [
            *_identity(f"{singular}id"),
            Attribute("xref", "xid", served=True),
            *_times(),
            _labels(),
            Attribute("readonly", "boolean", readonly=True, required=True, default=False, served=True),
            Attribute("compatibility", "string", enum=rules, strict=False),
            _deprecated(),
            Attribute("defaultversionid", "string", required=True, served=True),
            Attribute("defaultversionurl", "url", readonly=True, required=True, served=True),
            Attribute("defaultversionsticky", "boolean", required=True, default=False, served=True),
        ]
    )
