"""Compile a model source (``model.md``); an error names the location."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from registry.errors import Refusal
from registry.model.attributes import (
    FLAGS,
    KEY,
    NAME,
    SCALARS,
    TYPES,
    TYPES_WITH_TARGET,
    WILDCARD,
    GroupType,
    Model,
    ModelAttribute,
    ModelConstraint,
    ResourceType,
    find_fault,
    show_attributes,
)

# Attributes defined by the specification for each kind of entity (core ``spec.md``, Common Attributes): name, type and
# flags of each. Those that only the server writes are ``served``.

_ID: Final = """
    self url readonly immutable required served
    shortself url readonly immutable served
    xid xid readonly immutable required served"""
_TIMES: Final = """
    epoch uinteger readonly required served
    createdat timestamp required served
    modifiedat timestamp required served"""
_TEXTS: Final = """
    name string
    description string
    documentation url
    icon url
    labels map"""
_VERSION: Final = f"""
    versionid string immutable required served
    {_TIMES}{_TEXTS}
    isdefault boolean readonly required served
    ancestorid string required served
    contenttype string
    format string
    formatvalidated boolean readonly served
    formatvalidatedreason string readonly served
    compatibilityvalidated boolean readonly served
    compatibilityvalidatedreason string readonly served"""
_DOCUMENT: Final = """
    {0}url uri
    {0} any served
    {0}base64 string served"""
_META: Final = f"""
    xref xid served
    {_TIMES}
    labels map
    readonly boolean readonly required served
    compatibility string
    deprecated object
    defaultversionid string required served
    defaultversionurl url readonly required served
    defaultversionsticky boolean required served"""
_REGISTRY: Final = f"""
    {_TIMES}{_TEXTS}
    capabilities object served
    model object readonly served
    modelsource object served"""
_GROUP: Final = f"""
    {_TIMES}{_TEXTS}
    deprecated object
    constraints map"""
_RESOURCE: Final = """
    metaurl url readonly immutable required served
    meta object served"""
_COLLECTION: Final = """
    {0}url url readonly immutable required served
    {0}count uinteger readonly required served
    {0} map served"""
_RULES: Final = ("backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive")


def _attrs(text: str) -> dict[str, ModelAttribute]:
    """Return the attributes of a table."""
    listed = (line.split() for line in text.split("\n") if line.strip())
    return {name: _attr(name, kind, **dict.fromkeys(flags, True)) for name, kind, *flags in listed}


def _attr(name: str, kind: str, **flags: bool) -> ModelAttribute:
    """Return an attribute; objects have any members, and required booleans are false by default."""
    more: dict[str, Any] = {**flags, **({"default": False} if kind == "boolean" and "required" in flags else {})}
    if name == "deprecated":
        table = "effective timestamp\nremoval timestamp\nalternative url\ndocumentation url\n* any"
        more["attributes"] = _attrs(table)
    elif kind == "object":
        more["attributes"] = _attrs("* any")
    elif kind == "map":
        more["item"] = ModelAttribute("", "string") if name == "labels" else _attr("", "object")
    elif name == "compatibility":
        more |= {"enum": _RULES, "strict": False}
    return ModelAttribute(name, kind, **more)


def _spec_attrs(singular: str, table: str, collections: Iterable[str] = ()) -> dict[str, ModelAttribute]:
    """Return the attributes of a kind of entity: its id, those of its table, and those of its collections."""
    identity = f"{singular}id string immutable required served{_ID}"
    return _attrs(identity + table + "".join(map(_COLLECTION.format, collections)))


_PLURAL_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,56}")
_DESCRIPTIVE: Final = ("description", "documentation", "icon", "labels", "modelversion", "modelcompatiblewith")
_MODEL_ASPECTS: Final = frozenset(("description", "documentation", "labels", "attributes", "groups"))
_GROUP_ASPECTS: Final = frozenset(
    (*_DESCRIPTIVE, "plural", "singular", "attributes", "resources", "constraints", "ximportresources")
)
_RESOURCE_ASPECTS: Final = frozenset(
    (
        *(*_DESCRIPTIVE, *FLAGS, "plural", "singular", "maxversions", "versionmode", "typemap"),
        *("attributes", "resourceattributes", "metaattributes"),
    )
)
_ATTRIBUTE_ASPECTS: Final = frozenset(
    "name type target namecharset description enum strict matchversions readonly immutable required default attributes "
    "item ifvalues".split()
)
VERSION_MODES: Final = ("manual", "createdat", "modifiedat", "semver")
_MAX_DEPTH: Final = 20


def compile_model(source: object) -> Model:
    """Compile a model source.

    Raises:
        Refusal: ``model_error``, or a more specific error of the model.
    """
    tree = _as_object(source, "the model")
    _check_known(tree, _MODEL_ASPECTS, "the model")
    _check_labels(tree, "the model")
    groups_source = _as_object(tree.get("groups") or {}, "groups")
    resources = _read_resources(groups_source)
    groups = {plural: _to_group(plural, _as_object(each, plural), resources) for plural, each in groups_source.items()}
    _check_names([*groups, *(each.singular for each in groups.values())], "group types")
    known = _attrs("specversion string readonly immutable required served") | _spec_attrs("registry", _REGISTRY, groups)
    attributes = _overlay(known, _read_attributes(tree.get("attributes"), "attributes"), "registry")
    return Model(attributes, groups, tree)


def _read_resources(groups: Mapping[str, Any]) -> dict[tuple[str, str], ResourceType]:
    resources: dict[tuple[str, str], ResourceType] = {}
    for group, source in groups.items():
        for plural, each in _as_object(_as_object(source, group).get("resources") or {}, f"{group}.resources").items():
            resources[group, plural] = _read_resource(group, plural, _as_object(each, f"{group}.{plural}"))
    return resources


def _to_group(plural: str, source: Mapping[str, Any], resources: Mapping[tuple[str, str], ResourceType]) -> GroupType:
    _check_known(source, _GROUP_ASPECTS, plural)
    singular = _read_singular(plural, source)
    own = {name: each for (group, name), each in resources.items() if group == plural}
    for reference in _require_array(source.get("ximportresources") or [], f"{plural}.ximportresources"):
        each = _import_resource(plural, reference, resources)
        if each.plural in own:
            raise _refusal(f"{plural} has two resource types called {each.plural}")
        own[each.plural] = each
    _check_names([*own, *(each.singular for each in own.values())], f"resource types in {plural}")
    known = _spec_attrs(singular, _GROUP, own)
    attributes = _overlay(known, _read_attributes(source.get("attributes"), f"{plural}.attributes"), plural)
    constraints = tuple(parse_constraints(plural, source.get("constraints") or {}, own, attributes))
    return GroupType(plural, singular, attributes, own, constraints, _descriptive(source, plural))


def _import_resource(plural: str, reference: object, resources: Mapping[tuple[str, str], ResourceType]) -> ResourceType:
    parts = str(reference).split("/")
    resource = resources.get((parts[1], parts[2])) if len(parts) == 3 and parts[0] == "" else None
    if resource is None or resource.home == plural:
        raise _refusal(f"{plural}.ximportresources names {reference}, which no other group defines")
    return resource


def _read_resource(group: str, plural: str, source: Mapping[str, Any]) -> ResourceType:
    where = f"{group}.{plural}"
    _check_known(source, _RESOURCE_ASPECTS, where)
    singular = _read_singular(plural, source)
    given = {name: _require_boolean(source[name], f"{where}.{name}") for name in FLAGS if source.get(name) is not None}
    mode = str(source.get("versionmode") or "manual").lower()
    maxversions = source.get("maxversions") or 0
    if mode not in VERSION_MODES:
        raise _refusal(f"{where}.versionmode is {mode}; it must be one of {', '.join(VERSION_MODES)}")
    if isinstance(maxversions, bool) or not isinstance(maxversions, int) or maxversions < 0:
        raise _refusal(f"{where}.maxversions must be an unsigned integer")
    if mode != "manual" and not given.get("singleversionroot"):
        raise _refusal(f"{where}.singleversionroot must be true with versionmode {mode}")
    if given.get("validatecompatibility") and not given.get("validateformat"):
        raise _refusal(f"{where}.validateformat must be true with validatecompatibility")
    own = _spec_attrs(singular, _RESOURCE, ("versions",))
    if source.get("resourceattributes") not in (None, {}, show_attributes(own)):
        raise _refusal(f"{where}.resourceattributes must not redefine attributes that the server sets")
    document = _DOCUMENT.format(singular) if given.get("hasdocument", True) else ""
    versions, meta = _spec_attrs(singular, _VERSION + document), _spec_attrs(singular, _META)
    return ResourceType(
        plural,
        singular,
        group,
        _overlay(versions, _read_attributes(source.get("attributes"), f"{where}.attributes"), where),
        _overlay(meta, _read_attributes(source.get("metaattributes"), f"{where}.metaattributes"), where),
        own,
        maxversions=maxversions,
        versionmode=mode,
        typemap=_read_typemap(source.get("typemap") or {}, where),
        descriptive=_descriptive(source, where),
        **given,
    )


def _read_typemap(given: object, where: str) -> dict[str, str]:
    typemap = {key: str(value).lower() for key, value in _as_object(given, f"{where}.typemap").items()}
    for key, value in typemap.items():
        if value not in ("binary", "json", "string") or not key or key.count("*") > 1:
            raise _refusal(f"{where}.typemap maps {key!r} to {value!r}; allowed are binary, json and string")
    return typemap


def parse_constraints(
    where: str, given: object, resources: Mapping[str, ResourceType], attributes: Mapping[str, ModelAttribute]
) -> Iterator[ModelConstraint]:
    """Parse the constraints of a group type or of a group; *attributes* are the group's.

    Raises:
        Refusal: ``model_error``: a constraint names no scalar attribute, or has a value that is not allowed.
    """
    for key, rule in _as_object(given, f"{where}.constraints").items():
        place = f"{where}.constraints: {key}"
        rule = _as_object(rule, place)
        _check_known(rule, frozenset(("default", "enum", "equals")), place)
        name, _, path = key.partition(".")
        target = resources.get(name)
        attribute = attribute_at(target.attributes, path) if target is not None else None
        if attribute is None or not attribute.is_scalar:
            raise _refusal(f"{place} does not name a scalar attribute of its resources, as RESOURCES.PATH")
        equals = rule.get("equals") or ""
        other = attribute_at(attributes, equals) if isinstance(equals, str) and equals else None
        if equals and (other is None or other.type != attribute.type):
            raise _refusal(f"{place} equals {equals}, which is not an attribute of the group with the same type")
        enum, default = tuple(_require_array(rule.get("enum") or [], place)), rule.get("default")
        for value in enum if default is None else (*enum, default):
            if why := find_fault(value, attribute):
                raise _refusal(f"{place}: {value!r} {why}")
        first = attribute.default if default is None else default
        if enum and first is not None and first not in enum:
            raise _refusal(f"{place}: the default {first!r} is not among its values")
        yield ModelConstraint(name, path, default, enum, equals)


def attribute_at(attributes: Mapping[str, ModelAttribute], path: str) -> ModelAttribute | None:
    """Return the attribute at a dotted path, None if the model has none."""
    attribute: ModelAttribute | None = None
    for part in path.split("."):
        attribute = attributes.get(part)
        if attribute is None:
            return None
        attributes = attribute.attributes
    return attribute


def _overlay(
    base: Mapping[str, ModelAttribute], own: Mapping[str, ModelAttribute], where: str
) -> dict[str, ModelAttribute]:
    """Overlay the specification's attributes with the source's, which may narrow but not widen them."""
    attributes = dict(base)
    for name, each in own.items():
        known = base.get(name)
        if known is None:
            attributes[name] = each
            continue
        if each.type != known.type or (known.readonly and not each.readonly) or (known.default and not each.default):
            raise _refusal(f"{where}: {name} is defined by the specification and cannot be widened")
        members = each.attributes or known.attributes
        attributes[name] = replace(
            each,
            required=each.required or known.required,
            served=known.served,
            attributes=members,
            item=each.item or known.item,
        )
    return attributes


def _read_attributes(given: object, where: str, *, extended: bool = False, depth: int = 0) -> dict[str, ModelAttribute]:
    if depth > _MAX_DEPTH:
        raise _refusal(f"{where} is nested too deeply")
    attributes: dict[str, ModelAttribute] = {}
    for name, each in _as_object(given or {}, where).items():
        spelled = KEY if extended else NAME
        if name != WILDCARD and not spelled.fullmatch(name):
            raise _refusal(f"{where}: {name!r} is not a valid attribute name")
        attributes[name] = _read_attribute(name, _as_object(each, f"{where}.{name}"), f"{where}.{name}", depth)
    for each in attributes.values():
        for siblings in each.ifvalues.values():
            if twice := siblings.keys() & attributes.keys():
                raise _refusal(f"{where}: {sorted(twice)[0]} is declared twice, once by ifvalues of {each.name}")
    return attributes


def _read_attribute(name: str, source: Mapping[str, Any], where: str, depth: int) -> ModelAttribute:
    _check_known(source, _ATTRIBUTE_ASPECTS, where)
    if source.get("name", name) != name:
        raise _refusal(f"{where}.name must be {name!r}")
    kind = source.get("type")
    if not isinstance(kind, str) or kind not in TYPES:
        raise _refusal(f"{where}.type is {kind!r}, which is not a type")
    extended = str(source.get("namecharset") or "strict").lower()
    if extended not in ("strict", "extended") or ("namecharset" in source and kind != "object"):
        raise _refusal(f"{where}.namecharset must be strict or extended, and is only for objects")
    if source.get("target") and kind not in TYPES_WITH_TARGET:
        raise _refusal(f"{where}.target is only for links, not for {kind}")
    if (kind in ("array", "map")) != (source.get("item") is not None):
        raise _refusal(f"{where}.item is required for arrays and maps, and only for them")
    if source.get("attributes") and kind != "object":
        raise _refusal(f"{where}.attributes are only for objects")
    flags = {
        key: _require_boolean(source[key], f"{where}.{key}")
        for key in ("strict", "matchversions", "readonly", "immutable", "required")
        if source.get(key) is not None
    }
    attribute = ModelAttribute(
        name,
        kind,
        description=str(source.get("description") or ""),
        target=str(source.get("target") or ""),
        extended=extended == "extended",
        enum=tuple(_require_array(source.get("enum") or [], f"{where}.enum")),
        default=source.get("default"),
        attributes=_read_attributes(
            source.get("attributes"), f"{where}.attributes", extended=extended == "extended", depth=depth + 1
        ),
        item=_read_item(source.get("item"), f"{where}.item", depth),
        ifvalues=_read_ifvalues(source, where, depth),
        **flags,
    )
    _check_attribute(attribute, where)
    return attribute


def _read_item(source: object, where: str, depth: int) -> ModelAttribute | None:
    return None if source is None else _read_attribute("", {"name": "", **_as_object(source, where)}, where, depth + 1)


def _read_ifvalues(source: Mapping[str, Any], where: str, depth: int) -> dict[str, dict[str, ModelAttribute]]:
    ifvalues: dict[str, dict[str, ModelAttribute]] = {}
    for value, each in _as_object(source.get("ifvalues") or {}, f"{where}.ifvalues").items():
        if not value or value.startswith("^") or value.lower() in {other.lower() for other in ifvalues}:
            raise _refusal(f"{where}.ifvalues: {value!r} is empty, reserved, or duplicated")
        siblings = _as_object(each, f"{where}.ifvalues.{value}").get("siblingattributes")
        ifvalues[value] = _read_attributes(siblings, f"{where}.ifvalues.{value}", extended=True, depth=depth + 1)
    return ifvalues


def _check_attribute(attribute: ModelAttribute, where: str) -> None:
    if attribute.name == WILDCARD and (attribute.required or attribute.readonly or attribute.ifvalues):
        raise _refusal(f"{where} is a wildcard, so it cannot be required or readonly or have ifvalues")
    of_enum = attribute.item or attribute
    if (attribute.enum and not of_enum.is_scalar) or (attribute.ifvalues and not attribute.is_scalar):
        raise _refusal(f"{where}: ifvalues are only for scalars, enum only for scalars and arrays and maps of scalars")
    if attribute.matchversions and not attribute.is_scalar:
        raise _refusal(f"{where}: matchversions is only for scalars")
    for value in attribute.enum:
        if find_fault(value, of_enum):
            raise _refusal(f"{where}.enum: {value!r} is not of type {of_enum.type}")
    if attribute.default is None:
        return
    if attribute.type not in SCALARS:
        raise Refusal("model_scalar_default", "/model", name=attribute.name)
    if not attribute.required:
        raise Refusal("model_required_true", "/model", name=attribute.name)
    if why := find_fault(attribute.default, attribute):
        raise _refusal(f"{where}.default {why}")


def _read_singular(plural: str, source: Mapping[str, Any]) -> str:
    singular = source.get("singular")
    if not _PLURAL_NAME.fullmatch(plural) or source.get("plural", plural) != plural:
        raise _refusal(f"{plural!r} is not a valid plural name, or differs from its key")
    if not isinstance(singular, str) or not _PLURAL_NAME.fullmatch(singular):
        raise _refusal(f"{plural}.singular is missing, or not a valid name")
    return singular


def _check_names(names: list[str], what: str) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise _refusal(f"{what} share the name {twice[0]}")


def _descriptive(source: Mapping[str, Any], where: str) -> dict[str, Any]:
    _check_labels(source, where)
    return {name: source[name] for name in _DESCRIPTIVE if source.get(name) is not None}


def _check_labels(source: Mapping[str, Any], where: str) -> None:
    for key, value in _as_object(source.get("labels") or {}, f"{where}.labels").items():
        if not key or not isinstance(value, str):
            raise _refusal(f"{where}.labels: {key!r} must be a non-empty string, and its value a string")


def _check_known(source: Mapping[str, Any], names: frozenset[str], where: str) -> None:
    for name in source:
        if name not in names:
            raise _refusal(f"{where} has an unknown aspect {name!r}")


def _as_object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _refusal(f"{where} must be an object")
    return value


def _require_array(value: object, where: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _refusal(f"{where} must be an array")
    return list(value)


def _require_boolean(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise _refusal(f"{where} must be true or false")
    return value


def _refusal(detail: str) -> Refusal:
    return Refusal("model_error", "/model", error_detail=detail)
