"""Each case of ``tests/cases/calls``: what small machines of the router give, call by call."""

from __future__ import annotations

import io
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import pytest

from bindings.kafka.client import KafkaUnreachable
from catalog.schemas.ids.client import WrittenSchema
from router.batches.pipeline import ConservationCheck
from router.dead_letters.dead_letter import DeadLetter
from router.evaluation.outputs import DEAD_LETTER, ROUTED, Tally
from router.logs import configure_logs
from router.machine import GIB, MIB, MIN_RECORDS, BatchSizing, divide_memory
from router.reading import generations
from router.reading.backlogs import ReadUntil
from router.reading.generations import Offsets, Positions, Spans, Succession, starting_offsets, turned_back
from router.replay.batches import group_letters
from router.schemaids.cache import FORGET_SECONDS, SchemaIdCache
from router.settings import LogSettings, SourceSettings, settings_from_dict
from router.sources import Source
from router.state.database import StateDatabase
from router.state.ledger import DefinitionAtEndpoint as At
from router.state.ledger import LetterLedger, Outcome, PendingReplay, ReplayOrder, held_up, sightings_in
from router.state.state import StateFolder
from router.watching.backlogs import Backlog, Backlogs
from router.watching.coverage import Coverage, CoverageView, ThroughputLog
from router.watching.metrics import Metrics
from tests.support import ledger as ledgers
from tests.support.calls import call_cases, play
from tests.support.listed import forget_accounts
from tests.support.shop import plan

DAY: Final = datetime(2026, 1, 2, tzinfo=UTC)
RIDES: Final = "https://registry.example/apis"
Objects = dict[str, Any]


class Sizing(BatchSizing):
    """Limits of batches while a backlog is worked on."""

    def settle(self, overhead: float, pace: float, batches: int = 12) -> list[int]:
        limits = [self.begin(200.0)]
        for _ in range(batches):
            self.worked(self.limit, overhead + self.limit / pace)
            if self.relimit:
                limits.append(self.begin(None))
        return limits

    def vary(self, factors: list[float]) -> tuple[bool, int]:
        for number in range(60):
            self.worked(self.limit, self.limit / (1_000.0 * factors[number % len(factors)]))
        return self.relimit, self.limit


def sizing(_: Path, given: Mapping[str, Any], stack: ExitStack) -> Objects:
    made = Sizing(given["batch_bytes"], given["most"], exact=given.get("exact", False))
    return {"it": made, "MIN_RECORDS": MIN_RECORDS}


def memory(_: Path, given: Mapping[str, Any], stack: ExitStack) -> Objects:
    more = {name: value for name, value in given.items() if name not in ("machine", "cores", "refused")}
    told = {"sinks": {"out": {"type": "jsonl"}}, "routes": [{"to": ["out"]}], "dead_letters": {"sinks": ["out"]}}
    settings = settings_from_dict({**told, **more}, {}, Path("/"))
    divide = partial(divide_memory, settings, given["machine"] * GIB, given["cores"])
    if "refused" in given:
        return {"it": None, "divide": divide}
    made = divide()
    shares = [made.heap // MIB, made.worker // MIB, made.batch // MIB]
    return {"it": made, "shares": lambda: shares, "tasks": lambda: [made.tasks, made.cores]}


class Waiting:
    """What is read of topics, and what all sources have told."""

    def __init__(self) -> None:
        self.read, self.backlogs = ReadUntil(), Backlogs()
        self.forget, self.read_until = self.backlogs.forget, self.backlogs.read_until

    @property
    def seconds(self) -> float:
        return self.read.seconds

    def look(self, when: float, topics: list[str], *partitions: Mapping[str, list[int]]) -> float:
        ends, read = (
            {(topic, at): offset for topic, offsets in each.items() for at, offset in enumerate(offsets)}
            for each in partitions
        )
        self.read.look(when, topics, ends, read)
        return self.seconds

    def told(self, query: str, places: list[str], *when: float) -> float:
        self.backlogs.update(query, dict.fromkeys(places, Backlog(0)), *when)
        return self.read_until()


class Letters:
    """A state folder with its ledger of letters."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self.now, self._stack = root, DAY, stack
        self.reopen()

    def reopen(self) -> None:
        self._stack.close()
        self.state = self._stack.enter_context(StateFolder.open(self.root))
        self.ledger = self._stack.enter_context(LetterLedger.open(self.root))
        self.batches = self.state.batches

    def later(self, days: int) -> None:
        self.now += timedelta(days)

    def attempted(self, failed: list[list[str]]) -> None:
        ledgers.attempted(self.ledger, [(letter, reason, detail) for letter, reason, detail in failed], self.now)

    def replayed(self, ids: Iterable[str]) -> None:
        ledgers.replayed(self.ledger, ids, self.now)

    def begin(self, number: int, letters: list[str], sinks: Iterable[str] = (), plan: str = "p") -> None:
        self.ledger.begin(PendingReplay(number, plan * 32, tuple(letters), tuple(sinks)), plan.encode())

    def finish(self, number: int, outcomes: list[list[str]]) -> None:
        self.ledger.finish(number, [Outcome(*each) for each in outcomes], self.now)

    def pending(self) -> list[Any] | None:
        found = self.ledger.pending()
        return None if found is None else [found.number, found.letters, found.sinks]

    def entries(self, ids: list[str]) -> dict[str, list[Any]]:
        found = self.ledger.entries(ids).items()
        return {id: [e.standing, e.attempts, e.reason, e.detail, e.changed and e.changed.date()] for id, e in found}

    def history(self, letter: str) -> list[list[Any]]:
        return [[e.at and e.at.date(), e.what, e.replay, e.reason, e.detail] for e in self.ledger.history(letter)]

    def kinds(self, letter: str) -> list[str]:
        return [each.what for each in self.ledger.history(letter)]

    def earlier(self, *letters: str) -> list[str | None]:
        return [ReplayOrder(self.ledger.order).earlier(letter) for letter in letters]

    def passed(self, first: str, *others: str) -> list[str | None]:
        """Return what is earlier than each of the others once the first has passed."""
        turns = ReplayOrder(self.ledger.order)
        turns.passed.add(first)
        return [turns.earlier(each) for each in others]

    def gathered(self, letters: list[str], lasting: str = "", lake: str = "") -> tuple[list[list[str]], list[str]]:
        """Replay letters in the order in which they are read, but for *lasting*; return batches, and who is left."""
        turns, found = ReplayOrder(self.ledger.order), []
        chosen = ((dead(letter), ("lake",) if letter in lake.split() else ()) for letter in letters)
        for _, batch in group_letters(chosen, 2, turns):
            found.append(ids := [letter.id for letter in batch])
            held = held_up(ids, lasting.split(), self.ledger.order.keys_of_letters(ids))
            self.replayed([letter for letter in ids if letter not in held and letter not in lasting.split()])
        return found, sorted(turns.left)

    def pin(self, query: str, batch: int, plan: str) -> None:
        self.batches.pin(query, batch, plan * 32, plan.encode())

    def plans(self) -> list[str]:
        return sorted({id[0] for (id,) in self.state.database.read("SELECT id FROM plans") if self.batches.plan(id)})


def dead(id: str) -> DeadLetter:
    return DeadLetter(id, "no-match", "", (), "/endpoints/e", "KAFKA", {}, b"", "1", id, DAY, DAY, 1, "dead")


def letters(folder: Path, given: Any, stack: ExitStack) -> Objects:
    made = Letters(folder, stack)
    made.ledger.order.append_letters([(key, letter) for key, letter in given or ()])
    return {"it": made, "held_up": held_up}


class Reading:
    """Generations of queries in a state folder, and what Spark writes of their batches."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.state = stack.enter_context(StateFolder.open(folder))
        self.positions, self.succession = Positions(self.state), Succession(self.state)
        self.turned_back: Callable[[int], Spans] = lambda batch: turned_back(self.current, batch)

    def begin(self, topics: list[str], starting: Offsets) -> None:
        self.current = generations.begin(self.state, "kafka-1", topics, json.dumps(starting))

    def planned(self, batch: int, offsets: Offsets) -> None:
        self._write("offsets", batch, f"v1\n{{}}\n{json.dumps(offsets)}")

    def committed(self, batch: int, offsets: Offsets) -> None:
        self.planned(batch, offsets)
        self._write("commits", batch, "v1\n{}")

    def found(self, offsets: Offsets) -> None:
        self._write("sources/0", 0, f"\0v1\n{json.dumps(offsets)}")

    def _write(self, folder: str, batch: int, text: str) -> None:
        (self.current.path / folder).mkdir(parents=True, exist_ok=True)
        (self.current.path / folder / str(batch)).write_text(text)

    def is_current(self, query: str = "kafka-1") -> bool:
        return generations.current(self.state, query) == self.current

    def next(self, query: str, topics: list[str], start: str) -> Any:
        self.current = self.succession.next(query, sources(query, topics), cast(Any, start))
        return json.loads(self.current.starting)

    def place(self, query: str, topics: list[str], start: str) -> None:
        self.succession.place(sources(query, topics), cast(Any, start))

    def choose(self, query: str) -> None:
        self.current = self.succession.choose(query, (), cast(Any, None))

    def renew(self, query: str, again: Any) -> Any:
        self.current = self.succession.renew(query, again)
        return json.loads(self.current.starting)

    def spans(self, batch: int) -> Spans | None:
        return generations.planned(self.current, batch)

    def is_unfinished(self) -> bool:
        return self.succession.unfinished("kafka-1") == self.current

    def pin(self, batch: int) -> None:
        self.state.batches.pin("kafka-1", batch, "a" * 32, b"plan")

    def starting(self, partitions: Mapping[str, list[int]], cluster: str) -> Any:
        return json.loads(starting_offsets(partitions, self.positions.of(cluster)))


def sources(query: str, topics: list[str]) -> tuple[Source, ...]:
    """Return sources of a query at a cluster that nobody may ask."""
    return tuple(
        Source(f"/endpoints/{topic}", "kafka", f"kafka:{topic}", query, SourceSettings(endpoint=f"/endpoints/{topic}"),
               topic=topic, servers="nowhere:1")
        for topic in topics
    )  # fmt: skip


class Covering:
    """What a router has of what occurred, and its clock."""

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.now = folder, 1_700_000_000.0
        self.restart()

    def restart(self) -> None:
        self.coverage = Coverage(clock=lambda: self.now, now=lambda: self.now)
        if self.folder is not None and (self.folder / "state.db").exists():
            self.coverage.keep_in(StateDatabase(self.folder))

    def later(self, seconds: float) -> None:
        self.now += seconds

    def follow(self, messages: list[str], endpoints: str = "ab") -> str:
        if self.folder is not None and not (self.folder / "state.db").exists():
            self.coverage.keep_in(StateDatabase(self.folder))
        made = plan(*messages, endpoints=endpoints)
        self.coverage.follow(made)
        return made.epoch

    def sql(self, statement: str) -> None:
        with closing(sqlite3.connect((self.folder or Path()) / "state.db", isolation_level=None)) as database:
            database.execute(statement)

    def batch(self, *names: str) -> None:
        places = [place(name) for name in names]
        records = Counter((each.endpoint, ROUTED, "") for each in places)
        self.coverage.add_batch(Tally(records, Counter((each.endpoint, each.message) for each in places)))

    def letters(self, endpoint: str, count: int) -> None:
        outcome = ROUTED if not count else DEAD_LETTER
        self.coverage.add_batch(Tally(Counter({(f"/endpoints/{endpoint}", outcome, ""): count})))

    def never(self) -> list[str]:
        return sorted(name(each) for each, seen in self.coverage.all_sightings().items() if seen.first is None)

    def places(self) -> list[str]:
        return sorted(map(name, self.coverage.all_sightings()))

    def seen(self, name: str) -> list[float | None]:
        found = self.coverage.all_sightings()[place(name)]
        return [each if each is None else each - 1_700_000_000 for each in (found.first, found.last, found.since)]

    def epoch(self, name: str) -> str:
        return self.coverage.all_sightings()[place(name)].epoch

    def unseen(self, endpoint: str) -> Any:
        return CoverageView(self.coverage.all_sightings()).source_to_json(f"/endpoints/{endpoint}")["unseen"]

    def is_kept(self) -> bool:
        return sightings_in(self.folder or Path()) is not None

    def kept(self, name: str) -> float | None:
        last = (sightings_in(self.folder or Path()) or {})[place(name)].last
        return last if last is None else last - 1_700_000_000

    def kept_places(self) -> list[str]:
        return sorted(map(name, sightings_in(self.folder or Path()) or ()))


def place(name: str) -> At:
    endpoint, _, message = name.partition(" ")
    return At("" if endpoint == "?" else f"/endpoints/{endpoint}", message and f"/messagegroups/g/messages/{message}")


def name(place: At) -> str:
    return " ".join(each.rpartition("/")[2] for each in place if each)


class Ids:
    """The cache of schema ids of a process, and the clock of all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder / "lake", 1000.0
        self.opened()

    def opened(self, url: str = RIDES) -> SchemaIdCache:
        self.cache = SchemaIdCache(self.folder, url, clock=lambda: self.now)
        self.schema, self.store, self.is_unknown = self.cache.schema, self.cache.store, self.cache.is_unknown
        self.mirrored = self.cache.mirrored_versions
        return self.cache

    def later(self, seconds: float) -> None:
        self.now += seconds

    def listed(self) -> list[str]:
        return list(self.cache.ids())

    def is_private(self, id: str) -> bool:
        return (self.folder / f"{id}.json").stat().st_mode & 0o077 == 0

    def write(self, name: str, text: str) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / name).write_text(text)

    def tear(self, end: str) -> None:
        (file,) = self.folder.glob("nothing-*")
        file.write_text(file.read_text() + end)

    def mirror(self, id: str) -> None:
        assert self.store(id, WrittenSchema(id, "Avro", '"int"'), anew=True) and self.schema(id)


def schema_ids(folder: Path, given: Any, stack: ExitStack) -> Objects:
    ride = WrittenSchema("12", "Avro", '{"type": "int"}', {"a.B": '"string"'}, (("rides-value", 2),))
    return {"it": Ids(folder), "ride": ride, "JUST_BEFORE": FORGET_SECONDS - 1}


class Minutes:
    """A flow whose clock is turned, and the lines that it logs."""

    def __init__(self) -> None:
        self.now, self._out = 0.0, io.StringIO()
        configure_logs(LogSettings(format="json"), self._out)
        self.flow = ThroughputLog(lambda: self.now)

    def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        self.flow.add(
            {
                (endpoint, ROUTED if what == ROUTED else DEAD_LETTER, "" if what == ROUTED else what): number
                for endpoint, each in counts.items()
                for what, number in each.items()
            }
        )

    def told(self, seconds: float, last: bool = False) -> list[list[Any]]:
        self.now += seconds
        before = self._out.tell()
        self.flow.log_if_due(last=last)
        lines = map(json.loads, self._out.getvalue()[before:].splitlines())
        return [[line[name] for name in ("event", "records", "dead_letters", "seconds", "endpoints")] for line in lines]


class Conservation(Reading):
    """What is held against what was planned, and what brokers say is lost: by default all that they are asked for."""

    def __init__(self, folder: Path, stack: ExitStack, given: Mapping[str, Any]) -> None:
        super().__init__(folder, stack)
        self.metrics, self.asked, self.answers = Metrics(), list[Spans](), list(given.get("answers", ()))
        self.given, self.losses = given, None if given.get("losses", "") is None else self.answer

    def answer(self, spans: Spans) -> Spans:
        self.asked.append(spans)
        told = self.answers.pop(0) if self.answers else self.given.get("losses", spans)
        if told == "away":
            raise KafkaUnreachable(told)
        return {topic: {at: (first, end) for at, (first, end) in each.items()} for topic, each in told.items()}

    def begin(self, query: Any, starting: Any, forgets: bool = False) -> None:
        self.query = query
        self.current = generations.begin(self.state, query, sorted(starting), json.dumps(starting))
        if forgets:
            forget_accounts(self.state)
        self.check = ConservationCheck(query, self.current, self.state, self.losses)

    def anew(self) -> None:
        forget_accounts(self.state)
        self.check = ConservationCheck(self.query, self.current, self.state)

    def add(self, batch: int, rows: int) -> int:
        assert self.check.add(batch, Tally(rows=rows), self.metrics)
        return self.check.account.gap

    def empty(self) -> float | None:
        return self.metrics.registry.get_sample_value("xrouter_empty_offsets_total", {"query": self.query})

    def left(self) -> int:
        return len(self.answers)


KINDS: Final[Mapping[str, Callable[[Path, Any, ExitStack], Objects]]] = {
    "sizing": sizing,
    "memory": memory,
    "waiting": lambda *_: {"it": Waiting()},
    "letters": letters,
    "positions": lambda folder, _, stack: {"it": Reading(folder, stack), "records_in": generations.records_in},
    "conservation": lambda folder, given, stack: {"it": Conservation(folder, stack, given)},
    "schema-ids": schema_ids,
    "throughput": lambda *_: {"it": Minutes()},
    "coverage": lambda folder, given, _: {"it": Covering(folder if given else None)},
}


@pytest.mark.parametrize(("kind", "case"), call_cases())
def test_calls_give_what_their_case_says(kind: str, case: dict[str, Any], tmp_path: Path) -> None:
    with ExitStack() as stack:
        play(case["steps"], KINDS[kind](tmp_path, case.get("of", {}), stack))
