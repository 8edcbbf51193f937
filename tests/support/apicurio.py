"""A real schema registry for tests: Apicurio Registry with Confluent's API, as a local process.

Never a mock: when it cannot be had, the run fails and says why. Its store is a file, so that ids outlive
:meth:`Apicurio.kill`. Run as a module it fetches what the process needs, so that later runs work offline.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from router.spark.connectors import cache_root, fetch_jars, find_java
from tests.support.ports import LOOPBACK, free_ports
from tests.support.processes import BrokerFailed, BrokerProcess
from tests.support.router import SHORT_LIVED

APICURIO_PINS: Final = Path(__file__).resolve().with_name("apicurio_archives.json")
"""The last line that runs with Java 17: version 3 asks for 21."""
API: Final = "/apis/ccompat/v7"
# Read at import: the tests' environment is cleaned of our variables before each of them.
_UNPACKED: Final = cache_root() / "apicurio"


class Apicurio(BrokerProcess):
    """A schema registry on loopback in a process of its own, without a login."""

    ready_seconds = 180.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self.port,) = free_ports(1)

    @property
    def url(self) -> str:
        """The URL of Confluent's API."""
        return f"http://{LOOPBACK}:{self.port}{API}"

    @property
    def title(self) -> str:
        return f"Apicurio on port {self.port}"

    def register(
        self, subject: str, schema: str, kind: str = "AVRO", references: Sequence[Mapping[str, Any]] = ()
    ) -> int:
        """Register a schema, and return its id."""
        form = {"schema": schema, "schemaType": kind, "references": list(references)}
        answer = httpx.post(f"{self.url}/subjects/{subject}/versions", json=form, timeout=60)
        if answer.status_code != 200:
            raise BrokerFailed(f"{subject} is not registered: {answer.status_code} {answer.text}")
        number: int = answer.json()["id"]
        return number

    def _command(self) -> list[str]:
        options = [*SHORT_LIVED, "-Xmx384m", "-Djava.awt.headless=true", f"-Djava.io.tmpdir={self._folder}"]
        return [str(find_java()), *options, "-jar", str(next(unpacked().glob("*-runner.jar")))]

    def _environment(self) -> Mapping[str, str]:
        # A kill must not take what was answered: without a delay H2 writes at each commit.
        store = f"jdbc:h2:file:{self._folder / 'registry'};WRITE_DELAY=0"
        return {
            "QUARKUS_HTTP_HOST": LOOPBACK,
            "QUARKUS_HTTP_PORT": str(self.port),
            "REGISTRY_DATASOURCE_URL": store,
            "QUARKUS_LOG_LEVEL": "WARN",
        }

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/subjects", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False


def unpacked() -> Path:
    """Return the folder of the unpacked archive, which is filled beside its place and renamed when whole."""
    (archive,) = fetch_jars(APICURIO_PINS)
    folder = _UNPACKED / archive.parent.name
    if folder.is_dir():
        return folder
    _UNPACKED.mkdir(parents=True, exist_ok=True)
    with (_UNPACKED / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            partial = _UNPACKED / f".partial-{archive.parent.name}"
            shutil.rmtree(partial, ignore_errors=True)
            with tarfile.open(archive) as packed:
                packed.extractall(partial, filter="data")
            os.rename(partial, folder)
    return folder


def main() -> int:
    """Fetch what a local registry needs and say where it is."""
    sys.stdout.write(f"{unpacked()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
