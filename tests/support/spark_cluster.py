"""A standalone Spark cluster on loopback: a master and workers of one core each, in processes of their own.

Nothing but Spark's own jars is needed. Python of the executors is one that does not have the router installed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyspark
import yaml

from router.spark.connectors import find_java
from tests.support import plain
from tests.support.brokers import LOGGING
from tests.support.ports import LOOPBACK, free_ports
from tests.support.processes import BrokerProcess, children, command_of
from tests.support.router import router_options
from tests.support.waiting import wait_until

SPARK_HOME: Final = Path(pyspark.__file__).parent
LIMIT: Final = 120.0
_HEAP: Final = ("-Xmx192m", "-Xms32m")
_SCALA: Final = "2.13"


def _classpath() -> str:
    """Return the class path that Spark's own scripts give a JVM, which is the one of the class archive."""
    [first] = (SPARK_HOME / "jars").glob("slf4j-api-*.jar")
    return f"{SPARK_HOME}/conf:{first}:{SPARK_HOME}/jars/*"


class _Daemon(BrokerProcess):
    """The master or a worker."""

    def __init__(self, folder: Path, main: str, *arguments: str, host: str = LOOPBACK) -> None:
        super().__init__(folder)
        self._main = main
        self._host = host
        self._port, self._page = free_ports(2)
        self._arguments = arguments

    @property
    def url(self) -> str:
        """How workers and the router reach it."""
        return f"spark://{self._host}:{self._port}"

    @property
    def title(self) -> str:
        return f"{self._main} on {self.url}"

    def state(self) -> dict[str, Any]:
        """Return what its page says."""
        with urllib.request.urlopen(f"http://{self._host}:{self._page}/json/", timeout=30) as answer:
            said: dict[str, Any] = json.loads(answer.read())
        return said

    def _command(self) -> Sequence[str]:
        logging = self._folder / "log4j2.properties"
        logging.write_text(LOGGING)
        where = ("--host", self._host, "--port", str(self._port), "--webui-port", str(self._page))
        options = (*_HEAP, *router_options().split(), f"-Dlog4j2.configurationFile={logging}", "-cp", _classpath())
        return [str(find_java()), *options, f"org.apache.spark.deploy.{self._main}", *where, *self._arguments]

    def _environment(self) -> Mapping[str, str]:
        # Executors get the variables of their worker: none may lead them to this checkout.
        where = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": self._host, "PYTHONPATH": ""}
        # Spark else looks for the folders that it is built in, which pyspark has not.
        return {**where, "SPARK_SCALA_VERSION": _SCALA}

    def _ready(self) -> bool:
        try:
            return bool(self.state())
        except (OSError, json.JSONDecodeError):
            # A page of HTML answers at this path before the one of JSON does.
            return False


class SparkCluster:
    """A master and some workers in *folder*; executors come when an application does."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self._master = _Daemon(folder / "master", "master.Master")
        self.workers: list[_Daemon] = []
        self._count = workers
        self.python = folder / "python" / "bin" / "python"
        """One without the router, and with all that it needs."""

    @property
    def url(self) -> str:
        """The Spark master."""
        return self._master.url

    def start(self) -> None:
        """Start all of it, and return when the workers are known to the master."""
        self._make_python()
        for number in range(self._count):
            work = self.folder / f"worker{number}"
            options = ("--cores", "1", "--memory", "1g", "--work-dir", str(work / "work"), self.url)
            # An address for each: Spark begins no second try of a task on the machine of the first.
            self.workers.append(_Daemon(work, "worker.Worker", *options, host=f"127.0.0.{number + 2}"))
        with ThreadPoolExecutor() as pool:
            # Workers ask again until the master is there.
            list(pool.map(_Daemon.start, (self._master, *self.workers)))
        wait_until(lambda: self._master.state()["aliveworkers"] == self._count, LIMIT, "the workers of the master")

    def stop(self) -> None:
        """End all of it, executors too."""
        for each in (*self.workers, self._master):
            each.stop()

    def settings(self, *shared: Path, **conf: str) -> dict[str, Any]:
        """Return the section ``spark`` for a router; *shared* are folders that executors may write to."""
        return {
            "master": self.url,
            "driver_host": LOOPBACK,
            "python": str(self.python),
            "shared_folders": [str(each) for each in shared],
            "conf": {
                "spark.executor.memory": "512m",
                "spark.executor.extraJavaOptions": router_options(),
                **{name.replace("__", "."): value for name, value in conf.items()},
            },
        }

    def executors(self) -> list[int]:
        """Return the process ids of the executors that run now."""
        return [pid for worker in self.workers for pid in children(worker.pid) if "ExecutorBackend" in command_of(pid)]

    def python_workers(self) -> list[int]:
        """Return the process ids of the Python workers of executors."""
        daemons = [pid for each in self.executors() for pid in children(each) if "pyspark.daemon" in command_of(pid)]
        return [pid for daemon in daemons for pid in children(daemon)]

    def kill_one(self, pids: Sequence[int]) -> None:
        """End the first of these processes, as a machine that fails would."""
        os.kill(pids[0], signal.SIGKILL)

    def logs(self) -> str:
        """Return the ends of what executors have written."""
        files = sorted(self.folder.glob("worker*/work/*/*/stderr"))
        return "\n".join(f"--- {file}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def _make_python(self) -> None:
        folder = self.folder / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=LIMIT)
        [packages] = folder.glob("lib/python*/site-packages")
        # A folder that is named here is searched, and what an editable installation left in it is not followed.
        (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")


@contextmanager
def spark_cluster(folder: Path, workers: int = 2) -> Iterator[SparkCluster]:
    """Yield a cluster that runs."""
    cluster = SparkCluster(folder, workers)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


# A plant whose records come by Kafka, with a catalog and settings for ``xrouter plan``.


def message(type_: str, **options: Any) -> dict[str, Any]:
    """A definition of mapped Kafka records, told apart by a header."""
    key = {"value": "lines/{line}", "type": "uritemplate"}
    told = {"key": key, "headers": [{"name": "kind", "value": type_}], **options}
    made = plain.event(type_, protocol="KAFKA", protocoloptions=told)
    made["envelopemetadata"]["subject"] = {"value": "{line}", "type": "uritemplate"}
    return made


def catalog() -> dict[str, Any]:
    """An endpoint of Kafka with three definitions."""
    plant = plain.endpoint("KAFKA", {"topic": "plant"}, "Plant", uri="127.0.0.1:1")
    return plain.catalog(
        {"plant": plant}, Plant={kind: message(kind.lower()) for kind in ("Reading", "Alarm", "Valve")}
    )


def record(kind: str, line: str = "7", **headers: str) -> dict[str, Any]:
    """A record of the plant, of that kind and line."""
    listed = [{"name": name, "value": value} for name, value in {"kind": kind, **headers}.items()]
    return {"protocol": "KAFKA", "native": {"topic": "plant", "key": f"lines/{line}", "headers": listed}, "body": "x"}


RECORDS: Final = [record("reading"), record("reading", "8"), record("alarm"), record("valve"), record("door")]


def lines(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    """Write records as `match` takes them."""
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records))
    return path


def settings(folder: Path, **more: Any) -> Path:
    """Write settings that route alarms elsewhere."""
    sinks = {name: {"type": "jsonl"} for name in ("events", "alarms")} | plain.tables(Path(), "dead")
    routes = [{"when": {"message": "*/Alarm*"}, "to": ["alarms"]}, {"to": ["events"]}]
    told = {"state": "state", "routes": routes, **more}
    file = folder / "router.yaml"
    file.write_text(yaml.safe_dump({**plain.routed(Path("catalog.json"), sinks), **told}))
    return file


def messages(tree: dict[str, Any]) -> dict[str, Any]:
    """The definitions of the plant in its catalog."""
    found: dict[str, Any] = tree["messagegroups"]["Plant"]["messages"]
    return found
