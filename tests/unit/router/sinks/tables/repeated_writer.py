"""A process to be killed: writes batches 0, 1, 2 ... each twice, and says so on standard output."""

from __future__ import annotations

import sys

import pyarrow as pa

from router.settings.sinks.messages import JsonLinesSink, TableSink
from router.sinks import Commit, open_sink
from router.sinks.jsonlines import WIDE

ROWS = 50


def batch(version: int) -> pa.Table:
    rows = [{"id": f"{version}-{row}", "data": b'{"a": 1}', "extensions": [("n", "1")]} for row in range(ROWS)]
    return pa.Table.from_pylist(rows, schema=WIDE)


def main(kind: str, folder: str, batches: int) -> None:
    settings: TableSink | JsonLinesSink
    if kind == "jsonl":
        settings = JsonLinesSink(type="jsonl", path=folder)
    else:
        settings = TableSink(type="table", format="delta" if kind == "delta" else "parquet", path=folder)
    sink = open_sink("lake", settings, "events")
    for version in range(batches):
        for _ in range(2):
            sink.write(batch(version), Commit("generation/events", version))
        sys.stdout.write(f"{version}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
