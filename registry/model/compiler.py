"""Compile a model source (``model.md``); an error names the location."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec
from pydantic import TypeAdapter, ValidationError

from registry.errors import Refusal
from registry.model.attributes import (
    ConstraintAspects,
    GroupType,
    Model,
    ModelAttribute,
    ModelConstraint,
    ModelSource,
    ResourceType,
    find_fault,
    show_attributes,
)

T = TypeVar("T")

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
_COLLECTION: Final = """
    {0}url url readonly immutable required served
    {0}count uinteger readonly required served
    {0} map served"""
_RULES: Final = ("backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive")


def _attrs(text: str) -> dict[str, ModelAttribute]:
    """Return the attributes of a table."""
    listed = (line.split() for line in text.split("\n") if line.strip())
    return {name: _attr(name, kind, **dict.fromkeys(flags, True)) for name, kind, *flags in listed}


def _attr(name: str, kind: Any, **flags: bool) -> ModelAttribute:
    """Return an attribute; objects have any members, and required booleans are false by default."""
    served = flags.pop("served", False)
    more: dict[str, Any] = {**flags, **({"default": False} if kind == "boolean" and "required" in flags else {})}
    if name == "deprecated":
        table = "effective timestamp\nremoval timestamp\nalternative url\ndocumentation url\n* any"
        more["attributes"] = _attrs(table)
    elif kind == "object":
        more["attributes"] = _attrs("* any")
    elif kind == "map":
        more["item"] = ModelAttribute(type="string") if name == "labels" else _attr("", "object")
    elif name == "compatibility":
        more |= {"enum": list(_RULES), "strict": False}
    attribute = ModelAttribute(name=name, type=kind, **more)
    attribute._served = served
    return attribute


_REGISTRY: Final = f"""{_TIMES}{_TEXTS}
    specversion string readonly immutable required served
    capabilities object served
    model object readonly served
    modelsource object served"""
_GROUP: Final = f"""{_TIMES}{_TEXTS}
    deprecated object
    constraints map"""
_RESOURCE: Final = """
    metaurl url readonly immutable required served
    meta object served"""


def _spec_attrs(singular: str, table: str, plurals: Iterable[str] = ()) -> dict[str, ModelAttribute]:
    """Return the attributes of a kind of entity: its ids, those of its table, and its collections."""
    collections = "".join(map(_COLLECTION.format, plurals))
    return _attrs(f"{singular}id string immutable required served{_ID}{table}{collections}")


_SOURCE: Final = TypeAdapter(ModelSource)
_CONSTRAINTS: Final = TypeAdapter(dict[str, ConstraintAspects])


def compile_model(source: object) -> Model:
    """Compile a model source.

    Raises:
        Refusal: ``model_error``, or a more specific error of the model.
    """
    parsed = _parse(_SOURCE, source, "the model")
    groups = parsed.groups
    resources = {(group, plural): each for group, kind in groups.items() for plural, each in kind.resources.items()}
    for (group, plural), each in resources.items():
        _compile_resource(group, plural, each)
    for plural, kind in groups.items():
        _compile_group(plural, kind, resources)
    _check_names([*groups, *(each.singular for each in groups.values())], "group types")
    assert isinstance(source, Mapping)
    return Model(_overlay(_spec_attrs("registry", _REGISTRY, groups), parsed.attributes, "registry"), groups, source)


def _compile_group(plural: str, kind: GroupType, resources: Mapping[tuple[str, str], ResourceType]) -> None:
    _set_plural(plural, kind)
    for reference in kind.ximportresources:
        home, slash, name = reference.removeprefix("/").partition("/")
        each = resources.get((home, name)) if reference == f"/{home}{slash}{name}" and home != plural else None
        if each is None:
            raise _refusal(f"{plural}.ximportresources names {reference}, which no other group defines")
        if name in kind.resources:
            raise _refusal(f"{plural} has two resource types called {name}")
        kind.resources[name] = each
    own = kind.resources
    _check_names([*own, *(each.singular for each in own.values())], f"resource types in {plural}")
    kind.attributes = _overlay(_spec_attrs(kind.singular, _GROUP, own), kind.attributes, plural)
    kind._rules = tuple(_iter_constraints(plural, kind.constraints, own, kind.attributes))


def _compile_resource(group: str, plural: str, kind: ResourceType) -> None:
    where = f"{group}.{plural}"
    _set_plural(plural, kind)
    own = _spec_attrs(kind.singular, _RESOURCE, ("versions",))
    if show_attributes(kind.resourceattributes) not in ({}, show_attributes(own)):
        raise _refusal(f"{where}.resourceattributes must not redefine attributes that the server sets")
    document = _DOCUMENT.format(kind.singular) if kind.hasdocument else ""
    versions = _spec_attrs(kind.singular, _VERSION + document)
    kind.attributes = _overlay(versions, kind.attributes, where)
    kind.metaattributes = _overlay(_spec_attrs(kind.singular, _META), kind.metaattributes, where)
    kind.resourceattributes, kind._home = own, group


def _set_plural(plural: str, kind: GroupType | ResourceType) -> None:
    if kind.plural not in ("", plural):
        raise _refusal(f"{plural}.plural must be {plural!r}")
    kind.plural = plural


def parse_constraints(
    where: str, given: object, resources: Mapping[str, ResourceType], attributes: Mapping[str, ModelAttribute]
) -> Iterator[ModelConstraint]:
    """Parse the constraints of a group; *attributes* are the group's.

    Raises:
        Refusal: ``model_error``: a constraint names no scalar attribute, or has a value that is not allowed.
    """
    rules = _parse(_CONSTRAINTS, given, f"{where}.constraints")
    return _iter_constraints(where, rules, resources, attributes)


def _iter_constraints(
    where: str,
    rules: Mapping[str, ConstraintAspects],
    resources: Mapping[str, ResourceType],
    attributes: Mapping[str, ModelAttribute],
) -> Iterator[ModelConstraint]:
    for key, rule in rules.items():
        place = f"{where}.constraints: {key}"
        name, _, path = key.partition(".")
        target = resources.get(name)
        attribute = _attribute_at(target.attributes, path) if target is not None else None
        if attribute is None or not attribute.is_scalar:
            raise _refusal(f"{place} does not name a scalar attribute of its resources, as RESOURCES.PATH")
        other = _attribute_at(attributes, rule.equals) if rule.equals else attribute
        if other is None or other.type != attribute.type:
            raise _refusal(f"{place} equals {rule.equals}, which is not an attribute of the group with the same type")
        for value in rule.enum if rule.default is None else (*rule.enum, rule.default):
            if why := find_fault(value, attribute):
                raise _refusal(f"{place}: {value!r} {why}")
        first = attribute.default if rule.default is None else rule.default
        if rule.enum and first is not None and first not in rule.enum:
            raise _refusal(f"{place}: the default {first!r} is not among its values")
        yield ModelConstraint(name, path, rule.default, tuple(rule.enum), rule.equals)


def _attribute_at(attributes: Mapping[str, ModelAttribute], path: str) -> ModelAttribute | None:
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
    for name, each in own.items():
        known = base.get(name)
        if known is None:
            continue
        if each.type != known.type or (known.readonly and not each.readonly) or (known.default and not each.default):
            raise _refusal(f"{where}: {name} is defined by the specification and cannot be widened")
        each.required, each._served = each.required or known.required, known.served
        each.attributes, each.item = each.attributes or known.attributes, each.item or known.item
    return {**base, **own}


def _check_names(names: list[str], what: str) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise _refusal(f"{what} share the name {twice[0]}")


def _parse(parser: TypeAdapter[T], source: object, where: str) -> T:
    """Return a source as objects; null is the same as absent."""
    try:
        return parser.validate_json(msgspec.json.encode(_without_nulls(source)))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or where
        raise _refusal(f"{place}: {first['msg'].removeprefix('Value error, ')}") from None
    except RecursionError:
        raise _refusal(f"{where} is nested too deeply") from None


def _without_nulls(tree: object) -> object:
    if not isinstance(tree, Mapping):
        return tree
    return {name: _without_nulls(value) for name, value in tree.items() if value is not None}


def _refusal(detail: str) -> Refusal:
    return Refusal("model_error", "/model", error_detail=detail)
