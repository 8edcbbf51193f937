"""The demo, step by step: set up a folder, start the router, send, wait, stop it, and show what came of it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from catalog.load import load
from router.commands.demo.process import RouterProcess, running
from router.commands.demo.report import show
from router.commands.demo.results import Results, Row
from router.commands.demo.traffic import Step, steps
from router.commands.emit.delivery import opened
from router.errors import RouterError
from router.sinks.tables.datasets import dataset_of
from router.terminal import Terminal, styled

CATALOG: Final = "market.xreg.json"
CONFIG: Final = "router.yaml"
ROUTE_SECONDS: Final = 60.0
RECORDS: Final = "xrouter_records_total"
SHOWN: Final = (RECORDS, "xrouter_gateway_acknowledged_total", "xrouter_catalog_definitions")


def demonstrate(console: Terminal, keep: Path | None = None) -> bool:
    """Run the demo and show it on *console*; return whether the sum is right.

    Everything lies in a temporary folder that is removed, or in *keep*, which must be empty or new.

    Raises:
        RouterError: the router does not start or ends early, or *keep* is in use.
    """
    with _folder(keep) as folder:
        samples = files("catalog") / "samples"
        (folder / CATALOG).write_bytes((samples / CATALOG).read_bytes())
        (folder / CONFIG).write_bytes((files("router.commands.demo") / CONFIG).read_bytes())
        results = _results(console, folder)
        show(console, results)
        if keep is not None:
            console.print(f"\nSettings, tables and log are in {folder}. See the letters one by one with")
            console.print(styled((f"xrouter dead-letters list {folder / CONFIG}", "bold")))
    return results.adds_up


def _results(console: Terminal, folder: Path) -> Results:
    planned = tuple(steps(load([folder / CATALOG])))
    with running(folder / CONFIG) as router:
        console.print(styled("Starting the router: ", ("xrouter run router.yaml", "bold"), " ..."))
        router.wait_ready()
        console.print(f"It takes HTTP at {router.http} and shows metrics at {router.metrics}\n")
        _send(console, router, planned)
        wanted = sum(step.records for step in planned)
        if not router.wait_for(lambda: _routed(router) >= wanted, ROUTE_SECONDS):
            cause = router.last_error() or "the log has no error"
            few = f"Only {_routed(router):g} of {wanted} records have an outcome: {cause}"
            console.print(styled((few, "red")))
        metrics = tuple(sample for sample in router.samples() if sample[0] in SHOWN)
        address = router.metrics
        status = router.stop()
    data = folder / "data"
    return Results(planned, _rows(data / "events"), _rows(data / "dead_letters"), metrics, address, status)


def _send(console: Terminal, router: RouterProcess, planned: Sequence[Step]) -> None:
    columns = (TextColumn("{task.description:<52}"), BarColumn(bar_width=24), MofNCompleteColumn())
    shown = console.is_terminal
    with (
        Progress(*columns, console=console, disable=not shown) as bar,
        opened(router.http, sys.stdout.buffer) as target,
    ):
        for step in planned:
            task = bar.add_task(step.title, total=len(step.requests))
            for request in step.requests:
                target.send(request)
                bar.advance(task)
            if not shown:
                console.print(f"  sent {step.records:>4}  {step.title}")


def _routed(router: RouterProcess) -> float:
    return sum(value for name, _, value in router.samples() if name == RECORDS)


def _rows(table: Path) -> tuple[Row, ...]:
    if not DeltaTable.is_deltatable(str(table)):
        return ()
    return tuple(dataset_of(DeltaTable(str(table))).to_table().to_pylist())


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        temporary = Path(tempfile.mkdtemp(prefix="xrouter-demo-"))
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        used = any(keep.iterdir())
    except OSError as error:
        raise RouterError(f"{keep} cannot be used: {error.strerror}", hint="name another folder") from error
    if used:
        raise RouterError(f"{keep} is not empty", hint="name a new folder, or empty it")
    yield keep.resolve()
