"""JSON Schemas of what is sent and shown: each type of the model, and the attributes of its entities.

A type has two schemas. What is shown has all attributes; what is given has those that clients may write, where null
takes one away. Nothing is required of what is shown: flags of a request leave out one or the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from registry.model.attributes import ANYTHING, Attribute
from registry.model.types import GroupType, Model, ResourceType

Schema = dict[str, Any]
GIVEN: Final = ".given"
"""Follows the name of a type's schema in that of what clients give."""
_URI: Final = r"^[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+$"
_ABSOLUTE: Final = r"^[A-Za-z][A-Za-z0-9+.\-]*:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*$"
_KEY: Final = r"^[a-z0-9][a-z0-9:\-_.]{0,62}$"
_NAME: Final = r"^([a-z_][a-z0-9_]{0,62}|\$schema)$"
_MEMBER: Final = r"^[a-z0-9_][a-z0-9:\-_.]{0,62}$"
ID: Final[Schema] = {"type": "string", "pattern": r"^[A-Za-z0-9_][A-Za-z0-9\-._~:@]{0,127}$"}
_TEXT: Final[Schema] = {"type": "string"}
_OF_TYPES: Final[Mapping[str, Schema]] = {
    "any": {},
    "boolean": {"type": "boolean"},
    "decimal": {"type": "number"},
    "integer": {"type": "integer"},
    "uinteger": {"type": "integer", "minimum": 0},
    "string": _TEXT,
    "timestamp": {"type": "string", "format": "date-time"},
    "uri": {"type": "string", "pattern": _URI},
    "url": {"type": "string", "pattern": _URI},
    "urirelative": {"type": "string", "pattern": _URI},
    "urlrelative": {"type": "string", "pattern": _URI},
    "uriabsolute": {"type": "string", "pattern": _ABSOLUTE},
    "urlabsolute": {"type": "string", "pattern": _ABSOLUTE},
    "uritemplate": _TEXT,
    "xid": {"type": "string", "pattern": "^/"},
    "xidtype": _TEXT,
}


def name_of(group: GroupType) -> str:
    """Return the name of the schema of a type of group."""
    return group.plural


def name_of_resource(resource: ResourceType, part: str = "") -> str:
    """Return the name of the schema of a type of resource, or of its ``meta`` or ``versions``.

    Types that are imported have one schema with the type that they are.
    """
    return ".".join(filter(None, (resource.home, resource.plural, part)))


def reference(name: str, *, given: bool = False) -> Schema:
    """Return a reference to the schema called *name*."""
    return {"$ref": f"#/components/schemas/{name}{GIVEN if given else ''}"}


def map_of(schema: Schema) -> Schema:
    """Return the schema of a map of such entities by their ids."""
    return {"type": "object", "propertyNames": {"pattern": ID["pattern"]}, "additionalProperties": schema}


def all_schemas(model: Model) -> dict[str, Schema]:
    """Return the schemas of all types of a model, by name."""
    schemas: dict[str, Schema] = {}
    for given in (False, True):
        for name, schema in _schemas(model, given=given):
            schemas[f"{name}{GIVEN if given else ''}"] = schema
    return schemas


def _schemas(model: Model, *, given: bool) -> Iterator[tuple[str, Schema]]:
    nested = {plural: reference(name_of(each), given=given) for plural, each in model.groups.items()}
    yield "registry", _entity(model.attributes, nested, given=given)
    for group in model.groups.values():
        nested = {plural: reference(name_of_resource(each), given=given) for plural, each in group.resources.items()}
        yield name_of(group), _entity(group.attributes, nested, given=given)
        for resource in group.resources.values():
            versions = {"versions": reference(name_of_resource(resource, "versions"), given=given)}
            whole = _entity({**resource.attributes, **resource.resource}, versions, given=given)
            whole["properties"]["meta"] = reference(name_of_resource(resource, "meta"), given=given)
            yield name_of_resource(resource), whole
            yield name_of_resource(resource, "meta"), _entity(resource.meta, {}, given=given)
            yield name_of_resource(resource, "versions"), _entity(resource.attributes, {}, given=given)


def _entity(attributes: Mapping[str, Attribute], nested: Mapping[str, Schema], *, given: bool) -> Schema:
    """Return the schema of an entity; *nested* are the schemas of what its collections hold."""
    entity = _object(attributes, given=given)
    entity["propertyNames"] = {"pattern": _NAME}
    # Documents name their schema, which is not kept.
    entity["properties"].setdefault("$schema", _TEXT)
    for plural, schema in nested.items():
        entity["properties"][plural] = map_of(schema)
    return entity


def _object(attributes: Mapping[str, Attribute], *, given: bool) -> Schema:
    properties: dict[str, Schema] = {}
    for name, each in attributes.items():
        if name != ANYTHING and not (given and each.readonly):
            properties[name] = _attribute(each, given=given)
    other = attributes.get(ANYTHING)
    more = None if other is None else _attribute(other, given=given)
    for name, choices in _conditional(attributes, given=given).items():
        if more is not None and more not in choices:
            choices.append(more)  # beside other values it is an attribute like any that the model does not name
        properties.setdefault(name, choices[0] if len(choices) == 1 else {"anyOf": choices})
    return {
        "type": "object",
        "propertyNames": {"pattern": _MEMBER},
        "properties": properties,
        "additionalProperties": False if more is None else more,
    }


def _conditional(attributes: Mapping[str, Attribute], *, given: bool) -> dict[str, list[Schema]]:
    """Return the schemas of attributes that stand beside others of some values, each once."""
    schemas: dict[str, list[Schema]] = {}
    waiting = list(attributes.values())
    while waiting:
        for siblings in waiting.pop().ifvalues.values():
            for name, each in siblings.items():
                schema, known = _attribute(each, given=given), schemas.setdefault(name, [])
                if schema not in known:
                    known.append(schema)
                waiting.append(each)
    return schemas


def _attribute(attribute: Attribute, *, given: bool) -> Schema:
    schema = _value(attribute, given=given)
    if attribute.description:
        schema["description"] = attribute.description
    if given and attribute.name and schema.keys() - {"description"}:
        return {"anyOf": [schema, {"type": "null"}]}
    if attribute.readonly:
        schema["readOnly"] = True
    if attribute.default is not None:
        schema["default"] = attribute.default
    return schema


def _value(attribute: Attribute, *, given: bool) -> Schema:
    if attribute.type == "object":
        return _object(attribute.attributes, given=given)
    if attribute.type in ("array", "map"):
        assert attribute.item is not None
        item = _attribute(attribute.item, given=given)
        if attribute.enum and attribute.strict:
            item = {**item, "enum": list(attribute.enum)}
        if attribute.type == "array":
            return {"type": "array", "items": item}
        return {"type": "object", "propertyNames": {"pattern": _KEY}, "additionalProperties": item}
    schema = dict(_OF_TYPES[attribute.type])
    if attribute.enum and attribute.strict:
        schema["enum"] = list(attribute.enum)
    return schema
