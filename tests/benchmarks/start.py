"""How long does a router take from its start to its first record out, and is its first batch warm? ``make bench-start``

*waiting* starts on a topic that holds records already; *first out* is when the broker has the first routed record.
*ready* starts on an empty topic: batches of 200 are sent once ``/readyz`` answers 200, each after the one before.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from tests.benchmarks.machine import machine, options, say
from tests.benchmarks.streams import broker
from tests.support import load, plain
from tests.support.kafka import create_topics, written
from tests.support.processes import below, processor_seconds
from tests.support.router import RouterProcess

BATCH: Final = 200
BATCHES: Final = 12
SECONDS: Final = 120.0
BROKER_TIME: Final = {"message.timestamp.type": "LogAppendTime"}


def main() -> None:
    """Run the benchmark and print its figures."""
    log = (False, "print the log of each router")
    chosen = options(__doc__, definitions=[1_500], rounds=3, log=log, trigger="0")
    say(machine())
    with broker() as (folder, bootstrap):
        for definitions in chosen.definitions:
            for number in range(chosen.rounds):
                _round(folder, bootstrap, f"start-{definitions}-{number}", definitions, chosen)


def _round(folder: Path, bootstrap: str, name: str, definitions: int, chosen: argparse.Namespace) -> None:
    for way in ("waiting", "ready"):
        topic = f"{name}-{way}"
        create_topics(bootstrap, [f"{topic}-in", f"{topic}-out", f"{topic}-dead"], 2, BROKER_TIME)
        router = RouterProcess(folder / topic, _settings(folder, bootstrap, topic, definitions, chosen.trigger))
        if way == "waiting":
            _send(bootstrap, topic, 0, definitions)
        began = time.monotonic()
        try:
            if way == "waiting":
                router.launch()
                _arrive(bootstrap, topic, 1)
            else:
                router.start()
            figures = f"{time.monotonic() - began:6.2f} s, {_cpu_seconds(router.pid):5.1f} s of CPU"
            say(f"{definitions:7,} definitions, {'first out' if way == 'waiting' else 'ready':9} {figures}")
            if way == "ready":
                took = [_batch(bootstrap, topic, router, number, definitions) for number in range(BATCHES)]
                say("        batches of 200, ms of time and of CPU: " + ", ".join(took))
        finally:
            router.stop()
        if chosen.log:
            say(router.log)


def _batch(bootstrap: str, topic: str, router: RouterProcess, number: int, definitions: int) -> str:
    time.sleep(0.3)
    began, cpu = time.monotonic(), _cpu_seconds(router.pid)
    _send(bootstrap, topic, number * BATCH, definitions)
    _arrive(bootstrap, topic, (number + 1) * BATCH)
    return f"{1000 * (time.monotonic() - began):.0f}/{1000 * (_cpu_seconds(router.pid) - cpu):.0f}"


def _cpu_seconds(pid: int) -> float:
    """Return the CPU of a process and all below it, those that ended included."""
    return processor_seconds(below(pid))


def _arrive(bootstrap: str, topic: str, count: int) -> None:
    deadline = time.monotonic() + SECONDS
    while written(bootstrap, f"{topic}-out", f"{topic}-dead") < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"records of {topic} did not arrive")
        time.sleep(0.005)


def _send(bootstrap: str, topic: str, start: int, definitions: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for key, value, headers in load.records(BATCH, definitions, start=start):
        producer.produce(f"{topic}-in", value, key, headers=list(headers))
    producer.flush(SECONDS)


def _settings(folder: Path, bootstrap: str, topic: str, definitions: int, trigger: str) -> dict[str, Any]:
    path = plain.write(folder, load.catalog(definitions, topic=f"{topic}-in"), f"{topic}.json")
    sinks = plain.topics(bootstrap, bus=f"{topic}-out", dead=f"{topic}-dead")
    more = {"start": "earliest", "trigger": trigger, "log": {"level": "debug"}, "spark": load.MEASURED}
    return load.settings(bootstrap, path, sinks, **more)


if __name__ == "__main__":
    main()
