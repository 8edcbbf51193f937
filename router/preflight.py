"""The preflight checks: ``doctor`` shows all findings, ``run`` fails on those that prevent a start."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

from bindings.background import run_in_background
from bindings.certificates import Address, AddressForm, create_tls_context, parse_addresses
from bindings.gateways import Connection, GatewayError, Tls
from bindings.http.request import create_server_tls, open_listener
from bindings.kafka.client import KafkaClient, KafkaUnreachable
from bindings.kafka.offsets import KafkaOffsets, TopicCapabilities
from bindings.private_files import is_locked
from bindings.protocols import BINDINGS
from catalog.model import Catalog
from catalog.schemas.ids.client import RegistryUnavailableError
from router.errors import BrokerUnreachable, ConfigError, JvmError, RouterError, SinkError, StateError
from router.evaluation.plan import Plan
from router.intake.intake import group_connections
from router.logs import get_logger, shorten_list
from router.machine import AMPLE_FILES, MIN_FILES, divide_memory, get_descriptor_limit
from router.overview.picture import sink_topics
from router.schemaids.cache import DamagedFile, SchemaIdCache
from router.schemaids.framing import IDS, registry_address, registry_folder, unidentified_text
from router.settings import KafkaSink, Settings
from router.settings.catalogs import to_tls
from router.settings.checks import event_sinks, iter_executor_warnings, iter_inbox_faults
from router.sinks.messages.definitions import find_endpoint
from router.sinks.tables.head import local_folder
from router.sources import INBOX, Source, group_by_query, make_inbox_client, make_source_client
from router.spark.connectors import cache_root, find_java, read_pins
from router.terminal import plural

# Checks and their findings: all checks run concurrently, each with a time limit.

State = Literal["ok", "warn", "fail"]
"""``fail``: a router does not start. ``warn``: it starts, and waits or works without it."""
SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The finding of a check: what was observed, and the remedy when it is not ``ok``. Contains no secret.

    ``error`` is the error of a start when the state is ``fail``.
    """

    name: str
    state: State
    observation: str
    remedy: str = ""
    error: type[RouterError] = RouterError

    def to_error(self) -> RouterError:
        """Return the error with which a start fails because of this finding."""
        if issubclass(self.error, SinkError):
            return SinkError(self.name.removeprefix("sink "), self.observation, hint=self.remedy)
        return self.error(f"{self.name}: {self.observation}", hint=self.remedy)


@dataclass(frozen=True, slots=True)
class PreflightCheck:
    """One check, which changes nothing. ``seconds`` is its time limit."""

    name: str
    run: Callable[[], Iterable[CheckResult]]
    seconds: float = SECONDS

    def find_all(self) -> list[CheckResult]:
        """Run the check to its end."""
        return list(self.run())


def run_checks(checks: Sequence[PreflightCheck]) -> Iterator[CheckResult]:
    """Run all checks concurrently and yield their findings in the order of the checks.

    A check that exceeds its time limit is abandoned with a warning: it does not prevent a start.
    """
    began = time.monotonic()
    pending = [(check, run_in_background(check.find_all)) for check in checks]
    for check, future in pending:
        try:
            yield from future.result(max(0.0, began + check.seconds - time.monotonic()))
        except TimeoutError:
            remedy = "check that the host responds and that its name resolves"
            yield CheckResult(check.name, "warn", f"no result after {check.seconds:g} s", remedy)


def combine_errors(findings: Iterable[CheckResult]) -> RouterError | None:
    """Return the error with which a start fails, with all others attached; None when nothing prevents a start."""
    errors = [each.to_error() for each in findings if each.state == "fail"]
    if not errors:
        return None
    first, *others = errors
    first.others = tuple(others)
    return first


# Checks of the machine: Java, Spark, its connectors, open files, memory, cluster.

JAVA_VERSIONS: Final = (17, 21)
SPARK_VERSION: Final = "4.2."
JAVA_SECONDS: Final = 25
_JAVA_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


def check_java() -> list[CheckResult]:
    """Check for a Java that Spark supports, where Spark looks for it."""
    remedy = f"install Java {' or '.join(map(str, JAVA_VERSIONS))}, or set JAVA_HOME to one"
    try:
        command = find_java()
        done = subprocess.run(
            [str(command), "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False
        )
    except JvmError as error:
        return [CheckResult("java", "fail", error.message, error.hint, JvmError)]
    except subprocess.TimeoutExpired:
        return [CheckResult("java", "warn", f"{command} did not print its version within {JAVA_SECONDS} s", remedy)]
    except OSError as error:
        return [CheckResult("java", "fail", f"java does not run: {error}", remedy, JvmError)]
    match = _JAVA_VERSION.search(done.stderr + done.stdout)
    number = int(match.group(1)) if match else 0
    if number in JAVA_VERSIONS:
        return [CheckResult("java", "ok", f"Java {number}, {command}")]
    else:
        found = f"Java {number}" if number else "not a known Java"
        return [CheckResult("java", "fail", f"{command} is {found}", remedy, JvmError)]


def check_spark() -> list[CheckResult]:
    """Check for the Spark version that the connectors are built for."""
    remedy = "install the locked versions: make install"
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        return [CheckResult("pyspark", "fail", "not installed", remedy)]
    if installed.startswith(SPARK_VERSION):
        return [CheckResult("pyspark", "ok", installed)]
    return [CheckResult("pyspark", "fail", f"{installed}; {SPARK_VERSION}x is required", remedy)]


def check_connectors() -> list[CheckResult]:
    """Check that the Kafka connector is in the jar cache; fetch nothing."""
    folder = cache_root() / "jars"
    if all((folder / path).is_file() for path in read_pins()):
        return [CheckResult("connectors", "ok", f"Kafka, in {folder}")]
    remedy = "with network access nothing to do: the first start that needs Kafka fetches them; else `make connectors`"
    return [CheckResult("connectors", "warn", f"the jars for Kafka are not yet in {folder}", remedy)]


def check_open_files() -> list[CheckResult]:
    """Check how many files, and so connections, a router may open."""
    limit = get_descriptor_limit()
    if limit >= AMPLE_FILES:
        return [CheckResult("open files", "ok", "no limit" if limit >= 2**31 else f"up to {limit}")]
    remedy = f"raise the hard limit to {AMPLE_FILES} or more (ulimit -Hn, LimitNOFILE of systemd, --ulimit nofile)"
    if limit < MIN_FILES:
        return [CheckResult("open files", "fail", f"up to {limit}; Spark needs {MIN_FILES}", remedy)]
    else:
        return [CheckResult("open files", "warn", f"up to {limit}; this limits concurrent connections", remedy)]


def check_memory(settings: Settings) -> list[CheckResult]:
    """Check that the machine has enough memory."""
    try:
        division = divide_memory(settings)
    except RouterError as error:
        return [CheckResult("memory", "fail", error.message, error.hint, type(error))]
    return [CheckResult("memory", "ok", ", ".join(f"{name} {share}" for name, share in division.log_fields.items()))]


def check_cluster(settings: Settings, *, pushed: bool) -> Iterator[CheckResult]:
    """Check that executors can reach the inbox and sinks, as far as settings and this machine show."""
    chosen = settings.spark
    if chosen.master is None or chosen.is_local:
        return
    for key, fault in iter_inbox_faults(settings) if pushed else ():
        yield CheckResult("cluster", "fail", f"{key} {fault}", "correct the settings", ConfigError)
    for key, caution in iter_executor_warnings(settings):
        yield CheckResult("cluster", "warn", f"{key} {caution}", "correct the settings")
    scheme, _, rest = chosen.master.partition("://")
    places = rest.split(",") if scheme == "spark" else []
    if places and not any(_accepts_connection(*place.rpartition(":")[::2]) for place in places):
        remedy = "start the master, or correct spark.master"
        yield CheckResult("cluster", "fail", f"nothing listens at {chosen.master}", remedy, BrokerUnreachable)
        return
    result = "responds" if places else "is checked at startup"
    yield CheckResult("cluster", "ok", f"{chosen.master} {result}; packages of executors are checked at startup")


# Other checks of this machine: state folder, folders of sinks, listening ports.

_TABLES: Final = 1_000
"""Tables of a sink that are checked."""


def check_state_folder(settings: Settings) -> list[CheckResult]:
    """Check that the state folder is writable and has more free space than the inbox reserves."""
    folder = Path(settings.state)
    if fault := why_unwritable(folder):
        return [
            CheckResult("state", "fail", fault, "fix its permissions, or set `state` to another folder", StateError)
        ]
    free = shutil.disk_usage(_nearest_existing(folder)).free
    room = f"{folder}, {free / 2**30:.1f} GiB free"
    if free <= settings.inbox.min_free_bytes:
        return [
            CheckResult(
                "state", "warn", room, "free disk space, or lower inbox.min_free_bytes: gateways reject messages"
            )
        ]
    elif free <= 2 * settings.inbox.min_free_bytes:
        return [CheckResult("state", "warn", room, "free disk space, or gateways will reject messages")]
    else:
        return [CheckResult("state", "ok", room)]


def check_sink_folders(settings: Settings) -> Iterator[CheckResult]:
    """Check that local folders of sinks are writable; object stores are not checked.

    A folder that is not writable blocks only the batches for its sink; the router starts anyway.
    """
    for name, sink in settings.sinks.items():
        place = sink.folder
        folder = local_folder(place) if place else None
        if folder is not None:
            # A table also has a log folder.
            fault = why_unwritable(folder) or why_unwritable(folder / "_delta_log")
            refused = "" if fault or not sink.tabular else next(_iter_refused_tables(folder), "")
            if refused:
                remedy = (
                    "ALTER TABLE ... DROP FEATURE, or set another path for the sink; its batches are blocked until then"
                )
                yield CheckResult(f"sink {name}", "warn", refused, remedy)
            elif fault:
                remedy = "give this user write permission, or set another path; batches are blocked until then"
                yield CheckResult(f"sink {name}", "warn", fault, remedy)
            else:
                yield CheckResult(f"sink {name}", "ok", str(folder))


def _iter_refused_tables(folder: Path) -> Iterator[str]:
    """Yield why tables in and below a folder cannot be written, as far as they can be read."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    from router.sinks.tables.requirements import TableRequirements

    for log in itertools.islice(folder.rglob("_delta_log"), _TABLES):
        try:
            refused = TableRequirements.from_table(DeltaTable(log.parent)).refusal
        except (DeltaError, OSError) as error:
            reason = str(error).partition("\n")[0]
            refused = f"cannot be read: {reason}" if DeltaTable.is_deltatable(str(log.parent)) else ""
        if refused:
            yield f"{log.parent}: {refused}"


def check_metrics_port(settings: Settings) -> list[CheckResult]:
    """Check that metrics and status page can be served; not for a process that serves them already."""
    chosen = settings.metrics
    return _try_port("metrics port", settings, chosen.host, chosen.port, "metrics.port", beside=True)


def check_http_port(settings: Settings, *, beside: bool = False) -> list[CheckResult]:
    """Check that the HTTP port is free and that its certificates can be read.

    With *beside*, the port may be in use by a router that runs on the same state folder.
    """
    chosen = settings.http
    try:
        create_server_tls(to_tls(chosen.tls))
    except GatewayError as error:
        return [CheckResult("http port", "fail", str(error), "correct http.tls", ConfigError)]
    return _try_port("http port", settings, chosen.host, chosen.port, "http.port", beside=beside)


def why_unwritable(folder: Path) -> str:
    """Return why a folder, which need not exist, is not writable; empty when it is."""
    existing = _nearest_existing(folder)
    if not existing.is_dir():
        return f"{folder} is not writable: {existing} is not a folder"
    return "" if os.access(existing, os.W_OK | os.X_OK) else f"{existing} is not writable"


def _nearest_existing(folder: Path) -> Path:
    """Return the folder itself, or its nearest existing parent."""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))


def _try_port(name: str, settings: Settings, host: str, port: int, key: str, *, beside: bool) -> list[CheckResult]:
    try:
        open_listener(host, port, "nobody").close()
    except GatewayError as error:
        if beside and _accepts_connection(host, port) and is_locked(Path(settings.state) / "lock"):
            return [CheckResult(name, "ok", f"{host}:{port} is in use by the router that runs on {settings.state}")]
        fault = str(error).removeprefix("nobody ").partition("; ")[0]
        remedy = f"set {key} to another port, or to 0 for any free port, or stop the process that uses it"
        return [CheckResult(name, "fail", fault, remedy, ConfigError)]
    return [CheckResult(name, "ok", f"{host}:{port} is free" if port else f"any free port at {host}")]


def _accepts_connection(host: str, port: str | int) -> bool:
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


# Checks of the brokers and servers of sources and sinks, which change nothing there.
#
# Kafka is queried with our login; a start fails if the login is refused. Other servers are only connected to, with TLS
# where configured. Unavailable servers do not prevent a start.

CONNECT_SECONDS: Final = 5.0
_START_KAFKA: Final = "start the broker, or correct bootstrap_servers and credentials"


@dataclass(frozen=True, slots=True)
class _KafkaQuery:
    """A query to a Kafka cluster, for the source or sink ``name``; with ``optional`` a start does not need it."""

    name: str
    client: KafkaClient
    topic: str = ""
    optional: bool = False


def iter_server_checks(
    settings: Settings,
    catalog: Catalog,
    sources: Sequence[Source],
    *,
    gateways: bool,
    sinks: bool = True,
    once: bool = False,
) -> Iterator[PreflightCheck]:
    """Yield the checks of brokers and servers: for sources, the inbox and, with *sinks*, sinks.

    Without *gateways*, brokers that gateways connect to are left out. One check covers a whole Kafka cluster. With
    *once*, an unavailable cluster prevents a start, since its end offsets must be known.
    """
    asked = [
        _KafkaQuery(f"source {source.endpoint}", make_source_client(source), source.topic)
        for source in sources
        if not source.pushed
    ]
    chosen = settings.inbox.kafka
    if chosen is not None:
        asked.append(_KafkaQuery("inbox", make_inbox_client(chosen), chosen.topic))
    others: list[PreflightCheck] = []

    def add_server(name: str, form: AddressForm, connection: Connection, away: str, error: type[RouterError]) -> None:
        others.append(PreflightCheck(name, partial(_try_servers, name, form, connection, away, error)))

    for broker in group_connections(sources, "check") if gateways else ():
        away = "start the broker, or correct the address; the gateway connects when it is reachable"
        form = BINDINGS[broker.protocol].sending.address_form
        add_server(f"source {broker.name}", form, broker.connection, away, ConfigError)
    for name, sink in settings.sinks.items() if sinks else ():
        remote, called = sink.remote, f"sink {name}"
        if remote is None:
            continue
        try:
            endpoint = find_endpoint(name, remote, catalog)
            cluster = remote.cluster_at(name, endpoint)
            if cluster is not None:
                asked.append(_KafkaQuery(called, cluster, optional=not remote.own_addresses))
            else:
                away = "start the server, or correct the address; batches are blocked until it responds"
                add_server(called, remote.sending.address_form, remote.connection(name, endpoint), away, SinkError)
        except SinkError as error:
            fault = CheckResult(called, "fail", error.message.removeprefix(f"{called}: "), error.hint, SinkError)
            others.append(PreflightCheck(called, partial(list[CheckResult], [fault])))
    yield from (PreflightCheck(group[0].name, partial(_check_kafka, group, once=once)) for group in _group_kafka(asked))
    yield from others
    plan = Plan(catalog, settings)
    for name, sink in settings.sinks.items() if sinks else ():
        if sink.framed is not None:
            called = f"sink {name} schemas"
            yield PreflightCheck(called, partial(_check_frames, called, name, plan))
    if sinks and (unknown := tuple(plan.iter_unresolved_sources())):
        yield PreflightCheck("schema ids", partial(_report_unidentified, unknown))
    for name in settings.schema_registries if sinks else ():
        called = f"schema registry {name}"
        yield PreflightCheck(called, partial(_check_schema_registry, called, settings, name))
    if sinks and any(sink.topics is not None for sink in settings.sinks.values()):
        yield PreflightCheck("topics of sinks", partial(_check_sink_topics, plan))


def _check_schema_registry(called: str, settings: Settings, name: str) -> list[CheckResult]:
    """Check that a schema registry accepts our login; without it a router uses the ids cached on disk."""
    address = registry_address(settings, name)
    kept = SchemaIdCache(registry_folder(settings, name), address.url)
    ids, damaged = 0, ""
    for schema_id in kept.ids():
        try:
            ids += kept.schema(schema_id) is not None
        except DamagedFile as damage:
            damaged = damaged or str(damage)
    on_disk = f"{plural(ids, 'id')} on disk"
    try:
        address.client().check()
    except RegistryUnavailableError as error:
        remedy = f"start it, or correct schema_registries.{name}; batches with other ids are blocked until it responds"
        return [CheckResult(called, "warn", f"{str(error).removeprefix(called).strip()}; {on_disk}", remedy)]
    if damaged:
        remedy = "nothing is lost: damaged schemas are fetched again; check the disk"
        return [CheckResult(called, "warn", f"{address.url} responds; {on_disk}; {damaged}", remedy)]
    return [CheckResult(called, "ok", f"{address.url} responds; {on_disk}")]


def _report_unidentified(unknown: Sequence[tuple[Source, Sequence[str]]]) -> Iterator[CheckResult]:
    """Report topics whose schema ids identify no definition; a router runs, and matches without them."""
    for source, xids in unknown:
        state: State = "ok" if source.settings.framing == "auto" else "warn"
        yield CheckResult("schema ids", state, unidentified_text(source.settings, xids), IDS)


def _check_frames(called: str, name: str, plan: Plan) -> list[CheckResult]:
    """Check that the schemas of a sink's messages have ids; register nothing."""
    try:
        frames = plan.written_frames(name, register=False)
    except SinkError as error:
        text = error.message.removeprefix(f"sink {name}: ")
        away = isinstance(error.__cause__, RegistryUnavailableError)
        remedy = "start it, or correct schema_registries; batches for the sink are blocked until it responds"
        return [CheckResult(called, "warn" if away else "fail", text, remedy if away else error.hint, SinkError)]
    return [CheckResult(called, "ok", f"{plural(len(frames), 'definition')} with the ids of their schemas")]


def _group_kafka(asked: Iterable[_KafkaQuery]) -> list[list[_KafkaQuery]]:
    """Group the queries by cluster and login."""
    groups: list[list[_KafkaQuery]] = []
    for each in asked:
        group = next((group for group in groups if group[0].client == each.client), None)
        if group is None:
            groups.append(group := [])
        group.append(each)
    return groups


def _check_kafka(group: Sequence[_KafkaQuery], *, once: bool) -> Iterator[CheckResult]:
    """Query a cluster once for all. If it refuses our login, the start fails; if it is unavailable, it can wait."""
    client = group[0].client
    try:
        topics = KafkaOffsets(client).find_partitions(sorted({each.topic for each in group if each.topic}))
    except KafkaUnreachable as error:
        for each in group:
            fails = (error.refused or once) and not each.optional
            remedy = _START_KAFKA if fails else f"{_START_KAFKA}; the router waits for it"
            yield CheckResult(each.name, "fail" if fails else "warn", str(error), remedy, BrokerUnreachable)
        return
    for each in group:
        if not each.topic:
            yield CheckResult(each.name, "ok", f"Kafka at {client.servers} responds")
        elif each.topic not in topics:
            yield CheckResult(each.name, "warn", f"Kafka at {client.servers} has no topic {each.topic}", "create it")
        else:
            observation = f"Kafka at {client.servers}, topic {each.topic}, {len(topics[each.topic])} partitions"
            yield CheckResult(each.name, "ok", observation)


def _check_sink_topics(plan: Plan) -> Iterator[CheckResult]:
    """Check that the fixed topics of routes exist and accept our records."""
    for name, topics in sink_topics(plan).items():
        sink = plan.settings.sinks[name]
        if sink.topics is None:
            continue
        client = sink.topics.cluster()
        try:
            takes = KafkaOffsets(client).topic_capabilities(topics)
        except KafkaUnreachable:
            continue  # The check of the cluster reports it.
        problems = list(_iter_topic_problems(f"sink {name}", sink.topics, client.servers, topics, takes))
        yield from problems or (CheckResult(f"sink {name}", "ok", f"{plural(len(topics), 'topic')} writable"),)


def _iter_topic_problems(
    called: str, sink: KafkaSink, servers: str, topics: Sequence[str], takes: Mapping[str, TopicCapabilities]
) -> Iterator[CheckResult]:
    """Yield why topics cannot be written; this blocks batches, not a start."""
    missing = [topic for topic in topics if topic not in takes]
    if missing and sink.create_topics is not None:
        yield CheckResult(
            called, "ok", f"Kafka at {servers} has no topic {shorten_list(missing)}: create_topics creates it"
        )
    elif missing:
        remedy = "create it, or set create_topics of the sink; batches for it are blocked until then"
        yield CheckResult(called, "warn", f"Kafka at {servers} has no topic {shorten_list(missing)}", remedy, SinkError)
    if denied := [topic for topic, each in takes.items() if not each.writable]:
        remedy = "grant the sink's login Write and Describe on it; batches for it are blocked until then"
        yield CheckResult(called, "warn", f"no permission to write to topic {shorten_list(denied)}", remedy, SinkError)
    small = {topic: each.max_batch_bytes for topic, each in takes.items() if each.max_batch_bytes is not None}
    for topic in sorted(topic for topic, most in small.items() if most < sink.max_message_bytes):
        observation = f"topic {topic} accepts at most {small[topic]} bytes (max.message.bytes)"
        remedy = f"lower the sink's max_message_bytes from {sink.max_message_bytes} to that, or raise the topic's limit"
        yield CheckResult(called, "warn", observation, remedy, SinkError)


def _try_servers(
    name: str, form: AddressForm, connection: Connection, away: str, error: type[RouterError]
) -> list[CheckResult]:
    """Check that one of the servers of a connection accepts connections.

    ``fail`` is what waiting does not fix: a malformed address, an unreadable certificate.
    """
    try:
        # Each address is cut before its first placeholder.
        uris = tuple(uri.partition("{")[0] for uri in connection.uris)
        addresses = parse_addresses(form, Connection(uris, tls=connection.tls))
        context = create_tls_context(connection.tls or Tls()) if any(address.tls for address in addresses) else None
    except GatewayError as wrong:
        return [CheckResult(name, "fail", str(wrong), "correct its address, or its tls", error)]
    faults: list[str] = []
    for address in addresses:
        # A NATS server sends its greeting before TLS.
        if fault := _find_connect_fault(address, None if form.protocol == "NATS" else context):
            faults.append(f"{address.url}: {fault}")
        else:
            return [CheckResult(name, "ok", f"{address.url} accepts connections")]
    return [CheckResult(name, "warn", "; ".join(faults) or "it has no address", away)]


def _find_connect_fault(address: Address, context: ssl.SSLContext | None) -> str:
    """Return why a server does not accept a connection; empty when it does. No login is sent."""
    try:
        with socket.create_connection((address.host, address.port), CONNECT_SECONDS) as plain:
            if address.tls and context is not None:
                context.wrap_socket(plain, server_hostname=address.host).close()
    except TimeoutError:
        return f"no response within {CONNECT_SECONDS:g} s"
    except (OSError, ValueError) as error:
        checked = getattr(error, "verify_message", "")
        return f"its certificate is invalid: {checked}" if checked else getattr(error, "strerror", "") or str(error)
    return ""


_log = get_logger()


def list_machine_checks() -> list[PreflightCheck]:
    """Return the checks that need no settings."""
    return [
        PreflightCheck("java", check_java),
        PreflightCheck("pyspark", check_spark),
        PreflightCheck("connectors", check_connectors),
        PreflightCheck("open files", check_open_files),
    ]


def list_local_checks(settings: Settings) -> list[PreflightCheck]:
    """Return the checks that need only the settings."""
    return [
        PreflightCheck("memory", partial(check_memory, settings)),
        PreflightCheck("state", partial(check_state_folder, settings)),
        PreflightCheck("sinks", partial(check_sink_folders, settings)),
        PreflightCheck("metrics port", partial(check_metrics_port, settings)),
    ]


def iter_remote_checks(
    settings: Settings,
    catalog: Catalog,
    sources: Sequence[Source],
    *,
    gateways: bool = True,
    listens: bool = True,
    beside: bool = False,
    once: bool = False,
) -> Iterator[PreflightCheck]:
    """Yield the checks that need settings and catalog.

    Kafka gets our credentials, so its addresses must be trusted already. With *gateways*, this process runs gateways;
    with *listens*, also that of HTTP; with *beside*, another process may use the HTTP port.
    """
    if listens and gateways and any(source.served for source in sources):
        yield PreflightCheck("http port", partial(check_http_port, settings, beside=beside))
    yield PreflightCheck("queries", partial(_report_shared_queries, settings, sources))
    pushed = any(source.pushed for source in sources)
    yield PreflightCheck("cluster", partial(check_cluster, settings, pushed=pushed))
    yield from iter_server_checks(settings, catalog, sources, gateways=gateways, once=once)


def _report_shared_queries(settings: Settings, sources: Sequence[Source]) -> Iterator[CheckResult]:
    """Report which sources share a query, so that one blocked sink blocks them all."""
    idle = [source.endpoint for source in sources if source.pushed and source.settings.lane]
    if idle:
        remedy = "remove it; to separate them, run another router with its own state"
        yield CheckResult(
            "queries", "warn", f"lane has no effect on {shorten_list(idle)}, which share the inbox", remedy
        )
    for query, members in group_by_query(sources).items():
        if len(members) > 1 and len(event_sinks(settings)) > 1:
            separate = "another router with its own state" if query == INBOX else "`lane` on a source"
            names = shorten_list([member.endpoint for member in members])
            observation = f"{names} share query {query}: an unavailable sink blocks all; {separate} separates them"
            yield CheckResult("queries", "ok", observation)


def require_checks(checks: Iterable[PreflightCheck]) -> None:
    """Run all checks; log the warnings.

    Raises:
        RouterError: a check failed; ``others`` has the other failures.
    """
    findings = list(run_checks(list(checks)))
    error = combine_errors(findings)
    if error is not None:
        raise error
    for each in findings:
        if each.state == "warn":
            _log.warning("preflight check failed", what=each.name, problem=each.observation, hint=each.remedy)


def iter_router_checks(
    settings: Settings, catalog: Catalog, sources: Sequence[Source], *, once: bool = False
) -> Iterator[PreflightCheck]:
    """Yield the checks of ``run``, which already serves its metrics."""
    # A start fetches missing connectors itself.
    every = [*list_machine_checks(), *list_local_checks(settings)]
    yield from (check for check in every if check.name not in ("connectors", "metrics port"))
    apart = settings.inbox.kafka is not None
    yield from iter_remote_checks(settings, catalog, sources, gateways=not apart, listens=not once, once=once)


def iter_gateway_checks(settings: Settings, catalog: Catalog, sources: Sequence[Source]) -> Iterator[PreflightCheck]:
    """Yield the checks of ``gateway``, which uses neither Spark nor sinks."""
    yield PreflightCheck("open files", check_open_files)
    pushed = [source for source in sources if source.pushed]
    if any(source.served for source in pushed):
        yield PreflightCheck("http port", partial(check_http_port, settings))
    yield from iter_server_checks(settings, catalog, pushed, gateways=True, sinks=False)
