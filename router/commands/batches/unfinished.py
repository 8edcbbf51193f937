"""Unfinished batches, read while a router may be running, and the order to move one to the dead letters.

Reads ``state`` without its lock, and writes only that order. Spark's plan of a batch is in its
checkpoint, the router's notes are in the state database, and a running router is queried at its metrics port.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from bindings.inbox.format import parse_offset
from bindings.inbox.source import InboxView
from bindings.inbox.space import InboxError
from router.commands.top import ANSWER_SECONDS, metrics_address
from router.errors import RouterError, SinkError
from router.evaluation.plan import Plan
from router.reading import generations
from router.reading.generations import Generation, bounds
from router.settings import Settings
from router.sinks import Commit, open_sink
from router.sources import INBOX
from router.state.state import Hold, Park, StateFolder
from router.writing.staging import commit_app_id


@dataclass(frozen=True, slots=True)
class UnfinishedBatch:
    """One batch that Spark has planned and not committed.

    ``plan`` is the id of its pinned plan, None before its first write; ``since`` is when it was pinned, else planned.
    ``hold`` is why it is blocked, ``park`` the order to move it to the dead letters. ``ranges`` are its records by
    partition: from ``start`` (inclusive) to ``end`` (exclusive) of a ``source``; None is unknown.
    """

    query: str
    batch: int
    generation: str
    plan: str | None
    since: datetime | None
    hold: Hold | None
    park: Park | None
    ranges: tuple[dict[str, Any], ...]

    @property
    def records(self) -> int | None:
        """Its number of records; None if unknown for any partition."""
        counts = [each["records"] for each in self.ranges]
        return None if any(count is None for count in counts) else sum(count or 0 for count in counts)


def list_unfinished_batches(state: StateFolder) -> list[UnfinishedBatch]:
    """Return the unfinished batches, at most one per query."""
    queries = sorted(path.name for path in state.checkpoints.glob("*") if path.is_dir())
    generations_now = ((query, generations.current(state, query)) for query in queries)
    return [
        _read_unfinished_batch(state, query, generation, generation.pending)
        for query, generation in generations_now
        if generation is not None and generation.pending is not None
    ]


def _read_unfinished_batch(state: StateFolder, query: str, generation: Generation, batch: int) -> UnfinishedBatch:
    notes = state.batches
    planned = datetime.fromtimestamp((generation.path / "offsets" / str(batch)).stat().st_mtime, UTC)
    return UnfinishedBatch(
        query,
        batch,
        generation.id,
        notes.pinned(query, batch),
        notes.since(query, batch) or planned,
        notes.noted(Hold, query, batch, generation.id),
        notes.noted(Park, query, batch, generation.id),
        tuple(_iter_ranges(state, query, generation, batch)),
    )


def find_sink_completions(batch: UnfinishedBatch, plan: Plan) -> list[dict[str, Any]]:
    """Return which sinks have their events of a batch, by the router's notes or the sinks themselves.

    ``has`` is None if that is unknown, for the reason in ``detail``.
    """
    completions = []
    for name in plan.routes.event_sinks:
        has, detail = _find_completion(name, batch, plan)
        completions.append({"sink": name, "has": has, "detail": detail})
    return completions


def _find_completion(name: str, batch: UnfinishedBatch, plan: Plan) -> tuple[bool | None, str]:
    if batch.hold is not None and name in batch.hold.taken:
        return True, "recorded by the router"
    settings = plan.settings.sinks[name]
    if settings.unknown_commit_reason:
        return None, settings.unknown_commit_reason
    try:
        sink = open_sink(name, settings, "events", plan.catalog, plan.create_frames())
        has = sink.has_commit(Commit(commit_app_id(batch.generation, name), batch.batch))
    except SinkError as error:
        return None, str(error)
    return has, "" if has else "no commit of the batch; perhaps it has no records for this sink"


def order_parking(state: StateFolder, query: str) -> UnfinishedBatch:
    """Order, durably, that a query's unfinished batch be moved to the dead letters at the router's next attempt.

    Raises:
        RouterError: the query is unknown or has no open batch.
    """
    batches = {batch.query: batch for batch in list_unfinished_batches(state)}
    if query not in batches:
        others = ", ".join(batches) or "none"
        raise RouterError(f"query {query!r} has no unfinished batch", hint=f"queries with one: {others}")
    batch = batches[query]
    if batch.park is None:
        order = Park(batch.generation, datetime.now(UTC).isoformat(timespec="microseconds"))
        state.batches.note(query, batch.batch, order)
    return batch


def fetch_router_queries(settings: Settings) -> Mapping[str, Any] | None:
    """Return the queries of a router that runs with these settings, by its ``/readyz``; None if it does not respond."""
    try:
        answer = httpx.get(f"{metrics_address(settings.metrics)}/readyz", timeout=ANSWER_SECONDS, trust_env=False)
        queries: Mapping[str, Any] = answer.json()["queries"]
    except (RouterError, httpx.HTTPError, ValueError, LookupError, TypeError):
        return None
    return queries


def _iter_ranges(state: StateFolder, query: str, generation: Generation, batch: int) -> Iterator[dict[str, Any]]:
    starts, ends = bounds(generation, batch)
    if query == INBOX and "partitions" in ends:
        yield from _iter_inbox(state, starts, ends)
        return
    for topic, partitions in sorted(ends.items()):
        for number, end in sorted(partitions.items(), key=lambda item: int(item[0])):
            start = starts.get(topic, {}).get(number)
            known = start is not None and start >= 0
            if not known or end != start:
                yield {
                    "source": f"{topic}-{number}",
                    "start": str(start) if known else None,
                    "end": str(end),
                    "records": end - start if known else None,
                }


def _iter_inbox(state: StateFolder, starts: Mapping[str, Any], ends: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        view = InboxView(state.inbox)
        known = parse_offset(starts, view.layout.inbox) if starts else {}
        for number, end in parse_offset(ends, view.layout.inbox).items():
            # Nothing is removed before the first commit, so the first batch starts at the first row.
            start = known[number] if number in known else view.first_position(number)
            if start != end:
                count = view.count_rows(number, start, end)
                yield {
                    "source": f"inbox-{number}",
                    "start": f"{start.segment}:{start.row}",
                    "end": f"{end.segment}:{end.row}",
                    "records": count,
                }
    except (InboxError, OSError) as error:
        raise RouterError(f"the inbox of {state.root} cannot be read: {error}", hint="see the router's log") from error
