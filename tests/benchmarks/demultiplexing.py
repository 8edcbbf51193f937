"""``make bench-demultiplexing``: a topic into typed tables by ``xrouter.spark``, beside CASE WHEN and ``xrouter run``.

Each way is a program in an environment of its own, started anew: the library from its wheel with Spark 3.5 and with
the installed one, the same by hand with each Spark, and ``xrouter run --once``. All write a table for each message
group, with the payload as columns, and one of dead letters: Parquet, of the service Delta. Seconds and processor time
are those of the whole program, from its start to its end; so divide no small number of records by them.

A figure counts only if the tables have the rows that the load wants. A program that has not ended after ``--limit``
seconds is stopped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

import duckdb
import yaml
from confluent_kafka.admin import AdminClient

from router.spark.connectors import fetch_jars
from tests.benchmarks.machine import machine, options, say
from tests.benchmarks.streams import broker
from tests.support import load, plain
from tests.support.kafka import create_topics, produce
from tests.support.ports import free_ports
from tests.support.processes import below, processor_seconds
from tests.support.spark_versions import INSTALLED, SparkProgram, build_wheel

HERE: Final = Path(__file__).resolve().parent
PARTITIONS: Final = 4
TOPIC: Final = "plant"
CONF: Final = {"spark.master": "local[*]", "spark.driver.memory": "3g"}
SCHEMA: Final = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "want": {"type": "string"}, "pad": {"type": "string"}},
}
_PAUSE_SECONDS: Final = 0.2
Start = Callable[[Path, IO[str]], subprocess.Popen[bytes]]
"""Starts a way that writes below a folder, with a file for what it says."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What a way took; *fault* says how it ended, if not well."""

    seconds: float
    cpu: float
    fault: str


def typed_catalog(definitions: int, bootstrap: str) -> dict[str, Any]:
    """Return the catalog of the load, with a schema for each definition."""
    catalog = load.catalog(definitions, topic=TOPIC)
    for group in catalog["messagegroups"].values():
        for message in group["messages"].values():
            message |= {"dataschemaformat": "JsonSchema/draft-07", "dataschema": SCHEMA}
    catalog["endpoints"][TOPIC]["protocoloptions"]["endpoints"] = [{"uri": bootstrap}]
    return catalog


def ways(folder: Path, bootstrap: str, catalog: Path, chosen: list[str]) -> dict[str, Start]:
    """Return the ways by name."""
    wheel = build_wheel(folder / "wheel")
    found: dict[str, Start] = {}
    for version in chosen:
        program = SparkProgram.create(version, wheel, folder / f"spark-{version}")
        jars = program.jars or fetch_jars()
        program = replace(program, executors=program.python, jars=jars)
        for name in ("library", "hand"):
            file = HERE / f"typed_by_{name}.py"

            def start(
                out: Path, log: IO[str], program: SparkProgram = program, file: Path = file
            ) -> subprocess.Popen[bytes]:
                return program.start(file, bootstrap, catalog, TOPIC, out, conf=CONF, cwd=out, log=log)

            found[f"by {name}, Spark {version}"] = start
    return {**found, "xrouter run --once": lambda out, log: start_router(out, log, bootstrap, catalog)}


def start_router(out: Path, log: IO[str], bootstrap: str, catalog: Path) -> subprocess.Popen[bytes]:
    """Start the router over the topic, with tables as the others have them."""
    sinks = plain.tables(out, "messagegroups", layout="definition", table="{messagegroup}") | plain.tables(out, "dead")
    more = {"metrics": {"port": free_ports(1)[0]}, "state": f"{out}/state"}
    settings = load.settings(bootstrap, catalog, sinks, **more)
    (out / "router.yaml").write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "xrouter", "run", str(out / "router.yaml"), "--once"]
    return subprocess.Popen(command, cwd=HERE.parents[1], stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def measure(start: Start, out: Path, limit: float) -> Figure:
    """Run a way to its end."""
    out.mkdir(parents=True)
    began, cpu = time.monotonic(), 0.0
    with (out / "log").open("w") as log:
        process = start(out, log)
        while process.poll() is None and time.monotonic() - began < limit:
            cpu = max(cpu, processor_seconds(below(process.pid)))
            time.sleep(_PAUSE_SECONDS)
        seconds, ended = time.monotonic() - began, process.poll() is not None
        if not ended:
            process.terminate()
            process.wait()
    return Figure(seconds, cpu, "" if ended and not process.returncode else "failed" if ended else "stopped")


def rows_of(out: Path) -> dict[str, int]:
    """Return how many rows there are with a payload, and of dead letters."""
    typed, dead = [str(each) for each in out.glob("messagegroups/**/*.parquet")], f"{out}/dead/**/*.parquet"
    counted = "select count(payload.n) from read_parquet(?, union_by_name=true)"
    routed = duckdb.execute(counted, [typed]).fetchone() or (0,)
    lost = duckdb.execute("select count(*) from read_parquet(?)", [dead]).fetchone() or (0,)
    return {"routed": routed[0], "dead": lost[0]}


def main() -> None:
    """Run the benchmark and print its figures."""
    limit = (300.0, "seconds after which a program is stopped")
    chosen = options(__doc__, records=1_000_000, definitions=[50, 1_500], sparks=["3.5", INSTALLED], limit=limit)
    say(machine())
    with broker() as (folder, bootstrap):
        for definitions in chosen.definitions:
            _measure_all(folder / str(definitions), bootstrap, definitions, chosen)


def _measure_all(folder: Path, bootstrap: str, definitions: int, chosen: argparse.Namespace) -> None:
    folder.mkdir()
    catalog = plain.write(folder, typed_catalog(definitions, bootstrap))
    create_topics(bootstrap, [TOPIC], PARTITIONS)
    produce(bootstrap, TOPIC, load.records(chosen.records, definitions))
    wanted = {"routed": chosen.records - chosen.records // 50, "dead": chosen.records // 50}
    base: Figure | None = None
    for name, start in ways(folder, bootstrap, catalog, chosen.sparks).items():
        out = folder / "out" / name.replace(" ", "-")
        figure = measure(start, out, chosen.limit)
        base = base or figure
        told = figure.fault
        if not told:
            rows = rows_of(out)
            told = "the same rows" if rows == wanted else f"differs: {rows}"
        say(_line(name, definitions, chosen.records, figure, base) + f" | {told} |")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([TOPIC])[TOPIC].result(60)


def _line(name: str, definitions: int, records: int, figure: Figure, base: Figure) -> str:
    rate = f"{records / figure.seconds:,.0f}" if not figure.fault else "-"
    ratio = f"{figure.seconds / base.seconds:.2f}, {figure.cpu / base.cpu:.2f}" if not figure.fault else "-"
    cpu = f"{figure.cpu / records * 1e6:.1f}"
    return f"| {name} | {definitions:,} | {figure.seconds:.0f} | {rate} | {cpu} | {ratio}"


if __name__ == "__main__":
    main()
