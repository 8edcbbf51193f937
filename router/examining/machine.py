"""What the machine must have: a Java that Spark runs on, Spark, its connector, descriptors, memory, a cluster."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from router.errors import BrokerUnreachable, ConfigError, JvmError, RouterError
from router.examining.diagnosis import Diagnosis
from router.machine.descriptors import ENOUGH, LEAST, descriptor_limit
from router.machine.memory import divided
from router.settings import Settings
from router.settings.executors import executor_cautions, inbox_faults
from router.spark.connectors import KAFKA
from router.spark.ivy import MANIFEST, JavaMissing, cache_root, find_java

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
