"""Checks and their findings: all checks run at once, and none for longer than its limit."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

from bindings.gateways import GatewayError
from bindings.http.request import listen, server_tls
from bindings.private import is_locked
from router.errors import BrokerUnreachable, ConfigError, JvmError, RouterError, SinkError, StateError
from router.machine import ENOUGH, LEAST, descriptor_limit, divided
from router.settings import HttpSettings, Settings
from router.settings.checks import executor_cautions, inbox_faults
from router.sinks.tables.head import local_folder
from router.spark.connectors import KAFKA, MANIFEST, JavaMissing, cache_root, find_java

State = Literal["ok", "warn", "fail"]
"""``fail``: a start ends with it. ``warn``: a router starts, and waits for it or does less."""
SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing looked at: what was observed, and the remedy when it is not ``ok``. Holds no secret.

    ``error`` is what a start ends with when it is ``fail``.
    """

    name: str
    state: State
    observation: str
    remedy: str = ""
    error: type[RouterError] = RouterError

    def refusal(self) -> RouterError:
        """Return the error that a start ends with because of it."""
        if issubclass(self.error, SinkError):
            return SinkError(self.name.removeprefix("sink "), self.observation, hint=self.remedy)
        return self.error(f"{self.name}: {self.observation}", hint=self.remedy)


@dataclass(frozen=True, slots=True)
class PreflightCheck:
    """One look, which changes nothing. ``seconds`` is the longest that anybody waits for it."""

    name: str
    look: Callable[[], Iterable[Diagnosis]]
    seconds: float = SECONDS


def diagnoses(checks: Sequence[PreflightCheck]) -> Iterator[Diagnosis]:
    """Yield the findings, in the order of the checks, which all run at once.

    A check that takes longer than its limit is left behind: a missing answer does not prevent a start.
    """
    began = time.monotonic()
    pending = [(check, _begun(check)) for check in checks]
    for check, future in pending:
        try:
            yield from future.result(max(0.0, began + check.seconds - time.monotonic()))
        except TimeoutError:
            remedy = "see whether its host answers, and whether its name can be resolved"
            yield Diagnosis(check.name, "warn", f"nothing is known of it after {check.seconds:g} s", remedy)


def refusal(findings: Iterable[Diagnosis]) -> RouterError | None:
    """Return the error that a start ends with, for all that would stop it; None when nothing does."""
    errors = [each.refusal() for each in findings if each.state == "fail"]
    if not errors:
        return None
    first, *others = errors
    first.others = tuple(others)
    return first


def _begun(check: PreflightCheck) -> Future[list[Diagnosis]]:
    """Begin a check in a thread that nobody has to wait for."""
    future: Future[list[Diagnosis]] = Future()

    def look() -> None:
        try:
            future.set_result(list(check.look()))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=look, name=f"check {check.name}", daemon=True).start()
    return future


# What the machine must have: a Java that Spark runs on, Spark, its connector, descriptors, memory, a cluster.

JAVA_VERSIONS: Final = (17, 21)
SPARK_VERSION: Final = "4.2."
JAVA_SECONDS: Final = 25
MASTER_SECONDS: Final = 5.0
_JAVA_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


def java() -> Iterator[Diagnosis]:
    """Look for a Java that Spark supports, at the place where Spark takes it from."""
    remedy = f"install Java {' or '.join(map(str, JAVA_VERSIONS))}, or set JAVA_HOME to one"
    try:
        command = find_java()
        done = subprocess.run(
            [str(command), "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False
        )
    except JavaMissing as error:
        yield Diagnosis("java", "fail", str(error.args[0]), error.hint, JvmError)
        return
    except subprocess.TimeoutExpired:
        yield Diagnosis("java", "warn", f"{command} did not say its version within {JAVA_SECONDS} s", remedy)
        return
    except OSError as error:
        yield Diagnosis("java", "fail", f"java does not run: {error}", remedy, JvmError)
        return
    match = _JAVA_VERSION.search(done.stderr + done.stdout)
    number = int(match.group(1)) if match else 0
    if number in JAVA_VERSIONS:
        yield Diagnosis("java", "ok", f"Java {number}, {command}")
    else:
        said = f"Java {number}" if number else "no Java we know"
        yield Diagnosis("java", "fail", f"{command} is {said}", remedy, JvmError)


def spark() -> Iterator[Diagnosis]:
    """Look for the Spark that the connectors are made for."""
    remedy = "install the locked versions: make install"
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        yield Diagnosis("pyspark", "fail", "not installed", remedy)
        return
    if installed.startswith(SPARK_VERSION):
        yield Diagnosis("pyspark", "ok", installed)
    else:
        yield Diagnosis("pyspark", "fail", f"{installed}; {SPARK_VERSION}x is needed", remedy)


def connectors() -> Iterator[Diagnosis]:
    """Look whether the Kafka connector is in the jar cache, without fetching anything."""
    folder = cache_root() / "jars" / KAFKA.digest
    if (folder / MANIFEST).is_file():
        yield Diagnosis("connectors", "ok", f"Kafka, in {folder.parent}")
        return
    remedy = "nothing to do with a network: the first start that needs Kafka fetches them; else run `make connectors`"
    yield Diagnosis("connectors", "warn", f"the jars for Kafka are not yet in {folder.parent}", remedy)


def open_files() -> Iterator[Diagnosis]:
    """Look how many files, and so connections, a router may open here."""
    limit = descriptor_limit()
    if limit >= ENOUGH:
        yield Diagnosis("open files", "ok", "no limit" if limit >= 2**31 else f"up to {limit}")
        return
    remedy = f"raise the hard limit to {ENOUGH} or more (ulimit -Hn, LimitNOFILE of systemd, --ulimit nofile)"
    if limit < LEAST:
        yield Diagnosis("open files", "fail", f"up to {limit}; Spark needs {LEAST}", remedy)
    else:
        yield Diagnosis("open files", "warn", f"up to {limit}; fewer senders can be connected at a time", remedy)


def memory(settings: Settings) -> Iterator[Diagnosis]:
    """Look whether the machine's memory suffices."""
    try:
        division = divided(settings)
    except RouterError as error:
        yield Diagnosis("memory", "fail", error.message, error.hint, type(error))
        return
    yield Diagnosis("memory", "ok", ", ".join(f"{name} {share}" for name, share in division.log_fields.items()))


def cluster(settings: Settings, *, pushed: bool) -> Iterator[Diagnosis]:
    """Look whether executors can reach what they have to, as far as settings and this machine show it."""
    chosen = settings.spark
    if chosen.master is None or chosen.is_local:
        return
    for key, fault in inbox_faults(settings) if pushed else ():
        yield Diagnosis("cluster", "fail", f"{key} {fault}", "correct the settings", ConfigError)
    for key, caution in executor_cautions(settings):
        yield Diagnosis("cluster", "warn", f"{key} {caution}", "correct the settings")
    scheme, _, rest = chosen.master.partition("://")
    places = rest.split(",") if scheme == "spark" else []
    if places and not any(map(_listens, places)):
        remedy = "start the master, or correct spark.master"
        yield Diagnosis("cluster", "fail", f"nobody listens at {chosen.master}", remedy, BrokerUnreachable)
        return
    said = "answers" if places else "is asked by the router's start"
    yield Diagnosis("cluster", "ok", f"{chosen.master} {said}; a start looks at the packages of executors")


def _listens(place: str) -> bool:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), MASTER_SECONDS).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


# What else is checked on this machine: the state folder, folders of tables and lines, and the ports to listen at.

_TABLES: Final = 1_000
"""Tables of a sink that are looked at."""


def state_folder(settings: Settings) -> Iterator[Diagnosis]:
    """Look whether the state folder can be written and has more room than the inbox keeps free."""
    folder = Path(settings.state)
    if fault := unwritable(folder):
        yield Diagnosis("state", "fail", fault, "change its rights, or set `state` elsewhere", StateError)
        return
    free = shutil.disk_usage(_existing(folder)).free
    room = f"{folder}, {free / 2**30:.1f} GiB free"
    if free <= settings.inbox.min_free_bytes:
        yield Diagnosis("state", "warn", room, "free disk space, or lower inbox.min_free_bytes: gateways push back")
    elif free <= 2 * settings.inbox.min_free_bytes:
        yield Diagnosis("state", "warn", room, "free disk space before gateways push back")
    else:
        yield Diagnosis("state", "ok", room)


def sink_folders(settings: Settings) -> Iterator[Diagnosis]:
    """Look whether the folders of tables and lines can be written; nobody asks an object store before a batch does.

    A folder that cannot be written holds up its own batches only: a router starts all the same, and waits for its
    sinks.
    """
    for name, sink in settings.sinks.items():
        place = sink.folder
        folder = local_folder(place) if place else None
        if folder is not None:
            # The files of a table lie in folders below it, and its log lists them.
            fault = unwritable(folder) or unwritable(folder / "_delta_log")
            refused = "" if fault or not sink.tabular else next(_refused_tables(folder), "")
            if refused:
                remedy = "ALTER TABLE ... DROP FEATURE, or give the sink another path; batches wait until then"
                yield Diagnosis(f"sink {name}", "warn", refused, remedy)
            elif fault:
                remedy = "give this user the right to write there, or choose another path; batches wait until then"
                yield Diagnosis(f"sink {name}", "warn", fault, remedy)
            else:
                yield Diagnosis(f"sink {name}", "ok", str(folder))


def _refused_tables(folder: Path) -> Iterator[str]:
    """Yield what keeps tables in and below a folder from being written, as far as they can be read."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    from router.sinks.tables.form import TableRequirements

    for log in itertools.islice(folder.rglob("_delta_log"), _TABLES):
        try:
            refused = TableRequirements.of(DeltaTable(log.parent)).refused
        except (DeltaError, OSError) as error:
            reason = str(error).partition("\n")[0]
            refused = f"cannot be read: {reason}" if DeltaTable.is_deltatable(str(log.parent)) else ""
        if refused:
            yield f"{log.parent}: {refused}"


def metrics_port(settings: Settings) -> Iterator[Diagnosis]:
    """Look whether metrics and status page can be served; not for a process that serves them already."""
    chosen = settings.metrics
    yield from _port("metrics port", settings, chosen.host, chosen.port, "metrics.port", beside=True)


def http_port(settings: Settings, *, beside: bool = False) -> Iterator[Diagnosis]:
    """Look whether HTTP can be taken, and whether the certificates for it can be read.

    With *beside*, a router that runs on the state folder is another process, which may hold the port.
    """
    chosen = settings.http
    try:
        _certificates(chosen)
    except GatewayError as error:
        yield Diagnosis("http port", "fail", str(error), "correct http.tls", ConfigError)
        return
    yield from _port("http port", settings, chosen.host, chosen.port, "http.port", beside=beside)


def unwritable(folder: Path) -> str:
    """Say why a folder, which need not exist, cannot be written; empty when it can."""
    existing = _existing(folder)
    if not existing.is_dir():
        return f"{folder} cannot be written: {existing} is no folder"
    return "" if os.access(existing, os.W_OK | os.X_OK) else f"{existing} cannot be written"


def _existing(folder: Path) -> Path:
    """Return the folder itself, or the nearest above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))


def _certificates(chosen: HttpSettings) -> None:
    if chosen.tls is not None:
        clients = Path(chosen.tls.ca) if chosen.tls.ca else None
        server_tls(Path(chosen.tls.cert), Path(chosen.tls.key), clients)


def _port(name: str, settings: Settings, host: str, port: int, key: str, *, beside: bool) -> Iterator[Diagnosis]:
    try:
        listen(host, port, "nobody").close()
    except GatewayError as error:
        if beside and _answers(host, port) and is_locked(Path(settings.state) / "lock"):
            yield Diagnosis(name, "ok", f"{host}:{port} is in use while a router runs on {settings.state}")
            return
        fault = str(error).removeprefix("nobody ").partition("; ")[0]
        remedy = f"set {key} to another port, or to 0 for a free one, or stop what uses it"
        yield Diagnosis(name, "fail", fault, remedy, ConfigError)
        return
    yield Diagnosis(name, "ok", f"{host}:{port} is free" if port else f"a free one at {host}")


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True
