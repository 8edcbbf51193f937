"""``make bench-steady-tables``: fifty typed tables under a trigger of 500 ms, fed with 5,000 records a second.

A whole router takes a Kafka topic that is written to at a steady rate, and appends to a Delta table for each
definition, payloads as typed columns. Told are the backlog over time, batches, the latency from broker to commit, and
whether in the end every record is in its table once. With ``--looks`` it also tells, each so many seconds, what the
processes hold (memory, descriptors), what the tables are made of, and how long batches took since.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
from confluent_kafka import Producer
from deltalake import DeltaTable

from tests.benchmarks.machine import machine, options, say
from tests.benchmarks.streams import broker
from tests.support import load, plain
from tests.support.kafka import create_topics
from tests.support.processes import below
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

TOPIC: Final = "readings"
TICK: Final = 0.02
CATCH_UP_SECONDS: Final = 120.0
_FIELDS: Final = {
    "n": {"type": "integer"},
    "level": {"type": "number"},
    "unit": {"type": "string"},
    "ok": {"type": "boolean"},
    "at": {"type": "string", "format": "date-time"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "place": {"type": "object", "properties": {"hall": {"type": "string"}, "row": {"type": "integer"}}},
    "note": {"type": ["string", "null"]},
}


def catalog(definitions: int, bootstrap: str, topic: str = TOPIC) -> dict[str, Any]:
    """Return a catalog of CloudEvents, told apart by type, each with a JSON Schema of eight members."""
    messages = {
        f"reading{number}": plain.event(
            f"reading.{number}",
            dataschemaformat="JSONSchema/draft-07",
            dataschema={"type": "object", "properties": _FIELDS, "required": ["n"]},
        )
        for number in range(definitions)
    }
    hall = plain.endpoint("KAFKA", {"topic": topic}, "readings", uri=bootstrap)
    return plain.catalog({"hall": hall}, readings=messages)


def record(number: int, definitions: int) -> tuple[None, bytes, list[tuple[str, bytes | None]]]:
    """Return key, value and headers of a record."""
    body = {"n": number, "level": number / 8, "unit": "mm", "ok": number % 2 == 0, "at": "2026-01-02T03:04:05.678Z"}
    body |= {"tags": ["a", "b"], "place": {"hall": "north", "row": number % 9}, "note": None}
    headers = plain.kafka_headers(f"reading.{number % definitions}", number, "/hall", plain.JSON)
    return None, json.dumps(body).encode(), list(headers)


def records(count: int, definitions: int) -> Iterator[tuple[None, bytes, list[tuple[str, bytes | None]]]]:
    """Yield records of all definitions in turn."""
    return (record(number, definitions) for number in range(count))


class Sender(threading.Thread):
    """Sends at a steady rate for some seconds; ``sent`` counts what left."""

    def __init__(self, bootstrap: str, definitions: int, rate: int, seconds: float, topic: str = TOPIC) -> None:
        super().__init__(name="sender", daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._definitions = definitions
        self._rate = rate
        self._seconds = seconds
        self._topic = topic
        self.sent = 0

    def run(self) -> None:
        """Send; a tick that comes late sends what it owes."""
        began = time.monotonic()
        for tick in itertools.count(1):
            due = min(tick * TICK, self._seconds)
            while self.sent < int(due * self._rate):
                self._send(self.sent)
                self.sent += 1
            self._producer.poll(0)
            if due >= self._seconds:
                break
            time.sleep(max(0.0, began + due - time.monotonic()))
        self._producer.flush(30)

    def _send(self, number: int) -> None:
        _, body, headers = record(number, self._definitions)
        self._producer.produce(self._topic, body, headers=list(headers))


def main() -> None:
    """Run the benchmark and print its figures."""
    chosen = options(__doc__, tables=50, rate=5_000, seconds=60, looks=0)
    with broker() as (folder, bootstrap):
        create_topics(bootstrap, [TOPIC], partitions=4)
        _measure(chosen, folder, bootstrap)


def _measure(chosen: argparse.Namespace, folder: Path, bootstrap: str) -> None:
    document = plain.write(folder, catalog(chosen.tables, bootstrap))
    sinks = plain.tables(folder, "lake", layout="definition") | plain.tables(folder, "dead")
    more = {"sources": [{"endpoint": "/endpoints/hall"}], "trigger": "500ms", "spark": load.MEASURED}
    router = RouterProcess(folder / "router", plain.routed(document, sinks, **more))
    router.start()
    try:
        sender = Sender(bootstrap, chosen.tables, chosen.rate, chosen.seconds)
        sender.start()
        backlog: list[int] = []
        looks = Looks(router, folder / "lake", chosen.looks)
        while sender.is_alive():
            sender.join(1.0)
            looks.look()
            backlog.append(sender.sent - int(router.total("xrouter_records_total", outcome="routed")))
        ended = time.monotonic()
        done = lambda: router.total("xrouter_records_total", outcome="routed") >= sender.sent  # noqa: E731
        wait_until(done, CATCH_UP_SECONDS, "all records to be routed")
        caught_up = time.monotonic() - ended
        metrics = router.metrics()
    finally:
        router.stop()
    _report(chosen, backlog, caught_up, metrics, _found(folder / "lake", chosen.tables), sender.sent)


class Looks:
    """What a router and its tables hold, told each so many *seconds*; nothing with 0."""

    def __init__(self, router: RouterProcess, lake: Path, seconds: int) -> None:
        self._router = router
        self._lake = lake
        self._seconds = seconds
        self._began = self._last = time.monotonic()
        self._batches = (0.0, 0.0)

    def look(self) -> None:
        """Tell it, if it is time."""
        now = time.monotonic()
        if not self._seconds or now - self._last < self._seconds:
            return
        self._last = now
        pids = below(self._router.pid)
        memory = sum(map(_resident, pids)) / 2**20
        descriptors = sum(map(_descriptors, pids))
        tables = [log.parent for log in self._lake.rglob("_delta_log")]
        live = sum(len(DeltaTable(table).file_uris()) for table in tables)
        kept = sum(1 for table in tables for _ in table.rglob("*.parquet"))
        entries = sum(1 for table in tables for _ in (table / "_delta_log").glob("*.json"))
        metrics = self._router.metrics()
        count, seconds = (
            sum(value for name, value in metrics.items() if name.startswith(f"xrouter_batch_seconds_{each}"))
            for each in ("count", "sum")
        )
        batches, took = count - self._batches[0], seconds - self._batches[1]
        self._batches = (count, seconds)
        say(
            f"{now - self._began:5.0f} s: {memory:.0f} MiB, {descriptors} descriptors; {live} files in tables, "
            f"{kept} with replaced ones, {entries} entries; {batches:.0f} batches of {took / max(1, batches):.2f} s"
        )


def _resident(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _found(lake: Path, tables: int) -> tuple[int, int]:
    """Return rows and distinct numbers over all tables, by an independent reader."""
    rows = distinct = 0
    for number in range(tables):
        files = [uri.removeprefix("file://") for uri in DeltaTable(lake / f"readings/reading{number}").file_uris()]
        told = duckdb.execute("select count(*), count(distinct payload.n) from read_parquet(?)", [files]).fetchone()
        rows, distinct = rows + (told or (0, 0))[0], distinct + (told or (0, 0))[1]
    return rows, distinct


def _report(
    chosen: argparse.Namespace,
    backlog: list[int],
    caught_up: float,
    metrics: dict[str, float],
    found: tuple[int, int],
    sent: int,
) -> None:
    batches = sum(value for name, value in metrics.items() if name.startswith("xrouter_batch_seconds_count"))
    seconds = sum(value for name, value in metrics.items() if name.startswith("xrouter_batch_seconds_sum"))
    late = sum(value for name, value in metrics.items() if name.startswith("xrouter_record_latency_seconds_sum"))
    settled = sorted(backlog[len(backlog) // 4 :])
    lines = [
        f"{chosen.tables} tables, {chosen.rate} records/s for {chosen.seconds} s; {machine()}",
        f"batches {batches:.0f}, mean {seconds / max(1, batches):.2f} s; mean latency {late / max(1, sent):.2f} s",
        f"backlog after the first quarter: median {settled[len(settled) // 2]}, most {settled[-1]}, last {backlog[-1]}",
        f"caught up {caught_up:.1f} s after the last record",
        f"sent {sent}, rows found in files {found[0]}, distinct {found[1]}",
    ]
    say("\n".join(lines))


if __name__ == "__main__":
    main()
