"""Every protocol in, every protocol out: one router between five real brokers, sent to and read by independent clients.

All events of the five sources must be found, with equal attributes and data, at each of the five sinks, over TLS and
with credentials everywhere.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.amqp import queue_name
from tests.support.five import (
    CELLS,
    SECONDS,
    SENDERS,
    Keys,
    MqttReader,
    World,
    cells,
    make_streams,
    read_amqp,
    read_kafka,
    read_nats,
    settings,
)
from tests.support.kafka import SecuredKafka, create_topics
from tests.support.mqtt import Mosquitto, Security
from tests.support.nats import NatsServer, key
from tests.support.ports import Authority, free_ports
from tests.support.qpid import QpidBroker, make_certificates
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until
from tests.support.web import Answer, Taken, Webhook

pytestmark = pytest.mark.broker
USER, PASSWORD, TOKEN = "plant", "s3cret-Wort", "tok-4be1"


@contextmanager
def secured_brokers(folder: Path, authority: Authority, seed: Path) -> Iterator[Callable[..., World]]:
    """Brokers that speak TLS, and let in who has a password; NATS who has an nkey. All but the keys is given."""
    pair = authority.sign("broker", alternatives="IP:127.0.0.1,DNS:localhost")
    user = key()
    seed.write_text(user.seed)
    tls = {"cert_file": str(pair.certificate), "key_file": str(pair.key)}
    kafka = SecuredKafka(folder / "kafka", authority, {USER: PASSWORD})
    qpid = QpidBroker(folder / "amqp", users={USER: PASSWORD}, certificates=make_certificates(folder / "certificates"))
    mqtt = Mosquitto(folder / "mqtt", Security(server=pair, username=USER, password=PASSWORD))
    nats = NatsServer(folder / "nats", tls=tls, authorization={"users": [{"nkey": user.public}]})
    with ExitStack() as stack:
        for broker in (kafka, qpid, mqtt, nats):
            stack.enter_context(broker)
        create_topics(kafka.bootstrap, ["beds", "out"])
        (port,) = free_ports(1)
        queues = queue_name(), queue_name()
        yield partial(World, kafka.sasl, kafka.bootstrap, "beds", "out", mqtt.uri, qpid.uri, *queues, nats.uri, port)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[World]:
    """Brokers that ask for credentials, over TLS, and what to tell them."""
    authority = Authority(tmp_path / "authority")
    seed = tmp_path / "user.seed"
    with secured_brokers(tmp_path, authority, seed) as world_of:
        pair = authority.sign("gateway", alternatives="IP:127.0.0.1")
        authorities = {name: authority.certificate for name in ("kafka", "http", "mqtt", "nats")}
        authorities["amqp"] = tmp_path / "certificates" / "ca.pem"
        tls = {name: {"tls": {"ca": str(ca)}} for name, ca in authorities.items()}
        login = {"username": USER, "password": "${BEDS_PASSWORD}"}
        told: dict[str, dict[str, Any]] = {
            "kafka": {**tls["kafka"], **login, "sasl": "scram-sha-512"},
            "mqtt": {**tls["mqtt"], **login},
            "amqp": {**tls["amqp"], **login},
            "nats": {**tls["nats"], "seed": str(seed)},
            "http": {**tls["http"], **login},
        }
        gateway = {
            "tls": {"cert": str(pair.certificate), "key": str(pair.key)},
            "auth": {"bearer": {"tests": "${BEDS_TOKEN}"}},
        }
        environ = {"BEDS_PASSWORD": PASSWORD, "BEDS_TOKEN": TOKEN}
        yield world_of(keys=Keys(authorities, pair, USER, PASSWORD, TOKEN, seed, told, gateway, environ))


def webhook(world: World) -> Webhook:
    """Return a target that is as secured as the brokers are."""
    right = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    def answer(request: Taken) -> Answer:
        return Answer(202 if request.header("Authorization") == right else 401)

    return Webhook(answer, world.keys.certificate)


def test_all_modes_of_every_protocol_reach_every_protocol_with_tls_and_credentials(
    secured: World, router: RouterProcess, tmp_path: Path
) -> None:
    hook = webhook(secured)
    make_streams(secured)
    with hook:
        router.configure(settings(secured, hook, tmp_path))
        reader = MqttReader(secured)
        router.start(environ=secured.keys.environ)
        for send in SENDERS:
            send(secured)
        log = lambda: f"all cells\n{router.log[-4000:]}"  # noqa: E731
        wait_until(lambda: len(hook.taken) >= len(CELLS), SECONDS, log)
        wait_until(lambda: len(reader.found) >= len(CELLS), SECONDS, log)
        reader.close()
        assert cells([{**taken.attributes(), "data": taken.body} for taken in hook.taken]) == CELLS
        assert cells(reader.found) == CELLS
        assert cells(read_nats(secured, len(CELLS))) == CELLS
        assert cells(read_amqp(secured, len(CELLS))) == CELLS
        assert cells(read_kafka(secured)) == CELLS
        assert not list((tmp_path / "dead").rglob("*.jsonl"))
        assert router.stop() == 0
    files = [path for path in (tmp_path / "router").rglob("*") if path.is_file()]
    written = b"\n".join(path.read_bytes() for path in files)
    secrets = (PASSWORD, TOKEN, secured.keys.seed.read_text())
    assert files and not [secret for secret in secrets if secret.encode() in written]
