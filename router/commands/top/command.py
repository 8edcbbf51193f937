"""``xrouter top``: the figures of the status page, live in a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from router.commands.arguments import OutputFormat
from router.commands.top.client import (
    Count,
    EndpointStatus,
    FlowStatus,
    Query,
    Sink,
    StatusClient,
    StatusFigures,
    StatusResponse,
    status_client,
)
from router.errors import RouterError
from router.settings import load_settings
from router.terminal import Terminal, counted, say_row, styled, terminal, write_document

# What ``xrouter top`` shows: tables that fit a terminal, or rows for programs.

LONGEST_STEPS: Final = 3
"""Steps of a batch that are named."""
_LINES_BESIDE: Final = 15
"""Lines that are no rows: what is above the tables, their heads, and the gaps between them."""
_LEAST_ROWS: Final = 3
_LEAST_NAME: Final = 24
Row = tuple[str, ...]
_HEADS: Final[dict[str, Row]] = {
    "endpoint": ("endpoint", "protocol", "routed/s", "dead/s", "waits", "oldest"),
    "definition": ("definition", "records/s", "records"),
    "sink": ("sink", "type", "written", "failed", "rejected", "holds"),
    "query": ("query", "state", "batch", "now", "last batch"),
}
_NUMBERS: Final = frozenset(
    {"routed/s", "dead/s", "waits", "oldest", "records/s", "records", "written", "failed", "rejected"}
)


def screen(status: StatusFigures, address: str, size: ConsoleDimensions, problem: str = "") -> RenderableType:
    """Return the whole picture for a terminal of that size; *problem* is why it is not of now."""
    rows = dict(_rows(status))
    room = size.height - _LINES_BESIDE - len(status.reasons) - len(rows["sink"]) - len(rows["query"])
    shown = {
        "endpoint": max(_LEAST_ROWS, min(len(rows["endpoint"]), room // 2)),
        "definition": max(_LEAST_ROWS, room - min(len(rows["endpoint"]), room // 2)),
    }
    parts: list[RenderableType] = [*_head(status, address, problem)]
    for kind, given in rows.items():
        if given:
            chosen = given[: shown.get(kind, len(given))]
            parts += [Text(""), _table(_HEADS[kind], chosen, size.width)]
    return Group(*parts)


def lines(status: StatusFigures) -> Iterator[Row]:
    """Yield the same as rows for programs, the kind of each first."""
    yield "router", "ready" if status.ready else "not ready", status.router.version, f"{status.router.seconds}"
    yield "catalog", status.catalog.epoch or "-", f"{status.catalog.definitions}"
    yield "inbox", _number(status.inbox.records)
    for reason in status.reasons:
        yield "reason", reason
    for kind, rows in _rows(status):
        for row in rows:
            yield kind, *row


def _head(status: StatusFigures, address: str, problem: str) -> Iterator[RenderableType]:
    ready = ("ready", "green") if status.ready else ("not ready", "bold red")
    yield styled(f"xrouter {status.router.version} at {address}, up {_age(status.router.seconds)}, ", ready)
    catalog = f"catalog {status.catalog.epoch or '-'}, {counted(status.catalog.definitions, 'definition')}"
    if status.catalog.refused_findings:
        yield styled(catalog, (f"; a newer one is refused: {counted(status.catalog.refused_findings, 'error')}", "red"))
    elif status.catalog.held:
        yield styled(catalog, (f"; a newer one waits: {status.catalog.held}", "yellow"))
    else:
        yield styled(catalog)
    if status.inbox.records is not None:
        oldest = f", the oldest for {_age(status.inbox.oldest_seconds)}" if status.inbox.oldest_seconds else ""
        yield styled(f"inbox: {counted(status.inbox.records, 'record')} waiting{oldest}")
    for reason in status.reasons:
        yield styled((reason, "red"))
    if problem:
        yield styled((problem, "bold red"))


def _rows(status: StatusFigures) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows of each table; the router gives the busiest first."""
    flow = status.flow or FlowStatus([], [], [])
    yield "endpoint", [_endpoint(each) for each in flow.endpoints]
    yield "definition", [(each.definition, _rate(each.rate), f"{each.records:,}") for each in flow.definitions]
    yield "sink", [_sink(each) for each in flow.sinks]
    yield "query", [_query(name, each) for name, each in status.queries.items()]


def _endpoint(each: EndpointStatus) -> Row:
    waits = "inbox" if each.pushed and each.lag is None else _number(each.lag)
    oldest = "" if not each.oldest_seconds else _age(each.oldest_seconds)
    return each.endpoint, each.protocol or "-", _of(each.routed), _of(each.dead_letters), waits, oldest


def _number(value: int | None) -> str:
    """Return a number; what is not known is no 0."""
    return "?" if value is None else f"{value:,}"


def _sink(each: Sink) -> Row:
    writes = (f"{each.writes.get(result, 0):,}" for result in ("ok", "error", "rejected"))
    return each.sink, each.type, *writes, ", ".join(each.holds)


def _query(name: str, each: Query) -> Row:
    now, last = "idle", "-"
    if each.time is not None and each.time.now is not None:
        now = f"{each.time.now.step} for {each.time.now.step_seconds:.1f} s"
    if each.time is not None and each.time.last is not None:
        steps = sorted(each.time.last.steps, key=lambda step: -step.seconds)[:LONGEST_STEPS]
        longest = ", ".join(f"{step.step} {step.seconds:.2f}" for step in steps)
        last = f"{counted(each.time.last.records, 'record')} in {each.time.last.seconds:.2f} s ({longest})"
    return name, each.state, "-" if each.batch is None else f"{each.batch}", now, last


def _table(head: Row, rows: Sequence[Row], width: int) -> Table:
    """Return rows as a table; of names too long for the first column the ends are shown, since they differ there."""
    table = Table(box=None, pad_edge=False, expand=False, header_style="bold")
    beside = sum(max(len(row[place]) for row in (head, *rows)) for place in range(1, len(head)))
    longest = max(_LEAST_NAME, width - beside - 2 * len(head))
    for name in head:
        number = name in _NUMBERS
        table.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for name, *others in rows:
        table.add_row(name if len(name) <= longest else f"…{name[1 - longest :]}", *others)
    return table


def _of(count: Count) -> str:
    return _rate(count.rate)


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def _age(seconds: float) -> str:
    """Return a span as people say it, by its two largest units."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def top(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings of the router that runs on this machine.")],
    every: Annotated[float, typer.Option("--every", min=0.5, max=3600, metavar="SECONDS", help="Between looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, as where the output is no terminal.")] = False,
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` is /status.json as it is.")] = (
        OutputFormat.text
    ),
) -> None:
    """Show what flows in a running router, what waits and why, until Ctrl-C.

    Asks the port of `metrics` (deploy/STATUS.md), as the status page does. Where the output is no terminal, one look is
    written as rows, the kind of each first.

    Example: xrouter top router.yaml
    """
    with status_client(load_settings(config)) as client:
        console = terminal()
        answer = client.ask()
        if format is OutputFormat.json:
            write_document(answer.document)
        elif once or not console.is_terminal:
            for row in lines(answer.status):
                say_row(row)
        else:
            _watch(client, console, answer, every)


def _watch(client: StatusClient, console: Terminal, answer: StatusResponse, every: float) -> None:
    """Show what the router says, again and again; while it does not answer, what it last said, and that."""
    problem = ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(answer.status, client.address, console.size, problem), refresh=True)
            try:
                time.sleep(every)
            except KeyboardInterrupt:
                return
            try:
                answer, problem = client.ask(), ""
            except KeyboardInterrupt:
                return
            except RouterError as error:
                problem = f"{error.message}; what follows is what it said before"
