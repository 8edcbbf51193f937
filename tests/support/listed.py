"""Batches without Spark: records, outcomes and sinks in lists, by the contracts that the steps of a batch ask for.

A :class:`World` is what is there when the process is not: it stays when a test lets that die, at a step of its choice.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final, cast

import pyarrow as pa
import pytest

from catalog.load import load
from catalog.model import Catalog
from router.batches.pipeline import Pipeline
from router.batches.plans import LoadedPlan, SharedParts
from router.batches.splitting import BatchPart
from router.errors import SinkError
from router.evaluation.outputs import DEAD_LETTER, ROUTED, Tally
from router.evaluation.plan import Plan
from router.reading.backlogs import BYTES, CHANNEL, NUMBERS, Ranges
from router.reading.generations import Generation
from router.settings import settings_from_dict
from router.sinks import Commit, RejectedRow, WriteResult
from router.sinks.contract import ArrowSink, StagedCommit, StagedFile
from router.sources import INBOX
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from router.writing.outcomes import SINK_REJECTED, RecordOutcome, Rejections
from router.writing.staging import BatchId, RowsForSink, StagedFiles
from router.writing.writer import BatchWriter
from tests.support import shop
from tests.support.cases import read_cases

POINTS: Final = read_cases(Path(__file__).parents[1] / "cases" / "batch_points.yaml")
GOOD: Final = "/messagegroups/G/messages/good"


def points(kind: str) -> list[Any]:
    """Return the steps at which a process dies, as parameters: the class, its method, and which of its calls."""
    parsed = (re.fullmatch(r"(\S+)\.(\w+)(?: (\d+))?", each) for each in POINTS[kind])
    return [
        pytest.param(resolve_name(each[1]), each[2], int(each[3] or 1), id=each[0].rpartition(":")[2])
        for each in parsed
        if each is not None
    ]


class Died(BaseException):
    """What stands for the end of the process."""


@dataclass(frozen=True)
class Given:
    """A record of the source: which number, what it ends as, its key, and its route when it is routed."""

    number: int
    reason: str = ""
    key: str = ""
    route: int = 0
    letter: str = ""
    topic: str = "t"
    fails: bool = False
    """Whether judging it fails, whoever tries."""

    @property
    def position(self) -> str:
        """Where it lies in the inbox."""
        return f"u-0-1-{self.number}"


@dataclass
class World:
    """What every process finds: what sinks have, by name, and what Kafka has, by topic sink."""

    sinks: dict[tuple[str, bool], ListSink] = field(default_factory=dict)
    published: dict[str, list[int]] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    rejecting: dict[str, set[int]] = field(default_factory=dict)
    forgetful: set[str] = field(default_factory=set)
    staging: set[str] = field(default_factory=lambda: {"lake", "dead"})
    """The sinks whose batches come as files of workers."""
    files: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What workers wrote and no sink has taken, by path."""

    def open(self, name: str, settings: object, role: str, *more: object) -> ListSink:
        """Open a sink, as :func:`router.sinks.open_sink` does."""
        letters = role == "dead-letters"
        return self.sinks.setdefault((name, letters), ListSink(self, name))

    def numbers(self, name: str, *, letters: bool = False) -> list[int]:
        """Return the numbers of the records at a sink, in order of arrival."""
        sink = self.sinks.get((name, letters))
        return [] if sink is None else [number_of(row["position"]) for row in sink.rows]

    def letters(self, name: str = "dead") -> dict[int, dict[str, Any]]:
        """Return the dead letters of a sink by number; each record has one."""
        sink = self.sinks.get((name, True))
        rows = [] if sink is None else sink.rows
        made = {number_of(row["position"]): row for row in rows}
        assert len(made) == len(rows), sorted(row["position"] for row in rows)
        return made


@dataclass
class ListSink(ArrowSink):
    """A sink of whole batches: one that keeps commits takes none twice, a forgetful one takes all again."""

    world: World
    name: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    commits: dict[str, int] = field(default_factory=dict)

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Write a batch."""
        assert self.name not in self.world.staging, f"rows for {self.name} came to the driver"
        return self._write(rows.to_pylist(), commit)

    def make_stager(self, commit: Commit) -> ListStaging | None:
        """Stage, where the world says so."""
        return ListStaging(self.world) if self.name in self.world.staging else None

    def commit_staged(self, staged: StagedCommit, commit: Commit) -> WriteResult:
        """Take files over, which are no longer there to be removed then."""
        result = self._write([row for file in staged.files for row in self.world.files[file.path]], commit)
        staged.offered = not result.repeated
        for file in staged.files if staged.offered else ():
            del self.world.files[file.path]
        return result

    def _write(self, rows: list[dict[str, Any]], commit: Commit) -> WriteResult:
        self._check()
        if self.has_commit(commit):
            return WriteResult(0, repeated=True, before=len(rows))
        never = self.world.rejecting.get(self.name, set())
        rejected = [row for row in rows if number_of(row["position"]) in never]
        taken = [row for row in rows if number_of(row["position"]) not in never]
        self.rows += taken
        if taken:  # An empty batch writes nothing.
            self.commits[commit.app] = commit.version
        return WriteResult(
            len(taken), refused=tuple(RejectedRow(row["position"], "never", "e", GOOD) for row in rejected)
        )

    def iter_missing_rows(self, commit: Commit, share: Iterable[RejectedRow]) -> Iterator[RejectedRow]:
        """It cannot tell: it lacks all."""
        return iter(share)

    def has_commit(self, commit: Commit) -> bool:
        """Whether it has the batch."""
        self._check()
        keeps = self.name not in self.world.forgetful
        return keeps and any(self.commits.get(app, -1) >= commit.version for app in commit.apps)

    def _check(self) -> None:
        if self.name in self.world.down:
            raise SinkError(self.name, "is away")


@dataclass
class ListStaging:
    """Files in a dict."""

    world: World

    def write(self, rows: pa.Table, task: str, catalog: Catalog) -> Sequence[StagedFile]:
        """Write a file, of a name that none had."""
        path = f"{task}-{len(self.world.files)}"
        self.world.files[path] = rows.to_pylist()
        return [StagedFile(path, rows.num_rows)]

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Remove files."""
        for file in files:
            self.world.files.pop(file.path, None)


@dataclass
class ListOutcomes:
    """Outcomes of records in a list; *shares* are staged as soon as they are evaluated."""

    world: World
    plan: Plan
    batch: BatchId
    given: Sequence[Given]
    rejections: Rejections | None = None
    kept: bool = False
    shares: Sequence[RowsForSink] | None = None
    results: StagedFiles = field(default_factory=lambda: StagedFiles(()))
    may_reject: bool = True
    at_once: bool = False

    def evaluate(self) -> Tally:
        """Judge, and fail as some records do."""
        self.kept = True
        tally = self.tally()
        for share in self.shares or ():
            (self.select_dead_letters() if share.dead_letters else self).select_routes(share.routes).stage(share)
        return tally

    def tally(self) -> Tally:
        """Count."""
        if any(each.fails for each in self.given):
            raise ValueError("cannot judge it")
        tally = Tally(rows=len(self.given))
        for each in self.given:
            tally.add_route("e", self._decision(each).route, 1, 100)
            tally.records[("e", DEAD_LETTER if each.reason else ROUTED, each.reason)] += 1
            tally.definitions.update([] if each.reason else [("e", GOOD)])
        return tally

    def release(self) -> None:
        """Keep nothing."""
        self.kept = False
        self.results.discard()

    def stage(self, share: RowsForSink) -> StagedCommit:
        """Write a file, once for each share."""
        known = self.results.get(share)
        if known is None:
            rows = self.dead_letters_table() if share.dead_letters else self.events_table(share.schema)
            known = StagedCommit(
                tuple(share.staging.write(rows, share.sink, self.plan.catalog)) if rows.num_rows else ()
            )
            self.results.staged[(share.sink, share.dead_letters)] = (share, known)
        return known

    def select_routes(self, routes: Sequence[int]) -> ListOutcomes:
        """Filter."""
        return self._of(each for each in self.given if self._decision(each).route in routes)

    def exclude(self, letters: Collection[str]) -> ListOutcomes:
        """Filter."""
        return self._of(each for each in self.given if self._decision(each).letter not in letters)

    def select_dead_letters(self, rejections: Rejections | None = None) -> ListOutcomes:
        """Return dead letters, and those that rejected records become."""
        details = rejections.details if rejections is not None else {}
        dead = [each for each in self.given if each.reason]
        dead += [replace(each, reason=SINK_REJECTED) for each in self.given if each.position in details]
        return replace(self, given=dead, rejections=rejections)

    def list_decisions(self) -> list[RecordOutcome]:
        """Decide."""
        return [replace(self._decision(each), key="") for each in self.given]

    def list_keyed(self, keys: Collection[str] | None = None) -> list[RecordOutcome]:
        """Decide."""
        return [self._decision(each) for each in self.given if each.key and (keys is None or each.key in keys)]

    def list_topics(self, sink: str) -> list[str]:
        """Return the topics."""
        return list({each.topic for each in self.given})

    def list_sent_to(self, sink: str, topics: Collection[str]) -> list[tuple[str, RecordOutcome]]:
        """Decide."""
        return [(each.topic, self._decision(each)) for each in self.given if each.topic in topics]

    def events_table(self, schema: pa.Schema) -> pa.Table:
        """Return rows with a position."""
        return pa.table({"position": pa.array([each.position for each in self.given], pa.string())})

    def dead_letters_table(self) -> pa.Table:
        """Return rows with a position, a reason and a detail."""
        details = self.rejections.details if self.rejections is not None else {}
        rows = [
            {"position": each.position, "reason": each.reason, "detail": details.get(each.position, "")}
            for each in self.given
        ]
        return pa.Table.from_pylist(rows, pa.schema([(name, pa.string()) for name in ("position", "reason", "detail")]))

    def publish(self, sink: str, *, letters: bool) -> None:
        """Publish."""
        if sink in self.world.down:
            raise SinkError(sink, "is away")
        self.world.published.setdefault(sink, []).extend(each.number for each in self.given)

    def publish_all(self, sinks: Sequence[str]) -> None:
        """Publish events to the first and letters to the last."""
        self._of(each for each in self.given if not each.reason).publish(sinks[0], letters=False)
        self.select_dead_letters().publish(sinks[-1], letters=True)

    def iter_spilled(self) -> Iterator[tuple[str, bytes]]:
        """Spill nothing."""
        return iter(())

    def iter_bare_records(self) -> Iterator[tuple[str, bytes]]:
        """Leave nothing out."""
        return iter(())

    def _of(self, given: Iterator[Given]) -> ListOutcomes:
        return replace(self, given=list(given))

    def _decision(self, each: Given) -> RecordOutcome:
        route = self.plan.routes.dead_letter_route("e", each.reason) if each.reason else each.route
        letter = each.letter or f"{self.batch.query}-{each.position}"
        return RecordOutcome(each.position, letter, route, "e", "" if each.reason else GOOD, each.reason, "", each.key)


class ListPlan(LoadedPlan):
    """A plan whose batches are :class:`ListRows`."""

    __slots__ = ("world",)

    def __init__(self, plan: Plan, world: World) -> None:
        nothing: Any = None
        super().__init__(plan, nothing, BatchWriter(plan, Metrics()))
        self.world = world

    def outcomes(self, rows: Any, batch: BatchId, part: BatchPart, *, arrived: bool, at_once: bool = False) -> Any:
        """Judge: what is condemned becomes a dead letter unseen."""
        given: Sequence[Given] = rows.given
        if part.condemned:
            given = [replace(each, fails=False, reason="undecodable") for each in given]
        shares = None if arrived or part.condemned or batch.kind == "letters" else self.writer.staged_shares(batch)
        return ListOutcomes(self.world, self.plan, batch, given, shares=shares, at_once=at_once)


@dataclass(frozen=True)
class ListRows:
    """The rows of a source."""

    given: tuple[Given, ...]
    sparkSession: Any = field(default_factory=lambda: SimpleNamespace(sparkContext=_Context()))

    def coalesce(self, number: int) -> ListRows:
        """They are in one place."""
        return self


class _Context:
    master = "local[2]"

    def getLocalProperty(self, name: str) -> None:
        """No job runs."""


def places(rows: ListRows, kind: str) -> pa.Table:
    """Return where rows lie, as :func:`router.reading.backlogs.extents` does."""
    numbers = [each.number for each in rows.given]
    columns = {CHANNEL: ["u-0"] * len(numbers), NUMBERS[0]: [1] * len(numbers), NUMBERS[1]: numbers}
    return pa.table({**columns, BYTES: [10] * len(numbers)})


def rows_within(rows: ListRows, kind: str, ranges: Ranges) -> ListRows:
    """Return the rows in these ranges, as :func:`router.reading.backlogs.within` does."""
    kept = (each for each in rows.given if any(r.first <= (1, each.number) <= r.last for r in ranges))
    return ListRows(tuple(kept), rows.sparkSession)


def number_of(position: str) -> int:
    """Return the number of a record."""
    return int(position.rpartition("-")[2])


def plan_of(routes: Sequence[str], *, kafka: bool = False, **dead: Any) -> Plan:
    """Return a plan that sends every event to these sinks, and dead letters to ``dead``: a table, or else Kafka.

    ``bus`` is a Kafka sink; all others are tables by their settings.
    """
    return _plan_of(tuple(routes), kafka, tuple(dead.items()))


@functools.cache
def _plan_of(routes: tuple[str, ...], kafka: bool, dead: tuple[tuple[str, Any], ...]) -> Plan:
    with TemporaryDirectory() as name:
        folder = Path(name)
        shop.write_catalog(folder, fixed=True)
        settings = shop.settings(folder, "http://127.0.0.1:9")
        bus = {"type": "kafka", "bootstrap_servers": "broker:9092", "topic": "t"}
        settings["sinks"] = {
            name: bus if kafka or name == "bus" else {"type": "table", "path": name} for name in (*routes, "dead")
        }
        settings["routes"] = [{"to": list(routes)}]
        settings["dead_letters"] = {"sinks": ["dead"], **dict(dead)}
        return Plan(load([str(folder / "catalog.json")]), settings_from_dict(settings, {}, folder))


@contextmanager
def dying(owner: type, name: str, when: str, nth: int = 1) -> Iterator[list[int]]:
    """Let the process die before or after the *nth* call of a method; what is yielded has an entry for each call."""
    function = getattr(owner, name)
    calls: list[int] = []

    @functools.wraps(function)
    def fatal(*arguments: Any, **named: Any) -> Any:
        calls.append(len(calls) + 1)
        if len(calls) != nth:
            return function(*arguments, **named)
        if when == "after":
            function(*arguments, **named)
        raise Died

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, fatal)
        yield calls


# A process of the router over batches in lists (:mod:`tests.support.listed`).

RECORDS: Final = ListRows(
    tuple(
        Given(n, reason="no-match" if n == 5 else "", key={3: "B", 5: "A", 6: "A", 7: "C"}.get(n, "")) for n in range(8)
    )
)
"""5 is a dead letter, and 6 has its key."""


def forget_accounts(state: StateFolder) -> None:
    """Forget the accounts as they were read, since what comes next is another process."""
    vars(state).pop("accounts", None)


class Process:
    """The one query of a router: it remembers nothing of the processes before it."""

    def __init__(self, state: StateFolder, plan: Plan, world: World, generation: Generation) -> None:
        self.loaded = ListPlan(plan, world)
        self.plans = cast(Any, SimpleNamespace(active=plan, current=self.current, pinned=self.current))
        self.metrics = Metrics(plan.settings.sinks)
        self.status = RouterStatus()
        forget_accounts(state)
        shared = SharedParts(state, self.plans, self.metrics, self.status)
        self.pipeline = Pipeline(INBOX, "inbox", generation, shared)

    def current(self, *pinned: object) -> ListPlan:
        """Return the plan that this process has loaded."""
        return self.loaded

    def batch(self, number: int = 0, rows: Any = RECORDS) -> None:
        """Take a batch, as Spark hands it in."""
        self.pipeline.batch(rows, number)

    def held(self) -> tuple[str, dict[str, float]]:
        """Return why the query is held, '' when it is not, and what the metrics say of it by sink."""
        query = self.status.check_readiness()[1]["queries"][INBOX]
        samples = (sample for metric in self.metrics.registry.collect() for sample in metric.samples)
        gauge = {each.labels["sink"]: each.value for each in samples if each.name == "xrouter_query_held"}
        return query["reason"] if query["state"] == "held" else "", gauge

    def gap(self) -> float | None:
        """Return what is missing of what was taken, as the metrics have it."""
        return self.metrics.registry.get_sample_value("xrouter_conservation_gap", {"query": INBOX})

    def delivered(self) -> dict[str, int]:
        """Return the records that each sink has, as the metrics have it."""
        samples = (sample for metric in self.metrics.registry.collect() for sample in metric.samples)
        return {each.labels["sink"]: int(each.value) for each in samples if each.name == "xrouter_sink_records_total"}

    def counts(self) -> Counter[str]:
        """Return the records by what they ended as."""
        samples = (sample for metric in self.metrics.registry.collect() for sample in metric.samples)
        found: Counter[str] = Counter()
        for each in samples:
            if each.name == "xrouter_records_total" and each.value:
                found[each.labels["reason"] or each.labels["outcome"]] += int(each.value)
        return found
