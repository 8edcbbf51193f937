"""What schemas look at, for the plain matcher (JUDGING.md#data-schemas)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bindings.codings import coding_of
from bindings.envelope import Envelope
from bindings.parts import Part
from bindings.protocols import Binding
from catalog.schemas.codings import Framing, decoded
from catalog.schemas.contract import SchemaFault
from catalog.schemas.validation import PayloadValidation


class Body(NamedTuple):
    """A body without its content coding, how it begins, and whether there is a verdict about it at all."""

    data: bytes | SchemaFault | None
    framing: Framing
    judged: bool = True


def body_of(binding: Binding, parts: Sequence[Part], envelope: Envelope, framing: Framing) -> Body:
    """The body that a record's schema is held against."""
    if envelope.mode == "structured" or envelope.data is None:
        return Body(envelope.data, "none")
    opened = decoded(envelope.data, coding_of(parts))
    return Body(opened, framing if binding.protocol == "KAFKA" else "none", opened is not None)


def fits(payloads: PayloadValidation, xid: str, body: Body, content: str | None) -> bool:
    """Whether a definition's schema takes a body, or has no verdict; a body that is not there is held against none."""
    if body.data is None:
        return True
    if not body.judged or isinstance(body.data, SchemaFault):
        return not body.judged
    return payloads.faults(xid, [body.data], [content], [body.framing]) == [None]
