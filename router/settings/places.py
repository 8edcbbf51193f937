"""Key paths of settings, and the places that need care: paths of files, and secrets.

A place is a tuple of keys, list items by their index: ``("sinks", "bus", "topic")``, written ``sinks.bus.topic``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

Place = tuple[str, ...]

_FILE_PLACES: Final = (
    "state",
    "catalog.source",
    "catalog.source.*",
    "catalog.shadow",
    "catalog.shadow.*",
    "catalog.logins.*.bearer_file",
    "catalog.logins.*.tls.*",
    "catalog.logins.*.token_ca",
    "sinks.*.path",
    "sources.*.tls.*",
    "sinks.*.tls.*",
    "inbox.kafka.tls.*",
    "sources.*.credentials",
    "sources.*.seed",
    "sinks.*.credentials",
    "sinks.*.seed",
    "http.tls.*",
    "telemetry.otlp.tls.*",
    "sources.*.token_ca",
    "sinks.*.token_ca",
    "inbox.kafka.token_ca",
    "events.subscribers.*.to.tls.*",
    "events.subscribers.*.to.credentials",
    "events.subscribers.*.to.seed",
    "events.subscribers.*.to.token_ca",
    "replication.*.bearer_file",
    "replication.*.tls.*",
    "replication.*.token_ca",
    "schema_registries.*.bearer_file",
    "schema_registries.*.tls.*",
    "schema_registries.*.token_ca",
    "spark.shared_folders",
    "spark.shared_folders.*",
)
_SECRET_PLACES: Final = (
    "metrics.token",
    "sources.*.subscription.token",
    "catalog.logins.*.bearer",
    "http.auth.bearer.*",
    "http.auth.basic.*",
    "http.auth.api_keys.*",
    "events.subscribers.*.to.bearer",
    "events.subscribers.*.to.api_key",
    "events.subscribers.*.to.token",
)
_SECRET_NAMES: Final = ("bearer", "api_key", "token")
_OPTION_PLACES: Final = (
    "sources.*.kafka.*",
    "sinks.*.options.*",
    "sinks.*.headers.*",
    "events.subscribers.*.to.options.*",
    "events.subscribers.*.to.headers.*",
    "spark.conf.*",
    "telemetry.otlp.headers.*",
    "inbox.kafka.options.*",
)
_SECRET_OPTION: Final = re.compile(
    r"password|passwd|secret|jaas|token$|credential|authorization|cookie|(access|account|private|api)[._-]?key",
    re.IGNORECASE,
)
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def dotted(place: Place) -> str:
    """Write a place as it is shown to people."""
    return ".".join(place)


def holds_file(place: Place) -> bool:
    """Tell whether the value there names a file or folder."""
    return _one_of(place, _FILE_PLACES)


def holds_secret(place: Place) -> bool:
    """Tell whether the value there is a secret: a password, or a client option whose name says so."""
    if place[-1] == "password" or (len(place) == 3 and place[-1] in _SECRET_NAMES):
        return True
    if _one_of(place, _SECRET_PLACES):
        return True
    at_option = len(place) >= 3 and _one_of((*place[:-1], "x"), _OPTION_PLACES)
    return at_option and names_secret(place[-1])


def names_secret(option: str) -> bool:
    """Tell whether the name of a client option or header says that its value is a secret."""
    return _SECRET_OPTION.search(option) is not None


def is_url(text: str) -> bool:
    """Tell a URL from a path."""
    return _URL.match(text) is not None


def absolute(text: str, base: Path) -> str:
    """Make a path absolute below *base*; URLs and ``-`` (standard output) stay."""
    if text == "-" or is_url(text):
        return text
    return str((base / Path(text).expanduser()).resolve())


def map_texts(value: Any, change: Callable[[Place, str], Any], place: Place = ()) -> Any:
    """Return a copy of nested maps and lists with every text value changed; keys stay."""
    if isinstance(value, Mapping):
        return {key: map_texts(item, change, (*place, str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(item, change, (*place, str(index))) for index, item in enumerate(value)]
    return change(place, value) if isinstance(value, str) else value


def _one_of(place: Place, patterns: tuple[str, ...]) -> bool:
    """Compare key by key, so that a dot inside a key (``sasl.jaas.config``) is no separator."""
    for pattern in patterns:
        keys = pattern.split(".")
        if len(keys) == len(place) and all(fnmatchcase(key, wanted) for key, wanted in zip(place, keys, strict=True)):
            return True
    return False
