"""Settings: one YAML file, every key overridable by environment, secrets by reference only."""

from __future__ import annotations

from router.settings.inward import HttpSettings, InboxSettings
from router.settings.load import load_settings, settings_from_dict
from router.settings.model import (
    AmqpSink,
    CatalogSettings,
    DeadLetterSettings,
    HttpSink,
    JsonLinesSink,
    KafkaSink,
    LogSettings,
    MatchSettings,
    MessageSink,
    MetricsSettings,
    MqttSink,
    NatsSink,
    Settings,
    Sink,
    SourceSettings,
    SparkSettings,
    TableSink,
    TlsSettings,
)
from router.settings.routes import REASONS, RouteSettings, Validate, When, event_routes, letter_routes
from router.settings.schema import settings_reference
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
