"""The OpenAPI document of a registry, generated from its current model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from bindings.http.request import Access
from registry.core.ancestry import IGNORE_VALUES
from registry.core.requests import ResourcePath, Verb
from registry.core.responses import CONFIGURATION_PATHS, is_enabled
from registry.core.service import METHODS
from registry.core.views import inlinable_at
from registry.delivery.service import PERMISSIONS
from registry.delivery.subscriptions import PATH, SECRET_MEMBERS, subscriptions_document
from registry.delivery.targets import PROTOCOLS
from registry.http.access import DETAILS, VERBS
from registry.model.attributes import WILDCARD, GroupType, Model, ModelAttribute, ResourceType

# Operations.

# JSON Schemas of requests and responses: for each type of the model, and the attributes of its entities.
#
# A type has two schemas: for responses with all attributes, and for requests with those that clients may write, where
# null deletes one. Responses have no required attributes, since flags may leave out any.

Schema = dict[str, Any]
REQUEST_SUFFIX: Final = ".given"
"""Suffix of the names of request schemas."""
_URI: Final = r"^[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+$"
_ABSOLUTE_URI: Final = r"^[A-Za-z][A-Za-z0-9+.\-]*:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*$"
_KEY: Final = r"^[a-z0-9][a-z0-9:\-_.]{0,62}$"
_NAME: Final = r"^([a-z_][a-z0-9_]{0,62}|\$schema)$"
_MEMBER: Final = r"^[a-z0-9_][a-z0-9:\-_.]{0,62}$"
ID: Final[Schema] = {"type": "string", "pattern": r"^[A-Za-z0-9_][A-Za-z0-9\-._~:@]{0,127}$"}
_TEXT: Final[Schema] = {"type": "string"}
_SCHEMAS_BY_TYPE: Final[Mapping[str, Schema]] = {
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
    "uriabsolute": {"type": "string", "pattern": _ABSOLUTE_URI},
    "urlabsolute": {"type": "string", "pattern": _ABSOLUTE_URI},
    "uritemplate": _TEXT,
    "xid": {"type": "string", "pattern": "^/"},
    "xidtype": _TEXT,
}


def group_schema_name(group: GroupType) -> str:
    """Return the schema name of a group type."""
    return group.plural


def schema_name_of(resource: ResourceType, part: str = "") -> str:
    """Return the schema name of a resource type, or of its ``meta`` or ``versions``.

    Imported types share the schema of the original type.
    """
    return ".".join(filter(None, (resource.home, resource.plural, part)))


def schema_ref(name: str, *, given: bool = False) -> Schema:
    """Return a reference to the schema called *name*."""
    return {"$ref": f"#/components/schemas/{name}{REQUEST_SUFFIX if given else ''}"}


def map_schema(schema: Schema) -> Schema:
    """Return the schema of a map of entities by id."""
    return {"type": "object", "propertyNames": {"pattern": ID["pattern"]}, "additionalProperties": schema}


def all_schemas(model: Model) -> dict[str, Schema]:
    """Return the schemas of all types of a model, by name."""
    schemas: dict[str, Schema] = {}
    for given in (False, True):
        for name, schema in _iter_schemas(model, given=given):
            schemas[f"{name}{REQUEST_SUFFIX if given else ''}"] = schema
    return schemas


def _iter_schemas(model: Model, *, given: bool) -> Iterator[tuple[str, Schema]]:
    nested = {plural: schema_ref(group_schema_name(each), given=given) for plural, each in model.groups.items()}
    yield "registry", _entity_schema(model.attributes, nested, given=given)
    for group in model.groups.values():
        nested = {plural: schema_ref(schema_name_of(each), given=given) for plural, each in group.resources.items()}
        yield group_schema_name(group), _entity_schema(group.attributes, nested, given=given)
        for resource in group.resources.values():
            versions = {"versions": schema_ref(schema_name_of(resource, "versions"), given=given)}
            whole = _entity_schema({**resource.attributes, **resource.resource}, versions, given=given)
            whole["properties"]["meta"] = schema_ref(schema_name_of(resource, "meta"), given=given)
            yield schema_name_of(resource), whole
            yield schema_name_of(resource, "meta"), _entity_schema(resource.meta, {}, given=given)
            yield schema_name_of(resource, "versions"), _entity_schema(resource.attributes, {}, given=given)


def _entity_schema(attributes: Mapping[str, ModelAttribute], nested: Mapping[str, Schema], *, given: bool) -> Schema:
    """Return the schema of an entity; *nested* are the schemas of the entities in its collections."""
    entity = _object_schema(attributes, given=given)
    entity["propertyNames"] = {"pattern": _NAME}
    # Documents may have $schema, which is not stored.
    entity["properties"].setdefault("$schema", _TEXT)
    for plural, schema in nested.items():
        entity["properties"][plural] = map_schema(schema)
    return entity


def _object_schema(attributes: Mapping[str, ModelAttribute], *, given: bool) -> Schema:
    properties: dict[str, Schema] = {}
    for name, each in attributes.items():
        if name != WILDCARD and not (given and each.readonly):
            properties[name] = _attribute_schema(each, given=given)
    other = attributes.get(WILDCARD)
    more = None if other is None else _attribute_schema(other, given=given)
    for name, choices in _conditional_schemas(attributes, given=given).items():
        if more is not None and more not in choices:
            choices.append(more)  # for other values it is an undeclared attribute
        properties.setdefault(name, choices[0] if len(choices) == 1 else {"anyOf": choices})
    return {
        "type": "object",
        "propertyNames": {"pattern": _MEMBER},
        "properties": properties,
        "additionalProperties": False if more is None else more,
    }


def _conditional_schemas(attributes: Mapping[str, ModelAttribute], *, given: bool) -> dict[str, list[Schema]]:
    """Return the distinct schemas of attributes that depend on values of others (``ifvalues``)."""
    schemas: dict[str, list[Schema]] = {}
    waiting = list(attributes.values())
    while waiting:
        for siblings in waiting.pop().ifvalues.values():
            for name, each in siblings.items():
                schema, known = _attribute_schema(each, given=given), schemas.setdefault(name, [])
                if schema not in known:
                    known.append(schema)
                waiting.append(each)
    return schemas


def _attribute_schema(attribute: ModelAttribute, *, given: bool) -> Schema:
    schema = _value_schema(attribute, given=given)
    if attribute.description:
        schema["description"] = attribute.description
    if given and attribute.name and schema.keys() - {"description"}:
        return {"anyOf": [schema, {"type": "null"}]}
    if attribute.readonly:
        schema["readOnly"] = True
    if attribute.default is not None:
        schema["default"] = attribute.default
    return schema


def _value_schema(attribute: ModelAttribute, *, given: bool) -> Schema:
    if attribute.type == "object":
        return _object_schema(attribute.attributes, given=given)
    if attribute.type in ("array", "map"):
        assert attribute.item is not None
        item = _attribute_schema(attribute.item, given=given)
        if attribute.enum and attribute.strict:
            item = {**item, "enum": list(attribute.enum)}
        if attribute.type == "array":
            return {"type": "array", "items": item}
        return {"type": "object", "propertyNames": {"pattern": _KEY}, "additionalProperties": item}
    schema = dict(_SCHEMAS_BY_TYPE[attribute.type])
    if attribute.enum and attribute.strict:
        schema["enum"] = list(attribute.enum)
    return schema


# The parameters of operations: ids in paths, flags, conditions, and attributes as headers.

Parameter = dict[str, Any]
_SHOWING_VERBS: Final = ("replace", "patch", "add", "read")


@cache
def _read_static() -> bytes:
    return files("registry.http").joinpath("openapi.json").read_bytes()


@cache
def _parameter(name: str) -> Parameter:
    parameter: Parameter = msgspec.json.decode(_read_static())["components"]["parameters"][name]
    return parameter


def _with_values(name: str, *values: str) -> Parameter:
    return {**_parameter(name), "schema": {"type": "array", "items": {"type": "string", "enum": list(values)}}}


def iter_path_parameters(place: ResourcePath) -> Iterator[Parameter]:
    """Yield the path parameters of a path template."""
    for name in (place.gid, place.rid, place.vid):
        if name:
            yield {"name": name[1:-1], "in": "path", "required": True, "schema": ID}


def iter_flags(place: ResourcePath, model: Model, verb: Verb) -> Iterator[Parameter]:
    """Yield the flags of requests to a path (core ``spec.md``, Request Flags)."""
    names = ["specversion"]
    if verb in _SHOWING_VERBS:
        yield _with_values("inline", *_iter_inlineable(place, model))
        names += ["filter", "doc", "binary"]
        names += ["collections"] if place.kind in ("registry", "group") else []
    if verb == "read":
        names += ["sort", "limit", "cursor"] if place.is_collection else []
    else:
        names += ["epoch"] if verb == "delete" and not place.is_collection else []
        names += ["setdefaultversionid"] if place.kind in ("resource", "meta", "versions", "version") else []
        yield _with_values("ignore", "*", *IGNORE_VALUES)
    yield from map(_parameter, names)


def iter_enabled_params(parameters: Iterable[Parameter], capabilities: Mapping[str, Any]) -> Iterator[Parameter]:
    """Yield the parameters enabled by *capabilities*, with their enabled values."""
    for each in parameters:
        flag = each["name"] if each["in"] == "query" else ""
        if is_enabled(flag, capabilities):
            yield _with_values(flag, "*", *capabilities["ignores"]) if flag == "ignore" else each


def iter_conditions(verb: Verb, *, guarded: bool) -> Iterator[Parameter]:
    """Yield conditional headers (RFC 9110 section 13); for writes only if *guarded* by ETags."""
    if verb == "read":
        yield _parameter("If-None-Match")
    elif guarded:
        yield _parameter("If-Match")


def iter_attribute_headers(kind: ResourceType) -> Iterator[Parameter]:
    """Yield the headers of attributes that accompany a document."""
    for name, each in kind.attributes.items():
        if each.is_scalar and not each.readonly and name not in ("contenttype", *kind.document_names[:2]):
            yield _header_parameter(f"xRegistry-{name}", _header_schema(each), each.description)


def _iter_inlineable(place: ResourcePath, model: Model) -> Iterator[str]:
    """Yield everything that can be inlined at a path and below."""
    names, _, collections = inlinable_at(place, model)
    yield "*"
    for name in names:
        yield name
        if name in collections:
            yield from (f"{name}.{each}" for each in _iter_inlineable(collections[name], model))


def _header_parameter(name: str, schema: Mapping[str, Any], description: str) -> Parameter:
    parameter: Parameter = {"name": name, "in": "header", "schema": schema}
    return {**parameter, "description": description} if description else parameter


def _header_schema(attribute: ModelAttribute) -> Mapping[str, Any]:
    kinds = {"boolean": "boolean", "integer": "integer", "uinteger": "integer", "decimal": "number"}
    return {"type": kinds.get(attribute.type, "string")}


JSON: Final = "application/json"
_ANY_TYPE: Final = "*/*"
_DOCUMENT_TYPES: Final = ("application/json", "application/octet-stream", "text/plain")
_ETAG: Final = {"ETag": {"$ref": "#/components/headers/ETag"}}
_HEADERS: Final = {"Link": {"$ref": "#/components/headers/Link"}, **_ETAG}
_REFUSED: Final = {"4XX": {"$ref": "#/components/responses/refused"}}
_UNCHANGED: Final = {"304": {"$ref": "#/components/responses/unchanged"}}
HISTORY: Final = "/history.json"
"""No group type can have this path."""
HISTORY_ORDERS: Final = ("number", "number=asc", "number=desc")


def build_operation(place: ResourcePath, model: Model, verb: Verb, *, document: bool) -> dict[str, Any]:
    """Return an OpenAPI operation; with *document* it reads or writes the entity's document."""
    taken = [*iter_flags(place, model, verb), *iter_conditions(verb, guarded=not place.is_collection)]
    if document and verb in ("replace", "add"):
        taken += iter_attribute_headers(place.resource)
    members: dict[str, Any] = {"tags": [_tag_name(place)], "parameters": taken}
    body = _request_body(place, model, verb, document=document)
    if body is not None:
        members["requestBody"] = body
    members["responses"] = _build_responses(place, model, verb, document=document)
    return members


def configuration_operation(name: str, verb: Verb) -> dict[str, Any]:
    """Return the operation of a configuration path such as ``/model``."""
    schema = schema_ref("registry") if name == "export" else {"type": "object"}
    state = {"description": "The current state.", "content": {JSON: {"schema": schema}}, "headers": _ETAG}
    shown = {"200": state, **(_UNCHANGED if verb == "read" else {}), **_REFUSED}
    members: dict[str, Any] = {"tags": ["registry"], "responses": shown}
    members["parameters"] = list(iter_conditions(verb, guarded=True))
    if verb != "read":
        members["requestBody"] = {"required": True, "content": {JSON: {"schema": {"type": "object"}}}}
    return members


def _tag_name(place: ResourcePath) -> str:
    if place.group_type is None:
        return "registry"
    return place.group.plural if place.resource_type is None else f"{place.group.plural}.{place.resource.plural}"


def _schema_name(place: ResourcePath) -> str:
    """Return the schema name of the entity at a path, or of the entities in a collection."""
    if place.kind == "registry":
        return "registry"
    if place.kind in ("groups", "group"):
        return group_schema_name(place.group)
    part = {"meta": "meta", "versions": "versions", "version": "versions"}.get(place.kind, "")
    return schema_name_of(place.resource, part)


def _request_body(place: ResourcePath, model: Model, verb: Verb, *, document: bool) -> dict[str, Any] | None:
    if verb == "read" or (verb == "delete" and not place.is_collection):
        return None
    if document:
        return {"content": {media: {"schema": {}} for media in _DOCUMENT_TYPES}}
    given = schema_ref(_schema_name(place), given=True)
    if place.is_collection:
        given = map_schema(given)
    elif verb == "add":
        given = _post_schema(place, model)
    return {"required": verb != "delete", "content": {JSON: {"schema": given}}}


def _post_schema(place: ResourcePath, model: Model, *, given: bool = True) -> Schema:
    """Return the schema of a POST body: a version, or collections by name."""
    if place.kind == "resource":
        return schema_ref(schema_name_of(place.resource, "versions"), given=given)
    names = (
        {plural: group_schema_name(each) for plural, each in model.groups.items()}
        if place.kind == "registry"
        else {plural: schema_name_of(each) for plural, each in place.group.resources.items()}
    )
    collections = {plural: map_schema(schema_ref(name, given=given)) for plural, name in names.items()}
    return {"type": "object", "properties": collections, "additionalProperties": False}


def _build_responses(place: ResourcePath, model: Model, verb: Verb, *, document: bool) -> dict[str, Any]:
    if verb == "delete":
        return {"204": {"description": "It was deleted."}, **_REFUSED}
    schema = map_schema(schema_ref(_schema_name(place))) if place.is_collection else schema_ref(_schema_name(place))
    if verb == "add" and not place.is_collection:
        schema = _post_schema(place, model, given=False)
    content = {_ANY_TYPE: {"schema": {}}} if document else {JSON: {"schema": schema}}
    shown = {"description": "The current state.", "headers": _HEADERS, "content": content}
    by_status = {"200": shown, **_REFUSED}
    if verb != "read" and not place.is_collection and place.kind != "registry":
        by_status["201"] = {**shown, "description": "It was created."}
    if verb == "read":
        by_status |= _UNCHANGED
    if document and verb == "read":
        by_status["303"] = {**shown, "description": "The document is external."}
    return by_status


# ``/subscriptions``: the CloudEvents Subscriptions API.

MEDIA: Final = "application/cloudevents-subscription+json"
_RESERVED_PATHS: Final = frozenset((PATH, PERMISSIONS))
"""Paths of subscriptions, which take precedence over group types."""


def _add_subscriptions(document: dict[str, Any]) -> None:
    """Add the paths of subscriptions, instead of group types with the same paths."""
    paths = {path: item for path, item in document["paths"].items() if f"/{path.split('/')[1]}" not in _RESERVED_PATHS}
    own = subscriptions_document()
    given = own["components"]["schemas"]["Subscription.given"]
    forms = (f"{name}: {', '.join(f'{scheme}://' for scheme in each.schemes)}" for name, each in PROTOCOLS.items())
    settings = sorted({name for each in PROTOCOLS.values() for name in each.settings})
    properties: dict[str, Any] = given["properties"]
    properties["protocol"]["enum"] = list(PROTOCOLS)
    properties["protocolsettings"] |= {"properties": {name: {} for name in settings}, "additionalProperties": False}
    properties["sink"]["description"] = f"The host, and the path or topic that the protocol needs. {'; '.join(forms)}."
    credential = dict(properties["sinkCredential"]["properties"])
    shown = {name: each for name, each in credential.items() if name not in SECRET_MEMBERS}
    own["components"]["schemas"]["Subscription"] = {
        **given,
        "required": ["id", *given["required"]],
        "properties": {**properties, "sinkCredential": {"type": "object", "properties": shown}},
    }
    document["paths"] = paths | own["paths"]
    for kind, each in own["components"].items():
        document["components"].setdefault(kind, {}).update(each)


def build_openapi(
    model: Model,
    capabilities: Mapping[str, Any],
    base: str,
    access: Access | None = None,
    *,
    subscriptions: bool = False,
) -> dict[str, Any]:
    """Return the document for a registry at the URL *base* with the authentication of *access*.

    Flags that *capabilities* do not list are left out. With *subscriptions* it includes their paths, instead of group
    types with the same paths.
    """
    document: dict[str, Any] = msgspec.json.decode(_read_static())
    document["servers"] = [{"url": base or "/"}]
    components = document["components"]
    components["schemas"] |= all_schemas(model)
    history = document["paths"]
    document["paths"] = {path: _drop_disabled_flags(item, capabilities) for path, item in _iter_paths(model)}
    if subscriptions:
        _add_subscriptions(document)
    document["paths"] |= history
    schemes = {} if access is None else _security_schemes(access)
    if schemes:
        components["securitySchemes"] = schemes
        document["security"] = [{name: []} for name in schemes]
    return document


def _security_schemes(access: Access) -> dict[str, Any]:
    schemes: dict[str, Any] = {}
    if access.bearer:
        schemes["bearer"] = {"type": "http", "scheme": "bearer"}
    if access.basic:
        schemes["basic"] = {"type": "http", "scheme": "basic"}
    if access.api_keys:
        schemes["key"] = {"type": "apiKey", "in": "header", "name": access.api_key_header}
    return schemes


def _iter_paths(model: Model) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "/", _path_item(ResourcePath("registry"), model)
    for name in sorted(CONFIGURATION_PATHS):
        verbs = METHODS[name]
        methods = {word.lower(): configuration_operation(name, verb) for word, verb in VERBS.items() if verb in verbs}
        yield f"/{name}", _drop_head(methods)
    for place in _iter_path_templates(model):
        documents = place.kind in ("resource", "version") and place.resource.hasdocument
        path = place.xid
        yield path, _path_item(place, model, document=documents)
        if documents:
            yield f"{path}{DETAILS}", _path_item(place, model)


def _iter_path_templates(model: Model) -> Iterator[ResourcePath]:
    """Yield all path templates below the root."""
    for group in model.groups.values():
        groups = ResourcePath("groups", group)
        one = groups.child(f"{{{group.singular}id}}")
        yield from (groups, one)
        for plural, kind in group.resources.items():
            resources = one.collection(plural)
            # A group and a resource of it may have the same singular name.
            prefix = "resource" if kind.singular == group.singular else ""
            resource = resources.child(f"{{{prefix}{kind.singular}id}}")
            versions = resource.collection("versions")
            yield from (resources, resource, replace(resource, kind="meta"), versions, versions.child("{versionid}"))


def _path_item(place: ResourcePath, model: Model, *, document: bool = False) -> dict[str, Any]:
    methods: Mapping[str, Any] = {
        word.lower(): build_operation(place, model, verb, document=document)
        for word, verb in VERBS.items()
        if verb in METHODS[place.kind] and not (document and verb == "patch")
    }
    return {"parameters": list(iter_path_parameters(place)), **_drop_head(methods)}


def _drop_disabled_flags(item: dict[str, Any], capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Remove disabled flags from all operations of a path."""
    for method, each in item.items():
        if method != "parameters" and "parameters" in each:
            each["parameters"] = list(iter_enabled_params(each["parameters"], capabilities))
    return item


def _drop_head(methods: Mapping[str, Any]) -> dict[str, Any]:
    """Remove HEAD, which is GET without a body."""
    return {method: each for method, each in methods.items() if method != "head"}
