"""Servers of the tests as local processes: started, killed and started again, and surely gone when the tests are."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from bindings.inbox.source import SPARK_SCHEMA
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint
from catalog.record import Record
from router.evaluation.evaluator import Kind
from router.evaluation.outputs import Tally
from router.evaluation.plan import Evaluator, Plan
from router.settings import KafkaSink, settings_from_dict
from router.watching.metrics import Metrics
from router.writing.outcomes import Outcomes
from router.writing.staging import BatchId
from router.writing.writer import BatchWriter
from tests.support.evaluating import KAFKA_SCHEMA, RECEIVED, evaluated, inbox_row, kafka_row
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

LOG_TAIL_BYTES: Final = 4000


class BrokerFailed(Exception):
    """A broker that did not start, or stopped by itself; the message ends with the end of its log."""


class BrokerProcess(ABC):
    """A broker on loopback that keeps its ports and its data through :meth:`stop`, :meth:`kill` and :meth:`restart`.

    Should the process of the tests die, even by SIGKILL, a guard kills the broker. Start it from any thread.
    """

    ready_seconds: ClassVar[float] = 120.0
    stop_seconds: ClassVar[float] = 60.0

    def __init__(self, folder: Path) -> None:
        """Prepare a broker whose data, settings and log are in *folder*; nothing runs before its start."""
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._started_at = 0

    @property
    @abstractmethod
    def title(self) -> str:
        """What messages call it: its kind and where it listens."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Write its settings, and return the command that runs it."""

    def _environment(self) -> Mapping[str, str]:
        """Return variables for the broker, besides those of the tests."""
        return {}

    @abstractmethod
    def _ready(self) -> bool:
        """Whether it answers now."""

    @property
    def pid(self) -> int:
        """The id of its process, which runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        """The file that everything the broker writes goes to, through all its starts."""
        return self._folder / "broker.log"

    def start(self) -> Self:
        """Start the broker and return when it answers.

        Raises:
            BrokerFailed: it runs already, ended, or does not answer within the limit.
        """
        if self._process is not None:
            raise BrokerFailed(f"{self.title} runs already; stop or kill it first")
        self._folder.mkdir(parents=True, exist_ok=True)
        command = self._command()
        with self.log.open("ab") as log:
            self._started_at = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **self._environment()},
            )
        self._guard = _guard(self._process.pid)
        try:
            wait_until(self._ready_or_ended, self.ready_seconds, lambda: f"{self.title}\n{self._tail()}")
        except (TimeoutError, BrokerFailed) as error:
            self.kill()
            raise BrokerFailed(str(error)) from error
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the broker as an operator would, with SIGTERM; kills it when it takes too long."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker at once with SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same ports and data, stopping first what still runs."""
        self.stop()
        self.start()

    def _ready_or_ended(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise BrokerFailed(f"{self.title} ended with {self._process.returncode}\n{self._tail()}")
        return self._ready()

    def _end(self, by: signal.Signals) -> None:
        process, self._process = self._process, None
        guard, self._guard = self._guard, None
        if guard is not None:
            # The guard goes first: once the broker is reaped, its process id may belong to somebody else.
            guard.kill()
            guard.communicate()
        if process is None:
            return
        process.send_signal(by)
        try:
            process.wait(self.stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(self.stop_seconds)

    def _tail(self) -> str:
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace") or "(its log is empty)"


def _guard(pid: int) -> subprocess.Popen[bytes]:
    """Start a process that kills *pid* as soon as ours is gone: it reads a pipe whose other end only we hold.

    Not PR_SET_PDEATHSIG: it fires when the thread that started the child ends, and setting it takes a
    ``preexec_fn``, which may deadlock in a process with threads, such as one with Spark.
    """
    script = f"cat >/dev/null; kill -KILL {shlex.quote(str(pid))} 2>/dev/null"
    return subprocess.Popen(
        ["/bin/sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


# Processes and their descendants, as the kernel tells of them now.

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_FIRST_TIME: Final = 11
"""Place of the first of the four times in a process's status, behind its name: its own, and of children that ended."""


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that live, ascending."""
    found: list[int] = []
    for thread in _threads(pid):
        try:
            found += map(int, (thread / "children").read_text().split())
        except OSError:
            continue  # It ended meanwhile.
    return sorted(found)


def program_of(pid: int) -> str:
    """Return the path of the program that a process runs; empty when it has ended."""
    try:
        return str((_PROC / str(pid) / "exe").readlink())
    except OSError:
        return ""


def below(pid: int, left_out: Collection[int] = ()) -> list[int]:
    """Return a process and its descendants, but for those left out and what is below them."""
    found = [pid]
    for each in found:
        found += [child for child in children(each) if child not in left_out]
    return found


def command_of(pid: int) -> str:
    """Return the command line of a process, its words one behind the other; empty when it has ended."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def processor_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of processes, with that of their children that ended."""
    return sum(map(_ticks, pids)) / _TICKS


def thread_seconds(pids: Iterable[int], name: str) -> float:
    """Return the processor time of the threads of processes whose names begin so, of those that live."""
    return sum(_thread_ticks(pid, name) for pid in pids) / _TICKS


def _threads(pid: int) -> list[Path]:
    """Return the folders of a process's threads; none when it has ended, for which `Path.glob` has an error."""
    tasks = _PROC / str(pid) / "task"
    try:
        return [tasks / name for name in os.listdir(tasks)]
    except OSError:
        return []


def _thread_ticks(pid: int, name: str) -> int:
    ticks = 0
    for thread in _threads(pid):
        try:
            if (thread / "comm").read_text(errors="replace").startswith(name):
                told = (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()
                ticks += sum(map(int, told[_FIRST_TIME : _FIRST_TIME + 2]))
        except OSError:
            continue  # It ended meanwhile.
    return ticks


def _ticks(pid: int) -> int:
    try:
        told = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0  # It has just ended; its time is its parent's now.
    return sum(map(int, told[_FIRST_TIME : _FIRST_TIME + 4]))


# Records as they leave a Kafka sink, binary and structured: through the very columns of ``run``, without a broker.

ENDPOINT: Final = "/endpoints/e"
GROUP: Final = "/messagegroups/g"
ANY_EVENT: Final = Definition(f"{GROUP}/messages/any", GROUP, envelope=CLOUDEVENTS)
MODES: Final = ("binary", "structured")


@dataclass(frozen=True)
class Sent:
    """What a Kafka client would send. ``headers`` are the event's and those passed on, without lineage."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]

    @property
    def named(self) -> dict[str, bytes]:
        """The headers by name, each of which occurs once."""
        assert len({name for name, _ in self.headers}) == len(self.headers), self.headers
        return dict(self.headers)


def any_event(protocol: str) -> Catalog:
    """A catalog whose one endpoint, of that protocol, takes every CloudEvent."""
    uri = "kafka://broker:9092" if protocol == "KAFKA" else "http://router/in"
    endpoint = Endpoint(ENDPOINT, ("consumer",), None, protocol, {}, (uri,), {"topic": "in"}, (), (ANY_EVENT.xid,))
    return Catalog({ANY_EVENT.xid: ANY_EVENT}, {GROUP: (ANY_EVENT.xid,)}, {ENDPOINT: endpoint})


class KeptOutcomes(Outcomes):
    """Outcomes that keep what Spark would send to Kafka, by the name of the sink."""

    def __init__(
        self,
        rows: DataFrame,
        batch: BatchId,
        plan: Plan,
        outgoing: DataFrame | None = None,
        judge: Broadcast[Evaluator] | None = None,
    ) -> None:
        super().__init__(lambda: rows, batch, plan, Tally, outgoing=outgoing, judge=judge)
        self.kept: dict[str, DataFrame] = {}

    def _save(self, rows: DataFrame, sink: KafkaSink, name: str) -> None:
        self.kept[name] = rows

    @property
    def sent(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of each sink."""
        return {name: rows.toArrow().to_pylist() for name, rows in self.kept.items()}


def leave(
    spark: SparkSession, folder: Path, records: Sequence[Record], catalog: Catalog | None = None
) -> dict[str, list[Sent]]:
    """Return what leaves for Kafka or HTTP records, all of one protocol, by mode; every event must be routed."""
    protocol = records[0].protocol
    broker = {"type": "kafka", "bootstrap_servers": "broker:9092"}
    sinks = {name: {**broker, "topic": name, "mode": name} for name in MODES}
    sinks["dead"] = {**broker, "topic": "dead"}
    routes = {"routes": [{"to": list(MODES)}], "dead_letters": {"sinks": ["dead"]}}
    told = {"sources": [{"endpoint": ENDPOINT}], "sinks": sinks, **routes}
    plan = Plan(catalog or any_event(protocol), settings_from_dict(told, {}, folder))
    kafka = protocol == "KAFKA"
    rows = [kafka_row(each, at) if kafka else inbox_row(each, at) for at, each in enumerate(records)]
    frame = spark.createDataFrame(rows, KAFKA_SCHEMA if kafka else SPARK_SCHEMA).coalesce(1)
    kind: Kind = "kafka" if kafka else "inbox"
    rows_out = evaluated(frame, kind, plan.evaluator)
    batch = BatchId(kind, "q", "g", 0, RECEIVED)
    outcomes = KeptOutcomes(rows_out, batch, plan)
    writer = BatchWriter(plan, Metrics())
    rejections = writer.new_rejections()
    writer.send_events(outcomes, batch, rejections)
    writer.send_dead_letters(outcomes.select_dead_letters(), batch, rejections)
    sent = outcomes.sent
    assert not sent["dead"], sent["dead"]
    return {mode: [_sent(row) for row in sent[mode]] for mode in MODES}


def _sent(row: dict[str, Any]) -> Sent:
    headers = [(each["key"], each["value"]) for each in row["headers"] if not each["key"].startswith("xrouter-")]
    return Sent(row["key"], row["value"], headers)


def at_endpoint(record: Record) -> Record:
    """Return the record as of the endpoint that takes every event."""
    return replace(record, endpoint=ENDPOINT)
