"""The kinds of sinks there are. Another one is a module beside this, and a line in ``KINDS``."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from router.settings.sinks.amqp import AmqpSink
from router.settings.sinks.contract import SinkSettings
from router.settings.sinks.http import HttpSink
from router.settings.sinks.jsonlines import JsonLinesSink
from router.settings.sinks.kafka import KafkaSink
from router.settings.sinks.mqtt import MqttSink
from router.settings.sinks.nats import NatsSink
from router.settings.sinks.tables import TableSink

KINDS: Final[tuple[type[SinkSettings], ...]] = (
    TableSink,
    KafkaSink,
    JsonLinesSink,
    MqttSink,
    AmqpSink,
    NatsSink,
    HttpSink,
)

if TYPE_CHECKING:
    Sink = SinkSettings
else:
    Sink = Annotated[reduce(or_, KINDS), Field(discriminator="type")]
