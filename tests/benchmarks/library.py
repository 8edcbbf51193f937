"""``make bench-library``: how long one record takes in ``xrouter``'s ``match``, of each protocol, and importing it.

The catalog has CloudEvents told by type and source, and native messages of every protocol told by templates. Every
record is matched in turn with different values, so that no cache knows its texts. A figure is the median over rounds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import xrouter
from tests.benchmarks.machine import machine, options, say

DEFINITIONS: Final = 1_500
_TEMPLATES: Final = {
    "KAFKA": {"topic": "beds{n}", "key": "bed{n}/{bed}"},
    "MQTT/5.0": {"topic_name": "garden/{bed}/area{n}"},
    "MQTT/3.1.1": {"topic_name": "shed/{bed}/area{n}"},
    "AMQP/1.0": {"properties.to": "beds/{bed}/area{n}"},
    "NATS": {"subject": "beds.{bed}.area{n}"},
    "HTTP": {"path": "/beds/{bed}/area{n}", "method": "POST"},
}
"""Per protocol the options that tell its native messages, ``{n}`` being the number of the definition."""


def catalog_of(count: int) -> dict[str, Any]:
    """Return a catalog of *count* definitions, half of them events of one protocol each, half native messages."""
    return {"messagegroups": {"bench": {"messages": {f"m{each}": _definition(each) for each in range(count)}}}}


def _definition(number: int) -> dict[str, Any]:
    half, native = divmod(number, 2)
    protocol = list(_TEMPLATES)[half % len(_TEMPLATES)]
    if native:
        options = {
            name: {"type": "uritemplate" if "{bed}" in value else "string", "value": value.replace("{n}", str(number))}
            for name, value in _TEMPLATES[protocol].items()
        }
        nested = {"properties": {"to": options["properties.to"]}} if protocol == "AMQP/1.0" else options
        return {"protocol": protocol, "protocoloptions": nested}
    attributes = {
        "type": {"value": f"garden.moisture.{number}"},
        "source": {"type": "uritemplate", "value": f"/areas/{number}/{{bed}}"},
    }
    return {"protocol": protocol, "envelope": "CloudEvents/1.0", "envelopemetadata": attributes}


def iter_records(catalog: xrouter.LoadedCatalog, count: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield what records are, and *count* of them, each with a value of its own."""
    for place, protocol in enumerate(_TEMPLATES):
        for kind, number in (("event", 24 + 2 * place), ("native", 25 + 2 * place)):
            yield f"{protocol}, {kind}", [catalog.emit(f"m{number}", bed=f"bed-{each}") for each in range(count)]


def microseconds(call: Callable[[Any], object], records: Sequence[Any], rounds: int) -> float:
    """Return the median over rounds of the processor time that a record takes."""
    figures = []
    for turn in range(rounds):
        mine = records[turn * len(records) // rounds : (turn + 1) * len(records) // rounds]
        started = time.process_time()
        for each in mine:
            call(each)
        figures.append((time.process_time() - started) * 1e6 / len(mine))
    return statistics.median(figures)


def import_seconds(rounds: int = 5) -> float:
    """Return how long a new process takes to import the package, beyond a process that imports nothing."""

    def run(script: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", script], check=True)
        return time.perf_counter() - started

    return statistics.median(run("import xrouter") - run("") for _ in range(rounds))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    chosen = options(__doc__, arguments, definitions=DEFINITIONS, records=(500, "of each kind"), rounds=5)
    say(machine())
    say(f"import xrouter: {import_seconds():.3f} s")
    started = time.perf_counter()
    catalog = xrouter.load(catalog_of(chosen.definitions))
    say(f"load {len(catalog.definitions)} definitions: {time.perf_counter() - started:.2f} s")
    for kind, records in iter_records(catalog, chosen.records):
        first = _microseconds_of_first(catalog, records[0])
        many = microseconds(catalog.match_many, [records] * chosen.rounds, chosen.rounds) / len(records)
        one = microseconds(catalog.match, records, chosen.rounds)
        say(f"{kind}: match {one:.0f} us, the first {first:,.0f} us; match_many {many:.0f} us a record")
    unknown: list[Mapping[str, Any]] = [
        {"protocol": "NATS", "native": {"subject": f"beds.{number}.none"}} for number in range(chosen.records)
    ]
    say(f"dead letter: match {microseconds(catalog.match, unknown, chosen.rounds):.0f} us")


def _microseconds_of_first(catalog: xrouter.LoadedCatalog, record: Mapping[str, Any]) -> float:
    started = time.perf_counter()
    outcome = catalog.match(record)
    assert outcome.is_routed, outcome
    return (time.perf_counter() - started) * 1e6


if __name__ == "__main__":
    main()
