"""Where a message of a sink goes: a topic, node, subject or URL, made from a template (architecture.md section 9).

Templates have the variables of :mod:`router.settings.names`, and its rules for missing values. Values come from outside
and are escaped to ``[A-Za-z0-9._-]`` with ``%``, in subjects also the dot, so that none can add a level, a wildcard or
a host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from catalog.values import percent_encode
from router.settings.names import NameTemplateError, Template, escape_value, split_template

TargetKind = Literal["mqtt", "amqp", "nats", "http", "kafka"]
_VARIABLE: Final = re.compile(r"\{([^{}]*)\}")
_LITERAL: Final[Mapping[TargetKind, tuple[re.Pattern[str], str]]] = {
    "mqtt": (re.compile(r"[^+#\x00{}]*"), "no '+', '#' or braces"),
    "amqp": (re.compile(r"[^\x00-\x1f{}]*"), "no control characters or braces"),
    "nats": (re.compile(r"[^\s*>\x00{}]*"), "no spaces, '*', '>' or braces"),
    "http": (re.compile(r"[!-z|~]*"), "ASCII without spaces or braces"),
    "kafka": (re.compile(r"[A-Za-z0-9._-]*"), "letters, digits, '.', '_' and '-'"),
}
_WHOLE: Final[Mapping[TargetKind, tuple[re.Pattern[str], str]]] = {
    "mqtt": (re.compile(r"[^+#\x00]+", re.DOTALL), "a topic is not empty and has no '+', '#' or NUL"),
    "amqp": (re.compile(r"[^\x00-\x1f]*"), "a node has no control characters"),
    "nats": (
        re.compile(r"[^\s.*>\x00-\x1f]+(?:\.[^\s.*>\x00-\x1f]+)*"),
        "a subject has no empty token, space, '*' or '>'",
    ),
    "http": (
        re.compile(r"https?://[^/?#@\s]+(?:[/?#][!-~]*)?", re.IGNORECASE),
        "a URL begins with http:// or https://",
    ),
    "kafka": (re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}"), "a topic has 1 to 249 of A-Z a-z 0-9 . _ -"),
}
_AUTHORITY: Final = re.compile(r"https?://[^/?#@\s]+[/?#].*", re.IGNORECASE | re.DOTALL)
_USER: Final = re.compile(r"//[^/?#]*@")
"""User and password in a URL, which no error shows."""
_MOST_BYTES: Final[Mapping[TargetKind, int]] = {"mqtt": 65535, "amqp": 4096, "nats": 1024, "http": 8000, "kafka": 249}


class AddressError(ValueError):
    """An address that no message can be sent to; the message says which and why."""


@dataclass(frozen=True, slots=True)
class AddressTemplate(Template):
    """The template of an address of one kind of target."""

    target: TargetKind

    def expand(self, values: Mapping[str, str]) -> str:
        """Make the address for the values of :func:`~router.settings.names.event_values`, missing ones as it says.

        Raises:
            AddressError: it is longer than the protocol allows.
        """
        return checked(self.filled(values, lambda value: escaped(value, self.target)), self.target)


def parse_address(text: str, target: TargetKind) -> AddressTemplate:
    """Parse a template.

    Raises:
        NameTemplateError: an unknown variable, text that the target forbids, or a variable in the host of a URL.
    """
    pattern, rule = _LITERAL[target]
    for literal in _VARIABLE.split(text)[0::2]:
        if not pattern.fullmatch(literal):
            raise NameTemplateError(f"template {text!r} must have {rule} besides its {{variables}}")
    parts, defaults = split_template(text)
    if target == "http" and len(parts) > 1 and not _AUTHORITY.fullmatch(parts[0]):
        raise NameTemplateError("a URL template must begin with scheme, host and '/' before any variable")
    template = AddressTemplate(text, parts, defaults, target)
    try:
        template.expand({})
    except AddressError as error:
        raise NameTemplateError(str(error)) from error
    return template


def escaped(value: str, target: TargetKind) -> str:
    """Escape a value such that it stays one level of an address."""
    if target == "kafka":
        return escape_value(value, "_")
    text = escape_value(value, "%")
    return text.replace(".", "%2E") if target == "nats" else text


def encoded(value: str, target: TargetKind) -> str:
    """Percent-encode a value for an address of an endpoint, as RFC 6570 does, and in subjects the dot as well."""
    text = percent_encode(value)
    return text.replace(".", "%2E") if target == "nats" else text


def checked(address: str, target: TargetKind) -> str:
    """Return the address if messages can be sent to it.

    Raises:
        AddressError: they cannot.
    """
    pattern, rule = _WHOLE[target]
    open_text = _USER.sub("//…@", address)
    shown = repr(open_text if len(open_text) <= 80 else open_text[:80] + "…")
    try:
        size = len(address.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise AddressError(f"address {shown} holds a lone surrogate") from error
    if not pattern.fullmatch(address):
        raise AddressError(f"address {shown} cannot be sent to: {rule}")
    if size > _MOST_BYTES[target]:
        raise AddressError(f"address {shown} has {size} bytes; {target} takes {_MOST_BYTES[target]}")
    return address
