"""Kafka with TLS and every way to log in, source and sink, by both clients: Spark has Java's, all else librdkafka."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bindings.kafka.client import KafkaClient, KafkaUnreachable, SaslLogin
from bindings.kafka.offsets import KafkaOffsets
from bindings.kafka.store import KafkaStore
from bindings.parts import InboxRow, Part
from router.settings import Settings, settings_from_dict
from router.sources import make_inbox_client
from tests.support import plain
from tests.support.cases import read_cases
from tests.support.kafka import SecuredKafka, create_topics, produce, read_all
from tests.support.ports import Authority, Pair
from tests.support.router import RouterProcess
from tests.support.tokens import TokenServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
SECONDS = 150.0
USER, PASSWORD = "ann", "p=lain; 1'"
CLIENT, SECRET = "router", "s/cret+2"
WRONG = "no-such-word"
ENVIRON = {"KAFKA_PASSWORD": PASSWORD, "KAFKA_SECRET": SECRET, "KAFKA_WRONG": WRONG}
WAYS = ("plain", "scram-sha-512", "oauthbearer", "mutual")
"""What a whole router is shown with, a query for each; SCRAM-SHA-256 is the other SCRAM but for its name."""


@dataclass(frozen=True)
class World:
    """The broker, who signed its certificate, who gives tokens, and our own certificate."""

    kafka: SecuredKafka
    authority: Authority
    tokens: TokenServer
    own: Pair

    def login(self, way: str) -> dict[str, Any]:
        """The settings of a way to log in, but for the servers."""
        tls: dict[str, str] = {"ca": str(self.authority.certificate)}
        if way == "mutual":
            return {"tls": {**tls, "cert": str(self.own.certificate), "key": str(self.own.key)}}
        if way != "oauthbearer":
            return {"tls": tls, "sasl": way, "username": USER, "password": "${KAFKA_PASSWORD}"}
        token = {"token_endpoint": f"{self.tokens.url}/token", "token_ca": tls["ca"], "token_scope": "kafka"}
        return {"tls": tls, "sasl": way, "username": CLIENT, "password": "${KAFKA_SECRET}", **token}

    def servers(self, way: str) -> str:
        """Where a way to log in is taken."""
        return self.kafka.mutual if way == "mutual" else self.kafka.sasl


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder / "authority")
    certificate = authority.sign("tokens", alternatives="IP:127.0.0.1")
    with TokenServer(folder / "tokens", {CLIENT: SECRET}, certificate) as tokens:
        with SecuredKafka(folder / "kafka", authority, {USER: PASSWORD}, tokens) as kafka:
            yield World(kafka, authority, tokens, authority.sign("router"))


def catalog(topics: dict[str, str], out: str, servers: str) -> dict[str, Any]:
    """One endpoint and one definition for each way, and a producer endpoint for what librdkafka sends."""
    endpoints = {way: plain.endpoint("KAFKA", {"topic": topic}, way) for way, topic in topics.items()}
    endpoints["out"] = plain.endpoint("KAFKA", {"topic": out}, *topics, uri=servers, usage="producer")
    return plain.catalog(endpoints, **{way: {"m": plain.event("{way}")} for way in topics})


def settings(world: World, source: Path, topics: dict[str, str], folder: Path) -> dict[str, Any]:
    """Each way is a source, and the sink of the source before it; OAUTHBEARER is that of the producer endpoint too."""
    ways = list(topics)
    sinks: dict[str, Any] = {"out": {"type": "kafka", "endpoint": "/endpoints/out", **world.login("oauthbearer")}}
    for way in ways:
        (topic,) = plain.topics(world.servers(way), out=f"out-{way}").values()
        sinks[f"to-{way}"] = {**topic, **world.login(way)}
    pairs = list(zip(ways, [*ways[1:], ways[0]], strict=True))
    routes: list[dict[str, Any]] = [
        {"when": {"messagegroup": way}, "to": [f"to-{following}", "out"]} for way, following in pairs[:-1]
    ]
    sources = [
        {"endpoint": f"/endpoints/{way}", "bootstrap_servers": world.servers(way), **world.login(way)} for way in ways
    ]
    routes.append({"to": [f"to-{pairs[-1][1]}", "out"]})
    return plain.routed(source, sinks | plain.lines(folder, "dead"), sources=sources, routes=routes)


@pytest.mark.full
def test_every_way_is_source_and_sink(world: World, router: RouterProcess, tmp_path: Path) -> None:
    topics = {way: f"in-{way}" for way in WAYS}
    create_topics(world.kafka.bootstrap, [*topics.values(), *(f"out-{way}" for way in WAYS), "confirmed"])
    source = plain.write(tmp_path, catalog(topics, "confirmed", world.kafka.sasl))
    router.configure(settings(world, source, topics, tmp_path))
    router.start(environ=ENVIRON)
    for way, topic in topics.items():
        produce(world.kafka.bootstrap, topic, [(None, b"x", plain.kafka_headers(f"t.{way}", way))])

    def arrived(topic: str) -> list[str]:
        return sorted(str(each.header("ce_id")) for each in read_all(world.kafka.bootstrap, topic))

    tell = lambda: f"all events, confirmed\n{router.log[-4000:]}"  # noqa: E731
    wait_until(lambda: arrived("confirmed") == sorted(WAYS), SECONDS, tell)
    for way, following in zip(WAYS, (*WAYS[1:], WAYS[0]), strict=True):
        wait_until(lambda: arrived(f"out-{following}") == [way], SECONDS, tell)  # noqa: B023
    told = json.dumps([router.readiness(), router.metrics()])
    assert router.stop() == 0
    assert {status for _, status in world.tokens.asked} == {200}
    files = [path for path in (tmp_path / "router" / "state").rglob("*") if path.is_file()]
    kept = b"\n".join([told.encode(), router.log.encode(), *(path.read_bytes() for path in files)])
    assert files and not [secret for secret in secrets(world) if secret.encode() in kept]


def secrets(world: World) -> tuple[str, ...]:
    """What must be found nowhere, with a line of our private key."""
    return (PASSWORD, SECRET, WRONG, world.own.key.read_text().splitlines()[1])


@pytest.mark.parametrize("way", ["scram-sha-512", pytest.param("oauthbearer", marks=pytest.mark.full)])
def test_a_wrong_password_names_the_source_and_not_the_password(
    world: World, router: RouterProcess, tmp_path: Path, way: str
) -> None:
    source = plain.write(tmp_path, catalog({way: f"in-{way}"}, "confirmed", world.kafka.sasl))
    told = settings(world, source, {way: f"in-{way}"}, tmp_path)
    told["sources"][0]["password"] = "${KAFKA_WRONG}"
    router.configure(told)
    router.launch(environ=ENVIRON)
    assert router.wait() == 5, router.log
    last = router.log.strip().splitlines()[-1]
    assert f"source /endpoints/{way}: Kafka at {world.kafka.sasl}" in router.log, last
    assert "credentials" in router.log
    assert not [secret for secret in secrets(world) if secret in router.log]


def client(world: World, servers: str | None = None, **changes: Any) -> KafkaClient:
    """Our client as it is right, but for the changes."""
    login = SaslLogin(USER, PASSWORD, "scram-sha-512")
    ca = str(world.authority.certificate)
    return KafkaClient(servers or world.kafka.sasl, **{"login": login, "tls": True, "ca": ca, **changes})


def test_certificates_and_host_names_are_checked(world: World, tmp_path: Path) -> None:
    assert KafkaOffsets(client(world)).find_partitions(()) == {}
    stranger = Authority(tmp_path, "strangers").certificate
    elsewhere = world.kafka.sasl.replace("127.0.0.1", "localhost")
    for wrong in (
        client(world, elsewhere),
        client(world, ca=str(stranger)),
        client(world, ca=None),
        client(world, login=SaslLogin(USER, WRONG, "scram-sha-256")),
    ):
        with pytest.raises(KafkaUnreachable, match=r"certificate verify failed|Authentication failed") as caught:
            KafkaOffsets(wrong).find_partitions(())
        assert not [secret for secret in secrets(world) if secret in str(caught.value) + repr(wrong)]
    with pytest.raises(KafkaUnreachable, match=r"none\.pem"):
        KafkaOffsets(client(world, ca=str(tmp_path / "none.pem"))).find_partitions(())


def settings_with_inbox(world: World, way: str, folder: Path) -> Settings:
    inbox = {"bootstrap_servers": world.servers(way), "topic": f"inbox-{way}", **world.login(way)}
    return settings_from_dict({"inbox": {"kafka": inbox}}, ENVIRON, folder)


@pytest.mark.parametrize("way", [*WAYS, "scram-sha-256"])
def test_the_inbox_topic_is_written_in_every_way(world: World, tmp_path: Path, way: str) -> None:
    create_topics(world.kafka.bootstrap, [f"inbox-{way}"])
    chosen = settings_with_inbox(world, way, tmp_path).inbox.kafka
    assert chosen is not None
    store = KafkaStore(make_inbox_client(chosen), chosen.topic, max_message_bytes=100_000)
    try:
        store.append_many([InboxRow("/endpoints/e", "HTTP", 0, [Part("path", b"/x")], b"body")]).result(SECONDS)
    finally:
        store.close()
    assert [each.value for each in read_all(world.kafka.bootstrap, f"inbox-{way}")] == [b"body"]


@pytest.mark.parametrize("case", read_cases(Path(__file__).parents[1] / "cases" / "kafka_logins.yaml"))
def test_one_login_is_told_to_both_clients(case: dict[str, Any]) -> None:
    login = SaslLogin(*case["login"])
    assert (login.jvm_options(), login.librdkafka_config()) == (case["jvm"], case["librdkafka"])
    assert login.password not in repr(login).replace("password", "").replace("oauthbearer", "")
