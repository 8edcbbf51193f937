"""All kinds of sinks. To add one, add a module here and a line in ``KINDS``."""

# Small: it names all kinds of sinks; another one is a line here.

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from router.settings.sinks.contract import SinkSettings
from router.settings.sinks.kafka import KafkaSink
from router.settings.sinks.messages import AmqpSink, HttpSink, JsonLinesSink, MqttSink, NatsSink, TableSink

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
