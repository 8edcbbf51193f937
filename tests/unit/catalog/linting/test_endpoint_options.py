"""The table of endpoint options says what bindings, sources and sinks do with each: no more, and no less."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import proton
import pytest
from proton.reactor import Container

from bindings.amqp import publisher as amqp
from bindings.amqp.client import Dialer
from bindings.amqp.gateway import ReceivingLink
from bindings.amqp.publisher import AmqpSender
from bindings.mqtt import publisher
from bindings.mqtt.client import LinkConnector
from bindings.mqtt.gateway import SubscriptionTable
from bindings.mqtt.messages import Version
from bindings.nats.binding import plan_subscriptions
from bindings.protocols import BINDINGS
from catalog.model import CLOUDEVENTS, PROTOCOLS, Catalog, Definition, Endpoint, Property
from catalog.protocols.properties import ROLES, ChannelOption, Role, channel_options, option_key
from router.errors import ConfigError
from router.intake.intake import BrokerConnection, group_connections
from router.settings import settings_from_dict
from router.settings.sinks.messages import AmqpSink, MqttSink
from router.sinks.messages.sink import RoutedEvent
from router.sources import Source, make_source_client, resolve_sources
from tests.support.cases import read_cases
from tests.support.composed import OneByOne

KINDS: Final[Mapping[str, str]] = {
    "MQTT/5.0": "mqtt",
    "MQTT/3.1.1": "mqtt",
    "AMQP/1.0": "amqp",
    "NATS": "nats",
    "HTTP": "http",
    "KAFKA": "kafka",
}
URIS: Final = {"mqtt": "mqtt://h", "amqp": "amqp://h/base", "nats": "nats://h", "http": "http://h", "kafka": "h:1"}
CASES: Final[Mapping[str, Any]] = read_cases(Path(__file__).parents[3] / "cases" / "values" / "endpoint_options.yaml")
SAMPLES: Final[Mapping[str, Any]] = CASES["samples"]
"""Values that make a difference where an option is honoured; ``x`` serves for all others."""
BESIDE: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    ("NATS", name): {"stream": "S"} for name in ("durable", "ackwait", "deliver")
}
"""Options without which another one means nothing."""
EVERY: Final = [
    pytest.param(protocol, role, option, id=f"{protocol}-{role}-{option.name}")
    for protocol in PROTOCOLS
    for role in ROLES
    for option in channel_options(protocol).values()
]


def endpoint_of(protocol: str, usage: str, options: Mapping[str, Any]) -> tuple[Catalog, Endpoint]:
    name = {"mqtt": "topic_name", "nats": "subject"}.get(KINDS[protocol])
    native = (Property(name, "string", "base"),) if name and usage == "consumer" else ()
    typed = (Property("type", "string", "T"),)
    definition = Definition("/m", "", CLOUDEVENTS, protocol, envelopemetadata=typed, protocoloptions=native)
    uri = URIS[KINDS[protocol]]
    told = Endpoint("/endpoints/e", (usage,), None, protocol, uris=(uri,), options=options, candidates=("/m",))
    return Catalog({"/m": definition}, endpoints={told.xid: told}), told


def source_of(protocol: str, options: Mapping[str, Any], **more: Any) -> Source:
    written = {"sinks": {"o": {"type": "jsonl"}}, "routes": [{"to": ["o"]}], "dead_letters": {"sinks": ["o"]}, **more}
    catalog, _ = endpoint_of(protocol, "consumer", options)
    return resolve_sources(catalog, settings_from_dict(written, {}, Path()))[0]


def received(protocol: str, options: Mapping[str, Any]) -> object:
    """What is asked of a broker, or listened for, on behalf of an endpoint."""
    source = source_of(protocol, {"topic": "base", **options} if protocol == "KAFKA" else options)
    if not source.brokered:
        return source.topic, source.settings.start, source.path, source.methods, source.group
    (broker,) = group_connections([source], "i")
    return {"mqtt": mqtt_asks, "amqp": amqp_asks, "nats": nats_asks}[KINDS[broker.protocol]](broker)


def mqtt_asks(broker: BrokerConnection) -> object:
    terms = LinkConnector(broker.connection, cast(Version, broker.protocol), "c", clean=False)
    # Only MQTT 5 can tell a broker how long to keep a session.
    expiry = terms.options.expiry if terms.version == "MQTT/5.0" else None
    # What only MQTT 5 can ask for is refused in the settings before it comes here.
    return SubscriptionTable(broker.subscriptions).requests, terms.clean, terms.options.keepalive, expiry


def amqp_asks(broker: BrokerConnection) -> object:
    inlet = ReceivingLink(broker.subscriptions[0], "c")
    inlet.request_link(Container(), proton.Connection())
    receiver = inlet.receiver
    assert receiver is not None
    filters, capabilities = receiver.source.filter.format(), receiver.source.capabilities.format()
    terms = (
        receiver.source.address,
        receiver.source.durability,
        receiver.source.distribution_mode,
        filters,
        capabilities,
    )
    modes = receiver.snd_settle_mode, receiver.rcv_settle_mode
    return terms, modes, repr(receiver.properties), Dialer(broker.connection, "c")._properties


def nats_asks(broker: BrokerConnection) -> object:
    return plan_subscriptions(broker.subscriptions, broker.connection.options)


def sent(protocol: str, options: Mapping[str, Any]) -> object:
    """What becomes of an event that is sent to an endpoint, and of the connection to it."""
    kind = KINDS[protocol]
    catalog, endpoint = endpoint_of(protocol, "producer", options)
    attributes = {"specversion": "1.0", "id": "1", "source": "/s", "type": "T"}
    event = RoutedEvent(attributes, b"{}", "/m", "/endpoints/in", "e", "t-0-1", {})
    made = OneByOne(catalog, endpoint, BINDINGS[protocol]).compose_one(event)
    if kind == "mqtt":
        connection = MqttSink(type="mqtt", endpoint=endpoint.xid).connection("s", endpoint)
        terms = LinkConnector(connection, cast(Version, protocol), "c", clean=True)
        qos, retain, properties = publisher.read_options(made, terms.version)
        return made.address, made.body, qos, retain, str(properties), terms.options.keepalive, terms.clean
    if kind == "amqp":
        connection = AmqpSink(type="amqp", endpoint=endpoint.xid).connection("s", endpoint)
        sender = AmqpSender(connection, container_id="c")
        return made.address, amqp.encode_message(made), sender._modes._properties, Dialer(connection, "c")._properties
    return made


EFFECTS: Final = {"receives": received, "sends": sent}


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "role", "option"), EVERY)
def test_an_option_is_honoured_where_the_table_says_so(protocol: str, role: Role, option: ChannelOption) -> None:
    key = option_key(option.name)
    beside = BESIDE.get((protocol, key), {}) if role == "receives" else {}
    effect = EFFECTS[role]
    without = effect(protocol, beside)
    value = SAMPLES.get(key, "x") if (protocol, key) != ("NATS", "durable") else "x"
    exemptions = option.roles.get(role)
    if exemptions == ():
        assert effect(protocol, {**beside, option.name: value}) != without
        assert effect(protocol, {**beside, option.name.replace("-", ""): value}) != without or role == "sends"
        return
    if exemptions is None:
        assert effect(protocol, {**beside, option.name: value}) == without
    for exemption in exemptions or ():
        told = ("none",) if exemption.supported else exemption.values
        for each in told or (value,):
            if exemption.decides:
                with pytest.raises(ConfigError, match="decides which messages come, and is not honoured"):
                    effect(protocol, {**beside, option.name: each})
                continue
            assert effect(protocol, {**beside, option.name: each}) == without, each
        if exemption.supported:
            assert {effect(protocol, {option.name: each}) for each in ("latest", "earliest")}.isdisjoint({without})


@pytest.mark.parametrize(("protocol", "options", "same"), CASES["same"])
def test_other_names_mean_the_same(protocol: str, options: Mapping[str, Any], same: Mapping[str, Any]) -> None:
    assert received(protocol, options) == received(protocol, same) != received(protocol, {})


def test_where_to_begin_is_said_by_the_source_the_settings_then_the_endpoint() -> None:
    options = {"topic": "t", "auto-offset-reset": "latest"}
    source = {"endpoint": "/endpoints/e", "start": "earliest"}
    assert source_of("KAFKA", options).settings.start == "latest"
    assert source_of("KAFKA", options, start="earliest").settings.start == "earliest"
    assert source_of("KAFKA", options, start="latest", sources=[source]).settings.start == "earliest"
    assert source_of("KAFKA", {"topic": "t"}).settings.start is None


def test_a_topic_that_is_a_template_needs_its_values_from_the_settings() -> None:
    options = {"topic": "plants.{plant}"}
    with pytest.raises(ConfigError, match=r"topic 'plants\.\{plant\}' is a template.*has no value for plant") as caught:
        source_of("KAFKA", options)
    assert "set context of the source" in str(caught.value.hint)
    found = source_of("KAFKA", options, sources=[{"endpoint": "/endpoints/e", "context": {"plant": "7"}}])
    assert (found.topic, found.channel) == ("plants.7", "kafka:plants.7")


def test_an_option_that_is_no_filter_is_told_with_its_endpoint() -> None:
    with pytest.raises(ConfigError, match=r"source /endpoints/e: .*'a#' is not a topic filter"):
        source_of("MQTT/5.0", {"topic": "a#"})


@pytest.mark.parametrize(("protocol", "options", "says"), CASES["errors"])
def test_what_decides_which_messages_come_and_cannot_be_done_is_an_error(
    protocol: str, options: Mapping[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=rf"source /endpoints/e.*{says}") as caught:
        source_of(protocol, options)
    assert caught.value.key == "sources"


def two_endpoints(
    first: Mapping[str, Any], second: Mapping[str, Any], protocol: str = "MQTT/5.0"
) -> tuple[Source, ...]:
    made = [
        Endpoint(f"/endpoints/{n}", ("consumer",), None, protocol, uris=("mqtt://h",), options=options)
        for n, options in enumerate((first, second))
    ]
    catalog = Catalog({}, endpoints={each.xid: each for each in made})
    written = {"sinks": {"o": {"type": "jsonl"}}, "routes": [{"to": ["o"]}], "dead_letters": {"sinks": ["o"]}}
    return resolve_sources(catalog, settings_from_dict(written, {}, Path()))


def test_endpoints_of_one_connection_may_not_contradict_each_other() -> None:
    with pytest.raises(
        ConfigError, match=r"/endpoints/0 and /endpoints/1 subscribe to a/# and a/b, which overlap"
    ) as caught:
        two_endpoints({"topic": "a/#"}, {"topic": "a/b", "retainhandling": 2})
    assert "client_id" in caught.value.message
    two_endpoints({"topic": "a/#", "nolocal": True}, {"topic": "b/#"})
    two_endpoints({"topic": "a/#", "nolocal": True}, {"topic": "a/b", "nolocal": True})
    two_endpoints({"topic": "a/#", "nolocal": True}, {"topic": "a/#", "sharedsubscriptiongroup": "g"})


def test_shared_subscriptions_meet_others_by_their_filters() -> None:
    def channels(*sources: Source) -> int:
        return len({source.channel for source in sources})

    assert channels(*two_endpoints({"topic": "a/+"}, {"topic": "a/b", "sharedsubscriptiongroup": "g"})) == 1
    assert channels(*two_endpoints({"topic": "$share/g/a/+"}, {"topic": "a/b"})) == 1
    assert channels(*two_endpoints({"topic": "$share/g/a/b"}, {"topic": "$share/h/a/b"})) == 1
    assert channels(*two_endpoints({"topic": "$share/g/a/b"}, {"topic": "$share/g/a/c"})) == 2
    assert channels(*two_endpoints({"topic": "g/a/b"}, {"topic": "$share/g/a/b"})) == 2


def test_an_option_of_producers_is_none_of_an_endpoint_that_is_read_beside_them() -> None:
    made = Endpoint(
        "/endpoints/e", ("producer", "consumer"), None, "KAFKA", uris=("h:1",), options={"topic": "t", "partition": 2}
    )
    written = {"sinks": {"o": {"type": "jsonl"}}, "routes": [{"to": ["o"]}], "dead_letters": {"sinks": ["o"]}}
    catalog = Catalog({}, endpoints={made.xid: made})
    assert resolve_sources(catalog, settings_from_dict(written, {}, Path()))[0].topic == "t"


def test_a_consumer_group_is_shown_by_a_query_of_its_own() -> None:
    plain, mine = source_of("KAFKA", {"topic": "a"}), source_of("KAFKA", {"topic": "a", "consumergroup": "g"})
    assert (
        make_source_client(mine).source_options()["kafka.group.id"] == "g"
        and "kafka.group.id" not in make_source_client(plain).source_options()
    )
    assert mine.query.startswith(f"{plain.query}-")  # a lane of the same cluster, which shares its positions
    assert mine.query != source_of("KAFKA", {"topic": "a", "consumergroup": "h"}).query


def test_what_one_endpoint_says_of_its_subscription_does_not_count_for_others_on_the_connection() -> None:
    first, second = source_of("NATS", {"subject": "a", "stream": "S"}), source_of("NATS", {"subject": "b"})
    (broker,) = group_connections([first, second], "i")
    assert [type(plan).__name__ for plan in plan_subscriptions(broker.subscriptions, broker.connection.options)] == [
        "StreamPlan",
        "CorePlan",
    ]
    kept = source_of("MQTT/5.0", {"topic": "a", "session-expiry-interval": 60}), source_of("MQTT/5.0", {"topic": "b"})
    assert len(group_connections(kept, "i")) == 2
