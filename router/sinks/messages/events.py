"""Events as message sinks take them from the wide table, and what they become for one protocol.

A message is made as *parts*, the form in which records are read (:mod:`bindings.parts`): what a sink makes is what our
own codec of that protocol reads back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

import msgspec
import pyarrow as pa

from bindings.amqp.forms import TYPES, together
from bindings.codings import coding_of
from bindings.envelope import EVENT_MEDIA, STRUCTURED, UNESCAPED, attribute_parts
from bindings.events import encode_event, with_types
from bindings.parts import Part, first
from bindings.protocols import BINDINGS, Binding
from bindings.sending import Outbound
from catalog.errors import RecordError
from catalog.values import media_type_of
from router.matching.facts import SCHEMA_ID
from router.rendering.exact import TIME_TEXT, TYPED
from router.sinks.forms import AMBIGUOUS, RARE, WIDE, instant_text, pairs_of
from router.sinks.messages.passing import LINEAGE as LINEAGE
from router.sinks.messages.passing import HeaderPassing

if TYPE_CHECKING:
    from router.schemaids.framing import WrittenFrame

Mode = Literal["binary", "structured", "native"]
MESSAGE: Final = pa.schema([*WIDE, *((name, pa.string()) for name in (TIME_TEXT, TYPED, AMBIGUOUS))])
"""The columns that message sinks get: an instant cannot give back ``time`` as it was written, nor a text its type."""
_JSON: Final = re.compile("[/+]json")
_NAMES: Final = ("id", "source", "type", "subject", "datacontenttype", "dataschema")


class NotTaken(Exception):
    """A message that can never be sent to this target; the message says why and ends up in the dead letter."""


@dataclass(frozen=True, slots=True)
class Event:
    """One routed event. ``attributes`` hold text, ``specversion`` first; ``native`` is the record's JSON, no body."""

    attributes: Mapping[str, str]
    data: bytes | None
    message: str
    endpoint: str
    epoch: str
    position: str
    context: Mapping[str, str]
    protocol: str = ""
    native: str = "{}"
    more_lineage: Mapping[str, str] = field(default_factory=dict)
    """More of the lineage, where there is any: how a tie was decided, and what the event is related to."""


def event_of(row: Mapping[str, Any]) -> Event:
    """Return the event of one row of :data:`MESSAGE`."""
    attributes = {"specversion": row.get("specversion") or "1.0"}
    attributes.update((name, row[name]) for name in _NAMES if row[name] is not None)
    time = row.get(TIME_TEXT) or instant_text(row.get("time"))
    if time is not None:
        attributes["time"] = time
    attributes.update(pairs_of(row.get("extensions")))
    return Event(
        with_types(attributes, row.get(TYPED)),
        row.get("data"),
        row.get("message") or "",
        row.get("endpoint") or "",
        row.get("epoch") or "",
        row.get("position") or "",
        pairs_of(row.get("context")),
        row.get("protocol") or "",
        row.get("native") or "{}",
        {name: row[name] for name in RARE if row.get(name)},
    )


def outbound(
    event: Event,
    binding: Binding,
    mode: Mode,
    address: str,
    given: Sequence[Part] = (),
    *,
    lineage: bool = True,
    passing: HeaderPassing | None = None,
) -> Outbound:
    """Put a message together from *given* parts and the event, by the CloudEvents binding of the protocol.

    An attribute goes before a given part of the same key. Data that is itself an event travels in structured mode:
    its content type in the place of ours would make a reader take it for this one. ``native`` sends data alone.
    *passing* adds the headers that the record came with; both of the others go before them.
    """
    content_type = event.attributes.get("datacontenttype")
    body = event.data
    if mode == "binary" and (not binding.binary or media_type_of(content_type).startswith(EVENT_MEDIA)):
        mode = "structured"
    own: list[Part] = []
    if mode == "binary":
        own = attribute_parts(binding.rule, event.attributes)
    elif mode == "structured":
        body = encode_event(event.attributes, event.data)
        own = [Part(binding.rule.content_type, STRUCTURED.encode())]
    elif content_type is not None:
        own = [Part(binding.rule.content_type, content_type.encode())]
    if not binding.binary:
        own = []
    elif lineage:
        own += lineage_parts(event, binding)
    own += _annotations(event, binding) if all(part.key != binding.partition_key for part in given) else []
    keys = {part.key for part in own} - {TYPES}
    parts = together([part for part in given if part.key not in keys], own)
    if passing is not None:
        keys = {part.key for part in parts}
        came = passing.parts(event.protocol, event.native, binary=mode == "binary", structured=mode == "structured")
        parts = together(parts, [part for part in came if part.key not in keys or part.key == TYPES])
    identity = "|".join((event.endpoint, event.position, event.attributes["source"], event.attributes["id"]))
    return Outbound(address, parts, body, event.position.rpartition("-")[0], identity)


def source_key(event: Event) -> bytes | None:
    """Return the partition key that a record came with, where its protocol has one."""
    binding = BINDINGS.get(event.protocol)
    # Most records are told apart by this, without being read.
    if binding is None or not binding.partition_key or binding.partition_key.rpartition(".")[2] not in event.native:
        return None
    try:
        part = first(binding.parts(msgspec.json.decode(event.native)), binding.partition_key)
    except (msgspec.DecodeError, RecordError):
        return None  # the native record is shown, not relied on: an odd one has no key
    return None if part is None else part.value


def _annotations(event: Event, binding: Binding) -> list[Part]:
    """Return the part with the event's partition key, where that is none of the record's own (Kafka's composers)."""
    if not binding.partition_key or binding.sending.key:
        return []
    own = event.attributes.get("partitionkey")
    part = Part(binding.partition_key, own.encode() if own else source_key(event))
    return [part] if part.text else []


def framed(message: Outbound, event: Event, mode: Mode, frame: WrittenFrame | None) -> Outbound:
    """Return a message whose body is behind a frame.

    A body stays as it is that has one already, that is in a content coding, or that is JSON of a schema whose bodies
    are bytes; so does an event in structured mode.
    """
    if frame is None or message.body is None or mode == "structured" or event.more_lineage.get(SCHEMA_ID):
        return message
    is_json = _JSON.search((event.attributes.get("datacontenttype") or "").lower()) is not None
    if coding_of(message.parts) or (is_json and not frame.plain):
        return message
    return replace(message, body=frame.head + message.body)


def lineage_parts(event: Event, binding: Binding) -> list[Part]:
    """Return the ``xrouter-*`` properties (JUDGING.md#what-comes-out), percent-encoded where attributes are."""
    lineage = {
        "message": event.message,
        "endpoint": event.endpoint,
        "epoch": event.epoch,
        "position": event.position,
        "context": json.dumps(dict(event.context), ensure_ascii=False, separators=(",", ":")),
        **event.more_lineage,
    }
    return [
        Part(
            f"{binding.headers}.{LINEAGE}{name}",
            (quote(text, safe=UNESCAPED) if binding.rule.encoded else text).encode(),
        )
        for name, text in lineage.items()
    ]
