"""``make bench-peers``: the router beside what one would write by hand instead, on one topic and one catalog.

The contestants are programs as a user runs them, one after the other, each a process of its own that reads the same
topic from its beginning: ``xrouter run`` with no settings but those that it needs, Kafka Streams in Java (a thread for
each core), Quix Streams in Python (a process for each), and PySpark with a CASE WHEN, which alone depends on the number
of definitions and is run with several catalogs. All send events to a topic for each message group, by type, with the
values of the URI template and lineage as headers, and the rest to a topic of dead letters.

The topic has the same records several times over. Nothing is measured inside a contestant: a round is the time from
one multiple of ``--records`` to the next in the topics that it sends to, and the processor time is that of all its
processes. So starting, joining a consumer group, and the rounds in which HotSpot compiles (``--warm``) are left out.
A peer that has not sent all after ``--limit`` seconds is stopped, and its figures are those of what it had sent.

A figure counts only if the outcome is right: of the router, what the load wants; of the others, what the router sent.
Compared are the numbers of records for each topic and message (or reason of dead letters), and of one record in a
hundred key, topic, message or reason, and context.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import venv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from bindings.private_files import hold_lock
from router.errors import ConnectorError
from router.spark.connectors import cache_root, fetch_jars, find_java
from tests.benchmarks.machine import machine, options, say
from tests.benchmarks.streams import broker
from tests.support import load, plain
from tests.support.code_lines import code_lines_of
from tests.support.kafka import create_topics, iter_all, produce
from tests.support.ports import free_ports
from tests.support.processes import below, processor_seconds
from tests.support.waiting import wait_until

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
STREAMS_PINS: Final = HERE / "streams_jars.json"
QUIX_PINS: Final = HERE / "quix_requirements.txt"
PARTITIONS: Final = 4
SAMPLED: Final = 100
"""One record in so many is compared."""
STOP_SECONDS: Final = 60.0
ROUTER_SECONDS: Final = 1800.0
_PAUSE_SECONDS: Final = 0.1
_NUMBER: Final = re.compile(rb'\{"n": (\d+)')
Destination = tuple[str, str]
"""The end of a topic's name, and the message, or the reason of a dead letter."""


class PeerMissing(Exception):
    """What a contestant needs and what cannot be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a contestant is to do."""

    bootstrap: str
    catalog: Path
    topic: str
    out: str
    folder: Path

    @property
    def dead(self) -> str:
        """The topic of dead letters."""
        return f"{self.out}dead"

    @property
    def topics(self) -> list[str]:
        """All topics that it sends to."""
        return [self.dead, *(f"{self.out}plant.{number}" for number in range(load.GROUPS))]

    @property
    def arguments(self) -> list[str]:
        """The same for programs."""
        return [self.bootstrap, str(self.catalog), self.topic, self.out, self.dead, str(self.folder / "state")]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to do it: the command, its variables, and how many processes of it run."""

    name: str
    command: Callable[[Task], Sequence[str]]
    program: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    copies: int = 1


def router() -> Contestant:
    """The router with no settings but those it needs."""

    def command(task: Task) -> list[str]:
        config = task.folder / "router.yaml"
        config.write_text(yaml.safe_dump(router_settings(task)))
        return [sys.executable, "-m", "xrouter", "run", str(config)]

    return Contestant("xrouter", command)


def router_settings(task: Task) -> dict[str, Any]:
    sinks = plain.topics(task.bootstrap, bus=f"{task.out}{{messagegroup}}", dead=task.dead)
    more = {"metrics": {"port": free_ports(1)[0]}, "state": str(task.folder / "state")}
    return load.settings(task.bootstrap, task.catalog, sinks, **more)


def streams() -> Contestant:
    """Kafka Streams; the JDK compiles the program in memory.

    Raises:
        PeerMissing: its jars cannot be had.
    """
    try:
        jars = fetch_jars(STREAMS_PINS)
    except ConnectorError as error:
        raise PeerMissing(str(error)) from error
    program = HERE / "StreamsByHand.java"
    start = [str(find_java()), "-cp", os.pathsep.join(map(str, jars)), str(program)]
    version = next(jar.parent.name for jar in jars if jar.name.startswith("kafka-streams-"))
    return Contestant(f"Kafka Streams {version}", lambda task: [*start, *task.arguments], program)


def quix() -> Contestant:
    """Quix Streams, in an environment of its own that is made once.

    Raises:
        PeerMissing: it cannot be installed.
    """
    python, program = _quix_python(), HERE / "quix_by_hand.py"
    version = re.search(r"^quixstreams==(\S+)", QUIX_PINS.read_text(), re.MULTILINE)
    copies = os.cpu_count() or 1
    name = f"Quix Streams {version[1] if version else ''}, {copies} processes"
    return Contestant(name, lambda task: [str(python), str(program), *task.arguments], program, copies=copies)


def _quix_python() -> Path:
    folder = cache_root() / "peers" / hashlib.sha256(QUIX_PINS.read_bytes()).hexdigest()[:20]
    python, done = folder / "bin" / "python", folder / "installed"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder.parent / ".lock"):
        if not done.exists():
            venv.create(folder, clear=True, with_pip=True)
            command = [str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(QUIX_PINS)]
            installed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if installed.returncode != 0:
                raise PeerMissing(f"Quix Streams cannot be installed:\n{installed.stderr[-1000:]}")
            done.touch()
    return python


def case_when() -> Contestant:
    """PySpark with a CASE WHEN, with Spark's defaults: one task for each core, but the heap of our own."""
    submitted = f"--master local[*] --driver-memory 3g --jars {','.join(map(str, fetch_jars()))} pyspark-shell"
    command = [sys.executable, "-m", "tests.benchmarks.spark_by_hand"]
    return Contestant(
        "PySpark, CASE WHEN",
        lambda task: [*command, *task.arguments],
        HERE / "spark_by_hand.py",
        {"PYSPARK_SUBMIT_ARGS": submitted, "PYSPARK_PYTHON": sys.executable},
    )


KINDS: Final[Mapping[str, Callable[[], Contestant]]] = {
    "router": router,
    "streams": streams,
    "quix": quix,
    "case-when": case_when,
}
AT_EACH_SIZE: Final = ("router", "case-when")
"""Those that run with each catalog; the others find a definition in a hash map, and run with the largest."""


@contextmanager
def _running(contestant: Contestant, task: Task) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run a contestant within the block; nothing of it is left behind it. What it says is in ``log`` in its folder."""
    task.folder.mkdir(parents=True)
    command = contestant.command(task)
    with (task.folder / "log").open("ab") as log:
        processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **contestant.environ},
                start_new_session=True,
            )
            for _ in range(contestant.copies)
        ]
    try:
        yield processes
    finally:
        left = [pid for each in processes for pid in below(each.pid)]
        for each in processes:
            each.terminate()
        for each in processes:
            try:
                each.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
        for pid in left:
            _kill(pid)


def _kill(pid: int) -> None:
    """End what a program has left, such as a JVM that compiles and hears nothing."""
    try:
        if os.getpgid(pid) != os.getpgid(0):
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@dataclass(frozen=True, slots=True)
class Sample:
    """How far a contestant was at a time: records sent, and processor time so far."""

    seconds: float
    sent: int
    cpu: float


class Watch:
    """What a contestant has sent so far, by the end offsets of its topics; nothing of it is transactional."""

    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        self._asked = {TopicPartition(topic, number): latest for topic in topics for number in range(PARTITIONS)}
        wait_until(self._answered, STOP_SECONDS, "leaders of the topics")

    def _answered(self) -> bool:
        try:
            return self.sent() == 0
        except KafkaException:
            return False

    def sent(self) -> int:
        """Return how many records there are."""
        return sum(each.result(STOP_SECONDS).offset for each in self._admin.list_offsets(self._asked).values())

    def follow(self, processes: Sequence[subprocess.Popen[bytes]], total: int, limit: float) -> list[Sample]:
        """Return samples until all is sent, a process has ended, or the time is up."""
        samples: list[Sample] = []
        began = time.monotonic()
        while True:
            pids = [pid for each in processes for pid in below(each.pid)]
            samples.append(Sample(time.monotonic(), self.sent(), processor_seconds(pids)))
            ended = any(each.poll() is not None for each in processes)
            if samples[-1].sent >= total or ended or samples[-1].seconds - began > limit:
                return samples
            time.sleep(_PAUSE_SECONDS)


def rates(samples: Sequence[Sample], records: int, warm: int, rounds: int) -> tuple[float, float] | None:
    """Return records a second and processor time a record in seconds, each the median of the rounds that were finished.

    Without such a round they are those of the later half of what was sent; None if it was sent in one moment.
    """
    marks = [_first(samples, records * number) for number in range(warm, warm + rounds + 1)]
    spans = [(before, after) for before, after in itertools.pairwise(marks) if before is not None and after is not None]
    if not spans:
        most = samples[-1].sent
        half, end = _first(samples, max(1, most // 2)), _first(samples, most)
        spans = [] if half is None or end is None else [(half, end)]
    spans = [(before, after) for before, after in spans if after.sent > before.sent]
    if not spans:
        return None
    return (
        statistics.median((after.sent - before.sent) / (after.seconds - before.seconds) for before, after in spans),
        statistics.median((after.cpu - before.cpu) / (after.sent - before.sent) for before, after in spans),
    )


def _first(samples: Sequence[Sample], sent: int) -> Sample | None:
    """Return the first at which so much was sent."""
    return next((each for each in samples if each.sent >= sent), None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was sent: how many records for each destination, and of sampled ones each form by the record's number."""

    counts: Counter[Destination]
    sample: Mapping[int, Counter[tuple[bytes | None, Destination, str]]]

    @classmethod
    def read(cls, task: Task) -> Outcome:
        """Return what a contestant has sent."""
        counts: Counter[Destination] = Counter()
        sample: dict[int, Counter[tuple[bytes | None, Destination, str]]] = {}
        for topic in task.topics:
            for message in iter_all(task.bootstrap, topic):
                headers = dict(message.headers)
                told = headers.get("xrouter-message") or headers.get("xrouter-reason") or b""
                destination = topic.removeprefix(task.out), told.decode()
                counts[destination] += 1
                number = _NUMBER.match(message.value or b"")
                if number is not None and _is_sampled(int(number[1])):
                    context = json.dumps(json.loads(headers.get("xrouter-context") or b"{}"), sort_keys=True)
                    sample.setdefault(int(number[1]), Counter())[message.key, destination, context] += 1
        return cls(counts, sample)

    def compare(self, other: Outcome, *, whole: bool) -> str:
        """Return how this differs from *other*, which it may be a part of if not *whole*; empty if it does not."""
        if whole and self.counts != other.counts:
            more, fewer = (self.counts - other.counts), (other.counts - self.counts)
            return f"{more.total()} records more, {fewer.total()} fewer, such as {(more or fewer).most_common(2)}"
        wrong = [number for number, each in self.sample.items() if set(each) != set(other.sample.get(number, ()))]
        if whole:
            wrong += [number for number, each in other.sample.items() if each != self.sample.get(number)]
        if wrong:
            mine, its = self.sample.get(wrong[0]), other.sample.get(wrong[0])
            return f"{len(set(wrong))} of {len(other.sample)} sampled records, such as {mine} for {its}"
        return ""


def _is_sampled(number: int) -> bool:
    """Whether a record is compared; one in fifty, with 49 and 99 at the end, is a dead letter."""
    return number % SAMPLED in (0, SAMPLED - 1)


def check_router(outcome: Outcome, records: Sequence[tuple[bytes | None, bytes, load.Headers]], laps: int) -> str:
    """Return how what the router sent differs from what the load wants; empty if it does not."""
    wanted: Counter[str] = Counter()
    for number, (key, value, _) in enumerate(records):
        want = json.loads(value)["want"]
        wanted[want] += laps
        found = outcome.sample.get(number, Counter())
        if _is_sampled(number) and {(each, told) for each, (_, told), _ in found} != {(key, _told(found, want))}:
            return f"record {number} became {found} and not {want}"
    sent: Counter[str] = Counter()
    for (topic, told), count in outcome.counts.items():
        sent["dead" if topic == "dead" else told.rpartition("/")[2]] += count
    return "" if sent == wanted else f"counts differ: {(sent - wanted) + (wanted - sent)}"


def _told(found: Mapping[tuple[bytes | None, Destination, str], int], want: str) -> str:
    """Return the xid of the message that is wanted, or whatever reason a dead letter has."""
    if want != "dead":
        group = int(want.removeprefix("plant.event")) % load.GROUPS
        return f"/messagegroups/plant.{group}/messages/{want}"
    return next((told for _, (topic, told), _ in found if topic == "dead" and told), want)


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one contestant with one catalog."""

    name: str
    kind: str
    definitions: int
    figures: tuple[float, float] | None
    lines: int
    outcome: str


class Bench:
    """The contestants, over topics of one broker."""

    def __init__(self, folder: Path, bootstrap: str, chosen: argparse.Namespace) -> None:
        self._folder = folder
        self._bootstrap = bootstrap
        self._chosen = chosen
        self._laps = chosen.warm + chosen.rounds
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def run(self, contestants: Mapping[str, Contestant]) -> list[Result]:
        """Run all, the catalogs in their order."""
        results: list[Result] = []
        for definitions in self._chosen.definitions:
            last = definitions == self._chosen.definitions[-1]
            kinds = [kind for kind in contestants if last or kind in AT_EACH_SIZE]
            results += self._run_with_catalog(definitions, {kind: contestants[kind] for kind in kinds})
        return results

    def _run_with_catalog(self, definitions: int, contestants: Mapping[str, Contestant]) -> list[Result]:
        topic = f"in-{definitions}"
        catalog = plain.write(self._folder, load.catalog(definitions, topic=topic), f"{topic}.json")
        records = list(load.records(self._chosen.records, definitions))
        create_topics(self._bootstrap, [topic], PARTITIONS)
        produce(self._bootstrap, topic, itertools.chain.from_iterable(itertools.repeat(records, self._laps)))
        results: list[Result] = []
        reference: Outcome | None = None
        for kind, contestant in contestants.items():
            name = f"{kind}-{definitions}"
            task = Task(self._bootstrap, catalog, topic, f"{name}.", self._folder / name)
            create_topics(self._bootstrap, task.topics, PARTITIONS)
            figures, sent = self._measure(contestant, task)
            whole = sent >= self._chosen.records * self._laps
            outcome = Outcome.read(task)
            if reference is None:
                reference, fault = outcome, check_router(outcome, records, self._laps)
            else:
                fault = outcome.compare(reference, whole=whole)
            self._delete(task.topics)
            lines = code_lines_of(contestant.program or task.folder / "router.yaml")
            results.append(Result(contestant.name, kind, definitions, figures, lines, _verdict(fault, whole, sent)))
            say(f"{contestant.name}, {definitions} definitions: {_figures(figures)}; outcome: {results[-1].outcome}")
        self._delete([topic])
        return results

    def _measure(self, contestant: Contestant, task: Task) -> tuple[tuple[float, float] | None, int]:
        chosen, watch = self._chosen, Watch(self._bootstrap, task.topics)
        began = time.monotonic()
        with _running(contestant, task) as processes:
            # The router's outcome is what others are compared with: it has to be whole.
            limit = ROUTER_SECONDS if contestant.program is None else chosen.limit
            samples = watch.follow(processes, chosen.records * self._laps, limit)
        say(f"{contestant.name} sent {samples[-1].sent:,} records in {time.monotonic() - began:.0f} s")
        if samples[-1].sent < chosen.records * self._laps:
            say((task.folder / "log").read_text(errors="replace")[-1500:])
        return rates(samples, chosen.records, chosen.warm, chosen.rounds), samples[-1].sent

    def _delete(self, topics: Sequence[str]) -> None:
        for deleted in self._admin.delete_topics(list(topics)).values():
            deleted.result(STOP_SECONDS)


def _verdict(fault: str, whole: bool, sent: int) -> str:
    if fault:
        return f"differs: {fault}"
    if whole:
        return "the same"
    return f"stopped; the same in the {sent:,} records it had sent" if sent else "stopped; had sent nothing"


def _figures(figures: tuple[float, float] | None) -> str:
    return "no figure" if figures is None else f"{figures[0]:,.0f} records/s, {figures[1] * 1e6:.1f} us of CPU a record"


def table(results: Sequence[Result]) -> str:
    """Return the figures as a table in Markdown."""
    routed = {each.definitions: each.figures for each in results if each.kind == "router"}
    rows = [
        "| | definitions | records/s | CPU, µs a record | router: faster, less CPU | code lines | outcome |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in results:
        speed = cpu = "-"
        beside = "1"
        if each.figures:
            speed, cpu = f"{each.figures[0]:,.0f}", f"{each.figures[1] * 1e6:,.1f}"
        base = routed.get(each.definitions)
        if each.kind != "router":
            beside = "-"
            if base and each.figures:
                beside = f"{base[0] / each.figures[0]:,.2f}, {each.figures[1] / base[1]:,.2f}"
        lines = f"{each.lines} of YAML" if each.kind == "router" else str(each.lines)
        rows.append(f"| {each.name} | {each.definitions:,} | {speed} | {cpu} | {beside} | {lines} | {each.outcome} |")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    chosen = options(
        __doc__,
        arguments,
        records=(300_000, "of a round"),
        rounds=3,
        warm=(2, "rounds before those that count"),
        definitions=([50, 200, 1_500], "ascending"),
        peers=([*KINDS][1:], "none leaves them out", *[*KINDS][1:]),
        limit=(100.0, "seconds after which a peer is stopped"),
    )
    began, waiting = time.monotonic(), os.getloadavg()[0]
    contestants: dict[str, Contestant] = {}
    for kind in ("router", *chosen.peers):
        try:
            contestants[kind] = KINDS[kind]()
        except PeerMissing as missing:
            say(f"left out: {missing}")
    with broker() as (folder, bootstrap):
        results = Bench(folder, bootstrap, chosen).run(contestants)
    size = f"{chosen.records:,} records a round, {chosen.warm} rounds to warm up, medians of {chosen.rounds}"
    lasted = f"load before: {waiting:.1f}; {time.monotonic() - began:.0f} s in all"
    say(f"\n{machine()}; {size}; {lasted}\n\n{table(results)}")


if __name__ == "__main__":
    main()
