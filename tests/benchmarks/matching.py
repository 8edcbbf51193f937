"""How fast does the matcher alone decide rows, and does the number of definitions matter? ``make bench-match``

A mix as real catalogs have it: a third CloudEvents told by their type, a third MQTT messages told by type and topic
template, a third AMQP messages told by type and subject; sources are a bare placeholder, others occur in two
properties. Columns come as Arrow arrays, in batches, on one thread, warm. Beside it AWS event-ruler on the same rows.

A figure is the median over rounds, and the rounds of all sizes take turns, so that what else the machine does meets
all alike. *wall* is by the clock; *CPU* by the time that the process (of event-ruler: the thread that matches) was
given, which other work disturbs less.
"""

from __future__ import annotations

import os
import pickle
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa

from bindings.protocols import BINDINGS
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint, Property
from router.errors import ConnectorError
from router.matching.channels import ChannelBuilder
from router.matching.index.classes import BatchColumns, IntArray, SplitColumn
from router.matching.index.index import MatchIndex
from router.matching.winners import WinnerChooser
from tests.benchmarks import event_ruler
from tests.benchmarks.judging import judge_of
from tests.benchmarks.machine import machine, options, say

BATCH: Final = 20_000
GROUP: Final = "/messagegroups/Bench"
ENDPOINT: Final = "/endpoints/bench"
KEYS: Final = ("e.type", "e.source", "e.subject", "p.topic_name", "p.properties.subject")
PLAN_LIMIT_BYTES: Final = 50_000_000
_PROTOCOLS: Final = (None, "MQTT/5.0", "AMQP/1.0")
_ARRIVING: Final = ("KAFKA", "MQTT/5.0", "AMQP/1.0")


def definition(number: int) -> Definition:
    """Return definition *number* of the mix; definitions come in threes with one type each, as siblings do."""
    family, kind = divmod(number, 3)
    attributes = (
        Property("type", "string", f"com.example.area{family % 40}.Event{family}", required=True),
        Property("source", "uritemplate", "{feedurl}", required=True),
        Property("subject", "uritemplate", "{agency}/{station}"),
    )
    options: tuple[tuple[Property, ...], ...] = (
        (),
        (Property("topic_name", "uritemplate", f"area{family % 40}/{{agency}}/{{station}}/event{family}"),),
        (Property("properties.subject", "uritemplate", "{agency}/{station}"),),
    )
    return Definition(
        f"{GROUP}/messages/m{number}",
        GROUP,
        envelope=CLOUDEVENTS,
        protocol=_PROTOCOLS[kind],
        envelopemetadata=attributes,
        protocoloptions=options[kind],
        base=() if kind == 0 else (f"{GROUP}/messages/m{number - kind}",),
    )


def catalog_of(size: int) -> Catalog:
    """Return a catalog of *size* definitions, all of them expected by one endpoint."""
    definitions = {each.xid: each for each in map(definition, range(size))}
    xids = tuple(definitions)
    return Catalog(definitions, {GROUP: xids}, {ENDPOINT: Endpoint(ENDPOINT, candidates=xids)})


@dataclass(frozen=True)
class Batch:
    """Rows as the matcher takes them."""

    texts: dict[str, pa.StringArray]
    protocols: IntArray
    numbers: IntArray
    """The definition that each row was made from, and has to win."""

    def columns(self) -> BatchColumns:
        """Return fresh columns, so that nothing split before is used again."""
        return BatchColumns(len(self.protocols), {key: SplitColumn(values) for key, values in self.texts.items()})


def batch_of(size: int, chosen: random.Random) -> Batch:
    """Return rows that are each won by one of *size* definitions, spread evenly."""
    names = list(BINDINGS)
    texts: dict[str, list[str | None]] = {key: [] for key in KEYS}
    numbers = [chosen.randrange(size) for _ in range(BATCH)]
    protocols: list[int] = []
    for number in numbers:
        family, kind = divmod(number, 3)
        agency, station = f"agency{chosen.randrange(60)}", f"station{chosen.randrange(5_000)}"
        protocols.append(names.index(_ARRIVING[kind]))
        texts["e.type"].append(f"com.example.area{family % 40}.Event{family}")
        texts["e.source"].append(f"https://feeds.example.com/area{family % 40}/{agency}")
        texts["e.subject"].append(f"{agency}/{station}")
        texts["p.topic_name"].append(f"area{family % 40}/{agency}/{station}/event{family}" if kind == 1 else None)
        texts["p.properties.subject"].append(f"{agency}/{station}" if kind == 2 else None)
    arrays = {key: pa.array(values, pa.string()) for key, values in texts.items()}
    return Batch(arrays, np.array(protocols, np.int64), np.array(numbers, np.int64))


class Engine:
    """The index and the chooser of one catalog, as ``run`` has them."""

    def __init__(self, catalog: Catalog) -> None:
        builder = ChannelBuilder(catalog)
        builder.add_endpoints("bench", [ENDPOINT])
        self.index = MatchIndex(builder.targets, [each.candidates for each in builder.channels], list(BINDINGS))
        self.chooser = WinnerChooser(self.index)

    def match(self, batch: Batch) -> tuple[BatchColumns, IntArray]:
        """Return the columns of a batch, split as far as matching needs, and the winners."""
        columns = batch.columns()
        zeros = np.zeros(columns.rows, np.int64)
        sets = self.index.match(self.index.classify(columns), zeros, batch.protocols, zeros + 1)
        winners = self.chooser.choose_winners(self.chooser.drop_unequal(columns, sets)).winners
        return columns, winners

    def match_and_extract(self, batch: Batch) -> None:
        """Match a batch and take all placeholders out."""
        columns, winners = self.match(batch)
        self.chooser.contexts(columns, winners, np.ones(columns.rows, np.int64))

    def check(self, batch: Batch) -> None:
        """Fail unless every row is won by the definition it was made from."""
        _, winners = self.match(batch)
        wanted = [f"{GROUP}/messages/m{number}" for number in batch.numbers.tolist()]
        assert [self.index.targets[winner].xid for winner in winners.tolist()] == wanted


@dataclass
class Clock:
    """Rows a second over several rounds, by the clock and by the CPU time of this process."""

    walls: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)

    def run(self, action: Callable[[Batch], object], batches: Sequence[Batch]) -> None:
        """Time one round over all batches."""
        wall, cpu = time.perf_counter(), time.process_time()
        for batch in batches:
            action(batch)
        rows = len(batches) * BATCH
        self.cpus.append(rows / (time.process_time() - cpu))
        self.walls.append(rows / (time.perf_counter() - wall))

    @property
    def wall(self) -> float:
        """The median by the clock."""
        return statistics.median(self.walls)

    @property
    def cpu(self) -> float:
        """The median by CPU time."""
        return statistics.median(self.cpus)


class Bench:
    """One number of definitions: its engine, its batches, and what was measured."""

    def __init__(self, size: int, batches: int) -> None:
        self.size = size
        catalog = catalog_of(size)
        self.definitions = tuple(catalog.definitions.values())
        start = time.perf_counter()
        self.engine = Engine(catalog)
        self.compile_seconds = time.perf_counter() - start
        self.pickled = len(pickle.dumps((self.engine.index, self.engine.chooser)))
        chosen = random.Random(7)
        self.batches = [batch_of(size, chosen) for _ in range(batches)]
        self.match, self.both = Clock(), Clock()
        self.ruler: event_ruler.Timing | None = None

    def warm(self) -> None:
        """Meet every row once, and see that the right definitions win."""
        for batch in self.batches:
            self.engine.check(batch)
            self.engine.match_and_extract(batch)

    def round(self) -> None:
        """Time one round of each kind."""
        self.match.run(self.engine.match, self.batches)
        self.both.run(self.engine.match_and_extract, self.batches)

    def events(self, most: int) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield the first rows as event-ruler takes them, each with the definition that it matches."""
        batch, names = self.batches[0], list(BINDINGS)
        columns = {event_ruler.field(key): values.to_pylist() for key, values in batch.texts.items()}
        for row in range(min(most, BATCH)):
            event = {name: values[row] for name, values in columns.items() if values[row] is not None}
            event["protocol"] = names[int(batch.protocols[row])]
            yield self.definitions[int(batch.numbers[row])].xid, event

    def line(self) -> str:
        """Return the line of the table."""
        cells = [f"{self.size:11,d}", f"{self.compile_seconds:9.2f}"]
        cells += [f"{rate:11,.0f}" for rate in (self.match.cpu, self.match.wall, self.both.cpu, self.both.wall)]
        if self.ruler is not None:
            cells += [f"{self.ruler.cpu:9,.0f}", f"{self.ruler.wall:9,.0f}"]
            cells += [f"{rate / self.ruler.cpu:7.0f}" for rate in (self.match.cpu, self.both.cpu)]
        return " ".join(cells)


def judge_bytes(size: int) -> int:
    """Return the pickled size of what workers are sent for that many definitions: all that a plan compiles into."""
    return len(pickle.dumps(judge_of("KAFKA", [definition(number) for number in range(size)])))


def time_event_ruler(benches: Sequence[Bench], rounds: int, rows: int) -> None:
    """Put event-ruler's figures beside ours."""
    for bench in benches:
        with tempfile.TemporaryDirectory(prefix="xrouter-bench-") as folder:
            bench.ruler = event_ruler.measure(Path(folder), bench.definitions, bench.events(rows), rounds=rounds)


def report(benches: Sequence[Bench], rounds: int, rows: int) -> str:
    """Return the table and what follows from it."""
    heads = "                            match rows/s          with context rows/s"
    names = "definitions compile s        CPU        wall         CPU        wall"
    if benches[0].ruler is not None:
        heads += "    event-ruler rows/s   x its CPU rate"
        names += "       CPU      wall   match context"
    lines = [machine(), f"medians of {rounds} rounds over {len(benches[0].batches)} batches of {BATCH:,d} rows"]
    lines += ["", heads, names, "-" * len(names), *(bench.line() for bench in benches), ""]
    few, many = min(benches, key=lambda each: each.size), max(benches, key=lambda each: each.size)
    match, both = few.match.cpu / many.match.cpu, few.both.cpu / many.both.cpu
    sizes = f"{many.size:,d} : {few.size:,d} definitions"
    lines.append(f"CPU time a row, {sizes}   match {match:.2f}, with context {both:.2f}")
    judge = judge_bytes(many.size)
    told = "under" if judge < PLAN_LIMIT_BYTES else "OVER"
    lines.append(
        f"pickled, {many.size:,d} definitions   index and chooser {many.pickled:,d} bytes, "
        f"the whole plan as workers get it {judge:,d}: {told} {PLAN_LIMIT_BYTES:,d}"
    )
    if benches[0].ruler is not None:
        version = event_ruler.version()
        lines.append(f"event-ruler {version} got {rows:,d} of the rows as JSON texts made before. {event_ruler.ASKED}")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark and print its figures."""
    no_ruler = (False, "leave event-ruler out, which needs a JDK")
    sizes = [10, 100, 1_000, 1_500, 10_000]
    chosen = options(__doc__, rounds=7, batches=10, sizes=sizes, ruler_rounds=5, ruler_rows=4_000, no_ruler=no_ruler)
    pa.set_cpu_count(1)
    benches = [Bench(size, chosen.batches) for size in chosen.sizes]
    for bench in benches:
        bench.warm()
    for _ in range(chosen.rounds):
        for bench in benches:
            bench.round()
    if not chosen.no_ruler:
        try:
            time_event_ruler(benches, chosen.ruler_rounds, chosen.ruler_rows)
        except (ConnectorError, event_ruler.EventRulerFailed) as error:
            raise SystemExit(str(error)) from error
    say(report(benches, chosen.rounds, min(chosen.ruler_rows, BATCH)))


if __name__ == "__main__":
    main()
