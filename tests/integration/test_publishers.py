"""What every publisher promises, with real brokers and a real HTTP server: order, refusals, absences."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from bindings.http.publisher import HttpPoster
from bindings.kafka.client import KafkaClient
from bindings.kafka.publisher import KafkaPublisher
from bindings.sending import Outbound, Publisher, Unsettled
from tests.support.amqp import SILENT, TOLD, ChoosyPeer
from tests.support.brokers import KafkaBroker
from tests.support.gateways import PEERS, SECONDS, NatsPeer, Peer, Rows, peer_for_tests, running
from tests.support.kafka import create_topics, read_all
from tests.support.nats import NatsServer
from tests.support.waiting import wait_until
from tests.support.web import Answer, Taken, Webhook


@dataclass
class Target:
    """Where messages go: ``came`` are the bodies that arrived, each once, ``bad`` messages that it can never take."""

    publisher: Callable[[float], Publisher]
    address: str
    came: Callable[[], Sequence[bytes]]
    bad: Sequence[Outbound]
    away: Callable[[], object]
    back: Callable[[], object]
    seen: int = 0

    def arrived(self) -> Sequence[bytes]:
        """Return the bodies that arrived since this was asked before."""
        bodies = self.came()[self.seen :]
        self.seen += len(bodies)
        return bodies


def message(address: str, body: bytes, lane: str = "") -> Outbound:
    return Outbound(address, (), body, lane, body.decode("latin-1"))


@contextmanager
def broker_target(kind: str, folder: Path) -> Iterator[Target]:
    """A broker, whose messages our own gateway takes."""
    with peer_for_tests(kind, folder, up=False) as peer:
        bad = {
            "mqtt": ["many/c/+", "", "many/c/\x01", "many/c/\ufffe", "many" + 300 * "/"],
            "nats": ["js.*", "js.a b", f"js.{'x' * 600}"],
            "amqp": [],
        }[kind.removesuffix("3")]
        if isinstance(peer, NatsPeer):
            peer.broker = NatsServer(folder / "limited", max_control_line=512)
        peer.start()
        rows = Rows()

        def came() -> Sequence[bytes]:
            last = b"last " + uuid.uuid4().hex.encode()  # channels keep the order, so all that came before it is here
            with running(peer.protocol, peer.uri, [peer.wanted("c")], rows, client_id="reader"):
                peer.send("c", [last])
                wait_until(lambda: any(row.body == last for row in rows.stored), SECONDS, "the last message")
            return [body for row in rows.stored if not (body := row.body or b"").startswith(b"last ")]

        if kind.startswith("mqtt"):
            came()  # its session keeps what comes from now on
        yield Target(
            lambda timeout: peer.publisher(peer.uri, timeout),
            peer.place("c"),
            came,
            [message(address, b"bad") for address in bad],
            peer.broker.stop if kind.startswith("mqtt") else peer.broker.kill,
            peer.broker.start,
        )


@contextmanager
def kafka_target(folder: Path) -> Iterator[Target]:
    with KafkaBroker(folder) as broker:
        create_topics(broker.bootstrap, ["c"])
        client = KafkaClient(broker.bootstrap)
        yield Target(
            lambda timeout: KafkaPublisher(client, max_message_bytes=10_000, timeout=timeout),
            "c",
            lambda: [each.value or b"" for each in read_all(broker.bootstrap, "c")],
            [message("c", b"x" * 20_000), message("no topic", b"bad")],
            broker.kill,
            broker.start,
        )


@contextmanager
def http_target() -> Iterator[Target]:
    def answer(request: Taken) -> Answer:
        if request.method != "OPTIONS" and request.body == b"ends":
            raise ConnectionAbortedError
        return Answer(422 if request.body == b"refused" else 202)

    with Webhook(answer) as hook:
        url = f"{hook.url}/in"
        yield Target(
            lambda timeout: HttpPoster(timeout=timeout),
            url,
            lambda: [each.body for each in hook.taken],
            [message(url, b"refused"), message(url, b"ends")],
            hook.close,
            hook.open,
        )


@contextmanager
def choosy_target() -> Iterator[Target]:
    """An AMQP peer that ends the connection at some messages, as no broker at hand does."""
    with ChoosyPeer() as peer:
        publisher = PEERS["amqp"].publisher
        yield Target(
            lambda timeout: publisher(None, peer.uri, timeout),  # type: ignore[arg-type]
            "q",
            lambda: list(dict.fromkeys(peer.taken)),
            [message("q", TOLD), message("q", SILENT)],
            lambda: None,
            lambda: None,
        )


KINDS: Final = ("amqp", "http", pytest.param("kafka", marks=pytest.mark.full), "mqtt", "mqtt3", "nats")


def target_of(kind: str, folder: Path) -> AbstractContextManager[Target]:
    """Return the target of a kind."""
    return kafka_target(folder) if kind == "kafka" else http_target() if kind == "http" else broker_target(kind, folder)


@pytest.fixture(scope="module", params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target_of(request.param, tmp_path_factory.mktemp("target")) as each:
        yield each


def test_messages_keep_their_order_through_a_close(target: Target) -> None:
    bodies = [b"%d" % number for number in range(600)]
    with closing(target.publisher(SECONDS)) as out:
        assert out.send([]) == []
        assert out.send([message(target.address, body) for body in bodies[:400]]) == [None] * 400
        if not isinstance(out, HttpPoster):
            out.close()
        assert out.send([message(target.address, body) for body in bodies[400:]]) == [None] * 200
        assert list(target.arrived()) == bodies


def test_what_the_target_never_takes_is_refused_and_the_rest_sent(target: Target) -> None:
    refuses_alone(target)


def test_what_ends_the_connection_is_refused_and_the_rest_sent() -> None:
    with choosy_target() as target:
        refuses_alone(target)


def refuses_alone(target: Target) -> None:
    with closing(target.publisher(SECONDS)) as out:
        sent = [message(target.address, b"fits")]
        for number, bad in enumerate(target.bad):
            sent += [bad, message(target.address, b"fits %d" % number)]
        results = out.send(sent)
        assert [index for index, each in enumerate(results) if each is not None] == list(range(1, len(sent), 2))
        assert all(each is None or each.reason for each in results)
        assert set(target.arrived()) == {each.body for each in sent[::2]}


def test_a_target_that_is_away_is_told_of_and_used_again(target: Target) -> None:
    sent: set[bytes] = set()
    with closing(target.publisher(2.0)) as out:
        for _ in range(2):
            target.away()
            with pytest.raises(Unsettled, match=r"1 of 1 messages were not confirmed: .+|did not confirm 1: .+"):
                out.send([message(target.address, b"lost?")])
            target.back()
            body = uuid.uuid4().hex.encode()

            def arrives(body: bytes = body) -> bool:
                with suppress(Unsettled):  # two seconds may be too short for a busy machine
                    return out.send([message(target.address, body)]) == [None]
                return False

            wait_until(arrives, SECONDS, "the target that came")
            sent.add(body)
        assert sent <= set(target.came())


@pytest.mark.parametrize("kind", ["amqp", "mqtt", "nats"])
def test_a_broker_that_restarts_meanwhile_loses_nothing(kind: str, tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(2_000)]
    rows, left = Rows(), list(bodies)
    peer: Peer
    with peer_for_tests(kind, tmp_path) as peer:
        with running(peer.protocol, peer.uri, [peer.wanted("c")], rows, client_id="reader"):
            address = peer.place("c")
            publisher = peer.publisher(peer.uri, SECONDS)

            def send() -> None:
                while left:
                    with suppress(Unsettled):
                        publisher.send([message(address, body) for body in left])
                        left.clear()

            sender = threading.Thread(target=send)
            sender.start()
            wait_until(lambda: rows.stored, SECONDS, "the first messages")
            peer.broker.restart()
            sender.join(SECONDS)
            publisher.close()
            wait_until(lambda: set(rows.bodies()) == {body.decode() for body in bodies}, SECONDS, "all messages")
