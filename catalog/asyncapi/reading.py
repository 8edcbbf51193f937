"""Translate AsyncAPI 2.0 to 2.6 and 3.x into an xRegistry 1.0 document, with the location of each part.

A channel becomes, for each protocol of its servers, an endpoint and a message group; each of its messages a definition
there, whose topic, subject or path is the address of the channel; each schema a schema of one schema group. An
extension ``x-xregistry`` of a channel, message or schema has the ``xid`` it stands for, and a JSON merge patch of what
the document gives otherwise; that of the whole document is a merge patch of the whole. What has no place in xRegistry
is reported.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urljoin

from catalog.dialects.reading import MAX_DECLARED
from catalog.findings import Findings, SourceLocation
from catalog.model import CLOUDEVENTS
from catalog.parsing.pointers import parse_pointer
from catalog.parsing.texts import MAX_NODES
from catalog.protocols.properties import ATTRIBUTE_TYPES, PLACEHOLDER, canonical_protocol, options_of
from catalog.values import plain_number, to_text

EXTENSION: Final = "x-xregistry"
LITERAL: Final = "$value"
"""The only member of an object in a patch that replaces a value as a whole, so that it may have null members."""
JSON_SCHEMA: Final = "JsonSchema/draft-07"
"""What AsyncAPI's own schemas are read as: a superset of it, whose additions only describe."""
MAX_HOPS: Final = 64
"""Maximum references from one to the next."""
STRUCTURED: Final = "application/cloudevents+"
_VERSION: Final = re.compile(r"(2\.[0-6]|3\.[0-9]++)(?:\.[0-9]++)?+(?:-[\w.]++)?+", re.ASCII)
_NOT_ID: Final = re.compile(r"[^A-Za-z0-9._~-]+")
_SCHEMA: Final = re.compile(r"(/components/schemas/[^/]+)(.*)", re.DOTALL)
_FORMAT: Final = re.compile(
    r"application/(?:vnd\.)?(aai\.asyncapi|schema|apache\.avro|google\.protobuf|xregistry)(?:\+(?:json|yaml))?+"
    r"(?:\s*+;\s*+(?:version|format)=([^\s;]++))?+\s*+",
    re.ASCII,
)
_FORMATS: Final = {
    "schema": ("JsonSchema/", "draft-07"),
    "apache.avro": ("Avro/", "1.9.0"),
    "google.protobuf": ("Protobuf/", "3"),
    "xregistry": ("", ""),
}
_PROTO_MESSAGE: Final = re.compile(r"^\s*message\s+(\w+)", re.MULTILINE | re.ASCII)

_MAPS: Final = frozenset(
    {"properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas"}
)
"""Keywords of JSON schemas whose members are schemas by name."""
_VALUES: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are no schemas."""

# Protocols: the bindings of each, the schemes of its addresses, and where headers and addresses are constrained.


@dataclass(frozen=True, slots=True)
class Binding:
    """How AsyncAPI describes a protocol.

    ``keys`` are the names of its bindings, the usual one first; ``schemes`` those of addresses without and with TLS.
    ``headers`` is the option that has the headers, ``prefixes`` those of CloudEvents attributes among them. ``about``
    is the message option with the channel's address, ``channel`` that of endpoints. ``message`` and ``operation`` are
    options of messages by member of the binding; ``server`` and ``endpoint`` are options of endpoints.
    """

    keys: tuple[str, ...]
    schemes: tuple[str, str]
    headers: str = ""
    prefixes: tuple[str, ...] = ()
    about: str = ""
    channel: str = ""
    message: Mapping[str, str] = field(default_factory=dict)
    operation: Mapping[str, str] = field(default_factory=dict)
    server: Mapping[str, str] = field(default_factory=dict)
    endpoint: Mapping[str, str] = field(default_factory=dict)


_MQTT: Final = Binding(
    ("mqtt", "mqtt5"),
    ("mqtt", "mqtts"),
    "user_properties",
    ("",),
    "topic_name",
    "topic",
    {
        "payloadFormatIndicator": "payload_format",
        "correlationData": "correlation_data",
        "contentType": "content_type",
        "responseTopic": "response_topic",
    },
    {"qos": "qos", "retain": "retain", "messageExpiryInterval": "message_expiry_interval"},
    {
        "cleanSession": "cleansession",
        "keepAlive": "keepalive",
        "sessionExpiryInterval": "sessionexpiryinterval",
        "lastWill.topic": "willtopic",
        "lastWill.message": "willmessage",
        "clientId": "clientid",
    },
)
BINDINGS: Final[Mapping[str, Binding]] = {
    "KAFKA": Binding(
        ("kafka",),
        ("PLAINTEXT", "SSL"),
        "headers",
        ("ce_",),
        "topic",
        "topic",
        {"key": "key"},
        endpoint={"groupId": "consumergroup"},
    ),
    "MQTT/3.1.1": replace(_MQTT, headers="", prefixes=()),
    "MQTT/5.0": _MQTT,
    "AMQP/1.0": Binding(
        ("amqp1", "amqp"),
        ("amqp", "amqps"),
        "application-properties",
        ("cloudEvents_", "cloudEvents:"),
        "properties.to",
        "node",
        {"contentEncoding": "properties.content-encoding", "messageType": "message-annotations.x-basic-type"},
    ),
    "NATS": Binding(("nats",), ("nats", "tls"), "headers", ("ce-",), "subject", "subject", endpoint={"queue": "queue"}),
    "HTTP": Binding(
        ("http",),
        ("http", "https"),
        "headers",
        ("ce-",),
        "path",
        "path",
        {"statusCode": "status"},
        {"method": "method"},
        endpoint={"method": "method"},
    ),
}
NO_BINDING: Final = Binding((), ("", ""), "", ("ce-", "ce_"))
"""Of messages whose protocol is not known."""
_PROTOCOLS: Final = {
    **dict.fromkeys(("kafka", "kafka-secure"), "KAFKA"),
    **dict.fromkeys(("mqtt", "mqtts", "secure-mqtt", "mqtt5", "mqtt5-secure"), "MQTT"),
    **dict.fromkeys(("amqp", "amqps", "amqp1", "amqps1"), "AMQP/1.0"),
    **dict.fromkeys(("nats", "natss", "nats-secure", "tls"), "NATS"),
    **dict.fromkeys(("http", "https"), "HTTP"),
}
_OLDER_AMQP: Final = frozenset({"amqp", "amqps"})
_SECURE: Final = re.compile(r"(?:mqtt|amqp|http|nats)s1?|tls|.*secure.*")
_NO_SASL: Final = frozenset({"X509"})
_KINDS: Final = {
    "date-time": "timestamp",
    "duration": "duration",
    "uri": "uri",
    "uri-reference": "urireference",
    "uri-template": "uritemplate",
    "byte": "binary",
    "binary": "binary",
}
"""Property types by the format of a text."""
_SAID: Final = frozenset({"type", "format", "const", "enum", "description", "title", "examples", "default"})
_DESCRIBED: Final = frozenset({"name", "title", "summary", "description", "externalDocs"})
_READ: Final = {
    "info": frozenset({"title", "description", "externalDocs"}),
    "server": frozenset(
        {"url", "host", "pathname", "protocol", "protocolVersion", "variables", "description", "title", "summary"}
        | {"bindings", "security"}
    ),
    "channel": frozenset(
        {"address", "messages", "parameters", "servers", "bindings", "publish", "subscribe", *_DESCRIBED}
    ),
    "operation": frozenset({"action", "channel", "messages", "message", "bindings", "traits", "operationId"}),
    "message": frozenset(
        {"headers", "payload", "schemaFormat", "contentType", "correlationId", "bindings", "traits", "messageId"}
        | {"examples", *_DESCRIBED}
    ),
    "parameter": frozenset({"enum", "default", "description", "examples", "schema"}),
}
"""The members with a place in xRegistry, or without a meaning for it; others are reported."""


def join_address(base: str, reference: str) -> str:
    """Return the address of a document that the one at *base* refers to; both as written from the first document."""
    if not reference or "://" in reference:
        return reference or base
    return (
        urljoin(base, reference)
        if "://" in base
        else posixpath.normpath(posixpath.join(posixpath.dirname(base), reference))
    )


def external_addresses(tree: Any, base: str) -> Iterator[str]:
    """Yield the addresses of documents that *tree* refers to, except for payloads: those are schema references."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            reference = node.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                yield join_address(base, reference.partition("#")[0])
            waiting.extend(value for name, value in node.items() if name not in ("payload", "schemas", "$ref"))
        elif isinstance(node, list):
            waiting.extend(node)


def merge_patch(target: Any, patch: Any) -> Any:
    """Return *target* with a JSON merge patch (RFC 7396) applied; ``{"$value": X}`` in it stands for X as it is."""
    if not isinstance(patch, dict):
        return patch
    if patch.keys() == {LITERAL}:
        return patch[LITERAL]
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def copy_schema(
    value: Any, change: Callable[[str], str] | None, spend: Callable[[int], None], *, named: bool = False
) -> Any:
    """Copy a schema with plain numbers and, if *change* is given, changed references.

    *spend* is called with the number of values. *named* is true where the keys of an object are names.
    """
    if isinstance(value, list):
        spend(len(value))
        return [copy_schema(each, change, spend, named=named) for each in value]
    if not isinstance(value, dict):
        return plain_number(value)
    spend(len(value))
    copy = {}
    for name, each in value.items():
        if name == "$ref" and isinstance(each, str) and change is not None and not named:
            copy[name] = change(each)
        elif not named and name in _VALUES:
            copy[name] = copy_schema(each, None, spend)
        else:
            copy[name] = copy_schema(each, change, spend, named=not named and name in _MAPS)
    return copy


def entity_at(tree: Mapping[str, Any], xid: str) -> dict[str, Any]:
    """Return the entity *xid* of a document; an empty one if it is not there."""
    collection, owner, *rest = xid.lstrip("/").split("/", 3)
    node: Any = tree.get(collection, {}).get(owner, {})
    if rest:
        name, _, version = rest[1].partition("/versions/") if rest[0] == "schemas" else (rest[1], "", "")
        node = node.get(rest[0], {}).get(name, {})
        node = node.get("versions", {}).get(version, {}) if version else node
    return node if isinstance(node, dict) else {}


def to_id(text: str) -> str:
    """Return a text as an xRegistry id and an AsyncAPI key."""
    return _NOT_ID.sub(".", text).strip(".")[:120] or "unnamed"


def option_at(options: dict[str, Any], path: str, body: Any) -> None:
    """Set an option, or a member of a section (``properties.to``)."""
    section, _, name = path.partition(".")
    if name:
        options.setdefault(section, {})[name] = body
    else:
        options[path] = body


def format_of_media(text: Any) -> str:
    """Return the 1.0 schema format of a ``schemaFormat``; an unknown one as it is."""
    match = _FORMAT.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[1] == "aai.asyncapi":
        return text if match is None and isinstance(text, str) else JSON_SCHEMA
    family, version = _FORMATS[match[1]]
    return family + (match[2] or version)


class _Node(NamedTuple):
    """A value, its location, and the address of its document ('' for the first one)."""

    value: Any
    at: SourceLocation
    base: str = ""

    def __truediv__(self, key: str | int) -> _Node:
        """Return a member, None if there is none."""
        value = self.value.get(key) if isinstance(self.value, dict) else None
        return _Node(value, self.at / key, self.base)

    @property
    def members(self) -> dict[str, Any]:
        """The members of an object; none of any other value."""
        return self.value if isinstance(self.value, dict) else {}

    def text(self, *names: str) -> str:
        """Return the first of these members that is a text."""
        return next((value for name in names if isinstance(value := self.members.get(name), str) and value), "")


@dataclass(slots=True)
class _Server:
    protocol: str | None
    address: str
    pathname: str
    options: dict[str, Any]
    older: bool


@dataclass(slots=True)
class _Channel:
    """A channel of either version: ``operations`` are pairs of usage and operation, with traits applied."""

    id: str
    node: _Node
    address: str
    servers: list[_Server]
    messages: dict[str, _Node] = field(default_factory=dict)
    operations: list[tuple[str, _Node]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Context:
    """Where a message is used: the protocol, the address as a template, and the bindings of the operations.

    ``older`` is true for AMQP 0.9.1, where the address is a routing key if it is ``routed``, else the name of a queue.
    """

    protocol: str | None = None
    address: str = ""
    older: bool = False
    routed: bool = True
    operation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def binding(self) -> Binding:
        return BINDINGS.get(self.protocol or "", NO_BINDING)


class _TooLarge(Exception):
    """The translation of a document is too large."""


@dataclass(frozen=True, slots=True)
class TranslatedDocument:
    """An xRegistry 1.0 document, and its location, whose mounts lead to the parts of the AsyncAPI document."""

    tree: dict[str, Any]
    root: SourceLocation


def translate(
    tree: Mapping[str, Any], root: SourceLocation, findings: Findings, others: Mapping[str, Any]
) -> TranslatedDocument | None:
    """Translate an AsyncAPI document; None, and a finding, if its version is unknown.

    *others* are the documents that it refers to, as (file, tree) by address (:func:`join_address`).
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
    reader = _Translator(_Node(tree, root), findings, others, newer=version.startswith("3"))
    try:
        reader.translate()
    except _TooLarge:
        text = f"the document stands for more than {MAX_NODES} values or {MAX_DECLARED} definitions"
        findings.error(root, "too-many", f"{text}; the others are left out", "split the document")
    patched = reader.patched(reader.tree, reader.root)
    return TranslatedDocument(patched, SourceLocation(root.file, "", reader.mounts))


class _Translator:
    """Translates one document into ``tree``; ``mounts`` are the locations of its parts."""

    def __init__(self, root: _Node, findings: Findings, others: Mapping[str, Any], *, newer: bool) -> None:
        self.root = root
        self.tree: dict[str, Any] = {"endpoints": {}, "messagegroups": {}, "schemagroups": {}}
        self.mounts: dict[tuple[str, str], SourceLocation] = {}
        self._findings = findings
        self._newer = newer
        self._trees = {"": root} | {
            base: _Node(tree, SourceLocation(file), base) for base, (file, tree) in others.items()
        }
        self._left = MAX_NODES
        self._messages = MAX_DECLARED
        self._hops = 0
        self._quiet = False
        self._info = self.follow(root / "info")
        self._name = to_id(self._info.text("title") or "asyncapi")
        self._taken: set[str] = set()
        self._endpoints: dict[str, _Node] = {}
        self._schemas: dict[str, tuple[str, str]] = {}
        self._merged: dict[tuple[str, str], _Node] = {}

    def translate(self) -> None:
        """Translate everything."""
        self._report_unread(self._info, "info")
        self._report_unread(self.root, "root", _ROOT)
        info = {"name": self._info.text("title"), "description": self._info.text("description")}
        info["documentation"] = self.follow(self._info / "externalDocs").text("url")
        self.tree = {**{name: text for name, text in info.items() if text}, **self.tree}
        channels = list(self._channels())
        for channel in channels:
            for context, servers in self._contexts(channel):
                self._add_channel(channel, context, servers)
        for key, node in self._endpoints.items():
            self.tree["endpoints"][key] = self.patched(self.tree["endpoints"][key], node)
        for key, node in self._listed(self.root / "components", "messages"):
            if self._extension(node).get("xid"):
                self._add_message(key, node, _Context(), "")
        for _, node in self._listed(self.root / "components", "schemas", follow=False):
            self._schema_at(node.at.pointer, None)

    # References and traits.

    def follow(self, node: _Node) -> _Node:
        """Return what *node* refers to; an empty one, and a finding, for a reference that leads nowhere."""
        self._hops = MAX_HOPS
        try:
            return self._follow(node)
        except _Broken as error:
            if str(error):
                hint = "correct the reference"
                self._findings.error(node.at, "asyncapi-reference", f"{error}; what it is for is left out", hint)
            return _Node(None, node.at, node.base)

    def _follow(self, node: _Node) -> _Node:
        while isinstance(node.value, dict) and isinstance(reference := node.value.get("$ref"), str):
            self._hops -= 1
            if self._hops < 0:
                raise _Broken(f"the reference {reference[:200]} leads to itself, or over more than {MAX_HOPS} others")
            address, _, pointer = reference.partition("#")
            base = join_address(node.base, address)
            if base not in self._trees:
                raise _Broken  # reading the document has failed, which is reported
            target = self._trees[base]
            for step in parse_pointer(unquote(pointer)):
                holder = self._follow(target)
                inside = holder.value
                if isinstance(inside, list) and step.isdecimal() and int(step) < len(inside):
                    target = _Node(inside[int(step)], holder.at / step, holder.base)
                elif isinstance(inside, dict) and step in inside:
                    target = holder / step
                else:
                    raise _Broken(f"the reference {reference[:200]} leads nowhere")
            if pointer and not pointer.startswith("/"):
                raise _Broken(f"the reference {reference[:200]} is no JSON pointer")
            node = target
        return node

    def _merge_traits(self, node: _Node) -> _Node:
        """Return a message or operation with its traits merged in.

        Since version 3 its own members win, before it those of the traits.
        """
        known = self._merged.get((node.base, node.at.pointer))
        if known is not None:
            return known
        traits = node.members.get("traits")
        value = self._rebased(node.value, node.base)
        if isinstance(traits, list):
            merged: Any = {} if self._newer else value
            for number, trait in enumerate(traits):
                target = self.follow(_Node(trait, node.at / "traits" / number, node.base))
                merged = self._merge(merged, self._rebased(target.members, target.base))
            value = self._merge(merged, value) if self._newer else merged
        done = _Node(value, node.at)
        self._merged[node.base, node.at.pointer] = done
        return done

    def _merge(self, target: Any, patch: Any) -> Any:
        """Apply a merge patch, in which references count as what they lead to where both have an object."""
        merged = dict(target)
        for name, value in patch.items():
            if value is None:
                merged.pop(name, None)
            elif isinstance(value, dict) and isinstance(merged.get(name), dict):
                merged[name] = self._merge(self._resolved(merged[name]), self._resolved(value))
            else:
                merged[name] = value
        return merged

    def _resolved(self, value: dict[str, Any]) -> dict[str, Any]:
        node = self.follow(_Node(value, self.root.at))
        return self._rebased(node.members, node.base) or {}

    def _rebased(self, value: Any, base: str) -> Any:
        """Return a value of the document at *base* with references as the first document would write them."""
        if not base or not isinstance(value, (dict, list)):
            return value
        if isinstance(value, list):
            return [self._rebased(each, base) for each in value]
        self._spend(len(value))
        moved = {name: self._rebased(each, base) for name, each in value.items()}
        if isinstance(reference := value.get("$ref"), str):
            address, mark, pointer = reference.partition("#")
            moved["$ref"] = join_address(base, address) + mark + pointer
        return moved

    def _spend(self, values: int) -> None:
        self._left -= values + 1
        if self._left < 0:
            raise _TooLarge

    # Reading members.

    def _listed(self, holder: _Node, name: str, *, follow: bool = True) -> Iterator[tuple[str, _Node]]:
        """Yield the members of a map; one that is not an object is reported."""
        collection = self.follow(self.follow(holder) / name)
        for key, value in collection.members.items():
            node = _Node(value, collection.at / key, collection.base)
            node = self.follow(node) if follow else node
            if isinstance(node.value, dict) or not follow:
                yield key, node
            elif value is not None and not isinstance(value, dict):
                self._findings.error(node.at, "wrong-shape", f"{key} is not an object", "write it as an object")

    def _extension(self, node: _Node) -> dict[str, Any]:
        extension = node.members.get(EXTENSION)
        if extension is not None and not isinstance(extension, dict):
            text = f"{EXTENSION} is not an object and is ignored"
            self._findings.error(node.at / EXTENSION, "wrong-shape", text, "write xid and members of the entity")
        return extension if isinstance(extension, dict) else {}

    def patched(self, form: dict[str, Any], node: _Node) -> dict[str, Any]:
        """Return the form of an entity with the extension of its node applied."""
        extension = {name: value for name, value in self._extension(node).items() if name != "xid"}
        merged = merge_patch(form, extension) if extension else form
        return merged if isinstance(merged, dict) else form

    def _report_unread(self, node: _Node, kind: str, known: Collection[str] = ()) -> None:
        read = known or _READ[kind]
        unread = [name for name in node.members if name not in read and not name.startswith("x-")]
        if unread:
            what = "the document" if kind == "root" else f"this {kind}" if kind != "info" else "info"
            self.report_no_place(node.at / unread[0], f"{', '.join(unread[:8])} of {what}")

    def report_no_place(self, at: SourceLocation, what: str) -> None:
        hint = "keep the AsyncAPI document for those who need it"
        self._findings.info(at, "asyncapi-no-place", f"xRegistry has no place for {what}", hint)

    # Servers.

    def _servers(self) -> dict[str, _Server]:
        servers = {}
        for name, node in self._listed(self.root, "servers"):
            self._report_unread(node, "server")
            servers[name] = self._read_server(name, node)
        return servers

    def _read_server(self, name: str, node: _Node) -> _Server:
        written = node.text("protocol").lower()
        host, pathname = node.text("host", "url"), node.text("pathname")
        scheme, mark, rest = host.partition("://")
        host = rest if mark else host
        for variable, inner in self._listed(node, "variables"):
            choices = inner.members.get("enum")
            value = inner.members.get("default") or (choices[0] if isinstance(choices, list) and choices else None)
            if value is not None:
                host, pathname = (text.replace(f"{{{variable}}}", to_text(value)) for text in (host, pathname))
        host, slash, path = host.partition("/")
        family = _PROTOCOLS.get(written)
        if family is None:
            text = f"the protocol {written or 'of this server'!r:.60} of server {name} is not one the router speaks"
            hint = "use kafka, mqtt, amqp, amqp1, nats or http; what is on this server alone is left out"
            self._findings.warning(node.at / "protocol", "asyncapi-protocol", text, hint)
            return _Server(None, host, "", {}, False)
        if written in _OLDER_AMQP:
            text = f"server {name} speaks AMQP 0.9.1, which is read as AMQP 1.0"
            hint = "the router speaks AMQP 1.0, as RabbitMQ 4 does on the same port"
            self._findings.warning(node.at / "protocol", "asyncapi-protocol", text, hint)
        version = to_text(node.members.get("protocolVersion") or "5")
        protocol = str(canonical_protocol(f"mqtt/{version}") if family == "MQTT" else family)
        protocol = protocol if protocol in BINDINGS else "MQTT/5.0"
        secure = _SECURE.fullmatch(written) is not None or _SECURE.fullmatch(scheme.lower()) is not None
        prefix = BINDINGS[protocol].schemes[secure]
        if family == "KAFKA" and self._has_sasl(node):
            prefix = f"SASL_{prefix}"
        address = host if prefix == "PLAINTEXT" else f"{prefix}://{host}"
        path = f"{slash}{path}" if slash else pathname
        options = self._read_options(node, BINDINGS[protocol], BINDINGS[protocol].server, "server")
        return _Server(protocol, address, path.rstrip("/"), options, written in _OLDER_AMQP)

    def _has_sasl(self, node: _Node) -> bool:
        """Whether a server of Kafka asks for a login other than a certificate."""
        security = node.members.get("security")
        for number, each in enumerate(security if isinstance(security, list) else ()):
            scheme = _Node(each, node.at / "security" / number, node.base)
            if not self._newer:
                name = next(iter(scheme.members), "")
                scheme = self.follow(self.root / "components" / "securitySchemes") / name
            if self.follow(scheme).text("type") not in (*_NO_SASL, ""):
                return True
        return False

    def bindings_of(self, node: _Node, binding: Binding) -> _Node:
        """Return the bindings of one protocol at a node."""
        holder = self.follow(node / "bindings")
        united: dict[str, Any] = {}
        at = holder.at
        for key in reversed(binding.keys):
            inner = self.follow(holder / key)
            if isinstance(inner.value, dict):
                at = inner.at
                united.update(self._rebased(inner.value, inner.base))
        return _Node(united, at)

    def _read_options(self, node: _Node, binding: Binding, table: Mapping[str, str], kind: str) -> dict[str, Any]:
        """Return options of endpoints by a table; other members of the binding are reported."""
        bindings, options = self.bindings_of(node, binding), {}
        for member, name in table.items():
            inner = bindings
            for step in member.split("."):
                inner = self.follow(inner / step)
            value = self._constant(inner) if isinstance(inner.value, dict) else inner.value
            if value is not None:
                options[name] = plain_number(value)
        self.report_binding(bindings, binding, {member.partition(".")[0] for member in table}, kind)
        return options

    def report_binding(self, bindings: _Node, binding: Binding, known: Collection[str], kind: str) -> None:
        unread = [name for name in bindings.members if name not in (*known, "bindingVersion")]
        if unread:
            text = f"{', '.join(unread[:8])} of this {binding.keys[0]} {kind} binding"
            self.report_no_place(bindings.at / unread[0], text)

    # Channels.

    def _channels(self) -> Iterator[_Channel]:
        servers, found = self._servers(), {}
        for key, node in self._listed(self.root, "channels"):
            self._report_unread(node, "channel")
            address = key if not self._newer else node.text("address")
            channel = _Channel(self._unique(key), node, self._fill_address(address, node), self._named(node, servers))
            found[node.base, node.at.pointer] = channel
            if self._newer:
                channel.messages.update(self._listed(node, "messages"))
            for name, usage in (("publish", "producer"), ("subscribe", "consumer")) if not self._newer else ():
                if isinstance((operation := self.follow(node / name)).value, dict):
                    self._add_operation(channel, usage, self._merge_traits(operation))
        for _, node in self._listed(self.root, "operations") if self._newer else ():
            operation = self._merge_traits(node)
            target = self.follow(operation / "channel")
            usage = {"send": "consumer", "receive": "producer"}.get(operation.text("action"))
            if (target.base, target.at.pointer) in found and usage:
                self._add_operation(found[target.base, target.at.pointer], usage, operation)
            elif target.value is not None:
                text, hint = "this operation has no action or no channel of this document", "write send or receive"
                self._findings.error(node.at, "wrong-shape", text, hint)
        yield from found.values()

    def _named(self, node: _Node, servers: Mapping[str, _Server]) -> list[_Server]:
        """Return the servers of a channel: those it names, else all."""
        listed, named = node.members.get("servers"), []
        for number, each in enumerate(listed if isinstance(listed, list) else ()):
            name = each.get("$ref", "").rpartition("/")[2] if isinstance(each, dict) else each
            if name in servers:
                named.append(servers[name])
            else:
                at = node.at / "servers" / number
                self._findings.error(at, "asyncapi-reference", f"there is no server {name!r:.80}", "correct the name")
        return named or ([] if listed else list(servers.values()))

    def _unique(self, key: str) -> str:
        base = own = to_id(key)
        number = 2
        while own in self._taken:
            own, number = f"{base}.{number}", number + 1
        self._taken.add(own)
        return own

    def _fill_address(self, address: str, node: _Node) -> str:
        """Return an address with the parameters that have one value filled in."""
        for name, inner in self._listed(node, "parameters"):
            self._report_unread(inner, "parameter")
            schema = inner if self._newer else self.follow(inner / "schema")
            values = schema.members.get("enum") or ([schema.members["const"]] if "const" in schema.members else [])
            if isinstance(values, list) and len(values) == 1:
                address = address.replace(f"{{{name}}}", to_text(values[0]))
            elif values:
                self.report_no_place(inner.at / "enum", f"the values of the parameter {name}; any value matches")
        return address

    def _add_operation(self, channel: _Channel, usage: str, operation: _Node) -> None:
        self._report_unread(operation, "operation")
        channel.operations.append((usage, operation))
        if self._newer:
            return
        message = self.follow(operation / "message")
        listed = message.members.get("oneOf")
        nodes = (
            [_Node(each, message.at / "oneOf" / number, message.base) for number, each in enumerate(listed)]
            if isinstance(listed, list)
            else [operation / "message"]
        )
        known = {(node.base, node.at.pointer) for node in channel.messages.values()}
        for node in nodes:
            target = self.follow(node)
            if isinstance(target.value, dict) and (target.base, target.at.pointer) not in known:
                reference = str(node.members.get("$ref", "")).rpartition("/")[2]
                key = reference or target.text("messageId", "name") or operation.text("operationId") or "message"
                number, own = 2, key
                while own in channel.messages:
                    own, number = f"{key}.{number}", number + 1
                channel.messages[own] = target

    def _contexts(self, channel: _Channel) -> Iterator[tuple[_Context, list[_Server]]]:
        """Yield each protocol of a channel, with its servers; where there are none, those of its bindings."""
        by: dict[str | None, list[_Server]] = {}
        for server in channel.servers:
            if server.protocol is not None:
                by.setdefault(server.protocol, []).append(server)
        given = {
            key
            for node in (channel.node, *channel.messages.values(), *(each for _, each in channel.operations))
            for key in self.follow(node / "bindings").members
        }
        named = [name for name, each in BINDINGS.items() if name != "MQTT/3.1.1" and given.intersection(each.keys)]
        if "xid" in self._extension(channel.node):
            own = [name for name in by if name in named or (name == "MQTT/3.1.1" and "MQTT/5.0" in named)]
            by = {name: by[name] for name in own} or {name: [] for name in named} or by
        elif not channel.servers:
            by = {name: [] for name in named}
        if not by and not channel.servers:
            text, hint = "no server and no binding says which protocol this channel has", "add servers or bindings"
            self._findings.warning(channel.node.at, "asyncapi-protocol", text, hint)
            by = {None: []}
        for protocol, servers in by.items():
            binding = BINDINGS.get(protocol or "", NO_BINDING)
            older = any(each.older for each in servers) or (not servers and "amqp1" not in given and "amqp" in given)
            holder = self.bindings_of(channel.node, binding)
            given_name = holder.text("topic") if protocol == "KAFKA" else holder.text("name") if older else ""
            address = given_name or channel.address
            if protocol == "HTTP" and address:
                prefixes = {each.pathname for each in servers}
                prefix = prefixes.pop() if len(prefixes) == 1 else ""
                address = f"{prefix}/{address.removeprefix('/')}"
            operation: dict[str, Any] = {}
            for _, each in channel.operations:
                operation.update(self.bindings_of(each, binding).members)
            yield _Context(protocol, address, older, holder.text("is") != "queue", operation), servers

    def _add_channel(self, channel: _Channel, context: _Context, servers: list[_Server]) -> None:
        """Add the endpoint of a channel for one protocol, and its messages."""
        families = {each.protocol for each in channel.servers if each.protocol}
        suffix = f".{to_id(context.protocol or '').lower()}" if len(families) > 1 else ""
        group = f"/messagegroups/{self._name}.{channel.id}{suffix}"
        xids = [self._add_message(key, node, context, group) for key, node in channel.messages.items()]
        groups = dict.fromkeys(xid.partition("/messages/")[0] for xid in xids if xid.startswith("/messagegroups/"))
        if context.protocol is not None and context.operation:
            binding = context.binding
            members = {*binding.operation, *binding.endpoint, *(["query"] if context.protocol == "HTTP" else [])}
            node = _Node(dict(context.operation), channel.operations[0][1].at / "bindings")
            self.report_binding(node, binding, members, "operation")
        extension = self._extension(channel.node)
        if extension.get("xid", "-") == "":
            return
        xid = extension.get("xid") or f"/endpoints/{self._name}.{channel.id}{suffix}"
        key = str(xid).rpartition("/")[2]
        known = self.tree["endpoints"].setdefault(key, {})  # inline messages may be there already
        listed = known.setdefault("messagegroups", [])
        listed.extend(each for each in groups if each not in listed)
        if key not in self._endpoints:
            self._endpoints[key] = channel.node
            known.update(self._endpoint(channel, context, servers, xids))
            self._mount(channel.node.at, "endpoints", key)

    def _endpoint(
        self, channel: _Channel, context: _Context, servers: list[_Server], xids: Collection[str]
    ) -> dict[str, Any]:
        node, binding = channel.node, context.binding
        form: dict[str, Any] = self._described(node)
        usage = list(dict.fromkeys(usage for usage, _ in channel.operations))
        options: dict[str, Any] = {}
        addresses = list(dict.fromkeys(each.address for each in servers if each.address))
        if addresses:
            plain = context.protocol == "KAFKA" and not any("://" in each for each in addresses)
            options["endpoints"] = (
                [{"bootstrap.servers": addresses}] if plain else [{"uri": each} for each in addresses]
            )
        for server in servers:
            options.update(server.options)
        address = self._node_address(node, context) if context.older else context.address
        if binding.channel and address:
            options[binding.channel] = address
        for member, name in binding.endpoint.items():
            value = context.operation.get(member)
            value = self._constant(_Node(value, node.at)) if isinstance(value, dict) else value
            if isinstance(value, str):
                options[name] = value
        if context.protocol is not None and not context.older:
            known = ("topic",) if context.protocol == "KAFKA" else ()
            self.report_binding(self.bindings_of(node, binding), binding, known, "channel")
        if usage:
            form["usage"] = usage
        if context.protocol is not None:
            form["protocol"] = context.protocol
        if xids and all(entity_at(self.tree, xid).get("envelope") == CLOUDEVENTS for xid in xids):
            form["envelope"] = CLOUDEVENTS
        return {**form, **({"protocoloptions": options} if options else {})}

    def _node_address(self, node: _Node, context: _Context) -> str:
        """Return the address that RabbitMQ 4 gives to the queue or exchange of AMQP 0.9.1."""
        binding = self.follow(self.follow(node / "bindings") / "amqp")
        for kind in ("queue", "exchange"):
            name = self.follow(binding / kind).text("name")
            if name:
                return f"/{kind}s/{name}"
        return "" if context.routed else f"/queues/{context.address}"

    def _mount(self, at: SourceLocation, *path: str) -> None:
        """Say that the part of the translated document at *path* is written at *at*."""
        place = SourceLocation("")
        for step in path:
            place /= step
        self.mounts[self.root.at.file, place.pointer] = at

    def _described(self, node: _Node, id: str = "") -> dict[str, Any]:
        name = node.text("title", "name")
        found = {
            "name": "" if name == id else name,
            "description": node.text("description", "summary"),
            "documentation": self.follow(node / "externalDocs").text("url"),
        }
        return {name: text for name, text in found.items() if text}

    # Messages.

    def _add_message(self, key: str, node: _Node, context: _Context, group: str) -> str:
        """Add a message of a channel as a definition, unless its own xid is known already; return its xid."""
        node = self._merge_traits(node)
        extension = self._extension(node)
        xid = extension.get("xid")
        match = _MESSAGE_XID.fullmatch(xid) if isinstance(xid, str) else None
        collection, owner, name = match.groups() if match else ("messagegroups", group.rpartition("/")[2], to_id(key))
        holder = self.tree[collection].setdefault(owner, {}).setdefault("messages", {})
        if match is None:
            number, base = 2, name
            while name in holder:
                name, number = f"{base}.{number}", number + 1
        elif name in holder:
            return f"/{collection}/{owner}/messages/{name}"
        self._messages -= 1
        if self._messages < 0:
            raise _TooLarge
        self._report_unread(node, "message")
        form = self._described(node, name)
        content = _MessageReader(self, node, context, own=match is not None)
        self._quiet = match is not None  # the extension says what has no place
        form.update(content.read(key))
        self._quiet = False
        holder[name] = self.patched(form, node)
        self._mount(node.at, collection, owner, "messages", name)
        for member, at in content.written.items():
            # The pointer of a mounted part goes on from where it is mounted.
            self.mounts[node.at.file, f"{node.at.pointer}/{member}"] = at
        if collection == "messagegroups":
            self.mounts.setdefault((self.root.at.file, (SourceLocation("") / collection / owner).pointer), node.at)
        return f"/{collection}/{owner}/messages/{name}"

    def _constant(self, node: _Node) -> Any:
        """Return the only value that a schema allows; None if there are others."""
        schema = self.follow(node).members
        choices = schema.get("enum")
        only = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
        value = schema.get("const", only)
        return plain_number(value) if isinstance(value, (str, int, float)) else None

    def property(self, node: _Node, default: str, *, required: bool = False) -> dict[str, Any]:
        """Return the constraint ``{type, value, required}`` that a schema of a header stands for."""
        node = self.follow(node)
        schema, body = node.members, {}
        kinds = schema.get("type")
        listed = [each for each in kinds if each != "null"] if isinstance(kinds, list) else [kinds]
        kind = listed[0] if len(listed) == 1 else "any"
        if kind == "string":
            kind = _KINDS.get(node.text("format"), "string")
        elif kind not in ("integer", "number", "boolean"):
            kind = default if kind is None else "any"
        if kind != default:
            body["type"] = kind
        value = self._constant(node)
        if value is not None:
            body["value"] = value
        if required:
            body["required"] = True
        if node.text("description"):
            body["description"] = node.text("description")
        unread = [name for name in schema if name not in _SAID and not name.startswith("x-")]
        unread += ["enum"] if value is None and "enum" in schema else []
        if unread and not self._quiet:
            self.report_no_place(node.at, f"{', '.join(unread[:8])} of this header or key; it is not checked")
        return body

    def properties(self, node: _Node, left: int = 8) -> Iterator[tuple[str, _Node, bool]]:
        """Yield name, schema, and whether it is required, of the members of an object's schema."""
        node = self.follow(node)
        required = node.members.get("required")
        names = {each for each in required if isinstance(each, str)} if isinstance(required, list) else set()
        for name, inner in self._listed(node, "properties", follow=False):
            self._spend(1)
            yield name, inner, name in names
        parts = node.members.get("allOf")
        for number, part in enumerate(parts if isinstance(parts, list) and left else ()):
            yield from self.properties(_Node(part, node.at / "allOf" / number, node.base), left - 1)

    # Schemas.

    def schema(self, node: _Node, media: Any) -> tuple[str, str] | None:
        """Return reference and format of a payload's schema; None if there is none."""
        for _ in range(MAX_HOPS):
            if self._newer and isinstance(node.value, dict) and "schema" in node.value and "$ref" not in node.value:
                media, node = node.value.get("schemaFormat"), node / "schema"
            if not isinstance(node.value, dict) or not isinstance(reference := node.value.get("$ref"), str):
                break
            address, mark, pointer = reference.partition("#")
            base = join_address(node.base, address)
            if base:
                return base + mark + pointer, format_of_media(media)
            if _SCHEMA.fullmatch(pointer):
                return None if self.follow(node).value is None else self._schema_at(pointer, media)
            node = self.follow(_Node({"$ref": reference}, node.at))
        if node.value is None:
            return None
        return (
            (f"{node.base}#{node.at.pointer}", format_of_media(media))
            if node.base
            else self._schema_at(node.at.pointer, media)
        )

    def _schema_at(self, pointer: str, media: Any) -> tuple[str, str]:
        """Return reference and format of the schema at a pointer of the first document; declare it if it is new."""
        root, rest = self._schema_root(pointer)
        if root not in self._schemas:
            self._declare_schema(root, media)
        xid, form = self._schemas[root]
        return f"#{xid}" + (f"#{rest}" if rest else ""), form

    def _schema_root(self, pointer: str) -> tuple[str, str]:
        """Split a pointer at the schema it leads into: one of the components, else the place itself."""
        match = _SCHEMA.fullmatch(pointer)
        if match is None:
            return pointer, ""
        inner = self._at(match[1]).members
        rest = match[2].removeprefix("/schema") if "schema" in inner and self._newer else match[2]
        return match[1], rest

    def _at(self, pointer: str) -> _Node:
        node = self.root
        for step in parse_pointer(pointer):
            node = node / step
        return node

    def _declare_schema(self, pointer: str, media: Any) -> None:
        node = (
            self._at(pointer)
            if _SCHEMA.fullmatch(pointer)
            else self.follow(_Node({"$ref": f"#{pointer}"}, self.root.at))
        )
        extension = self._extension(node)
        body = node
        if self._newer and "schema" in node.members and "$ref" not in node.members:
            media, body = node.members.get("schemaFormat"), node / "schema"
        form = format_of_media(media)
        given = extension.get("xid")
        match = _SCHEMA_XID.fullmatch(given) if isinstance(given, str) else None
        if match is None:
            steps = [step for step in parse_pointer(pointer) if step not in _UNTOLD]
            name = base = to_id(".".join(steps))
            number, holder = 2, self.tree["schemagroups"].get(self._name, {}).get("schemas", {})
            while name in holder:
                name, number = f"{base}.{number}", number + 1
            group, version = self._name, None
        else:
            group, name, version = match.groups()
        xid = f"/schemagroups/{group}/schemas/{name}"
        self._schemas[pointer] = (xid, form)
        entry: dict[str, Any] = {"format": form}
        reference = body.members.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#"):
            entry["schemaurl"] = reference
        else:
            entry["schema"] = self._copy(body.value, pointer if form.startswith("JsonSchema") else None)
        at = (node.at, "schemagroups", group, "schemas", name)
        schemas = self.tree["schemagroups"].setdefault(group, {}).setdefault("schemas", {})
        if version is None:
            schemas[name] = self.patched(entry, node)
            self._mount(*at)
        else:
            versions = schemas.setdefault(name, {}).setdefault("versions", {})
            versions[version] = self.patched(entry, node)
            self._mount(*at)
            self._mount(*at, "versions", version)
        self.mounts[node.at.file, f"{node.at.pointer}/schema"] = body.at

    def type_name(self, reference: str, names: Collection[str]) -> str:
        """Return ``:Name`` for a Protobuf document of several messages, one of which is called as a message here."""
        known = next((xid for xid, _ in self._schemas.values() if f"#{xid}" == reference), "")
        match = _SCHEMA_XID.fullmatch(known)
        text = self.tree["schemagroups"][match[1]]["schemas"][match[2]].get("schema") if match else None
        types = _PROTO_MESSAGE.findall(text) if isinstance(text, str) else []
        return next((f":{name}" for name in names if name in types and len(types) > 1), "")

    def copied(self, node: _Node) -> Any:
        """Return the schema at a node, which stays in its definition."""
        return self._copy(node.value, node.at.pointer)

    def _copy(self, value: Any, root: str | None) -> Any:
        """Copy a schema; in one with a *root* pointer, references lead to the translated schemas."""
        if isinstance(value, dict) and EXTENSION in value:
            value = {name: each for name, each in value.items() if name != EXTENSION}
        change = (lambda reference: self._moved_reference(reference, root)) if root is not None else None
        return copy_schema(value, change, self._spend)

    def _moved_reference(self, reference: str, root: str) -> str:
        """Return a reference inside the schema at *root* as it is in the translated schema."""
        if not reference.startswith("#/"):
            return reference
        pointer = unquote(reference[1:])
        body = root + ("/schema" if self._newer and "schema" in self._at(root).members else "")
        if f"{pointer}/".startswith(f"{body}/"):
            return (
                f"#{reference[1 + len(body) :]}"
                if unquote(reference[1 : 1 + len(body)]) == body
                else f"#{pointer[len(body) :]}"
            )
        target = self.follow(_Node({"$ref": reference}, SourceLocation(self.root.at.file, root)))
        if target.value is None:
            return reference
        if target.base:
            return f"{target.base}#{target.at.pointer}"
        return self._schema_at(pointer if _SCHEMA.fullmatch(pointer) else target.at.pointer, None)[0].removeprefix("#")


_UNTOLD: Final = frozenset({"components", "schemas", "messages", "channels", "message", "schema"})
"""Steps of pointers that names of schemas leave out."""
_ROOT: Final = frozenset(
    {"asyncapi", "id", "info", "servers", "channels", "operations", "components", "defaultContentType"}
)
_MESSAGE_XID: Final = re.compile(r"/(messagegroups|endpoints)/([^/]+)/messages/(.+)", re.DOTALL)
_SCHEMA_XID: Final = re.compile(r"/schemagroups/([^/]+)/schemas/(.+?)(?:/versions/([^/]+))?", re.DOTALL)


class _Broken(Exception):
    """A reference that leads nowhere; without a text, it is reported already."""


_ATTRIBUTE: Final = re.compile(r"[a-z0-9]+", re.ASCII)
_IDENTIFYING: Final = frozenset({"specversion", "id", "source", "type"})


class _MessageReader:
    """Reads envelope, protocol options and schema of one message; ``written`` has the locations of its attributes."""

    def __init__(self, translator: _Translator, node: _Node, context: _Context, *, own: bool) -> None:
        self.written: dict[str, SourceLocation] = {}
        self._translator = translator
        self._node = node
        self._context = context
        self._own = own
        self._is_event = False
        self._options: dict[str, Any] = {}
        self._metadata: dict[str, Any] = {}

    def read(self, key: str) -> dict[str, Any]:
        """Return the 1.0 attributes of the message."""
        node, context, translator = self._node, self._context, self._translator
        binding = context.binding
        content = node.text("contentType") or translator.root.text("defaultContentType")
        structured = content.lower().startswith(STRUCTURED) and not content.lower().startswith(f"{STRUCTURED}batch")
        self._read_address()
        self._read_bindings(binding)
        self._read_headers(binding)
        form: dict[str, Any] = {}
        if structured or self._is_event:
            form["envelope"] = CLOUDEVENTS
        payload = node / "payload"
        if structured:
            form["envelopeoptions"] = {"mode": "structured", "format": content}
            payload = self._read_structured(payload)
            content = str(self._metadata.pop("datacontenttype", {}).get("value", ""))
        if self._metadata:
            form["envelopemetadata"] = self._metadata
            self.written["envelopemetadata"] = node.at / ("payload" if structured else "headers")
        if context.protocol is not None:
            form["protocol"] = context.protocol
        if self._options:
            form["protocoloptions"] = self._options
            self.written["protocoloptions"] = node.at
        if content:
            form["datacontenttype"] = content
        form.update(self._read_payload(payload, key))
        return form

    def _read_address(self) -> None:
        context = self._context
        address, about = context.address, context.binding.about
        if context.older:
            about, address = "message-annotations.x-routing-key", address if context.routed else ""
        elif context.protocol == "AMQP/1.0" and not PLACEHOLDER.search(address):
            return  # the node of the link, which messages do not name
        if not about or not address:
            return
        template = PLACEHOLDER.search(address) is not None
        default = options_of(context.protocol).scalars.get(
            about, "uritemplate" if about == "properties.to" else "string"
        )
        typed = {"type": "uritemplate"} if template and default != "uritemplate" else {}
        option_at(self._options, about, {**typed, "value": address})

    def _read_bindings(self, binding: Binding) -> None:
        """Read the bindings of the message, and those of its operations that messages have."""
        translator, context = self._translator, self._context
        own = translator.bindings_of(self._node, binding)
        known = {*binding.message, *(("headers",) if context.protocol == "HTTP" else ())}
        translator.report_binding(own, binding, known, "message")
        operation = _Node(dict(context.operation), self._node.at)
        for holder, table in ((own, binding.message), (operation, binding.operation)):
            for member, path in table.items():
                inner = holder / member
                if isinstance(inner.value, dict):
                    default = options_of(context.protocol).scalars.get(path, "string")
                    option_at(self._options, path, translator.property(inner, default))
                elif inner.value is not None and not isinstance(inner.value, list):
                    option_at(self._options, path, {"value": plain_number(inner.value)})
        if context.protocol == "HTTP":
            for name, holder in (("headers", own / "headers"), ("query", operation / "query")):
                for key, inner, required in translator.properties(holder):
                    body = {"name": key, **translator.property(inner, "string", required=required)}
                    self._options.setdefault(name, []).append(body)

    def _read_headers(self, binding: Binding) -> None:
        """Read the headers: CloudEvents attributes by their prefix, others as those of the protocol."""
        translator, node = self._translator, self._node
        schema = node / "headers"
        if "schema" in schema.members and "schemaFormat" in schema.members:
            schema = schema / "schema"
        listed = list(translator.properties(schema))
        names = {name for name, _, _ in listed}
        location = translator.follow(node / "correlationId").text("location")
        kind, _, pointer = location.partition("#")
        correlation = parse_pointer(pointer)
        if kind == "$message.header" and len(correlation) == 1 and correlation[0] not in names:
            listed.append((correlation[0], _Node({"type": "string"}, node.at / "correlationId"), False))
        elif location and kind != "$message.header":
            translator.report_no_place(node.at / "correlationId", f"a correlation id at {location[:200]}")
        prefix = next((each for each in binding.prefixes if _holds_event(names, each)), None)
        lost = []
        for name, inner, required in listed:
            attribute = name.removeprefix(prefix) if prefix is not None and name.startswith(prefix) else ""
            if _ATTRIBUTE.fullmatch(attribute):
                self._add_attribute(attribute, inner, required=required)
                continue
            body = translator.property(inner, "string", required=required)
            if binding.headers == "application-properties":
                self._options.setdefault(binding.headers, {})[name] = body
            elif binding.headers:
                self._options.setdefault(binding.headers, []).append({"name": name, **body})
            else:
                lost.append(name)
        if lost:
            protocol = self._context.protocol or "a message without a protocol"
            translator.report_no_place(node.at / "headers", f"headers {', '.join(lost[:8])} of {protocol}")

    def _read_structured(self, payload: _Node) -> _Node:
        """Read the attributes of an event in structured mode; return the schema of its data."""
        translator, data = self._translator, _Node(None, payload.at)
        if "schema" in payload.members and "schemaFormat" in payload.members:
            payload = payload / "schema"
        for name, inner, required in translator.properties(payload):
            if name == "data":
                data = inner
            elif _ATTRIBUTE.fullmatch(name):
                self._add_attribute(name, inner, required=required)
        return data

    def _add_attribute(self, name: str, schema: _Node, *, required: bool) -> None:
        """Add an attribute of the event, except for one that every event has, with any value."""
        known = name in _IDENTIFYING
        body = self._translator.property(schema, ATTRIBUTE_TYPES.get(name, "string"), required=required and not known)
        if name != "specversion" and (body or not known):
            self._metadata[name] = body
        self._is_event = True

    def _read_payload(self, payload: _Node, key: str) -> dict[str, Any]:
        translator, node = self._translator, self._node
        if payload.value is None:
            return {}
        media = node.members.get("schemaFormat")
        wrapped = payload.members.get("schema") is not None and "schemaFormat" in payload.members
        inner = payload / "schema" if wrapped else payload
        media = payload.members.get("schemaFormat") if wrapped else media
        self.written["dataschemauri"] = self.written["dataschema"] = inner.at
        if self._own and "$ref" not in inner.members:
            return {"dataschemaformat": format_of_media(media), "dataschema": translator.copied(inner)}
        found = translator.schema(payload, media)
        if found is None:
            return {}
        reference, form = found
        if form.startswith("Protobuf"):
            reference += translator.type_name(reference, (node.text("name"), key))
        return {"dataschemaformat": form, "dataschemauri": reference}


def _holds_event(names: Collection[str], prefix: str) -> bool:
    """Whether headers with this prefix are attributes of a CloudEvent."""
    found = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    return (
        _IDENTIFYING - {"specversion"} <= found
        or (bool(prefix) and bool(_IDENTIFYING & found))
        or "specversion" in found
    )
