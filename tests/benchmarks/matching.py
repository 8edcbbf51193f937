"""How fast does the matcher alone decide rows, and does the number of definitions matter? ``make bench-match``

A mix as real catalogs have it: a third CloudEvents told by their type, a third MQTT messages told by type and topic
template, a third AMQP messages told by type and subject; sources are a bare placeholder, others occur in two
properties. Columns come as Arrow arrays, in batches, on one thread, warm.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa

from bindings.protocols import BINDINGS
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint, Property
from router.channels import ChannelBuilder
from router.matching.columns import Columns, Int, SplitColumn
from router.matching.index import MatchIndex
from router.matching.verdicts import Resolver

SIZES: Final = (10, 100, 1_000, 1_500, 10_000)
BATCH: Final = 20_000
GROUP: Final = "/messagegroups/Bench"
ENDPOINT: Final = "/endpoints/bench"
KEYS: Final = ("e.type", "e.source", "e.subject", "p.topic_name", "p.properties.subject")
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
    protocols: Int

    def columns(self) -> Columns:
        """Return fresh columns, so that nothing split before is used again."""
        return Columns(len(self.protocols), {key: SplitColumn(values) for key, values in self.texts.items()})


def batch_of(size: int, chosen: random.Random) -> Batch:
    """Return rows that each match one of *size* definitions, spread evenly."""
    protocols = list(BINDINGS)
    texts: dict[str, list[str | None]] = {key: [] for key in KEYS}
    numbers: list[int] = []
    for _ in range(BATCH):
        family, kind = divmod(chosen.randrange(size), 3)
        agency, station = f"agency{chosen.randrange(60)}", f"station{chosen.randrange(5_000)}"
        numbers.append(protocols.index(_ARRIVING[kind]))
        texts["e.type"].append(f"com.example.area{family % 40}.Event{family}")
        texts["e.source"].append(f"https://feeds.example.com/area{family % 40}/{agency}")
        texts["e.subject"].append(f"{agency}/{station}")
        texts["p.topic_name"].append(f"area{family % 40}/{agency}/{station}/event{family}" if kind == 1 else None)
        texts["p.properties.subject"].append(f"{agency}/{station}" if kind == 2 else None)
    return Batch({key: pa.array(values, pa.string()) for key, values in texts.items()}, np.array(numbers, np.int64))


class Engine:
    """The index and the resolver of one catalog, as ``run`` has them."""

    def __init__(self, catalog: Catalog) -> None:
        builder = ChannelBuilder(catalog)
        builder.endpoints("bench", [ENDPOINT])
        self.index = MatchIndex(builder.targets, [each.candidates for each in builder.channels], list(BINDINGS))
        self.resolver = Resolver(self.index)

    def match(self, batch: Batch) -> tuple[Columns, Int]:
        """Return the winners of a batch, which must all be found."""
        columns = batch.columns()
        zeros = np.zeros(columns.rows, np.int64)
        sets = self.index.match(columns, zeros, batch.protocols, zeros + 1)
        winners = self.resolver.resolve(self.resolver.drop_unequal(columns, sets)).winners
        return columns, winners

    def match_and_extract(self, batch: Batch) -> None:
        """Match a batch and take all placeholders out."""
        columns, winners = self.match(batch)
        self.resolver.contexts(columns, winners, np.ones(columns.rows, np.int64))


def rate(action: Callable[[Batch], object], batches: list[Batch], rounds: int) -> float:
    """Return rows a second, the median over rounds, after one round to warm up."""
    found = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        for batch in batches:
            action(batch)
        found.append(len(batches) * BATCH / (time.perf_counter() - start))
    return statistics.median(found[1:])


def main() -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    lines = ["definitions   compile s   match rows/s   with context rows/s", "-" * 60]
    for size in arguments.sizes:
        chosen = random.Random(7)
        start = time.perf_counter()
        engine = Engine(catalog_of(size))
        compiled = time.perf_counter() - start
        batches = [batch_of(size, chosen) for _ in range(arguments.batches)]
        assert all((engine.match(batch)[1] >= 0).all() for batch in batches)
        match = rate(engine.match, batches, arguments.rounds)
        both = rate(engine.match_and_extract, batches, arguments.rounds)
        lines.append(f"{size:11,d} {compiled:11.2f} {match:14,.0f} {both:21,.0f}")
    print("\n".join(lines))  # noqa: T201


if __name__ == "__main__":
    main()
