"""Value types of settings, the base class of sections, and the keys that hold files or secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
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
FILE: Final = "file"
"""Marks the types of paths, which are relative to the settings file."""
FilePath = Annotated[str, FILE]
FilePaths = Annotated[tuple[FilePath, ...], BeforeValidator(to_list), WithJsonSchema(_TEXTS_FORM), FILE]
"""Paths, or URLs."""
SecretText = Annotated[SecretStr, BeforeValidator(to_text), WithJsonSchema(_TEXT_FORM)]
Options = dict[str, SecretText]
"""Options for a client, passed on unchanged; masked when printed, since they may contain credentials."""
Secrets = dict[str, Annotated[SecretText, "secret"]]
"""Secrets by name; of :data:`Options`, only those are secrets whose name says so."""
LineageForm = bool | Literal["separate"]
"""What an event says of its way through the router: one header, none, or a header for each member."""
TYPE_NAMES: Final[Mapping[Any, str]] = {
    LineageForm: "boolean | separate",
    Duration: "duration",
    Trigger: "duration | realtime",
    Size: "size",
    FilePaths: "string or list",
    Texts: "string or list",
    FilePath: "string",
    Text: "string",
    SecretText: "secret",
    Options: "map of strings",
}
"""Names of these types in the reference table."""


class Section(BaseModel):
    """A section of the settings: immutable, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


# Secrets among options, and paths.

_SECRET_OPTION: Final = re.compile(
    r"password|passwd|secret|jaas|token$|credential|authorization|cookie|(access|account|private|api)[._-]?key",
    re.IGNORECASE,
)
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


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
