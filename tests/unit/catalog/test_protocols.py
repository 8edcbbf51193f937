"""What the tables of protocols say, once for all who ask."""

from __future__ import annotations

import pytest

from catalog.definitions.constraints import MEDIA_PROPERTIES, attribute_constraint, protocol_constraints
from catalog.model import Definition, Property
from catalog.protocols.properties import (
    CREDENTIAL_HEADERS,
    REPEATED_PREFIXES,
    REQUEST_CREDENTIALS,
    is_dotted,
    is_hop_by_hop,
)

HOPS = ("qos", "retain", "message_expiry_interval", "partition", "header.ttl", "delivery-annotations.x-opt")
STAYS = (
    "topic_name",
    "key",
    "headers.partition",
    "properties.subject",
    "message-annotations.x-opt",
    "user_properties.qos",
)


@pytest.mark.parametrize("option", HOPS)
def test_options_that_change_hop_by_hop_filter_only_when_asked_for(option: str) -> None:
    definition = Definition("/m", "/g", protocol="MQTT/5.0", protocoloptions=(Property(option, "string", "1"),))
    assert is_hop_by_hop(option)
    assert not list(protocol_constraints(definition, "MQTT/5.0", hop_by_hop=False))
    assert [key for key, _ in protocol_constraints(definition, "MQTT/5.0", hop_by_hop=True)] == [f"p.{option}"]


@pytest.mark.parametrize("option", STAYS)
def test_other_options_filter(option: str) -> None:
    assert not is_hop_by_hop(option)


def test_names_that_several_rules_share() -> None:
    assert MEDIA_PROPERTIES == {
        *("e.datacontenttype", "p.headers.content-type", "p.properties.content-type", "p.content_type")
    }
    assert REPEATED_PREFIXES == ("headers.", "query.", "user_properties.")
    assert REQUEST_CREDENTIALS < CREDENTIAL_HEADERS
    assert [is_dotted(protocol, "subject") for protocol in ("NATS", "AMQP/1.0", "")] == [True, False, False]


def test_a_declared_attribute_holds_as_the_matcher_has_it() -> None:
    content = attribute_constraint(Property("datacontenttype", "string", "application/json"))
    assert content.satisfied("application/json; charset=utf-8", present=True)
    needed = attribute_constraint(Property("count", "integer", required=True))
    assert [needed.satisfied(text, present=text is not None) for text in ("7", "seven", None)] == [True, False, False]
    source = attribute_constraint(Property("source", "uritemplate", "/plants/{plant}"))
    assert source.placeholder_values("/plants/a%20b") == {"plant": "a b"}
    assert (
        source.placeholder_values("/other") == source.placeholder_values(None) == content.placeholder_values("x") == {}
    )
