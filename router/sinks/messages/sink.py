"""A sink that sends each row as a message and returns when all are confirmed.

At least once: a batch that is repeated after a crash is sent again. Within one process it is not: the sink remembers
what a target has settled of a batch until the next batch, so that an outage in mid-batch makes no duplicates.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from bindings.gateways import GatewayError
from bindings.parts import Part
from bindings.protocols import Binding
from bindings.sending import MessageRefusal, Outbound, Publisher, Unsettled
from catalog.model import Endpoint
from router.errors import SinkError
from router.settings.names import AddressError, AddressTemplate, event_values, missing_value
from router.settings.sinks.contract import RemoteSink
from router.sinks.contract import ArrowSink, Commit, Rejected, WriteResult
from router.sinks.messages.events import HeaderPassing, Mode, NotTaken, RoutedEvent, Spread, event_of, framed, outbound
from router.watching.batches import progressed

if TYPE_CHECKING:
    from router.schemaids.framing import WrittenFrame

CHUNK: Final = 500
"""Messages handed over at a time. When a client says no more, only whole groups are known to be confirmed."""
_UNUSED: Final = ("time", "received")
"""Instants, which may lie outside Python's calendar and are sent as the event wrote them."""
REASON_CAP: Final = 500


Settled = dict[str, Rejected | None]
"""What became of the records of a batch, by position; None is taken."""


class MessageBuilder(Protocol):
    """What makes messages of events."""

    def compose(self, events: Sequence[RoutedEvent]) -> Sequence[Outbound | NotTaken]:
        """Return the message for each event; NotTaken says why there can be none for this target."""
        ...

    def begin_with(self, frames: Mapping[str, WrittenFrame]) -> None:
        """Have the bodies of these definitions begin with frames."""
        ...


class TemplateComposer:
    """Makes messages for the address that a template of the settings gives; ``given`` parts are on every one.

    ``passing`` adds the headers that records came with; None leaves them out. ``strict`` takes no event that misses a
    value of the address.
    """

    def __init__(
        self,
        template: AddressTemplate,
        binding: Binding,
        mode: Mode,
        *,
        lineage: bool = True,
        given: Sequence[Part] = (),
        passing: HeaderPassing | None = None,
        strict: bool = False,
    ) -> None:
        self._template = template
        self._strict = strict
        self._binding = binding
        self._mode = mode
        self._lineage = lineage
        self._given = tuple(given)
        self._passing = passing
        self._frames: Mapping[str, WrittenFrame] = {}

    def begin_with(self, frames: Mapping[str, WrittenFrame]) -> None:
        """Have the bodies of these definitions begin with frames."""
        self._frames = frames

    def compose(self, events: Sequence[RoutedEvent]) -> list[Outbound | NotTaken]:
        """Return the message for each event; NotTaken for an address too long, or that misses a value and may not."""
        composed: list[Outbound | NotTaken] = []
        for event in events:
            try:
                composed.append(self._composer(event))
            except NotTaken as error:
                composed.append(error)
        return composed

    def _composer(self, event: RoutedEvent) -> Outbound:
        values = event_values(event.message, event.endpoint, "", event.context, event.attributes)
        missing = self._template.missing(values) if self._strict else ()
        if missing:
            raise NotTaken(missing_value(missing, "the address"))
        try:
            address = self._template.expand(values)
        except AddressError as error:
            raise NotTaken(str(error)) from error
        message = outbound(
            event, self._binding, self._mode, address, self._given, lineage=self._lineage, passing=self._passing
        )
        return framed(message, event, self._mode, self._frames.get(event.message))


class ConfirmedSink(ArrowSink):
    """Keeps :class:`~router.sinks.contract.ArrowSink` for rows of :data:`router.sinks.messages.events.MESSAGE`.

    Safe for use by several queries; their batches go one after the other. ``max_body`` is in bytes, ``spread`` counts
    destinations and caps them.
    """

    def __init__(
        self,
        name: str,
        composer: MessageBuilder,
        publisher: Publisher,
        max_body: int | None = None,
        spread: Spread | None = None,
    ) -> None:
        self._name = name
        self._spread = spread
        self._max_body = max_body
        self._composer = composer
        self._publisher = publisher
        self._lock = threading.Lock()
        self._settled: dict[str, tuple[int, Settled]] = {}

    def begin_with(self, frames: Mapping[str, WrittenFrame]) -> None:
        """Have the bodies of these definitions begin with frames."""
        self._composer.begin_with(frames)

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Send what of the batch is not settled yet. Rows that the target will never take are ``refused``.

        Raises:
            SinkError: the target takes nothing now. Calling again with the same commit goes on where this ended.
        """
        if rows.num_rows == 0:
            return WriteResult(0)  # without waiting for the batch of another query
        kept = rows.drop_columns([name for name in _UNUSED if name in rows.column_names])
        with self._lock:
            settled = self._known(commit)
            for batch in kept.to_batches(max_chunksize=CHUNK):
                self._send([row for row in map(event_of, batch.to_pylist()) if row.position not in settled], settled)
                progressed()
            mine = [settled.get(position) for position in kept.column("position").to_pylist()]
        refused = tuple(record for record in mine if record is not None)
        return WriteResult(rows.num_rows - len(refused), refused=refused)

    def already(self, commit: Commit) -> bool:
        """Always False: no target remembers batches."""
        return False

    def lacking(self, commit: Commit, share: Iterable[Rejected]) -> Iterator[Rejected]:
        """Yield what the target has not taken while this process lives; a row that it refused, with its own reason."""
        settled = self.settled(commit)
        return (left for row in share if (left := settled.get(row.position, row)) is not None)

    def settled(self, commit: Commit) -> Settled:
        """Return what the target has settled of a batch while this process lives, by position; None is taken."""
        version, settled = self._settled.get(commit.whole, (-1, {}))
        return dict(settled) if version == commit.version else {}

    def _known(self, commit: Commit) -> Settled:
        # Under the whole batch: its positions are unique, and a part knows what the whole has settled.
        version, settled = self._settled.get(commit.whole, (-1, {}))
        if version != commit.version:
            settled = {}
            self._settled[commit.whole] = (commit.version, settled)
        return settled

    def _send(self, events: list[RoutedEvent], settled: Settled) -> None:
        messages: list[Outbound] = []
        sent: list[RoutedEvent] = []
        for event, message in zip(events, self._composer.compose(events), strict=True):
            try:
                if isinstance(message, NotTaken):
                    raise message
                messages.append(self._within(message))
                sent.append(event)
            except NotTaken as error:
                settled[event.position] = _rejected(event, MessageRefusal(str(error)))
        if not messages:
            return
        answers: Mapping[int, MessageRefusal | None] = {}
        try:
            answers = dict(enumerate(self._publisher.send(messages)))
        except (Unsettled, GatewayError) as error:
            answers = error.settled if isinstance(error, Unsettled) else {}
            raise SinkError(self._name, str(error)) from error
        finally:
            settled.update((sent[at].position, _rejected(sent[at], answer)) for at, answer in answers.items())

    def _within(self, message: Outbound) -> Outbound:
        size = len(message.body or b"")
        if self._max_body is not None and size > self._max_body:
            raise NotTaken(f"a body of {size} bytes is more than max_body of the sink, {self._max_body}")
        fault = self._spread.fault(message.address) if self._spread is not None else None
        if fault is not None:
            raise NotTaken(f"{message.address[: REASON_CAP // 4]}: {fault}")
        return message


def _rejected(event: RoutedEvent, refusal: MessageRefusal | None) -> Rejected | None:
    if refusal is None:
        return None
    return Rejected(event.position, refusal.reason[:REASON_CAP], event.endpoint, event.message)


# Connections of sinks, which are kept for reuse.
#
# A plan makes its own sinks, and a new catalog a new plan. Connections outlive both: a sink of the same name, settings
# and endpoint goes on with the one there is.

_publishers: dict[str, Publisher] = {}
_lock: Final = threading.Lock()


def kept(name: str, settings: RemoteSink, endpoint: Endpoint | None) -> Publisher:
    """Return the publisher of a sink: the existing one if nothing about its connection has changed."""
    reached = None if endpoint is None else (endpoint.uris, sorted(endpoint.options.items(), key=lambda item: item[0]))
    key = repr((name, settings, reached))
    with _lock:
        if key not in _publishers:
            _publishers[key] = _Shared(lambda: settings.publisher(name, settings.binding(endpoint), endpoint))
        return _publishers[key]


def close_targets() -> None:
    """Disconnect all targets; a sink that is used again connects again."""
    with _lock:
        for publisher in _publishers.values():
            publisher.close()


class _Shared:
    """A publisher that is connected at its first use, and used by one thread at a time."""

    def __init__(self, make: Callable[[], Publisher]) -> None:
        self._make = make
        self._publisher: Publisher | None = None
        self._lock = threading.Lock()

    def send(self, messages: Sequence[Outbound]) -> list[MessageRefusal | None]:
        with self._lock:
            if self._publisher is None:
                self._publisher = self._make()
            return self._publisher.send(messages)

    def close(self) -> None:
        if not self._lock.acquire(blocking=False):
            return  # A batch that was cut off still sends. Its connection ends with the process, which does not wait.
        try:
            if self._publisher is not None:
                self._publisher.close()
                self._publisher = None
        finally:
            self._lock.release()
