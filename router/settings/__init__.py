"""Settings: one YAML file, every key overridable by environment, secrets by reference only."""

from __future__ import annotations

from router.settings.checks import dead_letter_sinks, event_sinks
from router.settings.load import load_settings, settings_from_dict
from router.settings.model import HttpSettings, LogSettings, Settings, SourceSettings
from router.settings.routes import REASONS, RouteConditions, RouteSettings, Validate, dead_letter_routes, event_routes
from router.settings.sinks.kafka import KafkaSink
from router.settings.sinks.kinds import Sink
from router.settings.sinks.messages import TableSink
from router.settings.spark import SparkSettings
from router.settings.values import plain_options

__all__ = [
    "REASONS",
    "HttpSettings",
    "KafkaSink",
    "LogSettings",
    "RouteConditions",
    "RouteSettings",
    "Settings",
    "Sink",
    "SourceSettings",
    "SparkSettings",
    "TableSink",
    "Validate",
    "dead_letter_routes",
    "dead_letter_sinks",
    "event_routes",
    "event_sinks",
    "load_settings",
    "plain_options",
    "settings_from_dict",
]
