"""Each alert fires in a real Prometheus when a real router fails that way, and clears once that is fixed.

The times of the rules are divided by one number, their expressions and limits are as shipped. What fails is real:
brokers that are killed, sinks that refuse, records that a broker deletes, processes that die. Only a fault of the
router's own, in a thread beside the stream, is one that the test puts there.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from router.spark.session import DAEMON_CONF
from router.state.database import StateDatabase
from tests.support import plain
from tests.support.brokers import KafkaBroker
from tests.support.faulty_router import VARIABLE
from tests.support.kafka import create_topics, ends, produce
from tests.support.mqtt import Mosquitto
from tests.support.ports import Authority, free_ports
from tests.support.processes import below, children, command_of
from tests.support.prometheus import Prometheus, rules
from tests.support.router import RouterProcess
from tests.support.waiting import repeating, wait_until
from tests.support.watched import LIMIT, Fires, alert_that_clears, quiet
from tests.support.web import Answer, Webhook

pytestmark = [pytest.mark.full, pytest.mark.timeout(7200)]
FASTER = 15
"""A minute is four seconds, half an hour two minutes."""
TOPIC = "plant"
DAEMON = DAEMON_CONF["spark.python.daemon.module"]
BACKLOG = 11_000
"""More records than XrouterLagGrows lets wait."""
CONNECTIONS = 150
"""So many that a share of descriptors is left that is enough for all else."""
UNHURRIED = frozenset({"XrouterInboxGrows", "XrouterOldestWaits", "XrouterLatencyHigh"})
"""Alerts whose limits are minutes of real time, or more records than this inbox holds: promtool looks after them."""
ALERTS = frozenset(rule["alert"] for rule in rules("alert") if rule["alert"].startswith("Xrouter")) - UNHURRIED


class Plant:
    """A router that takes records over Kafka, MQTT and HTTP, all that is around it, and what watches it.

    Events go to a table, alarms to a webhook as well; what has another type is a dead letter.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.watched: set[str] = set()
        """The alerts that have fired and cleared."""
        self.stray = False
        """Whether each second record that is sent is one that no definition takes."""
        self.framed = False
        """Whether records are sent, too, whose bodies begin with one of two schema ids."""
        self.kafka_answers = True
        (folder / "lake").mkdir()
        mounting = ["mount", "-t", "tmpfs", "-o", "size=1200m", "tmpfs", str(folder / "lake")]
        if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True).returncode != 0:
            pytest.skip("needs the right to mount a tmpfs: run as root")
        stack.callback(subprocess.run, ["umount", "-l", str(folder / "lake")], check=True)
        self.hook = stack.enter_context(Webhook())
        self.schemas = stack.enter_context(Webhook(lambda request: Answer(503)))
        self.kafka = KafkaBroker(folder / "kafka")
        stack.callback(self.kafka.stop)
        self.kafka.start()
        create_topics(self.kafka.bootstrap, [TOPIC])
        self.mqtt = stack.enter_context(Mosquitto(folder / "mqtt"))
        (self._port,) = free_ports(1)
        authority = Authority(folder / "ca")
        self.certificates = {days: authority.sign(f"days{days}", days=days) for days in (2, 90)}
        self.renew(90)
        self.write_catalog(spare=False)
        self.write_shadow("")
        self.router = RouterProcess(folder / "router", self._settings())
        self.router.module = ("tests.support.faulty_router",)
        stack.callback(self.router.end)
        self.start()
        targets = {"xrouter": [f"127.0.0.1:{self.router.port}"]}
        self.prometheus = stack.enter_context(Prometheus(folder / "prometheus", targets, faster=FASTER))

    def start(self) -> None:
        """Start the router."""
        self.router.start(environ={VARIABLE: str(self.folder / "fault")})

    def renew(self, days: int) -> None:
        """Take a certificate that ends in so many days for the login at a registry."""
        fresh = self.folder / "fresh.crt"
        fresh.write_bytes(self.certificates[days].certificate.read_bytes())
        fresh.replace(self.folder / "login.crt")

    def write_catalog(self, *, spare: bool = True, schema: bool = False, text: str = "") -> None:
        """Write the catalog: with a definition that nobody needs, with a schema from elsewhere, or a text instead."""
        types = ("plain", "alarm", "framed", "spare") if spare else ("plain", "alarm", "framed")
        messages: dict[str, Any] = {kind: {"envelopemetadata": {"type": {"value": kind}}} for kind in types}
        messages["framed"] |= {"dataschemaformat": "JsonSchema/draft-07", "dataschema": {}}
        if schema:
            uri = f"{self.schemas.url}/schema.json"
            messages["plain"] |= {"dataschemaformat": "JsonSchema/draft-07", "dataschemauri": uri}
        groups = {"g": {"envelope": "CloudEvents/1.0", "messages": messages}}
        document = {"endpoints": dict(self._endpoints()), "messagegroups": groups}
        fresh = self.folder / "fresh.json"
        fresh.write_text(text or json.dumps(document))
        fresh.replace(self.folder / "catalog.json")

    def write_shadow(self, text: str) -> None:
        """Write the catalog that judges beside the active one; an empty text is that one itself."""
        fresh = self.folder / "fresh.json"
        fresh.write_text(text or (self.folder / "catalog.json").read_text())
        fresh.replace(self.folder / "shadow.json")

    def _endpoints(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, protocol, options in (
            ("kafka", "KAFKA", {"uri": f"PLAINTEXT://{self.kafka.bootstrap}", "topic": TOPIC}),
            ("mqtt", "MQTT/5.0", {"uri": self.mqtt.uri, "topicfilter": "plant/#"}),
            ("http", "HTTP", {"path": "/plant", "method": "POST"}),
        ):
            uri = options.pop("uri", "")
            yield name, plain.endpoint(protocol, options, "g", uri=uri)

    def _settings(self) -> dict[str, Any]:
        own = {"cert": str(self.folder / "login.crt"), "key": str(self.certificates[90].key)}
        return {
            "catalog": {
                "source": str(self.folder / "catalog.json"),
                "poll": "500ms",
                "shadow": str(self.folder / "shadow.json"),
                "logins": [{"url": "https://registry.example", "tls": own}],
            },
            "sources": [{"endpoint": f"/endpoints/{name}"} for name, _ in self._endpoints()],
            "sinks": {
                "hook": {"type": "http", "url": f"{self.hook.url}/alarms"},
                "lake": {"type": "table", "path": str(self.folder / "lake")},
                "dead": {"type": "table", "path": str(self.folder / "dead")},
            },
            "routes": [{"when": {"message": "*/alarm"}, "to": ["lake", "hook"]}, {"to": ["lake"]}],
            "dead_letters": {"sinks": ["dead"]},
            "http": {"port": self._port, "idle_timeout": "10m"},
            "inbox": {"segment_bytes": 20_000, "max_bytes": 400_000, "min_free_bytes": 0},
            "on_data_loss": "continue",
            "trigger": "200ms",
        }

    def traffic(self) -> AbstractContextManager[None]:
        """Send over Kafka and HTTP for the time of the block, for as long as these take anything."""

        def send(number: int) -> None:
            kind = "stray" if self.stray and number % 2 else "plain"
            with suppress(httpx.TransportError, AssertionError):
                self.post(kind, 2_000)
                if self.kafka_answers:
                    self.produce(kind, 20)
                if self.kafka_answers and self.framed:
                    self.produce("framed", 1, b"\0\0\0\0" + bytes((1 + number % 2,)) + b"{}")

        return repeating(send, 0.5)

    def produce(self, kind: str, count: int, body: bytes = b"{}") -> None:
        """Send records to the topic."""
        headers = [(f"ce_{name}", value.encode()) for name, value in attributes(kind).items()]
        produce(self.kafka.bootstrap, TOPIC, [(None, body, headers)] * count)

    def post(self, kind: str, size: int = 2, *, client: httpx.Client | None = None) -> int:
        """Send an event with a body of so many bytes over HTTP; return the status of its answer.

        The connection of a *client* stays.
        """
        headers = {f"ce-{name}": value for name, value in attributes(kind).items()}
        url = f"http://127.0.0.1:{self._port}/plant"
        send = httpx.post if client is None else client.post
        return send(url, content=b"x" * size, headers=headers, timeout=60).status_code

    @contextmanager
    def failing(self, *names: str) -> Iterator[Fires]:
        """Hold alerts against a failure, see :func:`alert_that_clears`."""
        with alert_that_clears(self.prometheus, *names) as fires:
            yield fires
        self.watched.update(names)

    def workers(self) -> list[int]:
        """Return the Python workers of Spark, which a daemon of its own forks."""
        daemons = [pid for pid in below(self.router.pid) if DAEMON in command_of(pid)]
        return [child for pid in daemons for child in children(pid)]


def attributes(kind: str) -> dict[str, str]:
    return {"specversion": "1.0", "id": "1", "source": "/plant", "type": kind}


def test_each_alert_fires_in_its_failure_and_clears_after_it(tmp_path: Path) -> None:
    with ExitStack() as stack:
        plant = Plant(tmp_path, stack)
        with plant.traffic():
            quiet(plant.prometheus)
            # What rises is known only beside what was before.
            for name in ("xrouter_background_faults_total", "xrouter_batch_faults_total"):
                wait_until(partial(plant.prometheus.query, f"{name} == 0"), LIMIT, f"a first scrape of {name}")
            small_failures(plant)
            catalogs(plant)
            the_sink_is_away(plant)
            records_are_lost(plant)
        nobody_sends(plant)
        assert plant.watched == ALERTS
        assert not plant.prometheus.unhealthy_rules()
        assert plant.router.stop() == 0, plant.router.log[-3000:]


def small_failures(plant: Plant) -> None:
    """A broker, a certificate, senders, workers and threads, all at a time; then descriptors."""
    names = ["XrouterGatewayDown", "XrouterCertificateEnds", "XrouterDeadLetters"]
    names += ["XrouterBackgroundFaults", "XrouterBatchFaults", "XrouterShadowBroken", "XrouterSchemaIdsMixed"]
    with plant.failing(*names) as fires:
        plant.mqtt.kill()
        plant.renew(2)
        plant.write_shadow('{"messagegroups": ')
        plant.stray = plant.framed = True
        (plant.folder / "fault").touch()
        wait_until(lambda: kill(plant), LIMIT, "a batch that fails for its workers")
        fires(gateway="/endpoints/mqtt", certificate="catalog.logins.0.tls", part="backlogs", fault="worker")
        plant.mqtt.start()
        plant.renew(90)
        plant.write_shadow("")
        plant.stray = plant.framed = False
    with plant.failing("XrouterDescriptorsShort") as fires, ExitStack() as stack:
        pid = plant.router.pid
        for _ in range(CONNECTIONS):
            plant.post("plain", client=stack.enter_context(httpx.Client()))
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (int(len(os.listdir(f"/proc/{pid}/fd")) / 0.85), limits[1]))
        fires()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    with plant.failing("XrouterDiskFills") as fires:
        ballast = plant.folder / "lake" / "ballast"
        ballast.write_bytes(bytes(200 * 2**20))
        fires(disk="sinks.lake")
        ballast.unlink()


def kill(plant: Plant) -> bool:
    """Kill what works for Spark in Python; tell whether a batch has failed for it."""
    for pid in plant.workers():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return plant.router.total("xrouter_batch_faults_total", fault="worker") > 0


def catalogs(plant: Plant) -> None:
    """One that is none, one that takes a definition away, and one with a schema that cannot be fetched for now."""
    with plant.failing("XrouterReloadRefused") as fires:
        plant.write_catalog(text='{"messagegroups": ')
        fires()
        plant.write_catalog()
    with plant.failing("XrouterCatalogIncompatible") as fires:
        plant.write_catalog(spare=False)
        fires()
        plant.write_catalog()
    with plant.failing("XrouterCatalogWaits") as fires:
        plant.write_catalog(schema=True)
        fires()
        plant.schemas.answer = lambda request: Answer(200, {"Content-Type": "application/json"}, b"{}")


def the_sink_is_away(plant: Plant) -> None:
    """What it is to get holds both queries: records wait at the broker and in the inbox, which fills."""
    names = ["XrouterBatchHeld", "XrouterStalled", "XrouterLagGrows", "XrouterInboxFills", "XrouterGatewayRefuses"]
    names += ["XrouterInboxRefuses"]
    with plant.failing(*names) as fires:
        plant.hook.close()
        plant.produce("alarm", 1)
        assert plant.post("alarm") == 202
        plant.produce("plain", BACKLOG)
        wait_until(lambda: plant.post("plain", 20_000) == 503, LIMIT, "the inbox to be full")
        fires(sink="hook")
        with plant.failing("XrouterSourceDown") as down:
            plant.kafka_answers = False
            plant.kafka.kill()
            down(endpoint="/endpoints/kafka")
            plant.kafka.start()
            plant.kafka_answers = True
        # Not before: a broker that is killed may have records again that it had just deleted.
        expire(plant)
        plant.hook.open()


def expire(plant: Plant) -> None:
    """Have the broker delete all that it has, as retention does; the batch that is held is among it."""
    admin = AdminClient({"bootstrap.servers": plant.kafka.bootstrap})
    (end,) = ends(plant.kafka.bootstrap, TOPIC).values()
    for done in admin.delete_records([TopicPartition(TOPIC, 0, end)]).values():
        done.result(LIMIT)


def records_are_lost(plant: Plant) -> None:
    """The broker deleted what was held; somebody looks, and begins the counts anew."""
    name = "XrouterConservationGap"
    wait_until(lambda: plant.prometheus.firing(name), LIMIT, lambda: f"{name}\n{plant.router.log[-3000:]}")
    with plant.failing("XrouterDown") as fires:
        assert plant.router.stop() == 0, plant.router.log[-3000:]
        fires()
        with StateDatabase(plant.router.folder / "state") as database, database.transaction() as connection:
            connection.execute("DELETE FROM accounts")
        plant.start()
    wait_until(lambda: not plant.prometheus.firing(name), LIMIT, f"the end of {name}")
    plant.watched.add(name)
    quiet(plant.prometheus)


def nobody_sends(plant: Plant) -> None:
    """Nothing comes for half an hour, and then something does."""
    with plant.failing("XrouterNoRecords") as fires:
        fires()
        assert plant.post("plain") == 202
