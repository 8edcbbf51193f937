"""``xrouter batches``: show unfinished batches, and move one that can never be written to the dead letters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from router.commands.arguments import ConfigArgument, OutputFormat, Yes
from router.commands.batches.unfinished import (
    UnfinishedBatch,
    fetch_router_queries,
    find_sink_completions,
    list_unfinished_batches,
    order_parking,
)
from router.errors import RouterError
from router.evaluation.plan import compile_plan
from router.settings import load_settings
from router.state.state import StateFolder
from router.terminal import WIDE, print_json_lines, print_text, terminal, to_text


def show(config: ConfigArgument, format: Annotated[OutputFormat, typer.Option(help="Output format.")] = "text") -> None:
    """Show the unfinished batch of each query: its records, why it is blocked, and which sinks have it.

    Example: xrouter batches show router.yaml
    """
    settings = load_settings(config)
    live_queries = fetch_router_queries(settings)
    with StateFolder.beside(Path(settings.state)) as state:
        batches = [_batch_to_json(each, state, config, live_queries) for each in list_unfinished_batches(state)]
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
        live_queries = fetch_router_queries(settings)
        known = {batch.query: batch for batch in list_unfinished_batches(state)}
        if query in known and live_queries is not None and live_queries.get(query, {}).get("state") == "running":
            hint = "while a router is running, only a blocked batch can be moved; see `batches show`"
            raise RouterError(f"batch {known[query].batch} of {query} is being written", hint=hint)
        if query in known and not yes:
            _print_batch(_batch_to_json(known[query], state, config, live_queries), config)
            typer.confirm("Move what its sinks do not have to the dead letters?", abort=True)
        batch = order_parking(state, query)
    when = "at its next attempt" if live_queries is not None else "at its next start"
    print_text(f"the router will move batch {batch.batch} of {query} to the dead letters {when}")


def _batch_to_json(
    batch: UnfinishedBatch, state: StateFolder, config: Path, running: Mapping[str, Any] | None
) -> dict[str, Any]:
    query = (running or {}).get(batch.query, {})
    reason = query.get("reason") or (batch.hold.reason if batch.hold else "")
    # Its pinned plan says which sinks there are.
    document = state.batches.plan(batch.plan) if batch.plan else None
    plan = None if document is None else compile_plan(document, environ=os.environ, base=config.resolve().parent)
    return {
        "query": batch.query,
        "batch": batch.batch,
        "plan": batch.plan,
        "since": batch.since.isoformat(timespec="seconds") if batch.since else None,
        "state": query.get("state") or ("held" if batch.hold else "begun"),
        "held_since": batch.hold.since if batch.hold else None,
        "reason": reason,
        "parked": batch.park is not None,
        "records": batch.records,
        "ranges": list(batch.ranges),
        "sinks": [] if plan is None else find_sink_completions(batch, plan),
    }


def _print_batch(batch: Mapping[str, Any], config: Path) -> None:
    """Print one batch as text."""
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
