"""Fixtures that cost something: one Kafka broker and one Spark session a run, started when first asked for."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from router.spark.connectors import fetch_jars
from router.spark.session import DAEMON_CONF, skip_data_source_search, use_driver_pyspark
from router.state.state import StateFolder
from tests.support.apicurio import Apicurio
from tests.support.brokers import GIVEN_VARIABLE, kafka_for_all
from tests.support.cases import FULL, QUICK
from tests.support.corpora import SHARED, SHARED_VARIABLE
from tests.support.router import RouterProcess, router_options
from tests.support.waiting import wait_until
from tests.support.weights import ROOT, longest_first, read_weights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIVEN_BROKERS = frozenset({GIVEN_VARIABLE, "XROUTER_TEST_MQTT", "XROUTER_TEST_AMQP", "XROUTER_TEST_NATS"})
KEPT_VARIABLES = frozenset({"XROUTER_CACHE", "XROUTER_MAVEN_REPOSITORY", SHARED_VARIABLE}) | GIVEN_BROKERS
TOPIC_LIMIT_SECONDS = 120.0

# The same examples in every run: a failure by chance says nothing of a change. `--hypothesis-profile=full` takes more
# of them, and `search` looks for new ones. Limits of time would fail for a busy machine, not for a fault; pytest's own
# limit catches what hangs.
_UNHURRIED = hypothesis.settings(
    deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("search", _UNHURRIED, max_examples=FULL)
hypothesis.settings.register_profile("full", _UNHURRIED, max_examples=FULL, derandomize=True)
hypothesis.settings.register_profile("xrouter", _UNHURRIED, max_examples=QUICK, derandomize=True)
hypothesis.settings.load_profile("xrouter")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control lets what it starts in the background ignore Ctrl-C, and all that is started from
    # there inherits it: the commands that tests interrupt too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest files begin first; the workers of ``make test`` take whole files in this order."""
    files = {item: item.path.relative_to(ROOT).as_posix() for item in items}
    place = {path: number for number, path in enumerate(longest_first(files.values(), read_weights()))}
    items.sort(key=lambda item: place[files[item]])


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what is run once for each shared document, where it is run for a shared one."""
    given = getattr(item, "callspec", None)
    if (
        SHARED
        and given
        and any(isinstance(each, Path) and each.is_relative_to(SHARED) for each in given.params.values())
    ):
        item.add_marker(pytest.mark.shared)


def pytest_unconfigure() -> None:
    """Let the interpreter free all at its end: what the product sets aside from the collector of cycles stays for ever,
    and libraries in native code (DuckDB) then report theirs as leaked.
    """
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among what lives as long as the run: modules and tests, ten thousands of objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


TopicFactory = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Kafka:
    """The broker that tests share; one that kills brokers starts its own ``tests.support.brokers.KafkaBroker``."""

    bootstrap: str


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep settings that a developer happens to have in the environment out of the tests."""
    for name in os.environ:
        if name.startswith("XROUTER_") and name not in KEPT_VARIABLES:
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A real broker (``tests.support.brokers``), one for all workers of a run; without one the test fails."""
    folder = tmp_path_factory.getbasetemp()
    with kafka_for_all(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) as bootstrap:
        yield Kafka(bootstrap)


@pytest.fixture(scope="module")
def apicurio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    """A real schema registry, with nothing in it but what the tests of a module register."""
    with Apicurio(tmp_path_factory.mktemp("apicurio")) as registry:
        yield registry


@pytest.fixture
def topic_factory(kafka: Kafka) -> TopicFactory:
    """``topic_factory(name="t", partitions=1, **config)`` makes a topic, waits until it can be used, returns its name.

    Names are made unique, so that tests on a broker that outlives the run do not meet. Dots in *config* keys are
    written as underscores, e.g. ``max_message_bytes=1000``.
    """
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def make(name: str = "t", partitions: int = 1, **config: str | int) -> str:
        topic = f"{name}-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
        admin.create_topics([wanted])[topic].result(TOPIC_LIMIT_SECONDS)

        def usable() -> bool:
            found = admin.list_topics(topic, timeout=TOPIC_LIMIT_SECONDS).topics[topic].partitions
            return len(found) == partitions and all(partition.leader >= 0 for partition in found.values())

        wait_until(usable, TOPIC_LIMIT_SECONDS, f"a leader for each partition of {topic}")
        return topic

    return make


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFolder]:
    """A state folder of its own."""
    with StateFolder.open(tmp_path / "state") as opened:
        yield opened


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RouterProcess]:
    """A router process that is not yet started, and surely ended afterwards."""
    process = RouterProcess(tmp_path / "router", {})
    try:
        yield process
    finally:
        process.end()


@pytest.fixture
def small_disk(router: RouterProcess) -> Iterator[Path]:
    """A disk of 32 MiB as the state folder."""
    place = router.folder / "state"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs: run as root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local session with the Kafka connector, two cores and no user interface."""
    from pyspark.sql import SparkSession

    # Workers run the interpreter of the tests, not whichever python3 comes first on the path.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("xrouter-tests")
    options = {
        "spark.jars": ",".join(map(str, fetch_jars())),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": router_options(),
        "spark.driver.memory": "1g",
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.ui.enabled": "false",
        **DAEMON_CONF,
    }
    for key, value in options.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    use_driver_pyspark(session)
    skip_data_source_search(session)
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()
