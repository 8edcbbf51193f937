"""Real MQTT brokers for tests: mosquitto, in a process of its own. Never a mock, and never a skip."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from tests.support import deployed
from tests.support.ports import LOOPBACK, Pair, free_ports
from tests.support.processes import BrokerFailed, BrokerProcess
from tests.support.waiting import wait_until

GIVEN_VARIABLE: Final = "XROUTER_TEST_MQTT"
# Read at import: the tests' environment is cleaned of our variables before each of them.
_GIVEN: Final = os.environ.get(GIVEN_VARIABLE)
DEBIAN: Final = "/usr/sbin/mosquitto"
READY_SECONDS: Final = 120.0
STOP_SECONDS: Final = 60.0

# What the file of docker-compose.yml leaves to its place. Persistence is written on SIGUSR1, and at the end.
_PLACE: Final = """\
listener {port} {host}
persistence_location {folder}/
autosave_interval 86400
max_inflight_messages {in_flight}
"""


@dataclass(frozen=True, slots=True)
class Security:
    """What a broker asks of its clients: TLS when it has a *server* certificate, their own certificate when there are
    *clients* (an authority), and a *username* with its *password*.
    """

    server: Pair | None = None
    clients: Path | None = None
    username: str = ""
    password: str = ""


def mosquitto_program() -> str:
    """Return the program: the one that is given, else the one on the path, else Debian's.

    Raises:
        BrokerFailed: there is none.
    """
    found = _GIVEN or shutil.which("mosquitto") or DEBIAN
    if not os.access(found, os.X_OK):
        raise BrokerFailed(f"{found} cannot be run: install the Debian package mosquitto, or set {GIVEN_VARIABLE}")
    return found


class Mosquitto(BrokerProcess):
    """A broker that keeps its port and its data through :meth:`stop`, :meth:`kill` and :meth:`restart`.

    Should the process of the tests die, even by SIGKILL, a guard kills the broker. ``extra`` are further lines of its
    configuration, ``in_flight`` the messages that it sends a client without an answer.
    """

    def __init__(
        self, folder: Path, security: Security | None = None, *, extra: str = "", in_flight: int = 1000
    ) -> None:
        super().__init__(folder)
        self._security = security or Security()
        self._extra = extra
        self._in_flight = in_flight
        (self.port,) = free_ports(1)
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def uri(self) -> str:
        """Where it listens; the same for the life of this object."""
        return f"{'mqtts' if self._security.server else 'mqtt'}://{LOOPBACK}:{self.port}"

    @property
    def title(self) -> str:
        return f"mosquitto on port {self.port}"

    def _command(self) -> list[str]:
        place = self._folder / "local.d" / "tests.conf"
        place.parent.mkdir(exist_ok=True)
        place.write_text(self._configuration())
        # The shared file includes the folder local.d of wherever the broker is started.
        started_there = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(self._folder)]
        return [*started_there, mosquitto_program(), "-c", str(deployed.MOSQUITTO)]

    def _ready(self) -> bool:
        try:
            socket.create_connection((LOOPBACK, self.port), 1.0).close()
        except OSError:
            return False
        return True

    def save(self) -> None:
        """Have the broker write all it holds to its disk, and return when it did."""
        if self._process is None:
            raise BrokerFailed("the broker does not run")
        database = self._folder / "mosquitto.db"
        before = database.stat().st_ino if database.exists() else 0
        self._process.send_signal(signal.SIGUSR1)
        # It writes another file and renames it, so a new number means a whole one.
        wait_until(lambda: database.exists() and database.stat().st_ino != before, READY_SECONDS, "the broker to save")

    def _configuration(self) -> str:
        lines = self._own_user() + "\n"
        lines += _PLACE.format(port=self.port, host=LOOPBACK, folder=self._folder, in_flight=self._in_flight)
        security = self._security
        if security.server is not None:
            lines += f"certfile {security.server.certificate}\nkeyfile {security.server.key}\n"
        if security.clients is not None:
            lines += f"cafile {security.clients}\nrequire_certificate true\n"
        if security.username:
            lines += f"allow_anonymous false\npassword_file {self._passwords()}\n"
        else:
            lines += "allow_anonymous true\n"
        return lines + self._extra

    @staticmethod
    def _own_user() -> str:
        """Return the line that lets a broker that root starts stay what it is."""
        return f"user {pwd.getpwuid(os.getuid()).pw_name}"

    def _passwords(self) -> Path:
        file = self._folder / "passwords"
        program = shutil.which("mosquitto_passwd") or "/usr/bin/mosquitto_passwd"
        command = [program, "-b", "-c", str(file), self._security.username, self._security.password]
        subprocess.run(command, check=True, capture_output=True, timeout=STOP_SECONDS)
        return file


def access_rules(folder: Path) -> str:
    """Return configuration that lets everybody subscribe to ``open/#``, and publish there only."""
    kinds = ("subscribePattern", "publishClientSend", "publishClientReceive")
    role = {"rolename": "open", "acls": [{"acltype": kind, "topic": "open/#", "allow": True} for kind in kinds]}
    default = {"publishClientSend": False, "publishClientReceive": False, "subscribe": False, "unsubscribe": True}
    everybody = {"groupname": "all", "roles": [{"rolename": "open"}], "clients": []}
    rules = {
        "defaultACLAccess": default,
        "anonymousGroup": "all",
        "groups": [everybody],
        "roles": [role],
        "clients": [],
    }
    (folder / "rules.json").write_text(json.dumps(rules))
    (plugin,) = Path("/usr/lib").glob("*/mosquitto_dynamic_security.so")
    return f"plugin {plugin}\nplugin_opt_config_file {folder / 'rules.json'}\n"


LIMIT_SECONDS: Final = 120.0


# An MQTT client that is not ours: paho as its users have it, to send to gateways and to see what publishers sent.


class Client:
    """A connected client with a thread of its own; use it in a ``with`` statement."""

    def __init__(self, uri: str, *, version: str = "MQTT/5.0", **login: str) -> None:
        self._ready, self._subscribed = threading.Event(), threading.Event()
        place = urlsplit(uri)
        self._five = version == "MQTT/5.0"
        protocol = MQTTProtocolVersion.MQTTv5 if self._five else MQTTProtocolVersion.MQTTv311
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=protocol)
        self._client.max_inflight_messages = 500
        self._client.on_connect = self._connected
        self._client.on_disconnect = lambda *_: self._ready.clear()
        self._client.on_message = self._arrived
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        if login:
            self._client.username_pw_set(**login)
        self.messages: list[paho.MQTTMessage] = []
        self._client.connect(str(place.hostname), place.port or 1883)

    def __enter__(self) -> Client:
        self._client.loop_start()
        self.wait_connected()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def wait_connected(self) -> None:
        """Wait for the connection, the first one or the one after a restart of the broker."""
        assert self._ready.wait(LIMIT_SECONDS), "the broker takes no connection"

    def send(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, **properties: Any) -> None:
        """Send one message and return when the broker has it."""
        self.begin(topic, payload, qos=qos, retain=retain, **properties).wait_for_publish(LIMIT_SECONDS)

    def begin(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, **properties: Any
    ) -> paho.MQTTMessageInfo:
        """Send one message and do not wait; *properties* have paho's names."""
        taken: Properties | None = None
        if self._five:
            taken = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            for name, value in properties.items():
                setattr(taken, name, value)
        return self._client.publish(topic, payload, qos, retain, taken)

    def send_all(self, topic: str, payloads: Iterable[bytes], **more: Any) -> None:
        """Send messages and return when the broker has all of them; see :meth:`begin` for the rest."""
        for info in [self.begin(topic, payload, **more) for payload in payloads]:
            info.wait_for_publish(LIMIT_SECONDS)
            assert info.is_published(), "the broker did not confirm a message"

    def subscribe(self, topic: str) -> None:
        """Collect in ``messages`` what is sent to a topic from now on."""
        self._subscribed.clear()
        self._client.subscribe(topic, 1)
        assert self._subscribed.wait(LIMIT_SECONDS), "the broker grants no subscription"

    def _connected(
        self, _client: object, _data: object, _flags: object, reason: ReasonCode, _properties: object
    ) -> None:
        if not reason.is_failure:
            self._ready.set()

    def _arrived(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        self.messages.append(message)
