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
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

from deltalake import DeltaTable
from prometheus_client.parser import text_string_to_metric_families
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from catalog.load import load
from catalog.model import Catalog
from catalog.record import Record
from router.commands.emit.command import open_destination
from router.commands.emit.producer import MessageProducer, join_as_batch
from router.commands.top import ANSWER_SECONDS
from router.commands.wait import POLL_SECONDS
from router.errors import RouterError
from router.sinks.jsonlines import format_instant
from router.sinks.tables.head import open_dataset
from router.terminal import Terminal, to_text

# ``xrouter run`` in a separate process, at ports that are free.

PATIENCE_SECONDS: Final = 90.0
"""How long the router may take to start, to route all records, and to stop."""
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

    def fetch_samples(self) -> list[tuple[str, Mapping[str, str], float]]:
        """Return all samples of its metrics: name, labels, value."""
        with urlopen(self.metrics, timeout=ANSWER_SECONDS) as answer:
            text = answer.read().decode("utf-8")
        families = text_string_to_metric_families(text)
        return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]

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
        try:
            with urlopen(self.metrics.removesuffix("/metrics") + "/readyz", timeout=ANSWER_SECONDS) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
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


@dataclass(frozen=True, slots=True)
class DemoStep:
    """Requests of one kind. ``events`` is the number of records per request (a batch has several)."""

    title: str
    requests: tuple[Record, ...]
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
    yield DemoStep("CloudEvents, binary: orders placed", tuple(placed[:120]))
    yield DemoStep("CloudEvents, structured: orders paid", tuple(paid[:80]))
    yield DemoStep(f"CloudEvents, batches of {_BATCH}: orders collected", tuple(batches), _BATCH)
    yield DemoStep("plain HTTP: sales at a till", tuple(sales[:100]))
    yield DemoStep("plain HTTP: drawers opened", tuple(produced(f"{TILLS}.DrawerOpened", 40, _TILL, "native", tills)))
    unknown = {"ce-type": "com.example.market.order.returned"}
    yield DemoStep("to fail: an undeclared event type", tuple(_set_headers(each, unknown) for each in placed[120:124]))
    yield DemoStep(
        "to fail: CloudEvents without an id", tuple(_set_headers(each, {"ce-id": None}) for each in placed[124:])
    )
    yield DemoStep("to fail: truncated events", tuple(_truncate_body(each) for each in paid[80:]))
    refunds = tuple(_replace(each, path=str(each.native["path"]).replace("/sales", "/refunds")) for each in sales[100:])
    yield DemoStep("to fail: an undeclared till message", refunds)


def _set_headers(record: Record, changes: Mapping[str, str | None]) -> Record:
    """Return the record with headers changed, or left out where the change is None."""
    kept = [each for each in record.native["headers"] if each["name"] not in changes]
    added = [{"name": name, "value": value} for name, value in changes.items() if value is not None]
    return _replace(record, headers=[*kept, *added])


def _replace(record: Record, **changes: Any) -> Record:
    form = {**record.native, **changes}
    return replace(record, native=form)


def _truncate_body(record: Record) -> Record:
    body = record.body or b""
    return replace(record, body=body[: len(body) // 2])


# The results of the demo.

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The results: what was ``sent``, the rows of both tables, some metrics, and the router's exit code."""

    sent: tuple[DemoStep, ...]
    events: tuple[Row, ...]
    letters: tuple[Row, ...]
    metrics: tuple[tuple[str, Mapping[str, str], float], ...]
    metrics_address: str
    exit_code: int

    @property
    def records(self) -> int:
        """Records that the gateway acknowledged."""
        return sum(step.records for step in self.sent)

    @property
    def adds_up(self) -> bool:
        """Whether every record has exactly one outcome, and the router exited cleanly."""
        return self.records == len(self.events) + len(self.letters) and self.exit_code == 0


# The report: tables, and the sum that proves that nothing was lost.

MAPPED: Final = "Market.Tills.Sale"
_DETAIL: Final = 100


def print_report(console: Terminal, results: DemoResult) -> None:
    """Write the whole report."""
    sent = [(step.title, str(len(step.requests)), str(step.records)) for step in results.sent]
    sent.append(("total", str(sum(len(step.requests) for step in results.sent)), str(results.records)))
    _print_table(console, "Records in", ("sent over HTTP, all answered 202", "requests", "records"), sent)
    events = Counter((row["message"].rsplit("/", 1)[-1], row["type"]) for row in results.events)
    written: list[tuple[str, ...]] = [(*names, str(number)) for names, number in sorted(events.items())]
    title = "CloudEvents in the table data/events, by definition"
    _print_table(console, title, ("definition", "type", "rows"), written)
    _print_mapped(console, results)
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in results.letters:
        nearest = json.loads(row["nearest"] or "[]")
        name = str(nearest[0].get("message", "")).rsplit("/", 1)[-1] if nearest else ""
        counts[row["reason"], _shorten_reason(row["detail"], nearest), name] += 1
    rows = [(*names, str(number)) for names, number in sorted(counts.items())]
    columns = ("reason", "why", "nearest definition", "letters")
    _print_table(console, "Dead letters in data/dead_letters", columns, rows)
    console.print(f"Metrics, from {results.metrics_address} while it ran:")
    for name, labels, value in results.metrics:
        label_text = ",".join(f'{label}="{text}"' for label, text in labels.items() if text)
        console.print(f"  {name}{'{' + label_text + '}' if label_text else ''} {value:g}", soft_wrap=True)
    _print_sum(console, results)


def _print_table(console: Terminal, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_mapped(console: Terminal, results: DemoResult) -> None:
    row = next((row for row in results.events if row["message"].endswith(MAPPED)), None)
    if row is None:
        return
    native = json.loads(row["native"])
    headers = {each["name"]: each.get("value") for each in native.get("headers", ())}
    body = (row["data"] or b"").decode("utf-8", "replace")
    before = [f"{native.get('method')} {native.get('path')}", f"x-receipt: {headers.get('x-receipt')}", "", body]
    event = {name: row[name] for name in ("id", "source", "type", "subject", "time", "datacontenttype")}
    event |= {"time": format_instant(row["time"]), "data": body}
    sides = ("\n".join(before), "\n".join(f"{name:<16}{value}" for name, value in event.items()))
    _print_table(console, "One plain HTTP message, before and after", ("received", "as a CloudEvent"), [sides])


def _shorten_reason(detail: str | None, nearest: list[dict[str, Any]]) -> str:
    """Return why, in short: the first property that failed for the nearest definition, else the detail."""
    mismatches = nearest[0].get("mismatches") if nearest else None
    if mismatches:
        first = mismatches[0]
        value = str(first.get("found"))
        return f"{first.get('property')}: expected {first.get('expected')}, found {value[:_DETAIL]}"
    return " ".join((detail or "").split())[:_DETAIL]


def _print_sum(console: Terminal, results: DemoResult) -> None:
    routed, dead = len(results.events), len(results.letters)
    colour, word = ("green", "adds up") if results.adds_up else ("red", "DOES NOT ADD UP")
    total = f"{results.records} in = {routed} routed + {dead} dead-lettered"
    console.print(to_text("\n", (f"{total}: {word}", f"{colour} bold")))
    if results.exit_code != 0:
        console.print(to_text((f"The router exited with code {results.exit_code}.", "red")))


CATALOG: Final = "market.xreg.json"
CONFIG: Final = "router.yaml"
RECORDS: Final = "xrouter_records_total"
SHOWN: Final = (RECORDS, "xrouter_gateway_acknowledged_total", "xrouter_catalog_definitions")


def run_demo(console: Terminal, keep: Path | None = None) -> bool:
    """Run the demo and show it on *console*; return whether the counts add up.

    Everything is in a temporary folder that is removed, or in *keep*, which must be empty or new.

    Raises:
        RouterError: the router does not start or exits early, or *keep* is not empty.
    """
    with _demo_folder(keep) as folder:
        samples = files("catalog") / "samples"
        (folder / CATALOG).write_bytes((samples / CATALOG).read_bytes())
        (folder / CONFIG).write_bytes((files("router.commands.demo") / CONFIG).read_bytes())
        results = _collect_results(console, folder)
        print_report(console, results)
        if keep is not None:
            console.print(f"\nSettings, tables and log are in {folder}. List the dead letters with")
            console.print(to_text((f"xrouter dead-letters list {folder / CONFIG}", "bold")))
    return results.adds_up


def _collect_results(console: Terminal, folder: Path) -> DemoResult:
    planned = tuple(make_steps(load([folder / CATALOG])))
    console.print(to_text("Starting the router: ", ("xrouter run router.yaml", "bold"), " ..."))
    router = RouterProcess(folder / CONFIG)
    try:
        if not router.wait_for(router.is_ready, PATIENCE_SECONDS):
            raise router.make_error(f"the router was not ready after {PATIENCE_SECONDS:g} s")
        console.print(f"It listens for HTTP at {router.http} and serves metrics at {router.metrics}\n")
        _send_steps(console, router, planned)
        wanted = sum(step.records for step in planned)
        if not router.wait_for(lambda: _count_routed(router) >= wanted, PATIENCE_SECONDS):
            cause = router.find_in_log('"level": "error"') or "the log has no error"
            few = f"Only {_count_routed(router):g} of {wanted} records have an outcome: {cause}"
            console.print(to_text((few, "red")))
        metrics = tuple(sample for sample in router.fetch_samples() if sample[0] in SHOWN)
    finally:
        status = router.stop()
    data = folder / "data"
    return DemoResult(
        planned, _read_rows(data / "events"), _read_rows(data / "dead_letters"), metrics, router.metrics, status
    )


def _send_steps(console: Terminal, router: RouterProcess, planned: Sequence[DemoStep]) -> None:
    columns = (TextColumn("{task.description:<52}"), BarColumn(bar_width=24), MofNCompleteColumn())
    shown = console.is_terminal
    with (
        Progress(*columns, console=console, disable=not shown) as bar,
        open_destination(router.http, sys.stdout.buffer) as target,
    ):
        for step in planned:
            task = bar.add_task(step.title, total=len(step.requests))
            for request in step.requests:
                target.send(request)
                bar.advance(task)
            if not shown:
                console.print(f"  sent {step.records:>4}  {step.title}")


def _count_routed(router: RouterProcess) -> float:
    return sum(value for name, _, value in router.fetch_samples() if name == RECORDS)


def _read_rows(table: Path) -> tuple[Row, ...]:
    if not DeltaTable.is_deltatable(str(table)):
        return ()
    return tuple(open_dataset(DeltaTable(str(table))).to_table().to_pylist())


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
