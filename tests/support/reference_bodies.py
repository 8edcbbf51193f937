"""What schemas look at, for the plain matcher (JUDGING.md#data-schemas)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bindings.envelope import Envelope
from bindings.parts import Part, coding_of
from bindings.protocols import Binding
from catalog.schemas.contract import SchemaFault, decoded
from catalog.schemas.ids.client import Framing
from catalog.schemas.ids.deciding import Begin, Frames, frame_of
from catalog.schemas.validation import PayloadValidation


class Body(NamedTuple):
    """A body without its content coding, how it begins, and whether there is a verdict about it at all."""

    data: bytes | SchemaFault | None
    framing: Framing
    judged: bool = True
    begins: Mapping[str, Begin] = {}


def body_of(binding: Binding, parts: Sequence[Part], envelope: Envelope, frames: Frames) -> Body:
    """The body that a record's schema is held against."""
    if envelope.mode == "structured" or envelope.data is None:
        return Body(envelope.data, "none")
    opened = decoded(envelope.data, coding_of(parts))
    return Body(opened, frames.framing if binding.protocol == "KAFKA" else "none", opened is not None)


def fits(payloads: PayloadValidation, xid: str, body: Body, content: str | None) -> bool:
    """Whether a definition's schema takes a body, or has no verdict; a body that is not there is held against none."""
    if body.data is None:
        return True
    if not body.judged or isinstance(body.data, SchemaFault):
        return not body.judged
    return payloads.faults(xid, [body.data], [content], [body.begins.get(xid, Begin(body.framing))]) == [None]


def id_parts(body: Body, frames: Frames) -> list[Part]:
    """The id in a body, as a property that definitions may constrain."""
    whole = isinstance(body.data, bytes) and body.framing != "none"
    frame = frame_of(body.data, frames.framing) if whole and isinstance(body.data, bytes) else None
    return [] if frame is None else [Part("schemaid", frame.id.encode())]
