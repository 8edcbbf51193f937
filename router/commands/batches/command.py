"""``xrouter batches``: the batches that are begun and not finished, and setting aside one that can never be written."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from router.commands.arguments import OutputFormat
from router.errors import RouterError
from router.lazy import TidyCommand, TidyGroup
from router.terminal import WIDE, Terminal, say, say_json_lines, styled, terminal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.commands.batches.begun import OpenBatch, SinkCompletion
    from router.settings import Settings
    from router.state.state import StateFolder

batches_app = typer.Typer(
    name="batches",
    cls=TidyGroup,
    help="Batches that are begun and not finished.",
    no_args_is_help=True,
    add_completion=False,
)
Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file.")]


@batches_app.command(cls=TidyCommand)
def show(
    config: Config, format: Annotated[OutputFormat, typer.Option(help="How it is written out.")] = OutputFormat.text
) -> None:
    """Show the open batch of each query: what it holds, why it is held, and which sinks have it.

    Example: xrouter batches show router.yaml
    """
    from router.commands.batches.begun import open_batches, router_queries
    from router.settings import load_settings
    from router.state.state import StateFolder

    settings = load_settings(config)
    state = StateFolder.beside(Path(settings.state))
    running = router_queries(settings)
    batches = [_form(batch, settings, state, config, running) for batch in open_batches(state)]
    if format is OutputFormat.json:
        say_json_lines([{"running": running is not None, "batches": batches}])
        return
    _say("" if running is not None else "no router answers; this is what the last one left")
    for each in batches:
        _write(each, config)
    if not batches:
        _say("no batch is open")


@batches_app.command(cls=TidyCommand)
def park(
    config: Config,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The query, as `batches show` names it.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Set the open batch of a query aside: what its sinks do not have becomes dead letters, to be replayed later.

    A running router does so at its next try, else the next one when it starts.

    Example: xrouter batches park router.yaml main
    """
    from router.commands.batches.begun import open_batches, router_queries
    from router.commands.batches.begun import park as order
    from router.settings import load_settings
    from router.state.state import StateFolder

    settings = load_settings(config)
    state = StateFolder.beside(Path(settings.state))
    running = router_queries(settings)
    known = {batch.query: batch for batch in open_batches(state)}
    if query in known and running is not None and running.get(query, {}).get("state") == "running":
        hint = "beside a running router only a held batch can be set aside; `batches show` shows its state"
        raise RouterError(f"batch {known[query].batch} of {query} is being written", hint=hint)
    if query in known and not yes:
        _write(_form(known[query], settings, state, config, running), config)
        typer.confirm("Make dead letters of what its sinks do not have?", abort=True)
    batch = order(state, query)
    when = "at its next try" if running is not None else "when it is started"
    say(f"batch {batch.batch} of {query} will be set aside by the router {when}")


def _form(
    batch: OpenBatch, settings: Settings, state: StateFolder, config: Path, running: Mapping[str, Any] | None
) -> dict[str, Any]:
    query = (running or {}).get(batch.query, {})
    held = query.get("reason") or (batch.hold.reason if batch.hold else "")
    return {
        "query": batch.query,
        "batch": batch.batch,
        "plan": batch.plan,
        "since": batch.since.isoformat(timespec="seconds") if batch.since else None,
        "state": query.get("state") or ("held" if batch.hold else "begun"),
        "held_since": batch.hold.since if batch.hold else None,
        "reason": held,
        "parked": batch.park is not None,
        "records": batch.records,
        "ranges": [asdict(each) for each in batch.ranges],
        "sinks": [asdict(each) for each in _shares(batch, settings, state, config)],
    }


def _shares(batch: OpenBatch, settings: Settings, state: StateFolder, config: Path) -> list[SinkCompletion]:
    """Return which sinks have a batch, by the plan that it is pinned to; none has one that is not pinned."""
    from router.commands.batches.begun import shares
    from router.judging.plan import plan_of

    document = state.plan(batch.plan) if batch.plan else None
    if document is None:
        return []
    return shares(batch, plan_of(document, environ=os.environ, base=config.resolve().parent))


def _write(batch: Mapping[str, Any], config: Path) -> None:
    """Write one batch for people."""
    console = _console()
    count = "an unknown number of" if batch["records"] is None else str(batch["records"])
    console.print(styled((batch["query"], "bold"), f" batch {batch['batch']}: {count} records, {batch['state']}"))
    console.print(f"  plan {batch['plan'] or 'none yet: nothing of it has been written'}, since {batch['since']}")
    for each in batch["ranges"]:
        console.print(f"  {each['source']}: {each['start'] or 'its beginning'} to {each['end']}")
    if batch["reason"]:
        console.print(f"  held: {batch['reason']}")
    if batch["sinks"]:
        table = Table("sink", "has it", "")
        for each in batch["sinks"]:
            has = {True: "yes", False: "no", None: "not known"}[each["has"]]
            table.add_row(each["sink"], has, each["detail"])
        console.print(table)
    if batch["parked"]:
        console.print("  it is to be set aside")
    elif batch["reason"]:
        console.print(f"  to set it aside, as dead letters: xrouter batches park {config} {batch['query']}")


def _say(line: str) -> None:
    if line:
        _console().print(line)


def _console() -> Terminal:
    return terminal(width=WIDE)
