"""A router that follows a registry: both real, records at a steady rate between two topics, definitions that change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from catalog.load import load
from tests.support.kafka import Message, create_topics, ends, read_all
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

LIMIT: Final = 240.0
TICK: Final = 0.01
CHANGES: Final = "/endpoints/changes"
GROUP: Final = "/messagegroups/live"
BROKER_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
"""Topics that take the broker's clock, which is this machine's."""


class ServedRegistry:
    """``xrouter registry serve`` over SQLite, in a process of its own, open to all of this machine."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        settings = {
            "open": True,
            "store": {"path": "./registry.db"},
            "http": {"port": self.port},
            "events": {"allow_addresses": ["127.0.0.1"]},
        }
        config = folder / "registry.yaml"
        config.write_text(yaml.safe_dump(settings))
        self._command = [sys.executable, "-m", "xrouter", "registry", "serve", str(config)]
        self._log = folder / "registry.log"
        self.client = httpx.Client(base_url=self.url, timeout=LIMIT)
        self.start()

    def start(self) -> None:
        """Start it on what it has, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(self._answers, LIMIT, self._log.read_text)

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        self._process.kill()
        self._process.wait(LIMIT)

    def write(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> float:
        """Write an entity; return when the registry had answered, in seconds since 1970."""
        answer = self.client.request(method, path, json=body)
        moment = time.time()
        assert answer.is_success, answer.text
        return moment

    def stop(self) -> int:
        """End it as an operator does; return its exit code."""
        self.client.close()
        self._process.terminate()
        return self._process.wait(LIMIT)

    def _answers(self) -> bool:
        try:
            return self.client.get("/capabilities").is_success
        except httpx.HTTPError:
            return False


class SteadySender(threading.Thread):
    """Sends records of one type after the other to a topic, so many a second; the body has the record's number."""

    def __init__(self, bootstrap: str, topic: str, types: int, rate: int) -> None:
        super().__init__(daemon=True)
        self._topic = topic
        self._types = types
        self._rate = rate
        self._stopping = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
        self.sent = 0
        self.seconds = 0.0

    def run(self) -> None:
        began = time.monotonic()
        while not self._stopping.wait(TICK):
            self.seconds = time.monotonic() - began
            for number in range(self.sent, int(self.seconds * self._rate)):
                headers = {"ce_specversion": "1.0", "ce_id": str(number), "ce_source": "/line"}
                headers["ce_type"] = kind(number % self._types)
                body = json.dumps({"n": number}).encode()
                self._producer.produce(self._topic, body, headers=[(k, v.encode()) for k, v in headers.items()])
                self.sent = number + 1
            self._producer.poll(0)

    def end(self) -> int:
        """Stop sending, and return how many records the broker has."""
        self._stopping.set()
        self.join(LIMIT)
        assert self._producer.flush(LIMIT) == 0
        return self.sent


class EpochsSeen(threading.Thread):
    """Reads topics as they grow, and notes for each epoch when the broker had the first record judged by it."""

    def __init__(self, bootstrap: str, topics: Mapping[str, int]) -> None:
        """*topics* have so many partitions each."""
        super().__init__(daemon=True)
        options = {"group.id": "xrouter-tests-following", "enable.auto.commit": False, "fetch.wait.max.ms": 20}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, **options})
        self._places = [TopicPartition(name, each, 0) for name, count in topics.items() for each in range(count)]
        self._stopping = threading.Event()
        self.first: dict[str, float] = {}
        """Seconds since 1970, by epoch."""

    def run(self) -> None:
        self._consumer.assign(self._places)
        while not self._stopping.is_set():
            for found in self._consumer.consume(1_000, 0.05):
                assert found.error() is None, found.error()
                headers: Any = dict(found.headers() or ())
                lineage = headers.get("xrouter-lineage")  # A dead letter has none.
                epoch: str = json.loads(lineage)["epoch"] if lineage else headers["xrouter-epoch"].decode()
                self.first.setdefault(epoch, found.timestamp()[1] / 1000)
        self._consumer.close()

    def end(self) -> None:
        """Stop reading."""
        self._stopping.set()
        self.join(LIMIT)


def kind(number: int) -> str:
    """Return a type of events."""
    return f"live.type{number}"


def typed(value: str) -> dict[str, Any]:
    """Return a definition of a type of events."""
    return {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": value}}}


@dataclass
class Following:
    """One registry, one router that follows it, and what goes through the router.

    ``types`` are sent in turn; those of even numbers have a definition that stays, the others come and go.
    """

    folder: Path
    bootstrap: str
    types: int
    rate: int
    definitions: int = 0
    partitions: int = 2
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the router."""
    waits: list[float] = field(default_factory=list)
    """Seconds from the registry's answer to the first record judged by the new epoch, by change."""
    served: dict[str, frozenset[str]] = field(default_factory=dict)
    """The types that had a definition, by the epoch of each version that the registry served."""

    def __enter__(self) -> Following:
        self.topics = [f"{name}-{os.urandom(4).hex()}" for name in ("in", "out", "dead", "told")]
        create_topics(self.bootstrap, self.topics, self.partitions, BROKER_TIME)
        self.registry = ServedRegistry(self.folder / "registry")
        self._http = free_ports(1)[0]
        known = {kind(number): typed(kind(number)) for number in range(0, self.types, 2)} | {"extra0": typed(kind(3))}
        self.registry.write("PATCH", "/", self._tree(known))
        self._note_served()
        self.router = RouterProcess(self.folder / "router", self._settings())
        self._sender = SteadySender(self.bootstrap, self.topics[0], self.types, self.rate)
        self._seen = EpochsSeen(self.bootstrap, dict.fromkeys(self.topics[1:3], self.partitions))
        return self

    def __exit__(self, *_: object) -> None:
        self.router.end()
        self.registry.stop()

    def start(self) -> None:
        """Start the router and the load, wait until records come out, and have the router told of changes."""
        self.router.start()
        sink = f"http://127.0.0.1:{self._http}/changes"
        types = [f"io.xregistry.resource.{action}" for action in ("created", "updated", "deleted")]
        self.registry.write("POST", "/subscriptions", {"protocol": "HTTP", "sink": sink, "types": types})
        self._seen.start()
        self._sender.start()
        wait_until(lambda: self._seen.first, LIMIT, lambda: self.router.log[-3000:])

    def change(self, number: int) -> None:
        """Change a definition, and wait until a record was judged by the version that has the change."""
        answered = self._write(number)
        epochs = set(self._seen.first) | set(self.served)
        new = wait_until(
            lambda: next((each for each in list(self._seen.first) if each not in epochs), None),
            LIMIT,
            lambda: f"change {number} to be in force; log:\n{self.router.log[-3000:]}",
        )
        assert self._note_served() == new
        self.waits.append(self._seen.first[new] - answered)

    def change_and_kill(self, number: int, *, registry: bool) -> None:
        """Change a definition and kill the router, and the *registry* as well, before or after it may have heard of it.

        Return when records are judged by the version that has the change.
        """
        written = self._arrived()
        self._write(number)
        if number % 2:
            wait_until(lambda: self._arrived() > written + self.rate // 4, LIMIT, lambda: self.router.log[-3000:])
        if registry:
            self.registry.kill()
        self.router.kill()
        if registry:
            self.registry.start()
        self.router.start()
        epoch = self._note_served()
        wait_until(
            lambda: epoch in self._seen.first, LIMIT, lambda: f"change {number}; log:\n{self.router.log[-3000:]}"
        )

    def _write(self, number: int) -> float:
        """Add a definition, then let it take another type, then remove the one before it; no state comes back."""
        turn, step = number // 3 + 1, number % 3
        path = f"{GROUP}/messages/extra"
        if step == 2:
            return self.registry.write("DELETE", f"{path}{turn - 1}")
        taken = kind((4 * turn + 2 * step + 1) % self.types)
        return self.registry.write("PUT", f"{path}{turn}", typed(taken))

    def finish(self) -> int:
        """Stop the load, wait until all of it came out, and stop the router; return how many records were sent."""
        sent = self._sender.end()
        wait_until(lambda: self._arrived() >= sent, LIMIT, lambda: self.router.log[-3000:])
        wait_until(lambda: len(self._outcomes()) >= sent, LIMIT, lambda: self.router.log[-3000:])
        self._seen.end()
        assert self.router.stop() == 0, self.router.log[-3000:]
        return sent

    @property
    def rate_sent(self) -> float:
        """Records that were sent in a second."""
        return self._sender.sent / self._sender.seconds

    def hold(self, sent: int, *, repeats: bool = False) -> dict[str, int]:
        """Hold each record against the version whose epoch it has: routed where that has its type, else dead.

        With *repeats* a topic may have a record again, as after a kill: from the same topic and by the same version.
        Return the account.
        """
        out, dead = (read_all(self.bootstrap, topic) for topic in self.topics[1:3])
        numbers = Counter(json.loads(each.value or b"{}")["n"] for each in (*out, *dead))
        outcomes = self._outcomes()
        assert set(outcomes) == set(range(sent)) and all(len(each) == 1 for each in outcomes.values())
        assert repeats or numbers == Counter(range(sent))
        for each in out:
            assert _type(each) in self.served[_epoch(each)]
        for each in dead:
            assert _type(each) not in self.served[_epoch(each)]
        topics = Counter(topic for each in outcomes.values() for topic, _ in each)
        again = numbers.total() - len(numbers)
        return {"sent": sent, "routed": topics[out[0].topic], "dead": topics[dead[0].topic], "again": again}

    def _outcomes(self) -> dict[int, set[tuple[str, str]]]:
        """Return topic and epoch of each record by its number; of one that is there again alike, once."""
        found: dict[int, set[tuple[str, str]]] = {}
        for each in (message for topic in self.topics[1:3] for message in read_all(self.bootstrap, topic)):
            found.setdefault(json.loads(each.value or b"{}")["n"], set()).add((each.topic, _epoch(each)))
        return found

    def _arrived(self) -> int:
        return sum(sum(ends(self.bootstrap, topic).values()) for topic in self.topics[1:3])

    def _note_served(self) -> str:
        catalog = load([self.registry.url], network=True)
        assert not catalog.pending
        held = (each for definition in catalog.definitions.values() for each in definition.envelopemetadata)
        self.served[catalog.epoch] = frozenset(str(each.value) for each in held if each.name == "type")
        return catalog.epoch

    def _tree(self, known: Mapping[str, Any]) -> dict[str, Any]:
        options = {"endpoints": [{"uri": "http://127.0.0.1/changes"}]}
        told = {"usage": ["consumer"], "protocol": "HTTP", "envelope": "CloudEvents/1.0", "protocoloptions": options}
        data = {
            "usage": ["consumer"],
            "protocol": "KAFKA",
            "envelope": "CloudEvents/1.0",
            "protocoloptions": {"options": {"topic": self.topics[0]}},
            "messagegroups": [GROUP],
        }
        told_type = {"value": "io.xregistry.resource.{action}", "type": "uritemplate"}
        changed = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": told_type}}
        others = {f"other.type{number}": typed(f"other.type{number}") for number in range(self.definitions)}
        return {
            "endpoints": {"data": data, "changes": {**told, "messagegroups": ["/messagegroups/registry"]}},
            "messagegroups": {
                "live": {"messages": {**known, **others}},
                "registry": {"messages": {"changed": changed}},
            },
        }

    def _settings(self) -> dict[str, Any]:
        sink = {"type": "kafka", "bootstrap_servers": self.bootstrap}
        _, out, dead, told = self.topics
        return {
            "catalog": {"source": self.registry.url, "poll": "1h", "events": CHANGES},
            "sources": [
                {"endpoint": "/endpoints/data", "bootstrap_servers": self.bootstrap},
                {"endpoint": CHANGES},
            ],
            "sinks": {
                "out": {**sink, "topic": out},
                "told": {**sink, "topic": told},
                "dead": {**sink, "topic": dead},
            },
            "routes": [{"when": {"endpoint": CHANGES}, "to": ["told"]}, {"to": ["out"]}],
            "dead_letters": {"sinks": ["dead"]},
            "http": {"port": self._http},
            **self.more,
        }


def _epoch(message: Message) -> str:
    epoch = message.lineage("epoch")
    assert epoch is not None
    return epoch


def _type(message: Message) -> str:
    found = message.header("ce_type")
    assert found is not None
    return found
