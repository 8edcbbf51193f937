"""Names of destinations, made from templates such as ``events.{messagegroup}`` (architecture.md section 9).

Values come from catalogs and from records, that is from outside, so each is escaped before it becomes part of a topic
or a path. Distinct values give distinct texts (but for an empty one, which reads like ``_``). The sign of the escape is
``%``, or ``_`` for Kafka, whose topic names forbid ``%``; there a ``_`` of the value is escaped too where it would read
as an escape.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

Escape = Literal["%", "_"]
KAFKA_LIMIT: Final = 249
"""Characters that a Kafka topic name may have; file names get the same cap, which every file system takes."""

CONTEXT_PREFIX: Final = "context."
EVENT_VARIABLES: Final = ("message", "messagegroup", "messageid", "endpoint", "endpointid", "type")
"""What an event's destination may be made from, besides ``context.NAME``."""
DEAD_LETTER_VARIABLES: Final = ("endpoint", "endpointid", "reason")
"""What a dead letter's destination may be made from: no definition was settled, so none is named."""

_VARIABLE: Final = re.compile(r"\{([^{}]*)\}")
_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]*")
_DOUBTFUL_BYTE: Final[Mapping[Escape, re.Pattern[bytes]]] = {
    "%": re.compile(rb"[^A-Za-z0-9._-]"),
    "_": re.compile(rb"[^A-Za-z0-9._-]|_(?=[0-9A-F]{2})"),
}
_EMPTY: Final = "_"
_DIGEST: Final = 16


class NameTemplateError(ValueError):
    """A template that no destination name can be made from; the message names the part and the remedy."""


@dataclass(frozen=True, slots=True)
class NameTemplate:
    """A parsed template: ``parts`` alternate literal text and variable names, beginning and ending with a literal."""

    text: str
    parts: tuple[str, ...]

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables in order of first use, each once."""
        return tuple(dict.fromkeys(self.parts[1::2]))

    def expand(self, values: Mapping[str, str], *, escape: Escape = "_", limit: int = KAFKA_LIMIT) -> str:
        """Make the name for *values*; see :func:`expand_name`."""
        pieces = [
            escape_value(values.get(part, ""), escape) if index % 2 else part for index, part in enumerate(self.parts)
        ]
        return _capped(_dotless("".join(pieces), escape), limit)


@lru_cache(maxsize=1024)
def parse_name(template: str, allowed: tuple[str, ...] = EVENT_VARIABLES) -> NameTemplate:
    """Parse a template whose variables are *allowed* (and, for events, ``context.NAME``).

    Raises:
        NameTemplateError: an unknown variable, a brace without its partner, or literal text outside
            ``[A-Za-z0-9._-]``.
    """
    parts = tuple(_VARIABLE.split(template))
    for literal in parts[0::2]:
        if not _LEGAL.fullmatch(literal):
            fault = "a brace without its partner" if set(literal) & set("{}") else f"illegal text {literal!r}"
            raise NameTemplateError(f"name template {template!r} has {fault}; use letters, digits, '.', '_' and '-'")
    with_context = "message" in allowed
    unknown = [name for name in parts[1::2] if not _known(name, allowed, with_context)]
    if unknown:
        known = ", ".join(allowed) + (", context.NAME" if with_context else "")
        names = ", ".join("{" + name + "}" for name in unknown)
        raise NameTemplateError(f"name template {template!r} has unknown {names}; known are {known}")
    if not any(parts):
        raise NameTemplateError("a name template must not be empty")
    return NameTemplate(template, parts)


def expand_name(
    template: str,
    values: Mapping[str, str],
    *,
    escape: Escape = "_",
    limit: int = KAFKA_LIMIT,
    allowed: tuple[str, ...] = EVENT_VARIABLES,
) -> str:
    """Make a destination name from *template*, the same one for the same values.

    Every value is escaped to ``[A-Za-z0-9._-]``; one that is missing or empty becomes ``_``, so that every record has a
    destination. The name is never empty, ``.`` or ``..``; a longer one than *limit* is cut and ends in a digest
    of the whole, so that distinct names stay distinct.

    Raises:
        NameTemplateError: as :func:`parse_name`.
    """
    return parse_name(template, allowed).expand(values, escape=escape, limit=limit)


def event_values(message: str, endpoint: str, type_: str, context: Mapping[str, str]) -> dict[str, str]:
    """Return the template values of one event from the xids of its definition and endpoint.

    ``messagegroup`` is the id of the group, or that of the endpoint for a message declared inside one.
    """
    segments = message.split("/")
    values = {
        "message": message,
        "messagegroup": segments[-3] if len(segments) >= 3 else "",
        "messageid": segments[-1],
        "endpoint": endpoint,
        "endpointid": endpoint.rpartition("/")[2],
        "type": type_,
    }
    values.update((CONTEXT_PREFIX + name, value) for name, value in context.items())
    return values


def dead_letter_values(endpoint: str, reason: str) -> dict[str, str]:
    """Return the template values of one dead letter."""
    return {"endpoint": endpoint, "endpointid": endpoint.rpartition("/")[2], "reason": reason}


@lru_cache(maxsize=65536)
def escape_value(value: str, escape: Escape = "_") -> str:
    """Escape one value to ``[A-Za-z0-9._-]``, other bytes of its UTF-8 as *escape* and two hexadecimal digits.

    Never empty (``_``), ``.`` or ``..``. A lone surrogate counts as its three bytes.
    """
    if not value:
        return _EMPTY
    sign = escape.encode("ascii")
    doubtful = _DOUBTFUL_BYTE[escape]
    data = doubtful.sub(lambda hit: sign + b"%02X" % hit.group()[0], value.encode("utf-8", "surrogatepass"))
    return _dotless(data.decode("ascii"), escape)


def _known(name: str, allowed: tuple[str, ...], with_context: bool) -> bool:
    return name in allowed or (with_context and name.startswith(CONTEXT_PREFIX) and len(name) > len(CONTEXT_PREFIX))


def _dotless(name: str, escape: Escape) -> str:
    if name in (".", ".."):
        return name.replace(".", f"{escape}2E")
    return name


def _capped(name: str, limit: int) -> str:
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode("ascii")).hexdigest()[:_DIGEST]
    return f"{name[: limit - _DIGEST - 1]}-{digest}"
