"""Real Kafka brokers for tests: one that is given, one in a container, or a local process of our own.

Never a mock, and never a skip: when no broker can be had, the run fails and says why.
Run as a module it fetches what the local process needs, so that later runs work offline.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import ElectionType, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from bindings.private_files import hold_lock
from router.spark.connectors import fetch_jars, find_java
from tests.support import deployed
from tests.support.ports import LOOPBACK, free_ports
from tests.support.processes import LOG_TAIL_BYTES, BrokerFailed, BrokerProcess
from tests.support.router import start_options
from tests.support.waiting import wait_until

GIVEN_VARIABLE: Final = "XROUTER_TEST_KAFKA"
READY_LIMIT_SECONDS: Final = 180.0
USED_SECONDS: Final = 1500.0
"""The longest that a file of tests takes which another process runs."""
KAFKA_PINS: Final = Path(__file__).resolve().with_name("kafka_jars.json")
"""Kafka, and a binding of log4j for its slf4j 1.7: without it, a failed start would tell nothing."""
CLUSTER_ID: Final = "eHJvdXRlci10ZXN0cy0wMQ"


# What the file of docker-compose.yml leaves to its place. And the controller writes less often than twice a second that
# nothing happens: the brokers run through a whole run of the tests, and do nothing most of the time.
_PLACE: Final = """
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
metadata.max.idle.interval.ms=10000
log.cleaner.backoff.ms=500
"""

LOGGING: Final = """\
status=error
rootLogger.level=warn
rootLogger.appenderRef.err.ref=err
appender.err.type=Console
appender.err.name=err
appender.err.target=SYSTEM_ERR
appender.err.layout.type=PatternLayout
appender.err.layout.pattern=%d %p %c{1}: %m%n
"""


_MAIN: Final = "kafka.Kafka"


class KafkaBroker(BrokerProcess):
    """A single-node KRaft broker on loopback, in a process of its own."""

    ready_seconds = READY_LIMIT_SECONDS

    def __init__(self, folder: Path, *, heap: str = "384m", start: Sequence[str] | None = None) -> None:
        """Prepare a broker whose data, settings and log are in *folder*; nothing runs before :meth:`start`.

        *start* are other options for its JVM than those that make it start quickly.
        """
        super().__init__(folder)
        self._heap = heap
        self._start = start
        self._port, self._controller_port = free_ports(2)

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers, ``host:port``; the same for the life of this object."""
        return f"{LOOPBACK}:{self._port}"

    @property
    def title(self) -> str:
        return f"Kafka on {self.bootstrap}"

    def _command(self) -> Sequence[str]:
        if not (self._folder / "server.properties").exists():
            self._format()
        return self._java(_MAIN, str(self._folder / "server.properties"))

    def _ready(self) -> bool:
        return answers(self.bootstrap)

    def _format(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "log4j2.properties").write_text(LOGGING)
        draft = self._folder / "server.properties.new"
        draft.write_text(self._properties())
        options = ("-t", CLUSTER_ID, "-c", str(draft), *self._format_options())
        command = self._java("kafka.tools.StorageTool", "format", *options)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise BrokerFailed(f"cannot format the storage of Kafka:\n{(done.stdout + done.stderr)[-LOG_TAIL_BYTES:]}")
        # named so only now: the file is the sign that the storage is formatted
        draft.rename(self._folder / "server.properties")

    def _properties(self) -> str:
        where = {"host": LOOPBACK, "port": self._port, "controller": self._controller_port}
        place = _PLACE.format(**where, data=self._folder / "data")
        return deployed.KAFKA.read_text() + place + self._more_properties()

    def _more_properties(self) -> str:
        """Return further lines of the server's properties; of a name that occurs twice the last counts."""
        return ""

    def _format_options(self) -> Sequence[str]:
        """Return further options for the formatting of the storage."""
        return ()

    def _system_properties(self) -> Sequence[str]:
        """Return further options for the JVM."""
        return ()

    def _java(self, main: str, *arguments: str) -> list[str]:
        jars = fetch_jars(KAFKA_PINS)
        classpath = os.pathsep.join(map(str, jars))
        options = [f"-Xmx{self._heap}", "-Xms64m", "-XX:+UseSerialGC", "-Djava.awt.headless=true"]
        if self._start is None:
            options += start_options("kafka", jars, _run_one)
        elif main == _MAIN:
            options += self._start
        options.append(f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}")
        options += self._system_properties()
        return [str(find_java()), *options, "-cp", classpath, main, *arguments]


_MEMBER: Final = """
node.id={number}
controller.quorum.voters={voters}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
"""


class _Member(KafkaBroker):
    """One of the three brokers of a cluster, each of which is a controller as well."""

    members: Sequence[_Member] = ()

    def _more_properties(self) -> str:
        places = [f"{number}@{LOOPBACK}:{each._controller_port}" for number, each in enumerate(self.members, 1)]
        return _MEMBER.format(number=self.members.index(self) + 1, voters=",".join(places))


class KafkaCluster:
    """Three brokers that copy all they have, and acknowledge what two of them have: one may be away at a time."""

    def __init__(self, folder: Path) -> None:
        """Prepare it; nothing runs before :meth:`start`."""
        self.brokers = [_Member(folder / f"broker{number}") for number in (1, 2, 3)]
        for broker in self.brokers:
            broker.members = self.brokers

    @property
    def bootstrap(self) -> str:
        """The addresses of all."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        """Start all at once, since none answers before it knows another."""
        with ThreadPoolExecutor(len(self.brokers)) as starters:
            for started in [starters.submit(broker.start) for broker in self.brokers]:
                started.result()

    def stop(self) -> None:
        """End all at once; none would leave in order without the others."""
        for broker in self.brokers:
            broker.kill()

    def whole(self) -> bool:
        """Whether each partition has its three copies up to date."""
        topics = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(timeout=30).topics
        return all(len(each.isrs) == 3 for topic in topics.values() for each in topic.partitions.values())

    def elect(self) -> None:
        """Let each partition's first broker lead it again, wherever another has led it meanwhile."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for error in admin.elect_leaders(ElectionType.PREFERRED).result(READY_LIMIT_SECONDS).values():
            assert error is None or error.code() == KafkaError.ELECTION_NOT_NEEDED, error


def _run_one(options: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with KafkaBroker(Path(folder) / "kafka", start=options) as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            producer.produce("any", b"1")
            producer.flush(READY_LIMIT_SECONDS)


def answers(bootstrap: str, limit: float = 2.0) -> bool:
    """Whether a broker at *bootstrap* answers a metadata request within *limit* seconds."""
    # Connection faults are what is being waited out here; librdkafka would write each of them to stderr.
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 2000})
    try:
        return bool(client.list_topics(timeout=limit).brokers)
    except KafkaException:
        return False


@contextmanager
def kafka_for_tests(folder: Path) -> Iterator[str]:
    """Yield the bootstrap servers of a broker to share: the given one, else a container, else a local process.

    Raises:
        BrokerFailed: the given one does not answer, or the one to be started does not start.
    """
    if given := os.environ.get(GIVEN_VARIABLE):
        if not answers(given, READY_LIMIT_SECONDS):
            raise BrokerFailed(f"no Kafka answers at {given}; correct or unset {GIVEN_VARIABLE}")
        yield given
    elif _docker_answers():
        # imported late: it looks for an engine's configuration as soon as it is loaded
        from testcontainers.community.kafka import KafkaContainer

        with KafkaContainer().with_kraft() as container:
            yield container.get_bootstrap_server()
    else:
        broker = KafkaBroker(folder)
        broker.start()
        try:
            yield broker.bootstrap
        finally:
            broker.stop()


@contextmanager
def kafka_for_all(folder: Path) -> Iterator[str]:
    """Yield what :func:`kafka_for_tests` does, once for all processes that name the same *folder*.

    The first of them starts the broker, and stops it when none of the others uses it any more.
    """
    lock, place = folder / "kafka.lock", folder / "kafka.bootstrap"
    with ExitStack() as stack, (folder / "kafka.users").open("w") as users:
        with hold_lock(lock):
            fcntl.flock(users, fcntl.LOCK_SH)
            mine = not place.exists()
            if mine:
                place.write_text(stack.enter_context(kafka_for_tests(folder / "kafka")))

        def unused() -> bool:
            with hold_lock(lock):
                try:
                    fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                place.unlink()
                return True

        try:
            yield place.read_text()
        finally:
            if mine:
                wait_until(unused, USED_SECONDS, "the other processes to be done with Kafka")


def _docker_answers() -> bool:
    try:
        done = subprocess.run(["docker", "info"], stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def main() -> int:
    """Fetch what a local broker needs and say where it is."""
    sys.stdout.writelines(f"{jar}\n" for jar in fetch_jars(KAFKA_PINS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
