"""``xrouter batches``: show unfinished batches, and move one that can never be written to the dead letters.

Reads ``state`` without its lock, while a router may be running, and writes only that order. Spark's plan of a batch is
in its checkpoint, the router's notes are in the state database, and a running router is queried at its metrics port.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.table import Table

from bindings.inbox.format import parse_offset
from bindings.inbox.source import InboxView
from bindings.inbox.space import InboxError
from router.commands.arguments import ConfigArgument, OutputFormat, Yes
from router.commands.top import ANSWER_SECONDS, metrics_address
from router.errors import RouterError, SinkError
from router.evaluation.plan import Plan, compile_plan
from router.reading.generations import Generation, bounds, current
from router.settings import Settings, load_settings
from router.sinks import Commit, open_sink
from router.sources import INBOX
from router.state.state import Hold, Park, StateFolder
from router.terminal import WIDE, print_json_lines, print_text, terminal, to_text
from router.writing.staging import commit_app_id


def show(config: ConfigArgument, format: Annotated[OutputFormat, typer.Option(help="Output format.")] = "text") -> None:
    """Show the unfinished batch of each query: its records, why it is blocked, and which sinks have it.

    Example: xrouter batches show router.yaml
    """
    settings = load_settings(config)
    live_queries = _fetch_router_queries(settings)
    with StateFolder.beside(Path(settings.state)) as state:
        pending = _list_pending(state)
        batches = [_batch_to_json(state, query, pending[query], config, live_queries) for query in pending]
    if format == "json":
        print_json_lines([{"running": live_queries is not None, "batches": batches}])
        return
    if live_queries is None:
        terminal(width=WIDE).print("no router is running; this is the state that the last one left")
    for each in batches:
        _print_batch(each, config)
    if not batches:
        terminal(width=WIDE).print("no unfinished batch")


def park(
    config: ConfigArgument,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Name of the query, from `batches show`.")],
    yes: Yes = False,
) -> None:
    """Move the unfinished batch of a query to the dead letters, except what its sinks already have.

    The dead letters can be replayed later. A running router does this at its next attempt, else the router does it at
    startup.

    Example: xrouter batches park router.yaml main
    """
    settings = load_settings(config)
    with StateFolder.beside(Path(settings.state)) as state:
        live_queries = _fetch_router_queries(settings)
        pending = _list_pending(state)
        if query not in pending:
            hint = f"queries with one: {', '.join(pending) or 'none'}"
            raise RouterError(f"query {query!r} has no unfinished batch", hint=hint)
        generation, batch = pending[query]
        if live_queries is not None and live_queries.get(query, {}).get("state") == "running":
            hint = "while a router is running, only a blocked batch can be moved; see `batches show`"
            raise RouterError(f"batch {batch} of {query} is being written", hint=hint)
        if not yes:
            _print_batch(_batch_to_json(state, query, pending[query], config, live_queries), config)
            typer.confirm("Move what its sinks do not have to the dead letters?", abort=True)
        if state.batches.noted(Park, query, batch, generation.id) is None:
            order = Park(generation.id, datetime.now(UTC).isoformat(timespec="microseconds"))
            state.batches.note(query, batch, order)
    when = "at its next attempt" if live_queries is not None else "at its next start"
    print_text(f"the router will move batch {batch} of {query} to the dead letters {when}")


def _list_pending(state: StateFolder) -> dict[str, tuple[Generation, int]]:
    """Return by query the batch that Spark has planned and not committed, if any."""
    pending: dict[str, tuple[Generation, int]] = {}
    for query in sorted(path.name for path in state.checkpoints.glob("*") if path.is_dir()):
        generation = current(state, query)
        if generation is not None and generation.pending is not None:
            pending[query] = (generation, generation.pending)
    return pending


def _batch_to_json(
    state: StateFolder,
    query: str,
    pending: tuple[Generation, int],
    config: Path,
    live_queries: Mapping[str, Any] | None,
) -> dict[str, Any]:
    generation, batch = pending
    notes = state.batches
    hold = notes.noted(Hold, query, batch, generation.id)
    live = (live_queries or {}).get(query, {})
    pinned = notes.pinned(query, batch)
    # Its pinned plan says which sinks there are.
    document = notes.plan(pinned) if pinned else None
    plan = None if document is None else compile_plan(document, environ=os.environ, base=config.resolve().parent)
    planned = datetime.fromtimestamp((generation.path / "offsets" / str(batch)).stat().st_mtime, UTC)
    ranges = list(_iter_ranges(state, query, generation, batch))
    counts = [each["records"] for each in ranges]
    return {
        "query": query,
        "batch": batch,
        "plan": pinned,
        "since": (notes.since(query, batch) or planned).isoformat(timespec="seconds"),
        "state": live.get("state") or ("held" if hold else "begun"),
        "held_since": hold.since if hold else None,
        "reason": live.get("reason") or (hold.reason if hold else ""),
        "parked": notes.noted(Park, query, batch, generation.id) is not None,
        "records": None if None in counts else sum(counts),
        "ranges": ranges,
        "sinks": [] if plan is None else list(_iter_completions(plan, hold, generation, batch)),
    }


def _iter_completions(plan: Plan, hold: Hold | None, generation: Generation, batch: int) -> Iterator[dict[str, Any]]:
    """Yield which sinks have their events of a batch, by the router's notes or the sinks themselves.

    ``has`` is None if that is unknown, for the reason in ``detail``.
    """
    for name in plan.routes.event_sinks:
        settings = plan.settings.sinks[name]
        has: bool | None = None
        if hold is not None and name in hold.taken:
            has, detail = True, "recorded by the router"
        elif settings.unknown_commit_reason:
            detail = settings.unknown_commit_reason
        else:
            try:
                sink = open_sink(name, settings, "events", plan.catalog, plan.create_frames())
                has = sink.has_commit(Commit(commit_app_id(generation.id, name), batch))
                detail = "" if has else "no commit of the batch; perhaps it has no records for this sink"
            except SinkError as error:
                detail = str(error)
        yield {"sink": name, "has": has, "detail": detail}


def _fetch_router_queries(settings: Settings) -> Mapping[str, Any] | None:
    """Return the queries of a router that runs with these settings, by its ``/readyz``; None if it does not respond."""
    try:
        answer = httpx.get(f"{metrics_address(settings.metrics)}/readyz", timeout=ANSWER_SECONDS, trust_env=False)
        queries: Mapping[str, Any] = answer.json()["queries"]
    except (RouterError, httpx.HTTPError, ValueError, LookupError, TypeError):
        return None
    return queries


def _iter_ranges(state: StateFolder, query: str, generation: Generation, batch: int) -> Iterator[dict[str, Any]]:
    """Yield the records of a batch by partition: from ``start`` (inclusive, None is unknown) to ``end`` (exclusive)."""
    starts, ends = bounds(generation, batch)
    if query == INBOX and "partitions" in ends:
        yield from _iter_inbox(state, starts, ends)
        return
    for topic, partitions in sorted(ends.items()):
        for number, end in sorted(partitions.items(), key=lambda item: int(item[0])):
            start = starts.get(topic, {}).get(number)
            known = start is not None and start >= 0
            if not known or end != start:
                place = {"source": f"{topic}-{number}", "start": str(start) if known else None, "end": str(end)}
                yield {**place, "records": end - start if known else None}


def _iter_inbox(state: StateFolder, starts: Mapping[str, Any], ends: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        view = InboxView(state.inbox)
        known = parse_offset(starts, view.layout.inbox) if starts else {}
        for number, end in parse_offset(ends, view.layout.inbox).items():
            # Nothing is removed before the first commit, so the first batch starts at the first row.
            start = known[number] if number in known else view.first_position(number)
            if start != end:
                first, last = (f"{each.segment}:{each.row}" for each in (start, end))
                place = {"source": f"inbox-{number}", "start": first, "end": last}
                yield {**place, "records": view.count_rows(number, start, end)}
    except (InboxError, OSError) as error:
        raise RouterError(f"the inbox of {state.root} cannot be read: {error}", hint="see the router's log") from error


def _print_batch(batch: Mapping[str, Any], config: Path) -> None:
    console = terminal(width=WIDE)
    count = "an unknown number of" if batch["records"] is None else str(batch["records"])
    console.print(to_text((batch["query"], "bold"), f" batch {batch['batch']}: {count} records, {batch['state']}"))
    console.print(f"  plan {batch['plan'] or 'none yet: nothing has been written'}, since {batch['since']}")
    for each in batch["ranges"]:
        console.print(f"  {each['source']}: {each['start'] or 'its beginning'} to {each['end']}")
    if batch["reason"]:
        console.print(f"  blocked: {batch['reason']}")
    if batch["sinks"]:
        table = Table("sink", "written", "")
        for each in batch["sinks"]:
            has = {True: "yes", False: "no", None: "unknown"}[each["has"]]
            table.add_row(each["sink"], has, each["detail"])
        console.print(table)
    if batch["parked"]:
        console.print("  will be moved to the dead letters")
    elif batch["reason"]:
        console.print(f"  to move it to the dead letters: xrouter batches park {config} {batch['query']}")
