"""Settings: one YAML file, every key overridable by environment, secrets by reference only."""

from __future__ import annotations

from router.settings.load import load_settings, settings_from_dict
from router.settings.model import (
    AmqpSink,
    CatalogSettings,
    DeadLetterSettings,
    HttpSettings,
    HttpSink,
    InboxSettings,
    JsonLinesSink,
    KafkaSink,
    LogSettings,
    MatchSettings,
    MessageSink,
    MetricsSettings,
    MqttSink,
    NatsSink,
    RouteSettings,
    Settings,
    Sink,
    SourceSettings,
    SparkSettings,
    TableSink,
    TlsSettings,
    When,
)
from router.settings.schema import settings_reference
from router.settings.values import revealed

__all__ = [
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
    "When",
    "load_settings",
    "revealed",
    "settings_from_dict",
    "settings_reference",
]
