"""Translate AsyncAPI 2.0 to 2.6 and 3.x into an xRegistry 1.0 document, with the location of each part.

A channel becomes, for each protocol of its servers, an endpoint and a message group; each of its messages a definition
there, whose topic, subject or path is the address of the channel; each schema a schema of one schema group. An
extension ``x-xregistry`` of a channel, message or schema has the ``xid`` it stands for, and a JSON merge patch of what
the document gives otherwise; that of the whole document is a merge patch of the whole. What has no place in xRegistry
is reported.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from catalog.dialects.asyncapi.document import DOCUMENTS, MAX_HOPS, AsyncApiDocument, AsyncApiNode, TranslationTooLarge
from catalog.dialects.asyncapi.parts import (
    BINDINGS,
    DEFAULT_VERSION,
    EVENT_ATTRIBUTES,
    EXTENSION,
    STRUCTURED,
    TABLES,
    UnusedNames,
    binding_of,
    copy_schema,
    entity_at,
    format_of_media,
    is_secure,
    to_id,
)
from catalog.dialects.reading import MAX_DECLARED
from catalog.findings import Findings, SourceLocation
from catalog.model import CLOUDEVENTS
from catalog.parsing.pointers import parse_pointer
from catalog.parsing.texts import MAX_NODES
from catalog.protocols.properties import ATTRIBUTE_TYPES, MAX_MQTT_BYTES, PLACEHOLDER, canonical_protocol, options_of
from catalog.values import is_websocket_address, plain_number, to_text

_VERSION: Final = re.compile(r"(2\.[0-6]|3\.[0-9]++)(?:\.[0-9]++)?+(?:-[\w.]++)?+", re.ASCII)
_PROTOCOLS: Final = {written: protocol for protocol, names in TABLES["protocols"].items() for written in names}
_OLDER_AMQP: Final = frozenset({"amqp", "amqps"})
_UNTOLD: Final = frozenset({DOCUMENTS, "components", "schemas", "messages", "channels", "message", "schema"})
"""Steps of pointers that names of schemas leave out."""
_SCHEMA: Final = re.compile(r"((?:/x-documents/[0-9]+)?/components/schemas/[^/]+)(.*)", re.DOTALL)
_MESSAGE_XID: Final = re.compile(r"/(messagegroups|endpoints)/([^/]+)/messages/(.+)", re.DOTALL)
_SCHEMA_XID: Final = re.compile(r"/schemagroups/([^/]+)/schemas/(.+?)(?:/versions/([^/]+))?", re.DOTALL)
_PROTO_MESSAGE: Final = re.compile(r"(?:^|[;}\n])\s*+message\s++(\w+)", re.ASCII)
_ATTRIBUTE: Final = re.compile(r"[a-z0-9]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Server:
    """A server; ``protocol`` is None if the router does not speak it, ``older`` true for AMQP 0.9.1."""

    protocol: str | None
    address: str = ""
    pathname: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    older: bool = False


@dataclass(frozen=True, slots=True)
class _Channel:
    """A channel of either version: ``operations`` are pairs of usage and operation, with traits applied."""

    id: str
    node: AsyncApiNode
    address: str
    servers: list[_Server]
    messages: dict[str, AsyncApiNode] = field(default_factory=dict)
    operations: list[tuple[str, AsyncApiNode]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Context:
    """Where messages are used: the protocol, the address as a template, and the bindings of the operations.

    ``older`` is true for AMQP 0.9.1, where the address is a routing key if it is ``routed``, else the name of a queue.
    """

    protocol: str | None = None
    address: str = ""
    older: bool = False
    routed: bool = True
    operation: AsyncApiNode = AsyncApiNode({})  # noqa: RUF009  # it is never changed


def translate(
    tree: Mapping[str, Any], root: SourceLocation, findings: Findings
) -> tuple[dict[str, Any], SourceLocation] | None:
    """Translate an AsyncAPI document, bundled with those it refers to, into an xRegistry 1.0 document.

    Return it with its location, whose mounts lead to the parts of the AsyncAPI document; None for an unknown version.
    """
    version = to_text(tree["asyncapi"])
    match = _VERSION.fullmatch(version)
    if match is None:
        text = f"AsyncAPI {version[:40]!r} is not known, so nothing is read"
        findings.error(root / "asyncapi", "asyncapi-version", text, "write it as AsyncAPI 2.6.0 or 3.0.0")
        return None
    if match[1] not in ("2.6", "3.0"):
        known = "2.6" if version.startswith("2") else "3.0"
        findings.info(root / "asyncapi", "asyncapi-version", f"AsyncAPI {version} is read as {known}", "")
    document = AsyncApiDocument(tree, root, findings, newer=version.startswith("3"))
    translator = _Translator(document)
    try:
        translator.translate()
    except TranslationTooLarge:
        text = f"the document stands for more than {MAX_NODES} values or {MAX_DECLARED} definitions"
        findings.error(root, "too-many", f"{text}; the others are left out", "split the document")
    patched = document.patched(translator.tree, document.root)
    return patched, SourceLocation(root.file, "", {**(root.mounts or {}), **translator.mounts})


class _Translator:
    """Translates a document into ``tree``; ``mounts`` are the locations of its parts."""

    def __init__(self, document: AsyncApiDocument) -> None:
        self.document = document
        self.tree: dict[str, Any] = {"endpoints": {}, "messagegroups": {}, "schemagroups": {}}
        self.mounts: dict[tuple[str, str], SourceLocation] = {}
        self._file = document.place(document.root).file
        self._name = to_id(document.child(document.root, "info").text("title") or "asyncapi")
        self._endpoints: dict[str, AsyncApiNode] = {}
        self._schemas: dict[str, tuple[str, str]] = {}
        self._pointers: dict[str, str] = {}
        self._types: dict[str, frozenset[str]] = {}
        self._names: defaultdict[tuple[str, str], UnusedNames] = defaultdict(UnusedNames)
        self._waiting: list[tuple[AsyncApiNode, AsyncApiNode, dict[str, Any], str]] = []
        self._messages = 0

    def translate(self) -> None:
        """Translate everything."""
        document = self.document
        info = document.child(document.root, "info")
        document.report_unread(document.root, "document")
        document.report_unread(info, "info")
        self.tree.update(self._described(info))
        if info.text("version") not in ("", DEFAULT_VERSION):
            self.tree["version"] = info.text("version")
        for channel in self._channels():
            for context, servers in self._contexts(channel):
                self._add_channel(channel, context, servers)
        for key, node in document.listed("components", "messages"):
            if "xid" in document.extension(node):
                self._add_message(key, node, _Context(), "")
        for _, node in document.listed("components", "schemas", follow=False):
            self._schema_at(node.pointer, None)
        filled = []
        while self._waiting:
            node, body, entry, form = self._waiting.pop()
            self._fill_schema(body, entry, form)
            filled.append((node, entry))
        # Last, as an extension may replace whatever others are added to.
        for key, node in self._endpoints.items():
            self.tree["endpoints"][key] = document.patched(self.tree["endpoints"][key], node)
        for node, entry in filled:
            patched = document.patched(dict(entry), node)
            entry.clear()
            entry.update(patched)

    def _mount(self, at: SourceLocation, *path: str) -> None:
        """Say that the part of the translated document at *path* is written at a location."""
        *above, last = path
        place = SourceLocation(self._file, "", self.mounts)
        for step in above:
            place /= step
        self.mounts[place.file, (SourceLocation("", place.pointer) / last).pointer] = at

    def _schema_place(self, node: AsyncApiNode) -> SourceLocation:
        """Return the location of a schema; references to other files are relative to the first document."""
        bundled = node.pointer.startswith(f"/{DOCUMENTS}/")
        return SourceLocation(self._file, node.pointer) if bundled else self.document.place(node)

    def _described(self, node: AsyncApiNode, id: str = "") -> dict[str, Any]:
        found = {
            "name": node.text("title", "name"),
            "description": node.text("description", "summary"),
            "documentation": self.document.child(node, "externalDocs").text("url"),
        }
        return {name: text for name, text in found.items() if text and (name, text) != ("name", id)}

    # Servers.

    def _read_server(self, name: str, node: AsyncApiNode) -> _Server:
        document, written = self.document, node.text("protocol").lower()
        document.report_unread(node, "server")
        family, at = _PROTOCOLS.get(written), document.place(node / "protocol")
        if family is None:
            text = f"the router does not speak {written or 'the protocol'!r:.60} of server {name}"
            hint = "use kafka, mqtt, amqp, amqp1, nats or http; what is on this server alone is left out"
            document.findings.warning(at, "asyncapi-protocol", text, hint)
            return _Server(None)
        if written in _OLDER_AMQP:
            text = f"server {name} speaks AMQP 0.9.1, which is read as AMQP 1.0"
            hint = "the router speaks AMQP 1.0, as RabbitMQ 4 does on the same port"
            document.findings.warning(at, "asyncapi-protocol", text, hint)
        address = node.text("host", "url") + node.text("pathname")
        for variable, inner in document.listed("variables", of=node):
            default, choices = inner.members.get("default"), (inner / "enum").entries()
            value = default or (choices[0].value if choices else None)
            if value is not None:
                address = self._fill(address, inner, variable, to_text(value))
            if not default and len(choices) > 1:
                document.report_no_place(inner, f"the other values of {variable:.80}, which has no default")
        scheme, address = address.split("://", 1) if "://" in address else ("", address)
        host, slash, path = address.partition("/")
        version = to_text(node.members.get("protocolVersion") or "5")
        protocol = str(canonical_protocol(f"mqtt/{version}") if family == "MQTT" else family)
        protocol = protocol if protocol in BINDINGS else "MQTT/5.0"
        binding = BINDINGS[protocol]
        prefix = binding.schemes[is_secure(written) or is_secure(scheme)]
        if family == "KAFKA" and (scheme.lower().startswith("sasl_") or self._has_sasl(node)):
            prefix = f"SASL_{prefix}"
        elif is_websocket_address(f"{scheme}://"):
            prefix = scheme  # which `check` reports where the router does not speak it
        bindings, options = document.bindings_of(node, binding), {}
        document.report_unread(bindings, "binding", [*(each.partition(".")[0] for each in binding.server), _BINDING])
        for member, option in binding.server.items():
            value = document.constant(document.child(bindings, *member.split(".")))
            options.update({option: value} if value is not None else {})
        uri = host if prefix == "PLAINTEXT" or not host else f"{prefix}://{host}"
        return _Server(protocol, uri, f"{slash}{path}".rstrip("/"), options, written in _OLDER_AMQP)

    def _has_sasl(self, node: AsyncApiNode) -> bool:
        """Whether a server of Kafka asks for a login other than a certificate."""
        document = self.document
        for scheme in (node / "security").entries():
            if not document.newer:
                name = next(iter(scheme.members), "")
                scheme = document.child(document.root, "components", "securitySchemes", name)
            if document.follow(scheme).text("type") not in ("X509", ""):
                return True
        return False

    # Channels.

    def _channels(self) -> list[_Channel]:
        document, found = self.document, {}
        servers = {name: self._read_server(name, node) for name, node in document.listed("servers")}
        ids = UnusedNames()
        for key, node in document.listed("channels"):
            document.report_unread(node, "channel")
            address = self._fill_address(node.text("address") if document.newer else key, node)
            channel = _Channel(ids.take(to_id(key)), node, address, self._servers_of(node, servers))
            found[node.pointer] = channel
            if document.newer:
                channel.messages.update(document.listed("messages", of=node))
            for name, usage in (("publish", "producer"), ("subscribe", "consumer")):
                operation = document.child(node, name)
                if operation.value is not None and not document.newer:
                    operation = document.merge_traits(operation)
                    self._add_operation(channel, usage, operation)
                    self._add_messages(channel, operation)
        for _, node in document.listed("operations"):
            operation = document.merge_traits(node)
            target = found.get(document.child(operation, "channel").pointer)
            usage = {"send": "consumer", "receive": "producer"}.get(operation.text("action"), "")
            if target is None or not usage:
                text, hint = "this operation has no action or no channel of this document", "write send or receive"
                document.findings.error(document.place(node), "wrong-shape", text, hint)
            else:
                self._add_operation(target, usage, operation)
                named = (operation / "messages").entries()
                document.spend(len(named))  # one trait may name them for many operations
                if 0 < len({document.follow(each).pointer for each in named}) < len(target.messages):
                    what = "the choice of messages: the endpoint has all those of its channel"
                    document.report_no_place(operation / "messages", what)
        return list(found.values())

    def _servers_of(self, node: AsyncApiNode, servers: Mapping[str, _Server]) -> list[_Server]:
        """Return the servers of a channel: those it names, else all."""
        named = []
        for each in (node / "servers").entries():
            name = each.text("$ref").rpartition("/")[2] if isinstance(each.value, dict) else each.value
            if isinstance(name, str) and name in servers:
                named.append(servers[name])
            else:
                text, place = f"there is no server {name!r:.80}", self.document.place(each)
                self.document.findings.error(place, "asyncapi-reference", text, "correct the name")
        if named or node.members.get("servers"):
            return named
        self.document.spend(len(servers))
        return list(servers.values())

    def _fill_address(self, address: str, node: AsyncApiNode) -> str:
        """Return an address with the parameters that have one value filled in."""
        document = self.document
        for name, inner in document.listed("parameters", of=node):
            document.report_unread(inner, "parameter")
            schema = inner if document.newer else document.child(inner, "schema")
            value = document.constant(schema)
            if value is not None:
                address = self._fill(address, inner, name, to_text(value))
            elif "enum" in schema.members:
                document.report_no_place(inner, f"the values of the parameter {name}; any value matches")
        return address

    def _fill(self, address: str, node: AsyncApiNode, name: str, value: str) -> str:
        """Return an address with a placeholder filled in, unless it becomes longer than any address can be."""
        written = f"{{{name}}}"
        if len(address) + address.count(written) * (len(value) - len(written)) <= MAX_MQTT_BYTES:
            return address.replace(written, value)
        text = f"with {name:.80} filled in, the address has more than {MAX_MQTT_BYTES} characters"
        self.document.findings.error(self.document.place(node), "wrong-shape", text, "shorten it")
        return address

    def _add_operation(self, channel: _Channel, usage: str, operation: AsyncApiNode) -> None:
        self.document.report_unread(operation, "operation")
        channel.operations.append((usage, operation))

    def _add_messages(self, channel: _Channel, operation: AsyncApiNode) -> None:
        """Add the messages of an operation of version 2: one, or several in ``oneOf``."""
        message = self.document.child(operation, "message")
        known, names = {node.pointer for node in channel.messages.values()}, UnusedNames()
        for node in (message / "oneOf").entries() or [operation / "message"]:
            target = self.document.follow(node)
            if isinstance(target.value, dict) and target.pointer not in known:
                key = node.text("$ref").rpartition("/")[2] or target.text("messageId", "name")
                key = key or operation.text("operationId") or "message"
                while (own := names.take(key)) in channel.messages:
                    pass  # one of the other operation
                channel.messages[own] = target

    def _contexts(self, channel: _Channel) -> Iterator[tuple[_Context, list[_Server]]]:
        """Yield each protocol of a channel, with its servers; where there are none, those of its bindings."""
        document = self.document
        by: dict[str | None, list[_Server]] = {}
        for server in channel.servers:
            if server.protocol is not None:
                by.setdefault(server.protocol, []).append(server)
        holders = (channel.node, *channel.messages.values(), *(each for _, each in channel.operations))
        given = {key for node in holders for key in document.child(node, "bindings").members}
        named = [name for name, each in BINDINGS.items() if name != "MQTT/3.1.1" and given.intersection(each.keys)]
        if "xid" in document.extension(channel.node):  # it stands for one endpoint
            kept = {name: each for name, each in by.items() if str(name).replace("3.1.1", "5.0") in named}
            by = kept or {name: [] for name in named} or by
        elif not channel.servers:
            by = {name: [] for name in named}
        if not by and not channel.servers:
            text, hint = "no server and no binding says which protocol this channel has", "add servers or bindings"
            document.findings.warning(document.place(channel.node), "asyncapi-protocol", text, hint)
            by = {None: []}
        for protocol, servers in by.items():
            binding, members = binding_of(protocol), {}
            older = any(each.older for each in servers) or (not servers and "amqp1" not in given and "amqp" in given)
            own = document.bindings_of(channel.node, binding)
            address = (
                own.text("topic") if protocol == "KAFKA" else own.text("name") if older else ""
            ) or channel.address
            if protocol == "HTTP" and address:
                prefixes = {each.pathname for each in servers}
                address = f"{prefixes.pop() if len(prefixes) == 1 else ''}/{address.removeprefix('/')}"
            for _, each in channel.operations:
                members.update(document.bindings_of(each, binding).members)
            operation = AsyncApiNode(members, channel.operations[0][1].pointer if channel.operations else "")
            yield _Context(protocol, address, older, own.text("is") != "queue", operation), servers

    def _add_channel(self, channel: _Channel, context: _Context, servers: list[_Server]) -> None:
        """Add the endpoint of a channel for one protocol, and its messages."""
        document, binding = self.document, binding_of(context.protocol)
        several = len({each.protocol for each in channel.servers if each.protocol}) > 1
        own = f"{self._name}.{channel.id}" + (f".{to_id(context.protocol or '').lower()}" if several else "")
        xid = document.extension(channel.node).get("xid")
        key = str(xid or own).rpartition("/")[2]
        if xid != "" and key not in self._endpoints:
            self._mount(document.place(channel.node), "endpoints", key)
        xids = [self._add_message(name, node, context, own) for name, node in channel.messages.items()]
        known = (*binding.operation, *binding.endpoint, *(("query",) if context.protocol == "HTTP" else ()), _BINDING)
        document.report_unread(context.operation, "binding", known)
        if xid == "":
            return  # a channel of messages that no endpoint offers
        form = self.tree["endpoints"].setdefault(key, {})  # may have messages of its own already
        groups = form.setdefault("messagegroups", [])
        found = (each.partition("/messages/")[0] for each in xids if each.startswith("/messagegroups/"))
        groups.extend(each for each in dict.fromkeys(found) if each not in groups)
        if not groups:
            del form["messagegroups"]
        if key not in self._endpoints:
            self._endpoints[key] = channel.node
            form.update(self._endpoint(channel, context, servers, xids))

    def _endpoint(
        self, channel: _Channel, context: _Context, servers: list[_Server], xids: list[str]
    ) -> dict[str, Any]:
        document, binding = self.document, binding_of(context.protocol)
        own = document.bindings_of(channel.node, binding)
        options: dict[str, Any] = {}
        addresses = list(dict.fromkeys(each.address for each in servers if each.address))
        if addresses:
            plain = context.protocol == "KAFKA" and not any("://" in each for each in addresses)
            options["endpoints"] = (
                [{"bootstrap.servers": addresses}] if plain else [{"uri": each} for each in addresses]
            )
        for server in servers:
            options.update(server.options)
        address = context.address
        if context.older:  # as RabbitMQ 4 names queues and exchanges
            names = ((kind, document.child(own, kind).text("name")) for kind in ("queue", "exchange"))
            default = "" if context.routed else f"/queues/{address}"
            address = next((f"/{kind}s/{name}" for kind, name in names if name), default)
        else:
            document.report_unread(own, "binding", (*(("topic",) if context.protocol == "KAFKA" else ()), _BINDING))
        if binding.channel and address:
            options[binding.channel] = address
        for member, option in binding.endpoint.items():
            value = document.constant(context.operation / member)
            options.update({option: value} if isinstance(value, str) else {})
        form = {
            **self._described(channel.node),
            "usage": list(dict.fromkeys(usage for usage, _ in channel.operations)),
            "protocol": context.protocol,
            "protocoloptions": options,
        }
        if xids and all(entity_at(self.tree, xid).get("envelope") == CLOUDEVENTS for xid in xids):
            form["envelope"] = CLOUDEVENTS
        return {name: value for name, value in form.items() if value}

    # Messages.

    def _add_message(self, key: str, node: AsyncApiNode, context: _Context, group: str) -> str:
        """Add a message of a channel as a definition, unless its own xid is known already; return its xid."""
        document, node = self.document, self.document.merge_traits(node)
        xid = document.extension(node).get("xid")
        match = _MESSAGE_XID.fullmatch(xid) if isinstance(xid, str) else None
        collection, owner, name = match.groups() if match else ("messagegroups", group, to_id(key))
        holder = self.tree[collection].setdefault(owner, {}).setdefault("messages", {})
        if match is None:
            name = self._names[collection, owner].take(name)
        elif name in holder:
            return f"/{collection}/{owner}/messages/{name}"
        self._messages += 1
        if self._messages > MAX_DECLARED:
            raise TranslationTooLarge
        document.report_unread(node, "message")
        reader = _MessageReader(self, node, context, own=match is not None)
        holder[name] = document.patched({**self._described(node, name), **reader.read(key)}, node)
        place, path = document.place(node), (collection, owner, "messages", name)
        if collection == "messagegroups" and len(holder) == 1:
            self._mount(place, collection, owner)
        self._mount(place, *path)
        for member, at in reader.written.items():
            self._mount(self._schema_place(at) if "schema" in member else document.place(at), *path, member)
        return f"/{collection}/{owner}/messages/{name}"

    # Schemas.

    def schema(self, node: AsyncApiNode, media: Any) -> tuple[str, str] | None:
        """Return reference and format of a payload's schema; None if there is none."""
        document = self.document
        for _ in range(MAX_HOPS):
            if document.newer and "schema" in node.members and "$ref" not in node.members:
                media, node = node.members.get("schemaFormat"), node / "schema"
            reference = node.text("$ref")
            if not reference:
                break
            if not reference.startswith("#"):
                return reference, format_of_media(media)
            if document.follow(node).value is None:
                return None
            if _SCHEMA.fullmatch(reference[1:]):
                return self._schema_at(reference[1:], media)
            node = document.follow(node)
        return None if node.value is None else self._schema_at(node.pointer, media)

    def _schema_at(self, pointer: str, media: Any) -> tuple[str, str]:
        """Return reference and format of the schema at a pointer; declare it if it is new.

        A pointer into a schema of the components leads into that one.
        """
        match = _SCHEMA.fullmatch(pointer)
        root, rest = match.groups() if match else (pointer, "")
        if match and self._is_wrapped(root):
            rest = rest.removeprefix("/schema")
        if root not in self._schemas:
            self._declare_schema(root, media)
        xid, form = self._schemas[root]
        return f"#{xid}" + (f"#{rest}" if rest else ""), form

    def _node_at(self, pointer: str) -> AsyncApiNode:
        node = self.document.root
        for step in parse_pointer(pointer):
            node = self.document.follow(node)
            node /= int(step) if node.is_list and step.isdecimal() else step
        return node

    def _is_wrapped(self, pointer: str) -> bool:
        """Whether there is a schema with its format around it."""
        members = self._node_at(pointer).members
        return self.document.newer and "schema" in members and "$ref" not in members

    def _declare_schema(self, pointer: str, media: Any) -> None:
        document, node = self.document, self._node_at(pointer)
        body = node
        if self._is_wrapped(pointer):
            media, body = node.members.get("schemaFormat"), node / "schema"
        form = format_of_media(media)
        given = document.extension(node).get("xid")
        match = _SCHEMA_XID.fullmatch(given) if isinstance(given, str) else None
        group, name, version = match.groups() if match else (self._name, "", None)
        schemas = self.tree["schemagroups"].setdefault(group, {}).setdefault("schemas", {})
        if match is None:
            told = [step for step in parse_pointer(pointer) if step not in _UNTOLD]
            name = self._names["schemagroups", group].take(to_id(".".join(told)))
        xid = f"/schemagroups/{group}/schemas/{name}"
        self._schemas[pointer] = (xid, form)
        self._pointers[f"#{xid}"] = pointer
        path: tuple[str, ...] = ("schemagroups", group, "schemas", name)
        self._mount(self._schema_place(node), *path)
        entry = schemas.setdefault(name, {})
        if version is not None:
            path = (*path, "versions", version)
            self._mount(self._schema_place(node), *path)
            entry = entry.setdefault("versions", {}).setdefault(version, {})
        entry["format"] = form
        self._mount(self._schema_place(body), *path, "schema")
        self._waiting.append((node, body, entry, form))  # its references may lead far

    def _fill_schema(self, body: AsyncApiNode, entry: dict[str, Any], form: str) -> None:
        """Add document or address to a schema."""
        reference = body.text("$ref")
        if reference and not reference.startswith("#"):
            entry["schemaurl"] = reference
        else:
            entry["schema"] = self.copied(body, form)

    def copied(self, node: AsyncApiNode, form: str) -> Any:
        """Copy the schema at a node; references in JSON schemas lead to the translated ones."""

        def change(reference: str) -> str:
            if not reference.startswith("#/"):
                return reference
            pointer = unquote(reference[1:])
            if f"{pointer}/".startswith(f"{node.pointer}/"):
                raw = reference[1 + len(node.pointer) :] if reference[1:].startswith(node.pointer) else ""
                return f"#{raw or pointer[len(node.pointer) :]}"
            target = self.document.follow(AsyncApiNode({"$ref": reference}, node.pointer))
            if target.value is None:
                return reference
            return self._schema_at(pointer if _SCHEMA.fullmatch(pointer) else target.pointer, None)[0].removeprefix("#")

        value = node.value
        if isinstance(value, dict) and EXTENSION in value:
            value = {name: each for name, each in value.items() if name != EXTENSION}
        return copy_schema(value, change if form.startswith("Json") else None, self.document.spend)

    def type_name(self, reference: str, names: Collection[str]) -> str:
        """Return ``:Name`` for a Protobuf document of several messages, one of which is called as a message here."""
        if reference not in self._types:
            pointer = self._pointers.get(reference, "")
            node = self._node_at(pointer)
            text = (node / "schema").value if self._is_wrapped(pointer) else node.value
            self._types[reference] = frozenset(_PROTO_MESSAGE.findall(text) if isinstance(text, str) else ())
        types = self._types[reference]
        return next((f":{name}" for name in names if name in types and len(types) > 1), "")


_BINDING: Final = "bindingVersion"
_COST: Final = 16
"""What a header counts as, in values: reading one takes so much longer than copying a value."""


class _MessageReader:
    """Reads envelope, protocol options and schema of one message; ``written`` are the nodes of its attributes."""

    def __init__(self, translator: _Translator, node: AsyncApiNode, context: _Context, *, own: bool) -> None:
        self.written: dict[str, AsyncApiNode] = {}
        self._translator = translator
        self._document = translator.document
        self._node = node
        self._context = context
        self._binding = binding_of(context.protocol)
        self._own = own
        self._is_event = False
        self._options: dict[str, Any] = {}
        self._metadata: dict[str, Any] = {}

    def read(self, key: str) -> dict[str, Any]:
        """Return the 1.0 attributes of the message."""
        node, payload = self._node, self._node / "payload"
        content = node.text("contentType") or self._document.root.text("defaultContentType")
        media = content.lower()
        structured = media.startswith(STRUCTURED) and "batch" not in media
        self._read_address()
        self._read_bindings()
        self._read_headers()
        form: dict[str, Any] = {"protocol": self._context.protocol, "protocoloptions": self._options}
        if structured:
            form["envelopeoptions"] = {"mode": "structured", "format": content}
            payload = self._read_structured(payload)
            content = str(self._metadata.pop("datacontenttype", {}).get("value", ""))
        if structured or self._is_event:
            form["envelope"] = CLOUDEVENTS
        form.update(
            {"envelopemetadata": self._metadata, "datacontenttype": content, **self._read_payload(payload, key)}
        )
        places = {"envelopemetadata": node / ("payload" if structured else "headers"), "protocoloptions": node}
        self.written.update(places)
        return {name: value for name, value in form.items() if value or name == "dataschema"}

    def _set_option(self, path: str, body: Any) -> None:
        """Set an option, or a member of a section (``properties.to``)."""
        section, _, name = path.partition(".")
        holder = self._options.setdefault(section, {}) if name else self._options
        holder[name or section] = body

    def _read_address(self) -> None:
        context, about = self._context, self._binding.about
        templated = PLACEHOLDER.search(context.address) is not None
        if context.older:
            about = "message-annotations.x-routing-key" if context.routed else ""
        elif context.protocol == "AMQP/1.0" and not templated:
            return  # the node of the link, which messages do not name
        if about and context.address:
            is_template = about == "properties.to" or options_of(context.protocol).scalars.get(about) == "uritemplate"
            typed = {"type": "uritemplate"} if templated and not is_template else {}
            self._set_option(about, {**typed, "value": context.address})

    def _read_bindings(self) -> None:
        """Read the bindings of the message, and those of its operations that messages have."""
        document, context, binding = self._document, self._context, self._binding
        own, http = document.bindings_of(self._node, binding), context.protocol == "HTTP"
        document.report_unread(own, "binding", (*binding.message, *(("headers",) if http else ()), _BINDING))
        for holder, table in ((own, binding.message), (context.operation, binding.operation)):
            for member, path in table.items():
                inner = holder / member
                if isinstance(inner.value, dict):
                    self._set_option(
                        path, self._property(inner, options_of(context.protocol).scalars.get(path, "string"))
                    )
                elif isinstance(inner.value, (str, int, float)):
                    self._set_option(path, {"value": plain_number(inner.value)})
        for name, inner in (("headers", own / "headers"), ("query", context.operation / "query")) if http else ():
            for key, schema, required in self._properties(inner):
                body = self._property(schema, "string", required=required)
                self._options.setdefault(name, []).append({"name": key, **body})

    def _read_headers(self) -> None:
        """Read the headers: CloudEvents attributes by their prefix, others as those of the protocol."""
        document, node, binding = self._document, self._node, self._binding
        schema = node / "headers"
        listed = list(self._properties(schema / "schema" if "schemaFormat" in schema.members else schema))
        names = {name for name, _, _ in listed}
        kind, _, pointer = document.child(node, "correlationId").text("location").partition("#")
        steps = parse_pointer(pointer)
        if kind == "$message.header" and len(steps) == 1:
            if steps[0] not in names:
                listed.append((steps[0], AsyncApiNode({"type": "string"}, node.pointer), False))
        elif kind:
            document.report_no_place(node / "correlationId", f"a correlation id at {kind}#{pointer[:200]}")
        prefix = next((each for each in binding.prefixes if _holds_event(names, each)), None)
        lost = []
        for name, inner, required in listed:
            attribute = name.removeprefix(prefix) if prefix is not None and name.startswith(prefix) else ""
            if _ATTRIBUTE.fullmatch(attribute):
                self._add_attribute(attribute, inner, required=required)
            elif binding.headers == "application-properties":
                self._set_option(f"{binding.headers}.{name}", self._property(inner, "string", required=required))
            elif binding.headers:
                body = self._property(inner, "string", required=required)
                self._options.setdefault(binding.headers, []).append({"name": name, **body})
            else:
                lost.append(name)
        if lost:
            protocol = self._context.protocol or "a message without a protocol"
            document.report_no_place(node / "headers", f"headers {', '.join(lost[:8])} of {protocol}")

    def _read_structured(self, payload: AsyncApiNode) -> AsyncApiNode:
        """Read the attributes of an event in structured mode; return the schema of its data."""
        data = AsyncApiNode(None)
        for name, inner, required in self._properties(
            payload / "schema" if "schemaFormat" in payload.members else payload
        ):
            if name == "data":
                data = inner
            elif _ATTRIBUTE.fullmatch(name):
                self._add_attribute(name, inner, required=required)
        return data

    def _add_attribute(self, name: str, schema: AsyncApiNode, *, required: bool) -> None:
        """Add an attribute of the event, except for one that every event has, with any value."""
        always = name in EVENT_ATTRIBUTES
        body = self._property(schema, ATTRIBUTE_TYPES.get(name, "string"), required=required and not always)
        if name != "specversion" and (body or not always):
            self._metadata[name] = body
        self._is_event = True

    def _properties(self, node: AsyncApiNode, left: int = 8) -> Iterator[tuple[str, AsyncApiNode, bool]]:
        """Yield name, schema, and whether it is required, of the members of an object's schema."""
        document, node = self._document, self._document.follow(node)
        required = node.members.get("required")
        for name, inner in document.listed("properties", of=node, follow=False):
            document.spend(_COST)
            yield name, inner, isinstance(required, list) and name in required
        for part in (node / "allOf").entries() if left else ():
            document.spend(4 * _COST)
            yield from self._properties(part, left - 1)

    def _property(self, node: AsyncApiNode, default: str, *, required: bool = False) -> dict[str, Any]:
        """Return the constraint ``{type, value, required}`` that a schema of a header stands for."""
        document, node = self._document, self._document.follow(node)
        schema = node.members
        kinds = schema.get("type")
        listed = [each for each in kinds if each != "null"] if isinstance(kinds, list) else [kinds]
        kind = listed[0] if len(listed) == 1 else "any"
        if kind == "string":
            kind = TABLES["formats"].get(node.text("format"), "string")
        elif kind not in ("integer", "number", "boolean"):
            kind = default if kind is None else "any"
        value = document.constant(node)
        body = {"type": kind} if kind != default else {}
        body.update({"value": value} if value is not None else {})
        body.update({"required": True} if required else {})
        body.update({"description": node.text("description")} if node.text("description") else {})
        if not self._own:  # else the extension has what is missing
            document.report_unread(node, "header or key")
            if value is None and "enum" in schema:
                document.report_no_place(node / "enum", "several values of a header or key; any value matches")
        return body

    def _read_payload(self, payload: AsyncApiNode, key: str) -> dict[str, Any]:
        if payload.value is None:
            return {}
        media, inner = self._node.members.get("schemaFormat"), payload
        if "schemaFormat" in payload.members and "schema" in payload.members:
            media, inner = payload.members["schemaFormat"], payload / "schema"
        self.written["dataschemauri"] = self.written["dataschema"] = inner
        if self._own and "$ref" not in inner.members:
            form = format_of_media(media)
            return {"dataschemaformat": form, "dataschema": self._translator.copied(inner, form)}
        found = self._translator.schema(payload, media)
        if found is None:
            return {}
        reference, form = found
        if form.startswith("Protobuf"):
            reference += self._translator.type_name(reference, (self._node.text("name"), key))
        return {"dataschemaformat": form, "dataschemauri": reference}


def _holds_event(names: Collection[str], prefix: str) -> bool:
    """Whether headers with this prefix are attributes of a CloudEvent."""
    found = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    return "specversion" in found or {"id", "source", "type"} <= found or (bool(prefix) and "type" in found)
