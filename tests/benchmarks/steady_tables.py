"""``make bench-steady-tables``: fifty typed tables under a trigger of 500 ms, fed with 5,000 records a second.

A whole router takes a Kafka topic that is written to at a steady rate, and appends to a Delta table for each
definition, payloads as typed columns. Told are the backlog over time, batches, the latency from broker to commit, and
whether in the end every record is in its table once.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.machine import machine, options, say
from tests.benchmarks.streams import broker
from tests.support import load, plain
from tests.support.kafka import Sent, SteadySender, create_topics
from tests.support.router import RouterProcess
from tests.support.tables import column_of
from tests.support.waiting import wait_until

TOPIC: Final = "readings"
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


def record(number: int, definitions: int) -> Sent:
    """Return key, value and headers of a record."""
    body = {"n": number, "level": number / 8, "unit": "mm", "ok": number % 2 == 0, "at": "2026-01-02T03:04:05.678Z"}
    body |= {"tags": ["a", "b"], "place": {"hall": "north", "row": number % 9}, "note": None}
    headers = plain.kafka_headers(f"reading.{number % definitions}", number, "/hall", plain.JSON)
    return None, json.dumps(body).encode(), headers


def records(count: int, definitions: int) -> Iterator[Sent]:
    """Yield records of all definitions in turn."""
    return (record(number, definitions) for number in range(count))


def main() -> None:
    """Run the benchmark and print its figures."""
    chosen = options(__doc__, tables=50, rate=5_000, seconds=60)
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
        count = chosen.rate * chosen.seconds
        sender = SteadySender(bootstrap, TOPIC, records(count, chosen.tables), chosen.rate)
        sender.start()
        backlog: list[int] = []
        while sender.is_alive():
            sender.join(1.0)
            backlog.append(sender.sent - int(router.total("xrouter_records_total", outcome="routed")))
        ended = time.monotonic()
        done = lambda: router.total("xrouter_records_total", outcome="routed") >= sender.sent  # noqa: E731
        wait_until(done, CATCH_UP_SECONDS, "all records to be routed")
        caught_up = time.monotonic() - ended
        metrics = router.metrics()
    finally:
        router.stop()
    _report(chosen, backlog, caught_up, metrics, _found(folder / "lake", chosen.tables), sender.sent)


def _found(lake: Path, tables: int) -> tuple[int, int]:
    """Return rows and distinct numbers over all tables, by an independent reader."""
    rows = distinct = 0
    for number in range(tables):
        found = column_of(lake / f"readings/reading{number}", "payload.n")
        rows, distinct = rows + len(found), distinct + len(set(found))
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
