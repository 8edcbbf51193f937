"""Routes, and templates for the names of destinations (MATCHING.md#what-comes-out)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from pydantic import Field

from bindings.sending import SendingBinding
from router.settings.values import Section, Texts

# Names of destinations, made from templates such as ``events.{messagegroup}`` (MATCHING.md#what-comes-out).
#
# A template is literal text with variables: ``message messagegroup messageid endpoint endpointid``, the event's ``type
# source subject``, any of its attributes as ``attributes.NAME``, and a context attribute as ``context.NAME``. A value
# is *missing* when the event has no such attribute, when no placeholder gave that context attribute, or when it is
# empty. ``{context.plant|none}`` has the default ``none`` for a missing value; without a default it is ``_``, so that
# every event has a destination. A sink with ``missing: reject`` rejects an event whose template misses a value without
# a default: it becomes the dead letter ``sink-rejected``, whose detail names variable and sink.
#
# Values, defaults included, come from outside (catalogs and records), so each is escaped before it becomes part of a
# topic or a path. Distinct values give distinct texts (except an empty one, which equals ``_``). The escape character
# is ``%``, or ``_`` for Kafka, whose topic names forbid ``%``; there a ``_`` of the value is escaped as well where it
# would read as an escape.

Escape = Literal["%", "_"]
KAFKA_LIMIT: Final = 249
"""Maximum length of a Kafka topic name; file names get the same limit, which every file system supports."""

CONTEXT_PREFIX: Final = "context."
ATTRIBUTE_PREFIX: Final = "attributes."
ATTRIBUTE_VARIABLES: Final = ("type", "source", "subject")
"""Attributes that may be written without ``attributes.``."""
EVENT_VARIABLES: Final = ("message", "messagegroup", "messageid", "endpoint", "endpointid", *ATTRIBUTE_VARIABLES)
"""Variables of an event's destination, besides ``attributes.NAME`` and ``context.NAME``."""
DEAD_LETTER_VARIABLES: Final = ("endpoint", "endpointid", "reason")
"""Variables of a dead letter's destination: it has no definition."""
TABLE_VARIABLES: Final = ("messagegroup", "messageid")
"""Variables of the path of a definition's table: values that all its records share."""

_VARIABLE: Final = re.compile(r"\{([^{}]*)\}")
_BY_NAME: Final = re.compile(r"context\..+|attributes\.[a-z0-9]+", re.DOTALL)
_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]*")
_DOUBTFUL_BYTE: Final[Mapping[Escape, re.Pattern[bytes]]] = {
    "%": re.compile(rb"[^A-Za-z0-9._-]"),
    "_": re.compile(rb"[^A-Za-z0-9._-]|_(?=[0-9A-F]{2})"),
}
_EMPTY: Final = "_"
_DIGEST: Final = 16


class NameTemplateError(ValueError):
    """A template is not valid; the message names the part and the fix."""


@dataclass(frozen=True, slots=True)
class DestinationTemplate:
    """A parsed template: ``parts`` alternate literal text and variable names, beginning and ending with a literal.

    ``defaults`` has one default per variable, in order; empty for none.
    """

    text: str
    parts: tuple[str, ...]
    defaults: tuple[str, ...]

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables in order of first use, each once."""
        return tuple(dict.fromkeys(self.parts[1::2]))

    def missing(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """Return the variables that have neither a value nor a default."""
        pairs = zip(self.parts[1::2], self.defaults, strict=True)
        return tuple(dict.fromkeys(name for name, default in pairs if not default and not values.get(name)))

    def fill(self, values: Mapping[str, str], escaped: Callable[[str], str]) -> str:
        """Return the text with each variable replaced by its escaped value, or its default."""
        return "".join(
            escaped(values.get(part) or self.defaults[place // 2]) if place % 2 else part
            for place, part in enumerate(self.parts)
        )

    def fill_known(self, values: Mapping[str, str], escaped: Callable[[str], str]) -> str:
        """Return the text with the variables in *values* replaced; others stay as written."""
        left = [
            f"{{{name}|{default}}}" if default else f"{{{name}}}"
            for name, default in zip(self.parts[1::2], self.defaults, strict=True)
        ]
        return "".join(
            (escaped(values[part] or self.defaults[place // 2]) if part in values else left[place // 2])
            if place % 2
            else part
            for place, part in enumerate(self.parts)
        )


@dataclass(frozen=True, slots=True)
class NameTemplate(DestinationTemplate):
    """The template of a Kafka topic or a file name."""

    def expand(self, values: Mapping[str, str], *, escape: Escape = "_") -> str:
        """Return the name for *values*; equal values give equal names.

        Every value is escaped to ``[A-Za-z0-9._-]``; a missing or empty one becomes the variable's default, else
        ``_``, so that every record has a destination. The name is never empty, ``.`` or ``..``; one longer than
        :data:`KAFKA_LIMIT` is truncated and ends with a digest of the whole, so that distinct names stay distinct.
        """
        return _limit_length(_escape_dots(self.fill(values, lambda value: escape_value(value, escape)), escape))


def split_template(text: str, allowed: tuple[str, ...] = EVENT_VARIABLES) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parts of a template and the defaults of its variables, which must be *allowed*.

    Templates of events may also have ``attributes.NAME`` and ``context.NAME``.

    Raises:
        NameTemplateError: an unknown variable, or a ``|`` without a default.
    """
    pieces = _VARIABLE.split(text)
    of_event = "message" in allowed
    variables = [piece.partition("|") for piece in pieces[1::2]]
    unknown = [name for name, _, _ in variables if not (name in allowed or (of_event and _BY_NAME.fullmatch(name)))]
    if unknown:
        known = ", ".join(allowed) + (f", {ATTRIBUTE_PREFIX}NAME, {CONTEXT_PREFIX}NAME" if of_event else "")
        names = ", ".join("{" + name + "}" for name in unknown)
        raise NameTemplateError(f"template {text!r} has unknown {names}; known: {known}")
    bare = next((name for name, mark, default in variables if mark and not default), None)
    if bare is not None:
        raise NameTemplateError(f"template {text!r} has no default after {{{bare}|; add one, or remove the |")
    parts = [variables[place // 2][0] if place % 2 else piece for place, piece in enumerate(pieces)]
    return tuple(parts), tuple(default for _, _, default in variables)


@lru_cache(maxsize=1024)
def parse_name(template: str, allowed: tuple[str, ...] = EVENT_VARIABLES) -> NameTemplate:
    """Parse a template whose variables are *allowed* (and, for events, ``attributes.NAME`` and ``context.NAME``).

    Raises:
        NameTemplateError: an unknown variable, an unbalanced brace, a ``|`` without a default, or literal text outside
            ``[A-Za-z0-9._-]``.
    """
    for literal in _VARIABLE.split(template)[0::2]:
        if not _LEGAL.fullmatch(literal):
            fault = "an unbalanced brace" if set(literal) & set("{}") else f"invalid text {literal!r}"
            raise NameTemplateError(f"name template {template!r} has {fault}; use letters, digits, '.', '_' and '-'")
    parts, defaults = split_template(template, allowed)
    if not any(parts):
        raise NameTemplateError("a name template must not be empty")
    return NameTemplate(template, parts, defaults)


def make_event_values(
    message: str, endpoint: str, type_: str, context: Mapping[str, str], attributes: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the template values of one event; *message* and *endpoint* are xids.

    ``messagegroup`` is the id of the group, or of the endpoint for a message declared in an endpoint.
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
    for name, value in (attributes or {}).items():
        values[ATTRIBUTE_PREFIX + name] = value
        if name in ATTRIBUTE_VARIABLES:
            values[name] = value
    values.update((CONTEXT_PREFIX + name, value) for name, value in context.items())
    return values


def full_variable_name(variable: str) -> str:
    """Return the full name of a variable: ``type`` is ``attributes.type``."""
    return ATTRIBUTE_PREFIX + variable if variable in ATTRIBUTE_VARIABLES else variable


def describe_missing(missing: tuple[str, ...], what: str) -> str:
    """Return why a sink with ``missing: reject`` has no destination *what* for an event."""
    names = ", ".join("{" + name + "}" for name in missing)
    return f"no value for {names} of {what}"


def make_dead_letter_values(endpoint: str, reason: str) -> dict[str, str]:
    """Return the template values of one dead letter."""
    return {"endpoint": endpoint, "endpointid": endpoint.rpartition("/")[2], "reason": reason}


@lru_cache(maxsize=65536)
def escape_value(value: str, escape: Escape = "_") -> str:
    """Escape one value to ``[A-Za-z0-9._-]``: other UTF-8 bytes become *escape* and two hexadecimal digits.

    Never empty (``_``), ``.`` or ``..``. A lone surrogate counts as its three bytes.
    """
    if not value:
        return _EMPTY
    sign = escape.encode("ascii")
    doubtful = _DOUBTFUL_BYTE[escape]
    data = doubtful.sub(lambda hit: sign + b"%02X" % hit.group()[0], value.encode("utf-8", "surrogatepass"))
    return _escape_dots(data.decode("ascii"), escape)


def _escape_dots(name: str, escape: Escape) -> str:
    if name in (".", ".."):
        return name.replace(".", f"{escape}2E")
    return name


def _limit_length(name: str) -> str:
    if len(name) <= KAFKA_LIMIT:
        return name
    digest = hashlib.sha256(name.encode("ascii")).hexdigest()[:_DIGEST]
    return f"{name[: KAFKA_LIMIT - _DIGEST - 1]}-{digest}"


# Destinations of messages: a topic, node, subject or URL, made from a template (MATCHING.md#what-comes-out).
#
# The rules for variables and missing values are the same as above. Values come from outside and are escaped to
# ``[A-Za-z0-9._-]`` with ``%``, in subjects also the dot, so that none can add a level, a wildcard or a host.

_USER: Final = re.compile(r"//[^/?#]*@")
"""User and password in a URL, which errors must not show."""


class AddressError(ValueError):
    """An address is not valid for its protocol; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class AddressTemplate(DestinationTemplate):
    """The template of an address of one protocol."""

    sending: SendingBinding

    def expand(self, values: Mapping[str, str]) -> str:
        """Return the address for the values of :func:`~router.settings.routes.make_event_values`.

        Raises:
            AddressError: it is longer than the protocol allows.
        """
        return validate_address(self.fill(values, lambda value: escape_level(value, self.sending)), self.sending)


def parse_address(text: str, sending: SendingBinding) -> AddressTemplate:
    """Parse a template.

    Raises:
        NameTemplateError: an unknown variable, text that the protocol forbids, or a variable in the host of a URL.
    """
    pattern, rule = sending.literal_rule
    for literal in _VARIABLE.split(text)[0::2]:
        if not pattern.fullmatch(literal):
            raise NameTemplateError(f"template {text!r} must have {rule} outside its {{variables}}")
    parts, defaults = split_template(text)
    if sending.authority_pattern is not None and len(parts) > 1 and not sending.authority_pattern.fullmatch(parts[0]):
        raise NameTemplateError("a URL template must begin with scheme, host and '/' before any variable")
    template = AddressTemplate(text, parts, defaults, sending)
    try:
        template.expand({})
    except AddressError as error:
        raise NameTemplateError(str(error)) from error
    return template


def escape_level(value: str, sending: SendingBinding) -> str:
    """Escape a value so that it stays one level of an address."""
    return sending.escape_level(escape_value(value, sending.escape_character))


def validate_address(address: str, sending: SendingBinding) -> str:
    """Return the address if it is valid.

    Raises:
        AddressError: it is not.
    """
    pattern, rule = sending.address_rule
    open_text = _USER.sub("//…@", address)
    shown = repr(open_text if len(open_text) <= 80 else open_text[:80] + "…")
    try:
        size = len(address.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise AddressError(f"address {shown} contains a lone surrogate") from error
    if not pattern.fullmatch(address):
        raise AddressError(f"address {shown} is not valid: {rule}")
    if size > sending.max_address_bytes:
        raise AddressError(
            f"address {shown} has {size} bytes; the {sending.family} limit is {sending.max_address_bytes}"
        )
    return address


# Routes: which records each matches, and to which sinks they go (MATCHING.md#routes).
#
# One list has routes of two kinds, by ``when.outcome``: for events and for dead letters. In each kind the first route
# that matches decides. A route's number is its index in the whole list.

REASONS: Final = (
    *("no-candidates", "no-match", "ambiguous", "invalid-cloudevent", "schema-violation", "undecodable"),
    *("unmappable", "oversized", "sink-rejected"),
)
"""Reasons of dead letters; each has a section below MATCHING.md#dead-letters."""
Validate = Literal["never", "ambiguous", "always"]


class RouteConditions(Section):
    """The conditions of a route; all must hold. Values are shell-style patterns; several are alternatives.

    A context attribute or attribute that a record lacks counts as empty: `*` matches it, `?*` does not.
    """

    outcome: Literal["routed", "dead-letter"] = Field(
        "routed",
        description="Whether the route is for events or for dead letters, which match by `endpoint` and `reason` only.",
    )
    message: Texts = Field((), description="Xids of definitions; `*` matches any text.")
    messagegroup: Texts = Field((), description="Ids of message groups; `*` matches any text.")
    endpoint: Texts = Field((), description="Xids of endpoints; `*` matches any text.")
    context: dict[str, Texts] = Field({}, description="Context attributes by name; `*` matches any text.")
    attributes: dict[str, Texts] = Field(
        {}, description="CloudEvents attributes of the outgoing event by name, extensions included."
    )
    reason: Texts = Field((), description="Dead-letter reasons; requires `outcome: dead-letter`.")

    @property
    def is_catch_all(self) -> bool:
        """Whether this matches every record of its outcome."""
        given = (self.message, self.messagegroup, self.endpoint, self.context, self.attributes, self.reason)
        return not any(given)

    @property
    def letters(self) -> bool:
        """Whether this matches dead letters."""
        return self.outcome == "dead-letter"


class RouteSettings(Section):
    """One route; per outcome, the first that matches a record decides."""

    when: RouteConditions = Field(
        RouteConditions(), description="Conditions that must all hold; without any, the route matches every event."
    )
    to: Texts = Field(description="Names of sinks; each gets the record.", min_length=1)
    validation: Validate | None = Field(
        None, alias="validate", description="When to validate bodies against their schemas; unset is `match.validate`."
    )


NumberedRoute = tuple[int, RouteSettings]
"""A route's index in the list, and the route."""


def event_routes(routes: Sequence[RouteSettings]) -> list[NumberedRoute]:
    """Return the routes of events, in order."""
    return [(number, route) for number, route in enumerate(routes) if not route.when.letters]


def dead_letter_routes(routes: Sequence[RouteSettings]) -> list[NumberedRoute]:
    """Return the routes of dead letters, in order; those that none matches go to ``dead_letters.sinks``."""
    return [(number, route) for number, route in enumerate(routes) if route.when.letters]
