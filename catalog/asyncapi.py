"""Write a catalog as AsyncAPI 3.0, and say what AsyncAPI has no place for.

The document says as much as AsyncAPI can, of the effective definitions. It is then read as any other
(:mod:`catalog.dialects.asyncapi.reading`), and where that gives something else than the catalog, the difference is
written into the extension ``x-xregistry``, so that reading the document gives the catalog.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from catalog.convert import FIRST_VERSION, ConvertedCatalog, convert, to_json_text
from catalog.dialects.asyncapi.parts import (
    DEFAULT_VERSION,
    EVENT_ATTRIBUTES,
    EXTENSION,
    JSON_SCHEMA,
    LITERAL,
    STRUCTURED,
    ProtocolBinding,
    UnusedNames,
    binding_of,
    copy_schema,
    difference,
    entity_at,
    is_secure,
    media_of_format,
    to_id,
)
from catalog.dialects.asyncapi.reading import translate
from catalog.dialects.reading import default_version
from catalog.findings import Declarations, Findings, SourceLocation
from catalog.model import CLOUDEVENTS, Catalog
from catalog.protocols.properties import (
    ALWAYS_REQUIRED,
    ATTRIBUTE_TYPES,
    PLACEHOLDER,
    canonical_protocol,
    canonical_type,
    options_of,
)
from catalog.values import is_any_timestamp, parse_whole_number

VERSION: Final = "3.0.0"
_IDS: Final = frozenset({"xid", "messageid", "endpointid", "messagegroupid", "schemagroupid", "schemaid"})
_FORMATS: Final = {
    "timestamp": "date-time",
    "duration": "duration",
    "uri": "uri",
    "urireference": "uri-reference",
    "uritemplate": "uri-reference",
    "binary": "byte",
}
"""Formats of texts by property type; a value of a URI template is a URI."""
_SCHEMA_REFERENCE: Final = re.compile(r"#?(/schemagroups/[^/#]+/schemas/[^#:]+)(?::([^#]+))?(?:#(.*))?", re.DOTALL)
_PARAMETER: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_METHODS: Final = frozenset({"GET", "PUT", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE"})
_ACTIONS: Final = {"producer": "receive", "consumer": "send", "subscriber": "send"}
_MAX_QOS: Final = 2
_MAX_EXPIRY: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class UnsaidMembers:
    """The members of an entity that AsyncAPI has no place for; ``x-xregistry`` has them."""

    xid: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AsyncApiCatalog:
    """A catalog as an AsyncAPI document, what is said by ``x-xregistry`` alone, and what was left out for errors."""

    document: Mapping[str, Any]
    unsaid: tuple[UnsaidMembers, ...]
    left_out: tuple[str, ...] = ()
    not_flat: tuple[str, ...] = ()


def write_asyncapi(catalog: Catalog, declarations: Declarations, *, flatten: bool = False) -> AsyncApiCatalog:
    """Return *catalog*, read from *declarations*, as an AsyncAPI 3.0 document.

    With *flatten*, reading it gives messages without their bases (:func:`catalog.convert.convert`).
    """
    flat = convert(catalog, declarations, flatten=True)
    converted = flat if flatten else convert(catalog, declarations)
    writer = _Writer(_plain(flat))
    document = writer.write()
    wanted = _normalised(_plain(converted))
    unsaid = writer.extend(document, wanted)
    return AsyncApiCatalog(document, tuple(unsaid), converted.left_out, converted.not_flat)


def _plain(converted: ConvertedCatalog) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(to_json_text(converted.document))
    return plain


def _read(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what reading the document gives."""
    translated = translate(document, SourceLocation(""), Findings())
    return translated[0] if translated is not None else {}


# The catalog without what goes without saying, which would be said by the extension in each entity.


def _normalised(tree: dict[str, Any]) -> dict[str, Any]:
    for name in ("specversion", "xid"):
        tree.pop(name, None)
    for collection in ("endpoints", "messagegroups"):
        for holder in tree.setdefault(collection, {}).values():
            _drop_ids(holder)
            for message in holder.get("messages", {}).values():
                _normalise_message(message)
    for group in tree.setdefault("schemagroups", {}).values():
        _drop_ids(group)
        for schema in group.get("schemas", {}).values():
            _normalise_schema(schema)
    return tree


def _drop_ids(entity: dict[str, Any]) -> None:
    for name in _IDS & entity.keys():
        del entity[name]


def _normalise_message(message: dict[str, Any]) -> None:
    _drop_ids(message)
    if message.get("versionid") == FIRST_VERSION:
        del message["versionid"]
    for version in message.get("versions", {}).values():
        _drop_ids(version)
    if "basemessage" in message or "meta" in message:
        return  # types and flags that are defaults may replace those of the base
    for _, name, body, default in _iter_properties(message):
        if body.get("type") == default:
            del body["type"]
        if body.get("required") is False or (name in ALWAYS_REQUIRED and body.get("required") is True):
            del body["required"]


def _normalise_schema(schema: dict[str, Any]) -> None:
    _drop_ids(schema)
    versions = schema.get("versions", {})
    for name, version in versions.items():
        _drop_ids(version)
        if version.get("versionid") == name:
            del version["versionid"]
    default = default_version({}, versions) or FIRST_VERSION
    if schema.get("versionid") == default:
        del schema["versionid"]
    meta = schema.get("meta", {})
    if meta.get("defaultversionid") == default:
        del meta["defaultversionid"]
    if not meta:
        schema.pop("meta", None)


def _iter_properties(message: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Yield section, name, body and default type of all properties; attributes of the envelope have no section."""
    for name, body in message.get("envelopemetadata", {}).items():
        if isinstance(body, dict):
            yield "", name, body, ATTRIBUTE_TYPES.get(name, "string")
    vocabulary = options_of(canonical_protocol(str(message.get("protocol", ""))))
    for name, value in message.get("protocoloptions", {}).items():
        if isinstance(value, list):
            yield from ((name, each.get("name", ""), each, "string") for each in value if isinstance(each, dict))
        elif isinstance(value, dict) and name in vocabulary.sections:
            table = vocabulary.sections[name] or {}
            yield from (
                (name, key, each, table.get(key, "string")) for key, each in value.items() if isinstance(each, dict)
            )
        elif isinstance(value, dict):
            yield name, "", value, vocabulary.scalars.get(name, "string")


# The document.


@dataclass(slots=True)
class _Message:
    """An effective message, its key among the components, and its protocol, that of its endpoints if it has none."""

    xid: str
    form: dict[str, Any]
    key: str
    protocol: str | None

    @property
    def binding(self) -> ProtocolBinding:
        return binding_of(self.protocol)

    @property
    def address(self) -> str:
        """The topic, subject or path that the message itself has."""
        section, _, name = self.binding.about.partition(".")
        body = self.form.get("protocoloptions", {}).get(section, {})
        body = body.get(name) if name and isinstance(body, dict) else body
        value = body.get("value") if isinstance(body, dict) else None
        # An address of AMQP is that of the node, and constrains messages only if it is a template.
        usable = isinstance(value, str) and (self.protocol != "AMQP/1.0" or PLACEHOLDER.search(value))
        return str(value) if usable else ""


class _Writer:
    """Writes the parts of one document; ``flat`` is the catalog as an xRegistry document without bases."""

    def __init__(self, flat: dict[str, Any]) -> None:
        self._flat = flat
        self._names: defaultdict[str, UnusedNames] = defaultdict(UnusedNames)
        self._schemas: dict[str, tuple[str, bool]] = {}
        self._messages: dict[str, _Message] = {}
        self._channels: dict[str, Any] = {}
        self._servers: dict[str, Any] = {}
        self._server_keys: dict[tuple[tuple[str, str], ...], str] = {}
        self._operations: dict[str, Any] = {}

    def write(self) -> dict[str, Any]:
        """Return the document, with the xids of its parts alone in the extensions."""
        flat = self._flat
        info = {
            "title": str(flat.get("name") or flat["registryid"]),
            "version": str(flat.get("version") or DEFAULT_VERSION),
        }
        if isinstance(flat.get("description"), str):
            info["description"] = flat["description"]
        document: dict[str, Any] = {"asyncapi": VERSION, "info": {**info, **_external_docs(flat)}}
        entries = list(self._iter_schemas())
        for xid, name, body in entries:
            wrapped = not _is_plain(body["schema"], _format_of(body, "format"))
            self._schemas[xid] = (name, wrapped)
            default = xid.partition("/versions/")[0]
            if default != xid and self._default_of(default) == xid.rpartition("/")[2]:
                self._schemas[default] = (name, wrapped)
        self._find_messages()
        components = {
            "messages": {each.key: self._write_message(each) for each in self._messages.values()},
            "schemas": {
                name: {
                    **self._write_schema(body["schema"], _format_of(body, "format"), f"/components/schemas/{name}"),
                    EXTENSION: {"xid": xid},
                }
                for xid, name, body in entries
            },
        }
        self._write_channels()
        parts = {"servers": self._servers, "channels": self._channels, "operations": self._operations}
        parts["components"] = {name: each for name, each in components.items() if each}
        return {**document, **{name: each for name, each in parts.items() if each}}

    def extend(self, document: dict[str, Any], wanted: Mapping[str, Any]) -> Iterator[UnsaidMembers]:
        """Write into the extensions what reading the document does not give; yield what that is."""
        read = _read(document)
        unsaid: list[UnsaidMembers] = []
        components = document.get("components", {})
        for xid, message in self._messages.items():
            now, then = entity_at(read, xid), entity_at(wanted, xid)
            self._patch(components["messages"][message.key], xid, now, then, unsaid)
        for xid, (name, _) in self._schemas.items():
            holder = components["schemas"][name]
            if holder[EXTENSION]["xid"] == xid:
                self._patch(holder, xid, entity_at(read, xid), entity_at(wanted, xid), unsaid)
        done = set()
        for channel in self._channels.values():
            xid = channel[EXTENSION]["xid"]
            if xid and xid not in done:
                done.add(xid)
                now, then = ({**entity_at(tree, xid), "messages": None} for tree in (read, wanted))
                del now["messages"], then["messages"]
                self._patch(channel, xid, now, then, unsaid)
        rest = difference(_read(document), wanted)
        if rest:
            document[EXTENSION] = rest
        for name, value in rest.items():
            if name not in ("endpoints", "messagegroups", "schemagroups"):
                unsaid.append(UnsaidMembers("/", (*_paths(name, value),)))
            for key, body in value.items() if isinstance(value, dict) and name.endswith("s") else ():
                named = (path for each in body for path in _paths(each, body[each])) if isinstance(body, dict) else ()
                unsaid.append(UnsaidMembers(f"/{name}/{key}", tuple(sorted(named))))
        return iter(each for each in unsaid if each.members)

    def _patch(self, holder: dict[str, Any], xid: str, now: Any, then: Any, unsaid: list[UnsaidMembers]) -> None:
        patch = difference(now, then)
        if isinstance(patch, dict) and patch:
            holder[EXTENSION].update(patch)
            members = tuple(sorted(name for each in patch for name in _paths(each, patch[each])))
            unsaid.append(UnsaidMembers(xid, members))

    def _key(self, kind: str, *names: str) -> str:
        """Return an unused key of a kind of entity: of its own name, else with those before, else with a number."""
        known = self._names[kind]
        candidates = [to_id(".".join(names[-count:])) for count in range(1, len(names) + 1)]
        return known.take(next((each for each in candidates if each not in known), candidates[-1]))

    # Schemas.

    def _iter_schemas(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Yield xid, key and body of all versions that have a document."""
        for group, holder in self._flat.get("schemagroups", {}).items():
            for name, schema in holder.get("schemas", {}).items():
                xid = f"/schemagroups/{group}/schemas/{name}"
                default = self._default_of(xid)
                versions = schema.get("versions", {})
                if schema.get("schema") is not None and not versions:
                    yield xid, self._key("schemas", group, name), schema
                for version in sorted(versions, key=lambda each: each != default):
                    if versions[version].get("schema") is not None and "/" not in version:
                        own = (name,) if version == default else (f"{name}.{version}",)
                        yield f"{xid}/versions/{version}", self._key("schemas", group, *own), versions[version]

    def _default_of(self, xid: str) -> str | None:
        schema = entity_at(self._flat, xid)
        return default_version(schema, schema.get("versions", {}))

    def _write_schema(self, document: Any, form: str, pointer: str) -> dict[str, Any]:
        """Return the schema at *pointer*, with its format around it unless it is one of AsyncAPI itself."""
        plain = _is_plain(document, form)
        inner = pointer if plain else f"{pointer}/schema"

        def change(reference: str) -> str:
            if reference == "#" or reference.startswith("#/"):
                return f"#{inner}{reference[1:]}"
            target = self._pointer_of(reference)
            return f"#{target}" if target else reference

        is_json = form.startswith("Json")
        moved = copy_schema(document, change if is_json else None, lambda values: None)
        if plain:
            return dict(moved)
        media = media_of_format(form) if not is_json or not isinstance(document, str) else ""
        return {"schemaFormat": media or f"application/vnd.xregistry;format={form}", "schema": moved}

    def _pointer_of(self, reference: str) -> str:
        """Return the pointer of the schema that an xid stands for; empty if it is not in the document."""
        match = _SCHEMA_REFERENCE.fullmatch(reference)
        known = self._schemas.get(match[1]) if match else None
        if match is None or known is None:
            return ""
        return f"/components/schemas/{known[0]}" + ("/schema" if known[1] and match[3] else "") + (match[3] or "")

    # Messages.

    def _find_messages(self) -> None:
        protocols: dict[str, set[str]] = {}
        for endpoint in self._flat.get("endpoints", {}).values():
            for reference in endpoint.get("messagegroups", ()):
                protocols.setdefault(reference, set()).add(str(endpoint.get("protocol")))
        for collection in ("messagegroups", "endpoints"):
            for owner, holder in self._flat.get(collection, {}).items():
                xid = f"/{collection}/{owner}"
                offered = protocols.get(xid, set())
                default = holder.get("protocol") or (next(iter(offered)) if len(offered) == 1 else None)
                for name, form in holder.get("messages", {}).items():
                    protocol = canonical_protocol(str(form.get("protocol") or default or ""))
                    key = self._key("messages", owner, name)
                    self._messages[f"{xid}/messages/{name}"] = _Message(
                        f"{xid}/messages/{name}", form, key, protocol or None
                    )

    def _write_message(self, message: _Message) -> dict[str, Any]:
        form, binding = message.form, message.binding
        metadata = form.get("envelopemetadata", {}) if form.get("envelope") == CLOUDEVENTS else {}
        structured = form.get("envelopeoptions", {}).get("mode") == "structured" and bool(metadata)
        written: dict[str, Any] = {"name": message.xid.rpartition("/")[2], **_title_of(form)}
        content = form.get("datacontenttype")
        payload = self._write_payload(message)
        if structured:
            content = form["envelopeoptions"].get("format")
            content = content if str(content).startswith(STRUCTURED) else f"{STRUCTURED}json"
            properties = _Properties("")
            properties.add_event(metadata)
            if payload is not None:
                properties.schemas["data"] = payload
            payload = properties.to_schema()
        if isinstance(content, str):
            written["contentType"] = content
        headers = _Properties(binding.prefixes[0] if binding.prefixes else "")
        if metadata and not structured and binding.prefixes:
            headers.add_event(metadata)
        bindings: dict[str, Any] = {}
        query = binding.headers == "headers" and message.protocol == "HTTP"
        for section, name, body, default in _iter_properties({**form, "protocol": message.protocol}):
            path = f"{section}.{name}" if name and section not in ("headers", "query", "user_properties") else section
            if section == binding.headers and section:
                headers.add(name, body, default)
            member = next((each for each, option in binding.message.items() if option == path), None)
            if member is not None and not (query and section == "query"):
                bindings[member] = _binding_value(member, body, default)
        if headers.schemas:
            written["headers"] = headers.to_schema()
        if payload is not None:
            written["payload"] = payload
        bindings = {name: value for name, value in bindings.items() if value is not None}
        if bindings:
            written["bindings"] = {binding.keys[0]: bindings}
        return {**written, EXTENSION: {"xid": message.xid}}

    def _write_payload(self, message: _Message) -> Any:
        form = message.form
        declared, document = _format_of(form, "dataschemaformat"), form.get("dataschema")
        reference = form.get("dataschemauri") or form.get("dataschemaxid")
        if document is not None:
            return self._write_schema(document, declared, f"/components/messages/{message.key}/payload")
        target = self._pointer_of(reference) if isinstance(reference, str) else ""
        if target:
            return {"$ref": f"#{target}"}
        if not isinstance(reference, str) or reference.startswith(("#", "/")):
            return None  # there is none, or the catalog has only its address
        inner = {"$ref": reference}
        return inner if _is_plain({}, declared) else {"schemaFormat": media_of_format(declared), "schema": inner}

    # Channels, operations and servers.

    def _write_channels(self) -> None:
        covered: set[str] = set()
        by_group: dict[str, list[_Message]] = {}
        for each in self._messages.values():
            by_group.setdefault(each.xid.partition("/messages/")[0], []).append(each)
        for name, endpoint in self._flat.get("endpoints", {}).items():
            xid = f"/endpoints/{name}"
            protocol = canonical_protocol(str(endpoint.get("protocol") or ""))
            groups = (xid, *endpoint.get("messagegroups", ()))
            offered = (each for group in dict.fromkeys(groups) for each in by_group.get(group, ()))
            candidates = [each for each in offered if (each.protocol or protocol) == protocol]
            covered.update(each.xid for each in candidates)
            binding = binding_of(protocol)
            options = endpoint.get("protocoloptions", {})
            own = options.get(binding.channel) or options.get("options", {}).get(binding.channel)
            by: dict[str, list[_Message]] = {}
            for each in candidates:
                by.setdefault(each.address or (own if isinstance(own, str) else ""), []).append(each)
            for address, messages in (by or {own if isinstance(own, str) else "": []}).items():
                names = (name,) if len(by) < 2 else (name, f"{name}.{address}")
                self._write_channel(xid, names, protocol, address, messages, endpoint)
        rest: dict[tuple[str, str], list[_Message]] = {}
        for each in self._messages.values():
            if each.xid not in covered and each.protocol and each.address:
                rest.setdefault((each.protocol, each.address), []).append(each)
        for (protocol, address), messages in rest.items():
            self._write_channel("", (protocol.lower(), address), protocol, address, messages, {})

    def _write_channel(
        self,
        xid: str,
        names: tuple[str, ...],
        protocol: str,
        address: str,
        messages: list[_Message],
        endpoint: Mapping[str, Any],
    ) -> None:
        key, binding = self._key("channels", *names), binding_of(protocol)
        parameters = {}
        for name in (each[1:-1] for each in PLACEHOLDER.findall(address)):
            parameter = name if _PARAMETER.fullmatch(name) else name.replace(".", "_")
            address = address.replace(f"{{{name}}}", f"{{{parameter}}}")
            parameters[parameter] = {"description": f"the value of {name}"}
        channel: dict[str, Any] = {"address": address or None, **_title_of(endpoint), **_external_docs(endpoint)}
        channel["messages"] = {each.key: {"$ref": f"#/components/messages/{each.key}"} for each in messages}
        servers = [{"$ref": f"#/servers/{each}"} for each in self._write_servers(protocol, endpoint)]
        given = {"parameters": parameters, "servers": servers, "bindings": {each: {} for each in binding.keys[:1]}}
        channel.update({name: each for name, each in given.items() if each})
        self._channels[key] = {**channel, EXTENSION: {"xid": xid}}
        for usage in endpoint.get("usage", ()):
            action = _ACTIONS.get(usage)
            if action is not None:
                operation = {"action": action, "channel": {"$ref": f"#/channels/{key}"}}
                bindings = _operation_bindings(protocol, messages, endpoint)
                self._operations[f"{key}.{action}"] = {**operation, **({"bindings": bindings} if bindings else {})}

    def _write_servers(self, protocol: str, endpoint: Mapping[str, Any]) -> Iterator[str]:
        """Write the servers of an endpoint, and yield their keys; endpoints with one address share a server."""
        for address in endpoint.get("protocoloptions", {}).get("endpoints", ()):
            for uri in address.get("bootstrap.servers") or [address.get("uri")]:
                scheme, mark, rest = str(uri or "").rpartition("://")
                host, slash, path = rest.partition("/")
                if not host or not binding_of(protocol).keys:
                    continue
                server = {"host": host, "protocol": binding_of(protocol).servers[bool(mark) and is_secure(scheme)]}
                if slash and path:
                    server["pathname"] = f"/{path}"
                if protocol.startswith("MQTT/"):
                    server["protocolVersion"] = protocol.removeprefix("MQTT/")
                own = tuple(server.items())
                if own not in self._server_keys:
                    self._server_keys[own] = self._key("servers", host)
                    self._servers[self._server_keys[own]] = server
                yield self._server_keys[own]


def _paths(name: str, value: Any) -> Iterator[str]:
    """Yield the paths of what a patch adds, two levels deep at most; what it removes, AsyncAPI says too often."""
    if value is None:
        return
    if isinstance(value, dict) and value and LITERAL not in value and name not in ("labels", "versions", "dataschema"):
        yield from (f"{name}.{each}" for each, inner in value.items() if inner is not None)
    else:
        yield name


def _title_of(form: Mapping[str, Any]) -> dict[str, Any]:
    found = {"title": form.get("name"), "description": form.get("description")}
    return {name: text for name, text in found.items() if isinstance(text, str) and text}


def _external_docs(form: Mapping[str, Any]) -> dict[str, Any]:
    url = form.get("documentation")
    return {"externalDocs": {"url": url}} if isinstance(url, str) and url else {}


def _format_of(form: Mapping[str, Any], name: str) -> str:
    return str(form.get(name) or JSON_SCHEMA)


def _is_plain(document: Any, form: str) -> bool:
    """Whether a schema can be written as one of AsyncAPI itself."""
    own = form in (JSON_SCHEMA, "JsonSchema")
    return own and isinstance(document, dict) and "schema" not in document and "$ref" not in document


class _Properties:
    """The schema of an object of headers or attributes, whose names get a prefix."""

    def __init__(self, prefix: str) -> None:
        self.schemas: dict[str, Any] = {}
        self._prefix = prefix
        self._required: list[str] = []

    def add_event(self, metadata: Mapping[str, Any]) -> None:
        """Add the attributes of a CloudEvent."""
        for name in EVENT_ATTRIBUTES:
            self._required.append(f"{self._prefix}{name}")
        for name, body in {"specversion": {"value": "1.0"}, "id": {}, "source": {}, "type": {}, **metadata}.items():
            self.add(name, body if isinstance(body, dict) else {"value": body}, ATTRIBUTE_TYPES.get(name, "string"))

    def add(self, name: str, body: Mapping[str, Any], default: str) -> None:
        """Add one property."""
        name = f"{self._prefix}{name}" if self._prefix and default else name
        self.schemas[name] = _to_schema(body, default)
        if body.get("required") is True and name not in self._required:
            self._required.append(name)

    def to_schema(self) -> dict[str, Any]:
        """Return the schema of the object."""
        schema: dict[str, Any] = {"type": "object", "properties": self.schemas}
        return {**schema, **({"required": self._required} if self._required else {})}


def _to_schema(body: Mapping[str, Any], default: str) -> dict[str, Any]:
    """Return the schema of a property: a value with placeholders becomes a pattern."""
    kind = canonical_type(str(body.get("type") or default)) or "string"
    value = body.get("value")
    schema: dict[str, Any] = {}
    if kind in ("integer", "number", "boolean"):
        schema["type"] = kind
    elif kind != "any":
        schema["type"] = "string"
        schema.update({"format": _FORMATS[kind]} if kind in _FORMATS else {})
    if isinstance(value, str) and PLACEHOLDER.search(value):
        parts = PLACEHOLDER.split(value)
        schema["pattern"] = "^" + (".+" if parts == ["", ""] else "[^/]+".join(map(re.escape, parts))) + "$"
    elif value is not None and value != "" and not is_any_timestamp(value):
        schema["const"] = value
    if isinstance(body.get("description"), str) and body["description"]:
        schema["description"] = body["description"]
    return schema


def _binding_value(member: str, body: Mapping[str, Any], default: str) -> Any:
    """Return a message option as a member of its binding; None if it cannot be one."""
    value = body.get("value")
    if member in ("key", "correlationData", "responseTopic"):
        return _to_schema(body, default)
    if member == "payloadFormatIndicator":
        return value if value in (0, 1) and isinstance(value, int) and not isinstance(value, bool) else None
    if member == "statusCode":
        return parse_whole_number(str(value)) if isinstance(value, str | int) else None
    return value if isinstance(value, str) and not PLACEHOLDER.search(value) else None


def _operation_bindings(protocol: str, messages: list[_Message], endpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that all messages of a channel share, and those of the endpoint, as an operation binding."""
    binding, found = binding_of(protocol), {}
    for member, name in binding.operation.items():
        bodies = [each.form.get("protocoloptions", {}).get(name) for each in messages]
        values = [each.get("value") if isinstance(each, dict) else None for each in bodies]
        if values and values.count(values[0]) == len(values) and _fits_operation(member, values[0]):
            found[member] = values[0]
    options = endpoint.get("protocoloptions", {})
    for member, name in binding.endpoint.items():
        value = options.get(name)
        if isinstance(value, str) and (member != "method" or value in _METHODS):
            found.setdefault(member, {"type": "string", "const": value} if member == "groupId" else value)
    return {binding.keys[0]: found} if found else {}


def _fits_operation(member: str, value: Any) -> bool:
    if member == "method":
        return isinstance(value, str) and value in _METHODS
    if member == "retain":
        return isinstance(value, bool)
    most = _MAX_QOS if member == "qos" else _MAX_EXPIRY
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
