"""The AMQP 1.0 binding: native records, endpoint options, receiving, and building messages to send."""

from __future__ import annotations

import operator
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from bindings.amqp.values import SECTION_FIELDS, TYPES_KEY, AmqpValue, decode_text, parse_milliseconds
from bindings.amqp.values import to_part as part_of
from bindings.certificates import AddressForm
from bindings.envelope import AttributeRule
from bindings.gateways import EndpointSubscription, Gateway, GatewayConfig, GatewayError, ReceivingBinding, iter_paths
from bindings.parts import BINARY_KIND, JSON_KIND, NativeForm, Part, decode_json
from bindings.sending import Expand, SendingBinding
from catalog.model import Catalog, Endpoint, Property
from catalog.protocols.properties import AMQP_SECTIONS, squash_name
from catalog.values import INT32_MAX, INT32_MIN, INT64_MAX, decode_binary, is_valid

# AMQP 1.0 messages: native form, and where the CloudEvents AMQP binding puts attributes.

FORM: Final = NativeForm(maps=AMQP_SECTIONS)
RULE: Final = AttributeRule(
    prefixes=("application-properties.cloudEvents:", "application-properties.cloudEvents_"),
    content_type="properties.content-type",
    typed=True,
)


# Declared properties as AMQP values of the declared type (MATCHING.md#sending).
#
# The specification's type wins for fields that have one. For others: an AMQP type that the definition names, else the
# type that the CloudEvents AMQP binding gives: ``integer`` is an int (a long, or ulong, beyond 32 bits), ``number`` a
# double, anything else a string.

FIELD_TYPES: Final[Mapping[str, str]] = {
    f"{section}.{name}": usual
    for section, fields in SECTION_FIELDS.items()
    for name, usual in fields
    if usual is not None
}
"""Field types fixed by the specification."""
_IDENTIFIERS: Final = frozenset({"properties.message-id", "properties.correlation-id"})
_IDENTIFIER_TYPES: Final = frozenset({"ulong", "uuid", "binary", "string"})
_DEFAULT_TYPES: Final[Mapping[str, str]] = {
    "binary": "binary",
    "boolean": "boolean",
    "number": "double",
    "symbol": "symbol",
    "timestamp": "timestamp",
}
_MAX_DIGITS: Final = 40


def to_amqp_value(prop: Property, text: str) -> AmqpValue:
    """Return *text* as a value of the property's type; as a string if it does not fit, so that the receiver notices."""
    kind = _choose_type(prop, text)
    if prop.type == "binary" and kind in ("string", "symbol"):
        return AmqpValue(kind, decode_text(decode_binary(text)))
    value = _PARSERS.get(kind, str)(text)
    return AmqpValue("string", text) if value is None else AmqpValue(kind, value)


def _choose_type(prop: Property, text: str) -> str:
    usual = FIELD_TYPES.get(prop.name)
    if usual is not None:
        return usual
    kind = prop.wire or _default_type(prop, text)
    if prop.name in _IDENTIFIERS and kind not in _IDENTIFIER_TYPES:
        return "ulong" if prop.type == "integer" else "string"
    return kind


def _default_type(prop: Property, text: str) -> str:
    if prop.type == "any" and isinstance(prop.value, (bool, int, float)):
        return {bool: "boolean", int: "long"}.get(type(prop.value), "double")
    if prop.type != "integer":
        return _DEFAULT_TYPES.get(prop.type, "string")
    number = _parse_integer(text) or 0
    return "int" if INT32_MIN <= number <= INT32_MAX else "long" if number <= INT64_MAX else "ulong"


def _parse_integer(text: str) -> int | None:
    return int(text) if len(text) <= _MAX_DIGITS and is_valid("integer", text) else None


def _parse_number(text: str) -> float | None:
    return float(text) if is_valid("number", text) else None


def _parse_boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text)


def _parse_uuid(text: str) -> str | None:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None


def _parse_character(text: str) -> int | None:
    return ord(text) if len(text) == 1 else None


_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("byte", "short", "int", "long", "ubyte", "ushort", "uint", "ulong"), _parse_integer),
    "float": _parse_number,
    "double": _parse_number,
    "boolean": _parse_boolean,
    "timestamp": parse_milliseconds,
    "uuid": _parse_uuid,
    "binary": decode_binary,
    "char": _parse_character,
}


# The endpoint options of AMQP. Any spelling is accepted (``distributionmode``, ``distribution-mode``).
#
# The specification defines ``node``, ``durable`` (for producers; here it makes a subscription durable),
# ``link-properties``, ``connection-properties``, ``distribution-mode``, ``source-filters`` and ``node-capabilities``.
# Real catalogs also write ``address`` for ``node``.

_NODE_OPTIONS: Final = ("node", "address")
_DISTRIBUTION_MODES: Final = ("move", "copy")
_DESCRIPTORS: Final[Mapping[str, str]] = {
    "selector": "apache.org:selector-filter:string",
    "jmsselector": "apache.org:selector-filter:string",
    "nolocal": "apache.org:no-local-filter:list",
    "legacyamqpdirectbinding": "apache.org:legacy-amqp-direct-binding:string",
    "legacyamqptopicbinding": "apache.org:legacy-amqp-topic-binding:string",
    "legacyamqpheadersbinding": "apache.org:legacy-amqp-headers-binding:map",
}
"""The registered AMQP filters, by normalized short name."""
_NO_LOCAL: Final = _DESCRIPTORS["nolocal"]


@dataclass(frozen=True, slots=True)
class SourceFilter:
    """A filter of a link's source: name in the filter set, descriptor, and value."""

    name: str
    descriptor: str
    value: Any


def find_option(options: Mapping[str, Any], name: str) -> Any:
    """Return the value of the option with this normalized name; None if it is not set."""
    for key, value in options.items():
        if squash_name(key) == name:
            return value
    return None


def node_of(options: Mapping[str, Any]) -> str | None:
    """Return the node in the options; None if there is none, and the path of the address is the node."""
    values = (find_option(options, name) for name in _NODE_OPTIONS)
    return next((str(value) for value in values if value), None)


def read_string_map(options: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the value of an option that is a map of strings.

    Raises:
        GatewayError: it is not such a map.
    """
    value = find_option(options, name)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for pair in value.items() for each in pair):
        raise GatewayError(f"the option {name} must be a map of strings to strings, such as {{name: value}}")
    return dict(value)


def parse_filters(options: Mapping[str, Any]) -> tuple[SourceFilter, ...]:
    """Return the filters of ``source-filters``, given by short name, by descriptor, or as ``{descriptor, value}``.

    Raises:
        GatewayError: it is not a map, or a filter has no descriptor or value.
    """
    written = find_option(options, "sourcefilters")
    if written is None:
        return ()
    if not isinstance(written, Mapping):
        raise GatewayError("the option source-filters must be a map, such as {selector: EXPRESSION}")
    return tuple(_parse_filter(str(name), value) for name, value in written.items() if value is not None)


def _parse_filter(name: str, written: Any) -> SourceFilter:
    if isinstance(written, Mapping) and "descriptor" in written:
        descriptor, value = written["descriptor"], written.get("value")
    else:
        descriptor, value = _DESCRIPTORS.get(squash_name(name), name if ":" in name else None), written
    if not isinstance(descriptor, str) or not descriptor.isascii() or not descriptor:
        raise GatewayError(
            f"the source filter {name!r:.80} is unknown; use selector, no-local, a descriptor such as "
            f"apache.org:selector-filter:string, or {{descriptor, value}}"
        )
    if descriptor == _NO_LOCAL:
        if value is False:
            raise GatewayError(f"the source filter {name} is false; remove it to switch it off")
        return SourceFilter(name, descriptor, [])
    if value is None or (descriptor.endswith(":string") and not isinstance(value, str)):
        raise GatewayError(
            f"the source filter {name!r:.80} needs a string as its value, not {value!r:.80}; write an expression"
        )
    return SourceFilter(name, descriptor, value)


def capabilities_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the option ``node-capabilities``: a string or a list of strings.

    Raises:
        GatewayError: it is neither.
    """
    written = find_option(options, "nodecapabilities")
    listed = [] if written is None else [written] if isinstance(written, str) else written
    if not isinstance(listed, list) or not all(isinstance(each, str) and each.isascii() for each in listed):
        raise GatewayError("the option node-capabilities must be a list of strings, such as [queue]")
    return tuple(listed)


def check_subscriptions(subscriptions: Sequence[EndpointSubscription]) -> None:
    """Raise if a broker can never accept one of the subscriptions.

    Raises:
        GatewayError: it has no address, or an option has a value that AMQP does not define.
    """
    for each in subscriptions:
        if not each.address:
            raise GatewayError(f"{each.endpoint} has no AMQP node; set the endpoint's option node")
        try:
            read_string_map(each.options, "linkproperties")
            parse_filters(each.options)
            capabilities_of(each.options)
        except GatewayError as error:
            raise GatewayError(f"{each.endpoint}: {error}") from error
        mode = find_option(each.options, "distributionmode")
        if mode is not None and mode not in _DISTRIBUTION_MODES:
            raise GatewayError(f"{each.endpoint}: distributionmode must be move or copy, not {mode!r}")


# Receiving over AMQP 1.0: an endpoint's nodes, and the gateway; see :mod:`bindings.gateways`.


def _list_addresses(endpoint: Endpoint, _catalog: Catalog) -> tuple[str, ...]:
    node = node_of(endpoint.options)
    return (node,) if node is not None else tuple(dict.fromkeys(iter_paths(endpoint)))


def _create_gateway(config: GatewayConfig) -> Gateway:
    from bindings.amqp.gateway import AmqpGateway

    return AmqpGateway(config)


AMQP: Final = ReceivingBinding(_list_addresses, operator.eq, _create_gateway, check_subscriptions)


# Addressing and building AMQP 1.0 messages; :mod:`bindings.amqp.publisher` sends them.

_INVALID_URI: Final = "a URI of an AMQP broker is not valid; write amqp://host:5672 or amqps://host:5671"


class AmqpSending(SendingBinding):
    """See :class:`~bindings.sending.SendingBinding`; an address is a node."""

    family = "amqp"
    # The URI is not quoted in the text: one that cannot be parsed may have a password anywhere.
    address_form = AddressForm("AMQP", {"amqp": 5672}, {"amqps": 5671}, _INVALID_URI, _INVALID_URI, _INVALID_URI)
    literal_rule = (re.compile(r"[^\x00-\x1f{}]*"), "no control characters or braces")
    address_rule = (re.compile(r"[^\x00-\x1f]*"), "a node has no control characters")
    max_address_bytes = 4096

    def build_option_parts(self, options: Iterable[tuple[Property, str]]) -> list[Part]:
        """Return the parts for options and their texts, including the AMQP types that parts alone do not show."""
        types: dict[str, str] = {}
        parts: list[Part] = []
        for prop, text in options:
            part = part_of(prop.name, to_amqp_value(prop, text), types, FIELD_TYPES.get(prop.name))
            parts += [] if part is None else [part]
        return [*parts, Part(TYPES_KEY, msgspec.json.encode(types), JSON_KIND)] if types else parts

    def build_address(self, parts: Sequence[Part], endpoint: Endpoint, declared: bool, expand: Expand) -> str:
        """Return the node: the endpoint's option, else the path of its address, else the property ``to``."""
        to = next((part.text for part in parts if part.key == "properties.to"), None)
        path = next((urlsplit(uri).path.lstrip("/") for uri in endpoint.uris if urlsplit(uri).path), "")
        node = node_of(endpoint.options) or path
        return expand(node) if node else to or ""

    def carries_bytes(self, key: str) -> bool:
        """Return True: values are checked when a message is encoded."""
        return True

    def convert_header(self, name: str, part: Part) -> Part | None:
        """Return the application property for a header; binary if it is not text."""
        if part.text is None:
            return Part(name, part.value, BINARY_KIND)
        if part.kind != JSON_KIND:
            return Part(name, part.value, part.kind)
        value = decode_json(part.value or b"null")
        typed = isinstance(value, (bool, float)) or (isinstance(value, int) and -INT64_MAX - 1 <= value <= INT64_MAX)
        return Part(name, part.value, JSON_KIND if typed else None)
