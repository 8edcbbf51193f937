"""Settings: one YAML file, every key overridable by environment, secrets by reference only."""

from __future__ import annotations

from router.settings.inward import HttpSettings, InboxSettings
from router.settings.load import load_settings, settings_from_dict
from router.settings.model import (
    CatalogSettings,
    DeadLetterSettings,
    LogSettings,
    MatchSettings,
    MetricsSettings,
    Settings,
    SourceSettings,
    SparkSettings,
    TlsSettings,
)
from router.settings.routes import REASONS, RouteSettings, Validate, When, event_routes, letter_routes
from router.settings.schema import settings_reference
from router.settings.sinks.amqp import AmqpSink
from router.settings.sinks.http import HttpSink
from router.settings.sinks.jsonlines import JsonLinesSink
from router.settings.sinks.kafka import KafkaSink
from router.settings.sinks.kinds import Sink
from router.settings.sinks.messages import MessageSink
from router.settings.sinks.mqtt import MqttSink
from router.settings.sinks.nats import NatsSink
from router.settings.sinks.tables import TableSink
from router.settings.takers import event_sinks, letter_sinks
from router.settings.values import revealed

__all__ = [
    "REASONS",
    "AmqpSink",
    "CatalogSettings",
    "DeadLetterSettings",
    "HttpSettings",
    "HttpSink",
    "InboxSettings",
    "JsonLinesSink",
    "KafkaSink",
    "LogSettings",
    "MatchSettings",
    "MessageSink",
    "MetricsSettings",
    "MqttSink",
    "NatsSink",
    "RouteSettings",
    "Settings",
    "Sink",
    "SourceSettings",
    "SparkSettings",
    "TableSink",
    "TlsSettings",
    "Validate",
    "When",
    "event_routes",
    "event_sinks",
    "letter_routes",
    "letter_sinks",
    "load_settings",
    "revealed",
    "settings_from_dict",
    "settings_reference",
]
