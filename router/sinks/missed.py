"""Which rows of its share of a batch a sink lacks, as far as it can tell: more than it has is never left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from router.errors import SinkError
from router.sinks.contract import ArrowSink, Commit, Rejected
from router.sinks.messages.sink import ConfirmedSink
from router.sinks.tables.definition_tables import DefinitionTablesSink


def missed(sink: ArrowSink | None, commit: Commit, share: Iterable[Rejected]) -> Iterator[Rejected]:
    """Yield what a sink lacks of its *share*; a row that it refused, with its own reason.

    A message target knows what it settled while this process lives, a table per definition knows its own commits. Of
    any other sink (None for Kafka by Spark) that is asked here, the whole share is missing.
    """
    settled = sink.settled(commit) if isinstance(sink, ConfirmedSink) else {}
    held: dict[str, bool] = {}
    for row in share:
        if isinstance(sink, DefinitionTablesSink):
            if row.message not in held:
                held[row.message] = _held(sink, row.message, commit)
            if held[row.message]:
                continue
        lacking = settled.get(row.position, row)
        if lacking is not None:
            yield lacking


def _held(sink: DefinitionTablesSink, message: str, commit: Commit) -> bool:
    """Tell whether a definition's table has the batch; one that cannot be read may be what is in the way."""
    try:
        return sink.holds(message, commit)
    except SinkError:
        return False
