"""Settings of a registry's events: subscribers of the operator, with the clients of the router's sinks, and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Annotated, Final, Literal

from pydantic import Field

from bindings.protocols import Binding
from registry.delivery.limits import DeliveryLimits
from registry.delivery.messages import AddressOf, Composer, Mode
from registry.delivery.sending import BrokerSender, Sender
from registry.delivery.settings import DeliverySettings
from registry.delivery.wants import Delivery, Wants
from registry.delivery.webhooks import Webhook, WebhookSender
from router.errors import SinkError
from router.settings.addresses import parse_address
from router.settings.logins import tls_of
from router.settings.names import event_values, parse_name
from router.settings.plaintext import remote_faults
from router.settings.section import Section
from router.settings.sinks.amqp import AmqpSink
from router.settings.sinks.contract import Fault, RemoteSink
from router.settings.sinks.http import HttpSink
from router.settings.sinks.kafka import KafkaSink
from router.settings.sinks.mqtt import MqttSink
from router.settings.sinks.nats import NatsSink
from router.settings.values import Duration, Texts

_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_OF_ROUTERS: Final = ("endpoint", "lineage", "pass_headers", "max_destinations", "missing", "key", "in_flight")
"""Keys of sinks that say what is done with records."""
Entity = Literal["registry", "model", "modelsource", "capabilities", "group", "resource", "version"]


class _Target(RemoteSink):
    """A sink of the router as the target of a registry's events."""

    def mode_for(self, binding: Binding) -> Mode:
        """Return the content mode: that of the settings, else binary where the protocol has headers."""
        asked: Mode | None = getattr(self, "mode", None)
        return asked or ("binary" if binding.binary else "structured")

    def address_of(self, binding: Binding) -> AddressOf:
        """Return what makes the address of an event from its attributes."""
        address = parse_address(self.template, binding.sending)
        return lambda attributes: address.expand(_values(attributes))

    def sender(self, name: str) -> Sender:
        """Return a client.

        Raises:
            OSError, GatewayError: something that waiting does not repair.
        """
        try:
            return BrokerSender(self.publisher(name, self.binding(None), None))
        except SinkError as error:
            raise OSError(str(error)) from error


class KafkaTarget(KafkaSink, _Target):
    """Topics."""

    def address_of(self, binding: Binding) -> AddressOf:
        """Return what makes the topic of an event."""
        topic = parse_name(self.topic)
        return lambda attributes: topic.expand(_values(attributes))


class MqttTarget(MqttSink, _Target):
    """Topics of MQTT."""


class AmqpTarget(AmqpSink, _Target):
    """Nodes."""


class NatsTarget(NatsSink, _Target):
    """Subjects."""


class WebhookTarget(HttpSink, _Target):
    """Webhooks, which want a body with each event: so structured mode, unless another is asked for."""

    def mode_for(self, binding: Binding) -> Mode:
        """Return the content mode."""
        return self.mode or "structured"

    def sender(self, name: str) -> Sender:
        """Return a client."""
        login = self.login()
        named = login.username is not None and login.password is not None
        target = Webhook(
            tuple(self.own_headers()),
            (login.username or "", login.password or "") if named else None,
            tls_of(self.tls),
            self.seconds,
            self.version,
            self.method,
            self.webhook_origin or "",
        )
        return WebhookSender(target)


class SubscriberSettings(Section):
    """One subscriber, and which events it gets: all of them by default."""

    to: Annotated[KafkaTarget | MqttTarget | AmqpTarget | NatsTarget | WebhookTarget, Field(discriminator="type")] = (
        Field(description="Where to, as in `sinks` of the router.")
    )
    types: Texts = Field((), description="Types of events, such as `io.xregistry.resource.deleted`.")
    entities: tuple[Entity, ...] = Field((), description="Kinds of entities, such as `resource`.")
    below: Texts = Field((), description="Xids, such as `/messagegroups/g`; what is below them is meant as well.")
    events: tuple[Literal["xregistry", "messagecatalog"], ...] = Field(
        ("xregistry",), description="Of which specification: `xregistry`, `messagecatalog` or both."
    )


class EventsSettings(Section):
    """Whom the registry notifies of changes."""

    subscribers: dict[Annotated[str, Field(pattern=_NAME)], SubscriberSettings] = Field(
        {}, description="Subscribers by name, the same ones in all processes over one database."
    )
    subscriptions: bool = Field(True, description="Whether writers and administrators may subscribe over HTTP.")
    allow_addresses: Texts = Field(
        (), description="Hosts and networks that are not public and may be named as sinks over HTTP."
    )
    max_subscriptions: int = Field(100, ge=0, description="Subscriptions over HTTP at a time.")
    origin: str = Field(
        "", description="Our name in the handshake of webhooks; unset is the host of `base_url`.", pattern=r"^[!-~]*$"
    )
    keep: Duration = Field(
        timedelta(days=7), gt=timedelta(0), description="How long an event is tried; then it is dropped and counted."
    )
    max_waiting: int = Field(
        1_000_000, ge=1, description="Events that may wait for one subscriber; more are dropped and counted."
    )
    max_held: int = Field(
        1_000, ge=1, description="Events of one subscriber in memory; when all of them are held it gets no further."
    )
    max_pause: Duration = Field(timedelta(minutes=1), gt=timedelta(0), description="Longest pause between two tries.")
    poll: Duration = Field(
        timedelta(milliseconds=250), gt=timedelta(0), description="How soon writes of other processes are seen."
    )


def event_faults(given: EventsSettings) -> Iterator[Fault]:
    """Yield what contradicts itself; a fault names the remedy and no secret."""
    for name, each in given.subscribers.items():
        key = f"events.subscribers.{name}.to"
        for field in sorted(set(_OF_ROUTERS) & each.to.model_fields_set):
            yield f"{key}.{field}", "is for sinks of the router; leave it out"
        yield from each.to.faults(key, events=True, letters=False)
        yield from each.to.login_faults(key)
        yield from remote_faults(key, each.to)
        if getattr(each.to, "qos", 1) == 0:
            yield f"{key}.qos", "is 0, which no broker confirms; write 1"


def delivery_settings(given: EventsSettings, catalog: str) -> DeliverySettings:
    """Return how events are delivered; *catalog* is the path of the Message Catalog, '' without one."""
    return DeliverySettings(
        {name: _delivery(name, each) for name, each in given.subscribers.items()},
        given.subscriptions,
        tuple(given.allow_addresses),
        given.origin,
        catalog,
        DeliveryLimits(
            keep=given.keep.total_seconds(),
            max_waiting=given.max_waiting,
            max_held=given.max_held,
            max_pause=given.max_pause.total_seconds(),
            poll=given.poll.total_seconds(),
            max_subscriptions=given.max_subscriptions,
        ),
    )


def _delivery(name: str, given: SubscriberSettings) -> Delivery:
    wants = Wants(given.events, frozenset(given.types), entities=frozenset(given.entities), below=tuple(given.below))
    binding = given.to.binding(None)
    composer = Composer(binding, given.to.address_of(binding), given.to.mode_for(binding), given.to.given)
    return Delivery(wants, composer, partial(given.to.sender, name))


def _values(attributes: Mapping[str, str]) -> dict[str, str]:
    return event_values("", "", "", {}, attributes)
