"""Value types of settings, the base class of sections, and the keys that hold files or secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr, WithJsonSchema

# Value types: durations, sizes, lists that may be one string, texts, secrets.
#
# Each is an annotated type, so that pydantic reports an invalid value at its key.

REAL_TIME: Final = "realtime"
ENDPOINT: Final = r"^/endpoints/[^/]+$"
"""The xid of an endpoint."""
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[kK]B|MB|GB|TB|KiB|MiB|GiB|TiB)?")
_BYTES: Final = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def parse_duration(value: object) -> object:
    """Read ``500ms``, ``5s``, ``2m``, ``1.5h`` or ``1d``; 0 needs no unit.

    Raises:
        ValueError: anything else, also a number without a unit.
    """
    if isinstance(value, timedelta):
        return value
    text = str(value).strip()
    if not isinstance(value, bool) and text in ("0", "0.0"):
        return timedelta(0)
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a valid duration; write a number with a unit, such as 500ms, 5s or 2m")
    return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])


def parse_trigger(value: object) -> object:
    """Read a duration as :func:`parse_duration` does, or the word ``realtime``.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, str) and value.strip() == REAL_TIME:
        return REAL_TIME
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}, or realtime") from error


def parse_size(value: object) -> object:
    """Read ``1MiB``, ``64KiB``, ``10GB`` or a plain number of bytes.

    Raises:
        ValueError: anything else.
    """
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(
            f"{str(value)!r} is not a valid size; write bytes, or a number with a unit such as 64KiB or 1GiB"
        )
    unit = (match[2] or "B").replace("kB", "KB")
    return int(float(match[1]) * _BYTES[unit])


def to_list(value: object) -> object:
    """Return a single string as a list of one."""
    return (value,) if isinstance(value, str) else value


def to_text(value: object) -> object:
    """Return a YAML number or boolean as text, as Kafka and Spark options are written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def plain_options(options: Mapping[str, SecretStr]) -> dict[str, str]:
    """Return the plain text of an option map; only for the client that needs it."""
    return {name: value.get_secret_value() for name, value in options.items()}


# These types in the JSON Schema for editors: as written in a file, before validators run.
_DURATION_FORM: Final = {"anyOf": [{"type": "string", "pattern": rf"^\s*{_DURATION.pattern}\s*$"}, {"const": 0}]}
_SIZE_FORM: Final = {"anyOf": [{"type": "string", "pattern": rf"^\s*{_SIZE.pattern}\s*$"}, {"type": "number"}]}
_TEXT_FORM: Final = {"type": ["string", "number", "boolean"]}
_TEXTS_FORM: Final = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}

Duration = Annotated[timedelta, BeforeValidator(parse_duration), WithJsonSchema(_DURATION_FORM)]
Trigger = Annotated[
    timedelta | Literal["realtime"],
    BeforeValidator(parse_trigger),
    WithJsonSchema({"anyOf": [*_DURATION_FORM["anyOf"], {"const": REAL_TIME}]}),
]
Size = Annotated[int, BeforeValidator(parse_size), WithJsonSchema(_SIZE_FORM)]
Texts = Annotated[tuple[str, ...], BeforeValidator(to_list), WithJsonSchema(_TEXTS_FORM)]
Text = Annotated[str, BeforeValidator(to_text), WithJsonSchema(_TEXT_FORM)]
SecretText = Annotated[SecretStr, BeforeValidator(to_text), WithJsonSchema(_TEXT_FORM)]
Options = dict[str, SecretText]
"""Options for a client, passed on unchanged; masked when printed, since they may contain credentials."""
LineageForm = bool | Literal["separate"]
"""What an event says of its way through the router: one header, none, or a header for each member."""
TYPE_NAMES: Final[Mapping[Any, str]] = {
    LineageForm: "boolean | separate",
    Duration: "duration",
    Trigger: "duration | realtime",
    Size: "size",
    Texts: "string or list",
    Text: "string",
    SecretText: "secret",
    Options: "map of strings",
}
"""Names of these types in the reference table."""


class Section(BaseModel):
    """A section of the settings: immutable, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


# Keys of files and secrets.
#
# A key path is a tuple of keys, list items by index: ``("sinks", "bus", "topic")``, written ``sinks.bus.topic``.

KeyPath = tuple[str, ...]

_FILE_PLACES: Final = tuple(
    (
        "state catalog.source catalog.source.* catalog.shadow catalog.shadow.* catalog.logins.*.bearer_file "
        "catalog.logins.*.tls.* catalog.logins.*.token_ca sinks.*.path sources.*.tls.* sinks.*.tls.* "
        "inbox.kafka.tls.* sources.*.credentials sources.*.seed sinks.*.credentials sinks.*.seed http.tls.* "
        "telemetry.otlp.tls.* sources.*.token_ca sinks.*.token_ca inbox.kafka.token_ca "
        "events.subscribers.*.to.tls.* events.subscribers.*.to.credentials events.subscribers.*.to.seed "
        "events.subscribers.*.to.token_ca replication.*.bearer_file replication.*.tls.* replication.*.token_ca "
        "schema_registries.*.bearer_file schema_registries.*.tls.* schema_registries.*.token_ca "
        "spark.shared_folders spark.shared_folders.*"
    ).split()
)
_SECRET_PLACES: Final = tuple(
    (
        "metrics.token sources.*.subscription.token catalog.logins.*.bearer http.auth.bearer.* http.auth.basic.* "
        "http.auth.api_keys.* events.subscribers.*.to.bearer events.subscribers.*.to.api_key "
        "events.subscribers.*.to.token"
    ).split()
)
_SECRET_NAMES: Final = ("bearer", "api_key", "token")
_OPTION_PLACES: Final = tuple(
    (
        "sources.*.kafka.* sinks.*.options.* sinks.*.headers.* events.subscribers.*.to.options.* "
        "events.subscribers.*.to.headers.* spark.conf.* telemetry.otlp.headers.* inbox.kafka.options.*"
    ).split()
)
_SECRET_OPTION: Final = re.compile(
    r"password|passwd|secret|jaas|token$|credential|authorization|cookie|(access|account|private|api)[._-]?key",
    re.IGNORECASE,
)
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def format_key(place: KeyPath) -> str:
    """Return a key path as users write it."""
    return ".".join(place)


def is_file_key(place: KeyPath) -> bool:
    """Whether the value there is the path of a file or folder."""
    return _matches_any(place, _FILE_PLACES)


def is_secret_key(place: KeyPath) -> bool:
    """Whether the value there is a secret: a password, or a client option named like one."""
    if place[-1] == "password" or (len(place) == 3 and place[-1] in _SECRET_NAMES):
        return True
    if _matches_any(place, _SECRET_PLACES):
        return True
    at_option = len(place) >= 3 and _matches_any((*place[:-1], "x"), _OPTION_PLACES)
    return at_option and is_secret_name(place[-1])


def is_secret_name(option: str) -> bool:
    """Whether a client option or header is named like a secret."""
    return _SECRET_OPTION.search(option) is not None


def is_url(text: str) -> bool:
    """Whether a text is a URL rather than a path."""
    return _URL.match(text) is not None


def to_absolute(text: str, base: Path) -> str:
    """Return a path, made absolute from *base*; URLs and ``-`` (standard output) stay."""
    if text == "-" or is_url(text):
        return text
    return str((base / Path(text).expanduser()).resolve())


def map_texts(value: Any, change: Callable[[KeyPath, str], Any], place: KeyPath = ()) -> Any:
    """Return a copy of nested maps and lists with every text value changed; keys stay."""
    if isinstance(value, Mapping):
        return {key: map_texts(item, change, (*place, str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(item, change, (*place, str(index))) for index, item in enumerate(value)]
    return change(place, value) if isinstance(value, str) else value


def _matches_any(place: KeyPath, patterns: tuple[str, ...]) -> bool:
    """Compare key by key, so that a dot inside a key (``sasl.jaas.config``) does not separate."""
    for pattern in patterns:
        keys = pattern.split(".")
        if len(keys) == len(place) and all(fnmatchcase(key, wanted) for key, wanted in zip(place, keys, strict=True)):
            return True
    return False
