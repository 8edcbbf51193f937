"""What the machine and the settings must have for a start: each thing looked at by itself, none of them changed."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

from bindings.kafka.client import KafkaClient, KafkaUnreachable
from catalog.errors import DocumentError
from catalog.load import load
from catalog.model import Catalog
from router.errors import ConfigError, StateError
from router.machine.descriptors import ENOUGH, descriptor_limit
from router.settings import Settings, load_settings
from router.settings.catalogs import fetcher_of
from router.settings.executors import executor_cautions, inbox_faults
from router.sources.clusters import source_client
from router.sources.sources import missing_sources, sources_of
from router.spark.connectors import KAFKA
from router.spark.ivy import MANIFEST, JavaMissing, cache_root, find_java
from router.state.trust import Pins, clients_of, distrusted

State = Literal["ok", "warn", "fail"]
JAVA_VERSIONS: Final = (17, 21)
SPARK_VERSION: Final = "4.2."
JAVA_SECONDS: Final = 20
MASTER_SECONDS: Final = 5.0
_JAVA_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing looked at: what was observed, and the remedy when it is not ``ok``. Holds no secret."""

    name: str
    state: State
    observation: str
    remedy: str = ""


def examine(config: Path | None = None) -> Iterator[Diagnosis]:
    """Yield what is found, one by one; without *config* only what every start needs.

    Looks at Java, Spark, the connector cache, the limit on open files, the settings, the catalog, the state folder,
    the master of a cluster and every broker. An unreachable broker takes up to ten seconds.
    """
    yield java()
    yield spark()
    yield connectors()
    yield open_files()
    if config is None:
        return
    try:
        settings = load_settings(config)
    except ConfigError as error:
        yield Diagnosis("settings", "fail", "; ".join(error.problems), error.hint or f"mend {config}")
        return
    yield Diagnosis("settings", "ok", str(config))
    yield state_folder(settings)
    read = settings.catalog
    try:
        catalog = load(read.source, fetcher=fetcher_of(read), base_uri=read.base_uri)
    except DocumentError as error:
        yield Diagnosis("catalog", "fail", str(error), error.hint or "correct catalog.source")
        return
    yield _catalog(catalog, settings)
    yield from _brokers(catalog, settings)


def java() -> Diagnosis:
    """Look for a Java that Spark supports."""
    remedy = f"install Java {' or '.join(map(str, JAVA_VERSIONS))}, or set JAVA_HOME to one"
    try:
        command = find_java()
        done = subprocess.run(
            [str(command), "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False
        )
    except JavaMissing:
        return Diagnosis("java", "fail", "no java command", remedy)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Diagnosis("java", "fail", f"java does not run: {error}", remedy)
    match = _JAVA_VERSION.search(done.stderr + done.stdout)
    number = int(match.group(1)) if match else 0
    if number in JAVA_VERSIONS:
        return Diagnosis("java", "ok", f"Java {number}, {command}")
    return Diagnosis("java", "fail", f"{command} is {f'Java {number}' if number else 'no Java we know'}", remedy)


def spark() -> Diagnosis:
    """Look for the Spark that the connectors are made for."""
    remedy = "install the locked versions: make install"
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        return Diagnosis("pyspark", "fail", "not installed", remedy)
    if installed.startswith(SPARK_VERSION):
        return Diagnosis("pyspark", "ok", installed)
    return Diagnosis("pyspark", "fail", f"{installed}; {SPARK_VERSION}x is needed", remedy)


def connectors() -> Diagnosis:
    """Look whether the Kafka connector is in the jar cache, without fetching anything."""
    folder = cache_root() / "jars" / KAFKA.digest
    if (folder / MANIFEST).is_file():
        return Diagnosis("connectors", "ok", f"Kafka, in {folder.parent}")
    remedy = "nothing to do with a network: the first start that needs Kafka fetches them; else run `make connectors`"
    return Diagnosis("connectors", "warn", f"the jars for Kafka are not yet in {folder.parent}", remedy)


def open_files() -> Diagnosis:
    """Look how many files, and so connections, a router may open here."""
    limit = descriptor_limit()
    if limit >= ENOUGH:
        return Diagnosis("open files", "ok", "no limit" if limit >= 2**31 else f"up to {limit}")
    remedy = f"raise the hard limit to {ENOUGH} or more (ulimit -Hn, LimitNOFILE of systemd, --ulimit nofile)"
    return Diagnosis("open files", "warn", f"up to {limit}; fewer senders can be connected at a time", remedy)


def state_folder(settings: Settings) -> Diagnosis:
    """Look whether the state folder can be written and has more room than the inbox keeps free."""
    folder = Path(settings.state)
    existing = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Diagnosis(
            "state", "fail", f"{existing} cannot be written", "change its rights, or set `state` elsewhere"
        )
    free = shutil.disk_usage(existing).free
    room = f"{folder}, {free / 2**30:.1f} GiB free"
    if free <= settings.inbox.min_free_bytes:
        return Diagnosis("state", "fail", room, "free disk space, or lower inbox.min_free_bytes: gateways push back")
    if free <= 2 * settings.inbox.min_free_bytes:
        return Diagnosis("state", "warn", room, "free disk space before gateways push back")
    return Diagnosis("state", "ok", room)


def _catalog(catalog: Catalog, settings: Settings) -> Diagnosis:
    summary = f"{len(catalog.definitions)} definitions, {len(catalog.endpoints)} endpoints, epoch {catalog.epoch}"
    sources = " ".join(map(str, settings.catalog.source))
    if not catalog.definitions:
        return Diagnosis("catalog", "fail", "no usable definition", f"see `xrouter check {sources}`")
    if missing := missing_sources(catalog, settings):
        return Diagnosis(
            "catalog", "warn", f"{summary}; it lacks {', '.join(missing)}", "correct sources, or the catalog"
        )
    if any(finding.severity == "error" for finding in catalog.findings):
        return Diagnosis("catalog", "warn", f"{summary}; some are left out", f"see `xrouter check {sources}`")
    return Diagnosis("catalog", "ok", summary)


def _brokers(catalog: Catalog, settings: Settings) -> Iterator[Diagnosis]:
    try:
        sources = sources_of(catalog, settings)
    except ConfigError as error:
        yield Diagnosis("sources", "fail", error.message, error.hint)
        return
    yield from _cluster(settings, pushed=any(source.pushed for source in sources))
    pins = Pins(Path(settings.state))
    try:
        wrong = distrusted(clients_of(settings, catalog, sources), pins)
        known = pins.known()
    except StateError as error:
        yield Diagnosis("addresses", "fail", error.message, error.hint)
        return
    for finding in wrong:
        yield Diagnosis("addresses", "fail", finding.message, finding.hint)
    if wrong:
        return  # nobody is asked who must not see our credentials
    for name, addresses in known.items():
        yield Diagnosis("addresses", "ok", f"{name}: credentials are for {', '.join(addresses)}")
    for source in sources:
        if not source.pushed:
            yield _broker(f"source {source.endpoint}", source_client(source), source.topic)
    for name, sink in settings.sinks.items():
        if sink.remote is not None and (cluster := sink.remote.own_cluster()) is not None:
            yield _broker(f"sink {name}", cluster)


def _cluster(settings: Settings, *, pushed: bool) -> Iterator[Diagnosis]:
    """Look whether executors of a cluster can reach what they have to, as far as settings and this machine tell."""
    spark = settings.spark
    if spark.is_local:
        return
    for key, fault in inbox_faults(settings) if pushed else ():
        yield Diagnosis("cluster", "fail", f"{key} {fault}", "correct the settings")
    for key, caution in executor_cautions(settings):
        yield Diagnosis("cluster", "warn", f"{key} {caution}", "correct the settings")
    yield _master(spark.master)


def _master(master: str) -> Diagnosis:
    """Look whether one of the masters of a standalone cluster takes connections."""
    scheme, _, rest = master.partition("://")
    places = rest.split(",") if scheme == "spark" else []
    if places and not any(map(_listens, places)):
        return Diagnosis("cluster", "fail", f"nobody listens at {rest}", "start the master, or correct spark.master")
    said = "answers" if places else "is asked by the router's start"
    return Diagnosis("cluster", "ok", f"{master} {said}; a start looks at the packages of executors")


def _listens(place: str) -> bool:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), MASTER_SECONDS).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _broker(name: str, client: KafkaClient, topic: str | None = None) -> Diagnosis:
    try:
        topics = client.partitions([topic] if topic else [])
    except KafkaUnreachable as error:
        return Diagnosis(name, "fail", str(error), "start the broker, or correct bootstrap_servers and credentials")
    if topic is None:
        return Diagnosis(name, "ok", f"Kafka at {client.servers} answers")
    if topic not in topics:
        return Diagnosis(name, "warn", f"Kafka at {client.servers} has no topic {topic}", "make the topic")
    return Diagnosis(name, "ok", f"Kafka at {client.servers}, topic {topic}, {len(topics[topic])} partitions")
