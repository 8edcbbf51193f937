"""How messages for NATS are addressed and made; they go by :mod:`bindings.nats.publisher`."""

from __future__ import annotations

import re
from typing import Final

from bindings.addresses import AddressForm
from bindings.parts import Part
from bindings.sending import Sending

_NAME: Final = re.compile(r"[!-9;-~]+")


class NatsSending(Sending):
    """See :class:`~bindings.sending.Sending`; an address is a subject."""

    family = "nats"
    form = AddressForm(
        "NATS",
        {"nats": 4222, "ws": 80},
        {"tls": 4222, "wss": 443},
        "{host}: NATS over {scheme}:// is not supported; use nats:// or tls://",
        "a NATS address has no form; write nats://host:4222 or tls://host:4222",
        "a NATS address names no host; write nats://host:4222 or tls://host:4222",
        bare="nats",
        raised=True,
    )
    literal = (re.compile(r"[^\s*>\x00{}]*"), "no spaces, '*', '>' or braces")
    whole = (
        re.compile(r"[^\s.*>\x00-\x1f]+(?:\.[^\s.*>\x00-\x1f]+)*"),
        "a subject has no empty token, space, '*' or '>'",
    )
    most_bytes = 1024
    dotted = True
    address = "subject"
    by_channel = frozenset({"subject"})

    def header(self, name: str, part: Part) -> Part | None:
        """Return a header as it is; None where servers have no form for it, or would act upon it."""
        # A name that begins with Nats- would set conditions for storing the message.
        if name.lower().startswith("nats-") or not _NAME.fullmatch(name) or set(part.value or b"") & set(b"\r\n"):
            return None
        return Part(name, part.value)
