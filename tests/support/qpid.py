"""Real AMQP 1.0 brokers for tests: Apache Qpid Broker-J as a local process, or one that is given.

Never a mock, and never a skip: when no broker can be had, the run fails and says why. Queues come into being when a
link names them, durable, and keep durable messages through :meth:`QpidBroker.kill`. Run as a module it fetches what
the local process needs, so that later runs work offline.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from proton import ProtonException
from proton.utils import BlockingConnection

from router.spark.connectors import fetch_jars, find_java
from tests.support import deployed
from tests.support.ports import LOOPBACK, RSA, Authority, free_ports
from tests.support.processes import BrokerFailed, BrokerProcess
from tests.support.router import start_options

GIVEN_VARIABLE: Final = "XROUTER_TEST_AMQP"
READY_LIMIT_SECONDS: Final = 180.0
READY_MARK: Final = b"BRK-1004"
QPID_PINS: Final = Path(__file__).resolve().with_name("qpid_jars.json")


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files of a server for ``localhost``, its authority, and one authority that signed nothing here."""

    ca: Path
    certificate: Path
    key: Path
    other_ca: Path


class QpidBroker(BrokerProcess):
    """A broker on loopback in a process of its own; see the module.

    Without *users* it lets anybody in (SASL ANONYMOUS), else only those, by SASL PLAIN; the first may manage it. With
    *certificates* it listens with TLS.
    """

    ready_seconds = READY_LIMIT_SECONDS

    def __init__(
        self,
        folder: Path,
        *,
        users: Mapping[str, str] | None = None,
        certificates: Certificates | None = None,
        heap: str = "512m",
        start: Sequence[str] | None = None,
    ) -> None:
        super().__init__(folder)
        self._start = start
        self._users = dict(users or {})
        self._certificates = certificates
        self._heap = heap
        (self.port,) = free_ports(1)

    @property
    def uri(self) -> str:
        """Where it listens, without credentials; ``localhost``, since that is the name in the certificate."""
        return f"{'amqps' if self._certificates else 'amqp'}://localhost:{self.port}"

    @property
    def title(self) -> str:
        return f"Qpid on port {self.port}"

    def _ready(self) -> bool:
        # The port listens before the virtual host has recovered its messages; only the log says when it has.
        return READY_MARK in self.log.read_bytes()[self._started_at :]

    def _command(self) -> list[str]:
        jars = fetch_jars(QPID_PINS)
        classpath = os.pathsep.join(map(str, jars))
        work = self._folder / "work"
        options = [f"-Xmx{self._heap}", "-Xms64m", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=256m"]
        options += start_options("qpid", jars, _run_one) if self._start is None else self._start
        options += ["-Djava.awt.headless=true", f"-Dlogback.configurationFile={deployed.QPID_LOGGING}"]
        options += [f"-Dderby.stream.error.file={self._folder / 'derby.log'}"]
        arguments = ["--initial-config-path", str(self._initial())]
        arguments += ["-prop", f"qpid.work_dir={work}", "-prop", f"qpid.amqp_port={self.port}"]
        arguments += ["-prop", f"xrouter.amqp_address={LOOPBACK}"]
        return [str(find_java()), *options, "-cp", classpath, "org.apache.qpid.server.Main", *arguments]

    def _initial(self) -> Path:
        """Write what is made of the file of docker-compose.yml for other users and for certificates."""
        configuration: dict[str, Any] = json.loads(deployed.QPID.read_text())
        configuration["authenticationproviders"] = [{"name": "who", "type": "Anonymous"}]
        if self._users:
            users = [{"name": name, "type": "managed", "password": secret} for name, secret in self._users.items()]
            plain = {"name": "who", "type": "Plain", "users": users, "secureOnlyMechanisms": []}
            configuration["authenticationproviders"] = [plain]
        if self._certificates is not None:
            store = {"name": "keys", "type": "NonJavaKeyStore"}
            store["certificateUrl"] = str(self._certificates.certificate)
            store["privateKeyUrl"] = str(self._certificates.key)
            configuration["keystores"] = [store]
            configuration["ports"][0] |= {"keyStore": "keys", "transports": ["SSL"]}
        file = self._folder / "initial.json"
        file.write_text(json.dumps(configuration, indent=1))
        return file


def _run_one(options: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with QpidBroker(Path(folder) / "qpid", start=options) as broker:
            BlockingConnection(broker.uri, timeout=READY_LIMIT_SECONDS).close()


def make_certificates(folder: Path) -> Certificates:
    """Make an authority, a server certificate for ``localhost``, and another authority."""
    authority = Authority(folder)
    pair = authority.sign("broker", alternatives="DNS:localhost", key=RSA)
    return Certificates(authority.certificate, pair.certificate, pair.key, Authority(folder, "others").certificate)


@contextmanager
def amqp_for_tests(folder: Path) -> Iterator[str]:
    """Yield the URI of a broker to share: the given one, which makes queues ``q.*`` when they are used, else our own.

    Raises:
        BrokerFailed: the given one does not answer, or ours does not start.
    """
    if given := os.environ.get(GIVEN_VARIABLE):
        try:
            BlockingConnection(given, timeout=READY_LIMIT_SECONDS).close()
        except (ProtonException, OSError) as error:
            raise BrokerFailed(f"no AMQP broker answers as {GIVEN_VARIABLE} says; correct or unset it") from error
        yield given
        return
    with QpidBroker(folder) as broker:
        yield broker.uri


def main() -> int:
    """Fetch what a local broker needs and say where it is."""
    sys.stdout.writelines(f"{jar}\n" for jar in fetch_jars(QPID_PINS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
