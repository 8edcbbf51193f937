"""Where a message of a sink goes: a topic, node, subject or URL, made from a template (JUDGING.md#what-comes-out).

Templates have the variables of :mod:`router.settings.names`, and its rules for missing values. Values come from outside
and are escaped to ``[A-Za-z0-9._-]`` with ``%``, in subjects also the dot, so that none can add a level, a wildcard or
a host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bindings.sending import Sending
from router.settings.names import NameTemplateError, Template, escape_value, split_template

_VARIABLE: Final = re.compile(r"\{([^{}]*)\}")
_USER: Final = re.compile(r"//[^/?#]*@")
"""User and password in a URL, which no error shows."""


class AddressError(ValueError):
    """An address that no message can be sent to; the message says which and why."""


@dataclass(frozen=True, slots=True)
class AddressTemplate(Template):
    """The template of an address of one protocol."""

    sending: Sending

    def expand(self, values: Mapping[str, str]) -> str:
        """Make the address for the values of :func:`~router.settings.names.event_values`, missing ones as it says.

        Raises:
            AddressError: it is longer than the protocol allows.
        """
        return checked(self.filled(values, lambda value: escaped(value, self.sending)), self.sending)


def parse_address(text: str, sending: Sending) -> AddressTemplate:
    """Parse a template.

    Raises:
        NameTemplateError: an unknown variable, text that the protocol forbids, or a variable in the host of a URL.
    """
    pattern, rule = sending.literal
    for literal in _VARIABLE.split(text)[0::2]:
        if not pattern.fullmatch(literal):
            raise NameTemplateError(f"template {text!r} must have {rule} besides its {{variables}}")
    parts, defaults = split_template(text)
    if sending.authority is not None and len(parts) > 1 and not sending.authority.fullmatch(parts[0]):
        raise NameTemplateError("a URL template must begin with scheme, host and '/' before any variable")
    template = AddressTemplate(text, parts, defaults, sending)
    try:
        template.expand({})
    except AddressError as error:
        raise NameTemplateError(str(error)) from error
    return template


def escaped(value: str, sending: Sending) -> str:
    """Escape a value such that it stays one level of an address."""
    return sending.escaped(escape_value(value, sending.escape))


def checked(address: str, sending: Sending) -> str:
    """Return the address if messages can be sent to it.

    Raises:
        AddressError: they cannot.
    """
    pattern, rule = sending.whole
    open_text = _USER.sub("//…@", address)
    shown = repr(open_text if len(open_text) <= 80 else open_text[:80] + "…")
    try:
        size = len(address.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise AddressError(f"address {shown} holds a lone surrogate") from error
    if not pattern.fullmatch(address):
        raise AddressError(f"address {shown} cannot be sent to: {rule}")
    if size > sending.most_bytes:
        raise AddressError(f"address {shown} has {size} bytes; {sending.family} takes {sending.most_bytes}")
    return address
