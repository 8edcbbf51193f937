"""The demo: set up a folder, start the router, send messages, wait, stop the router, show the results."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
from deltalake import DeltaTable
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from catalog.load import load
from catalog.model import Catalog
from catalog.record import Record
from router.commands.emit.command import open_destination
from router.commands.emit.producer import MessageProducer, join_as_batch
from router.commands.top import ANSWER_SECONDS, POLL_SECONDS
from router.errors import RouterError
from router.sinks.jsonlines import format_instant
from router.sinks.tables.head import open_dataset
from router.terminal import Terminal, to_text

# ``xrouter run`` in a separate process, at ports that are free.

PATIENCE_SECONDS: Final = 300.0
"""How long the router may take to start (a first one may download connectors), to route all records, and to stop."""
LOG_NAME: Final = "router.log"
_ALLOWED: Final = frozenset({"XROUTER_CACHE", "XROUTER_MAVEN_REPOSITORY", "XROUTER_DEBUG"})
"""Variables that are not settings; all other ``XROUTER_...`` are removed, since they would change the demo."""


class RouterProcess:
    """A router that runs with *config*. ``http`` and ``metrics`` are the addresses of its gateway and ``/metrics``."""

    def __init__(self, config: Path) -> None:
        self._log = config.parent / LOG_NAME
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("XROUTER_") or name in _ALLOWED
        }
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            http, metrics = (str(each.getsockname()[1]) for each in (one, other))
        self.http, self.metrics = f"http://127.0.0.1:{http}", f"http://127.0.0.1:{metrics}/metrics"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "xrouter", "run", config.name],
                cwd=config.parent,
                env={**environ, "XROUTER_HTTP__PORT": http, "XROUTER_METRICS__PORT": metrics},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                # Ctrl-C reaches only this process, which then stops the router.
                start_new_session=True,
            )

    def fetch_samples(self) -> list[str]:
        """Return the lines of its metrics that the demo shows."""
        text = httpx.get(self.metrics, timeout=ANSWER_SECONDS, trust_env=False).raise_for_status().text
        return [line for line in text.split("\n") if line.startswith(SHOWN)]

    def count_routed(self) -> float:
        """Return how many records have an outcome."""
        return sum(float(line.rpartition(" ")[2]) for line in self.fetch_samples() if line.startswith(RECORDS))

    def wait_for(self, condition: Callable[[], bool], limit: float) -> bool:
        """Poll until the condition is true or *limit* seconds have passed; return whether it is true.

        Raises:
            RouterError: the router has exited; has its last error.
        """
        deadline = time.monotonic() + limit
        while not condition():
            if self._process.poll() is not None:
                raise self.make_error(f"the router ended with exit code {self._process.returncode}")
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def is_ready(self) -> bool:
        """Whether it listens and its queries run."""
        url = self.metrics.removesuffix("/metrics") + "/readyz"
        try:
            return httpx.get(url, timeout=ANSWER_SECONDS, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def find_in_log(self, sign: str) -> str:
        """Return the last line of its log with *sign*; empty when there is none."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line and sign in line), "")

    def make_error(self, what: str) -> RouterError:
        """Return an error with the last one of its log."""
        cause = self.find_in_log("xrouter: error: ") or self.find_in_log("") or "no output"
        hint = "`xrouter doctor` checks the requirements; `xrouter demo --keep FOLDER` keeps the log"
        return RouterError(f"{what}: {cause.removeprefix('xrouter: error: ')}", hint=hint)

    def stop(self) -> int:
        """Send SIGTERM, wait for the drain, and return the exit code; a router that hangs is killed."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


# What the demo sends: valid messages made by ``emit``, and some that must fail, each for a different reason.

ORDERS: Final = "/messagegroups/Market.Orders/messages/Market.Orders"
TILLS: Final = "/messagegroups/Market.Tills/messages/Market.Tills"
_BATCH: Final = 10
_ORDER: Final = {"store": "7", "order": "2026-{n}"}
_TILL: Final = {"store": "7", "till": "2", "receipt": "R{n}"}


class DemoStep(NamedTuple):
    """Requests of one kind. ``events`` is the number of records per request (a batch has several)."""

    title: str
    requests: Sequence[Record]
    events: int = 1

    @property
    def records(self) -> int:
        """How many records the router will receive."""
        return len(self.requests) * self.events


def make_steps(catalog: Catalog) -> Iterator[DemoStep]:
    """Yield what is sent, in order; always the same except for times."""

    def produced(message: str, count: int, context: Mapping[str, str], mode: str, endpoint: str) -> list[Record]:
        # A seed for each definition: from one seed all would have the same ids.
        seed = list(catalog.definitions).index(message)
        producer = MessageProducer(catalog, message, endpoint=endpoint, mode=mode, context=context, seed=seed)
        return list(producer.iter_records(count))

    shop, tills = "/endpoints/webshop", "/endpoints/tills"
    placed = produced(f"{ORDERS}.Placed", 126, _ORDER, "binary", shop)
    paid = produced(f"{ORDERS}.Paid", 83, _ORDER, "structured", shop)
    collected = produced(f"{ORDERS}.Collected", 60, _ORDER, "structured", shop)
    sales = produced(f"{TILLS}.Sale", 107, _TILL, "native", tills)
    batches = [join_as_batch(collected[at : at + _BATCH]) for at in range(0, len(collected), _BATCH)]
    yield DemoStep("CloudEvents, binary: orders placed", placed[:120])
    yield DemoStep("CloudEvents, structured: orders paid", paid[:80])
    yield DemoStep(f"CloudEvents, batches of {_BATCH}: orders collected", batches, _BATCH)
    yield DemoStep("plain HTTP: sales at a till", sales[:100])
    yield DemoStep("plain HTTP: drawers opened", produced(f"{TILLS}.DrawerOpened", 40, _TILL, "native", tills))
    unknown = {"ce-type": "com.example.market.order.returned"}
    yield DemoStep("to fail: an undeclared event type", [_set_headers(each, unknown) for each in placed[120:124]])
    yield DemoStep("to fail: CloudEvents without an id", [_set_headers(each, {"ce-id": None}) for each in placed[124:]])
    truncated = [replace(each, body=(each.body or b"")[: len(each.body or b"") // 2]) for each in paid[80:]]
    yield DemoStep("to fail: truncated events", truncated)
    refunds = [_change(each, path=str(each.native["path"]).replace("/sales", "/refunds")) for each in sales[100:]]
    yield DemoStep("to fail: an undeclared till message", refunds)


def _set_headers(record: Record, changes: Mapping[str, str | None]) -> Record:
    """Return the record with headers changed, or left out where the change is None."""
    kept = [each for each in record.native["headers"] if each["name"] not in changes]
    added = [{"name": name, "value": value} for name, value in changes.items() if value is not None]
    return _change(record, headers=[*kept, *added])


def _change(record: Record, **changes: Any) -> Record:
    return replace(record, native={**record.native, **changes})


# The report: tables, and the sum that proves that nothing was lost.

MAPPED: Final = "Market.Tills.Sale"
_DETAIL: Final = 100
CATALOG: Final = "market.xreg.json"
CONFIG: Final = "router.yaml"
RECORDS: Final = "xrouter_records_total"
SHOWN: Final = (RECORDS, "xrouter_gateway_acknowledged_total", "xrouter_catalog_definitions")
Row = Mapping[str, Any]


def _print_results(console: Terminal, sent: Sequence[DemoStep], events: Sequence[Row], letters: Sequence[Row]) -> None:
    """Write the tables: records sent, rows in the tables of events and dead letters."""
    rows = [(step.title, len(step.requests), step.records) for step in sent]
    rows.append(("total", sum(len(step.requests) for step in sent), sum(step.records for step in sent)))
    _print_table(console, "Records in", ("sent over HTTP, all answered 202", "requests", "records"), rows)
    written = Counter((row["message"].rsplit("/", 1)[-1], row["type"]) for row in events)
    title = "CloudEvents in the table data/events, by definition"
    _print_table(console, title, ("definition", "type", "rows"), [(*key, n) for key, n in sorted(written.items())])
    for row in [row for row in events if row["message"].endswith(MAPPED)][:1]:
        native = json.loads(row["native"])
        headers = {each["name"]: each.get("value") for each in native["headers"]}
        body = (row["data"] or b"").decode("utf-8", "replace")
        before = f"{native['method']} {native['path']}\nx-receipt: {headers.get('x-receipt')}\n\n{body}"
        event = {name: row[name] for name in ("id", "source", "type", "subject", "time", "datacontenttype")}
        event |= {"time": format_instant(row["time"]), "data": body}
        after = "\n".join(f"{name:<16}{value}" for name, value in event.items())
        title = "One plain HTTP message, before and after"
        _print_table(console, title, ("received", "as a CloudEvent"), [(before, after)])
    dead = Counter(
        (row["reason"], *_shorten_reason(row["detail"], json.loads(row["nearest"] or "[]"))) for row in letters
    )
    columns = ("reason", "why", "nearest definition", "letters")
    _print_table(console, "Dead letters in data/dead_letters", columns, [(*key, n) for key, n in sorted(dead.items())])


def _print_table(console: Terminal, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table)


def _shorten_reason(detail: str | None, nearest: list[dict[str, Any]]) -> tuple[str, str]:
    """Return why, in short, and the nearest definition: the first property that failed for it, else the detail."""
    near = nearest[0] if nearest else {}
    name = str(near.get("message", "")).rsplit("/", 1)[-1]
    for first in near.get("mismatches") or ():
        return f"{first['property']}: expected {first['expected']}, found {str(first['found'])[:_DETAIL]}", name
    return " ".join((detail or "").split())[:_DETAIL], name


def run_demo(console: Terminal, keep: Path | None = None) -> bool:
    """Run the demo and show it on *console*; return whether the counts add up.

    Everything is in a temporary folder that is removed, or in *keep*, which must be empty or new.

    Raises:
        RouterError: the router does not start or exits early, or *keep* is not empty.
    """
    with _demo_folder(keep) as folder:
        (folder / CATALOG).write_bytes((files("catalog") / "samples" / CATALOG).read_bytes())
        (folder / CONFIG).write_bytes((files("router.commands.demo") / CONFIG).read_bytes())
        steps = list(make_steps(load([folder / CATALOG])))
        console.print(to_text("Starting the router: ", ("xrouter run router.yaml", "bold"), " ..."))
        router = RouterProcess(folder / CONFIG)
        try:
            metrics = _run_steps(console, router, steps)
        finally:
            status = router.stop()
        events, letters = (_read_rows(folder / "data" / name) for name in ("events", "dead_letters"))
        _print_results(console, steps, events, letters)
        console.print(f"Metrics, from {router.metrics} while it ran:")
        for line in metrics:
            console.print(f"  {line}", soft_wrap=True)
        records = sum(step.records for step in steps)
        adds_up = records == len(events) + len(letters) and status == 0
        colour, word = ("green", "adds up") if adds_up else ("red", "DOES NOT ADD UP")
        total = f"{records} in = {len(events)} routed + {len(letters)} dead-lettered"
        console.print(to_text("\n", (f"{total}: {word}", f"{colour} bold")))
        if status != 0:
            console.print(to_text((f"The router exited with code {status}.", "red")))
        if keep is not None:
            console.print(f"\nSettings, tables and log are in {folder}. List the dead letters with")
            console.print(to_text((f"xrouter dead-letters list {folder / CONFIG}", "bold")))
    return adds_up


def _run_steps(console: Terminal, router: RouterProcess, steps: Sequence[DemoStep]) -> list[str]:
    """Send everything, wait for the outcomes, and return the metrics."""
    if not router.wait_for(router.is_ready, PATIENCE_SECONDS):
        raise router.make_error(f"the router was not ready after {PATIENCE_SECONDS:g} s")
    console.print(f"It listens for HTTP at {router.http} and serves metrics at {router.metrics}\n")
    columns = (TextColumn("{task.description:<52}"), BarColumn(bar_width=24), MofNCompleteColumn())
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as bar,
        open_destination(router.http, sys.stdout.buffer) as send,
    ):
        for step in steps:
            task = bar.add_task(step.title, total=len(step.requests))
            for request in step.requests:
                send(request)
                bar.advance(task)
            if not console.is_terminal:
                console.print(f"  sent {step.records:>4}  {step.title}")
    wanted = sum(step.records for step in steps)
    if not router.wait_for(lambda: router.count_routed() >= wanted, PATIENCE_SECONDS):
        cause = router.find_in_log('"level": "error"') or "the log has no error"
        few = f"Only {router.count_routed():g} of {wanted} records have an outcome: {cause}"
        console.print(to_text((few, "red")))
    return router.fetch_samples()


def _read_rows(table: Path) -> list[Row]:
    if not DeltaTable.is_deltatable(str(table)):
        return []
    return list(open_dataset(DeltaTable(str(table))).to_table().to_pylist())


@contextmanager
def _demo_folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="xrouter-demo-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        used = any(keep.iterdir())
    except OSError as error:
        raise RouterError(f"{keep} cannot be used: {error.strerror}", hint="use another folder") from error
    if used:
        raise RouterError(f"{keep} is not empty", hint="use a new folder, or empty it")
    yield keep.resolve()
