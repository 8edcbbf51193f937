"""Letters of a real router, in every sink that can be read back: the same from each, listed, shown and removed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition

from router.dead_letters import stores
from router.dead_letters.dead_letter import DeadLetter
from router.dead_letters.reading import open_stores, read_dead_letters
from router.settings import Settings, load_settings
from tests.conftest import Kafka, TopicFactory
from tests.support import plain, shop
from tests.support.kafka import create_topics, produce
from tests.support.letters import letter_id, settings_file
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

LIMIT = 300.0
LARGE = b"x" * 50_000
EVENT = {"specversion": "1.0", "id": "b1", "source": "/plants/9", "type": "unheard-of"}
TABLES = ("delta", "parquet", "lines")
SINKS = (*TABLES, "bus")


def settings(folder: Path, topic: str, bootstrap: str, port: int) -> dict[str, Any]:
    """Return settings of a router whose letters go to all kinds of sinks."""
    endpoints = {
        "lines": plain.endpoint("KAFKA", {"topic": topic}, "Orders"),
        "shop": plain.endpoint("HTTP", {"path": "/orders", "method": "POST"}, "Orders"),
    }
    sinks = plain.lines(folder, "events", "lines") | plain.tables(folder, "delta")
    sinks |= plain.tables(folder, "parquet", format="parquet")
    sinks |= plain.topics(bootstrap, bus=f"{topic}.dead.{{endpointid}}")
    sinks["bus"]["max_message_bytes"] = "64KiB"
    return plain.routed(
        plain.write(folder, plain.catalog(endpoints, Orders={"order": plain.event("order")})),
        sinks,
        sources=[{"endpoint": "/endpoints/lines", "bootstrap_servers": bootstrap}, {"endpoint": "/endpoints/shop"}],
        http={"port": port},
        routes=[{"to": ["events"]}],
        dead_letters={"sinks": list(SINKS)},
    )


def send(bootstrap: str, topic: str, port: int) -> int:
    """Send records that all become letters; return how many letters."""
    head = [("ce_specversion", b"1.0"), ("ce_type", b"unheard-of"), ("ce_source", b"/a")]
    batch = json.dumps([{**EVENT, "data": 1.50}, {"id": "broken"}]).encode()
    records: list[Any] = [
        (b"k1", b'{"t": 1.50}', [*head, ("ce_id", b"1"), ("odd", b"\xff"), ("odd", b"two"), ("none", None)]),
        (None, None, []),
        (b"\xff\x00", b"", [("xrouter-letter", b"of a router before"), ("xrouter-native", b"not ours")]),
        (b"k2", b"\xff\x00\n", [("content-type", b"application/cloudevents+json")]),
        (b"k3", batch, [("kind", b"x"), ("content-type", b"application/cloudevents-batch+json")]),
        (b"k4", LARGE, [*head, ("ce_id", b"large")]),
    ]
    produce(bootstrap, topic, records)
    plain.post(port, "/orders", b"{not json", plain.STRUCTURED)
    plain.post(port, "/orders", batch, plain.BATCH, **{"X-Own": "a"})
    plain.post(port, "/orders", b"\xff\x00", **plain.http_headers("caf%C3%A9", content="image/png"))
    plain.post(port, "/orders", LARGE, **plain.http_headers("large", content="text/plain"))
    return 7 + 5


def letters_of(config: Path, sink: str) -> dict[str, DeadLetter]:
    """Return the letters in a sink by id."""
    return {letter.id: replace(letter, sink="") for letter in read_dead_letters(load_settings(config), sinks=[sink])}


@pytest.mark.full
@pytest.mark.broker
def test_letters_are_the_same_from_every_sink(kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess) -> None:
    topic, port = topic_factory("lines", partitions=2), free_ports(1)[0]
    create_topics(kafka.bootstrap, [f"{topic}.dead.lines", f"{topic}.dead.shop"])
    router.configure(settings(router.folder, topic, kafka.bootstrap, port))
    router.start()
    sent = send(kafka.bootstrap, topic, port)
    wait_until(
        lambda: router.total("xrouter_records_total", outcome="dead-letter") >= sent, LIMIT, lambda: router.log[-3000:]
    )
    found = {sink: letters_of(router.config, sink) for sink in SINKS}
    assert {sink: len(letters) for sink, letters in found.items()} == dict.fromkeys(SINKS, sent)
    for sink in SINKS[1:]:
        assert found[sink] == found["delta"], sink
    check_contents(found["delta"])
    check_order(load_settings(router.config))
    check_newest(load_settings(router.config), found)
    check_commands(router, found["delta"])
    check_purge(router, port)
    assert router.stop() == 0, router.log[-2000:]


@pytest.mark.broker
def test_letters_in_several_partitions_are_fetched_once(
    kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed: list[str] = []

    class Counting(Consumer):
        """The real consumer, which counts how often it fetches again what it had fetched."""

        def resume(self, places: list[TopicPartition]) -> None:
            resumed.extend(place.topic for place in places)
            super().resume(places)

    topic, many = topic_factory("dead", partitions=3), 1_500
    told = yaml.safe_load(settings_file(tmp_path, ("bus",)).read_text())
    told["sinks"]["bus"] |= {"bootstrap_servers": kafka.bootstrap, "topic": topic}
    (tmp_path / "router.yaml").write_text(yaml.safe_dump(told))
    lineage = [
        (f"xrouter-{name}", value.encode())
        for name, value in {"reason": "no-match", "protocol": "HTTP", "native": "{}", "position": "i-0-1"}.items()
    ]
    # One partition has most of them, so that it is far ahead of the others.
    keys = (b"a", b"a", b"a", b"b", b"a", b"c")
    rows = [(keys[n % 6], b"{}", [("xrouter-letter", letter_id(n).encode()), *lineage]) for n in range(many)]
    produce(kafka.bootstrap, topic, rows)
    monkeypatch.setattr(stores, "Consumer", Counting)
    letters = [letter.id for letter in read_dead_letters(load_settings(tmp_path / "router.yaml"))]
    assert sorted(letters) == [letter_id(n) for n in range(many)]
    assert not resumed
    # Letters that do not fit into memory together are still read, in the same order.
    monkeypatch.setattr(stores, "MAX_BUFFERED_BYTES", 100_000)
    assert [letter.id for letter in read_dead_letters(load_settings(tmp_path / "router.yaml"))] == letters
    assert resumed


def check_contents(letters: dict[str, DeadLetter]) -> None:
    bodies = Counter(letter.body for letter in letters.values())
    assert bodies[LARGE] == 2 and bodies[None] == 1 and bodies[b""] == 1 and bodies[b"{not json"] == 1
    assert bodies[json.dumps({**EVENT, "data": 1.50}).encode()] == 2
    kafka = {letter.native.get("key"): letter for letter in letters.values() if letter.protocol == "KAFKA"}
    odd = kafka["k1"].native
    assert [entry for entry in odd["headers"] if not entry["name"].startswith("ce_")] == [
        {"name": "odd", "value_base64": "/w=="},
        {"name": "odd", "value": "two"},
        {"name": "none", "value": None},
    ]
    assert kafka["k1"].position == f"{odd['topic']}-{odd['partition']}-{odd['offset']}"
    received = kafka["k1"].received
    assert received is not None and round(received.timestamp() * 1000) == odd["timestamp"]
    own = next(letter for letter in letters.values() if letter.native.get("key_base64"))
    assert {"name": "xrouter-native", "value": "not ours"} in own.native["headers"]
    assert {letter.attempts for letter in letters.values()} == {1}


def check_order(settings: Settings) -> None:
    """Letters of one sink come oldest first, also out of several topics and partitions.

    Of two queries that write at the same time, either may be first.
    """
    for sink in SINKS:
        letters = list(read_dead_letters(settings, sinks=[sink]))
        for query in ("KAFKA", "HTTP"):
            times = [letter.failed for letter in letters if letter.protocol == query]
            assert times == sorted(times, key=str), sink


def check_newest(settings: Settings, found: dict[str, dict[str, DeadLetter]]) -> None:
    """What the status page shows, which looks at the ends of sinks alone, is the same from each; here it is all."""
    for name in SINKS:
        look = open_stores(settings, [name])[0].select_newest
        letters = look(lambda looked: {letter for _, letter in looked})
        assert {letter.id: replace(letter, sink="") for letter in letters} == found[name], name
        (newest,) = look(lambda looked: {max(looked)[1]})
        assert newest.failed == max(letter.failed for letter in letters if letter.failed is not None), name


def check_commands(router: RouterProcess, letters: dict[str, DeadLetter]) -> None:
    told = shop.command(router, "dead-letters", "list", "CONFIG", "--format", "json").stdout
    rows = [json.loads(line) for line in told.splitlines()]
    assert {each["letter"] for each in rows if "letter" in each} == set(letters)
    counts = {each["value"]: each["letters"] for each in rows if each.get("by") == "reason"}
    assert counts == Counter(letter.reason for letter in letters.values())
    large = next(letter for letter in letters.values() if letter.body == LARGE)
    shown = shop.answer(router, "dead-letters", "show", "CONFIG", large.id)
    assert (shown["reason"], shown["body"], shown["native"]) == (large.reason, LARGE.decode(), large.native)
    assert shown["now"][0]["reason"] == large.reason


def check_purge(router: RouterProcess, port: int) -> None:
    """Tables lose their letters while the router writes; the topics keep theirs."""
    told = shop.command(router, "dead-letters", "purge", "CONFIG", "--older", "1ms").stdout
    assert [line.split(":")[0] for line in told.splitlines()] == [*TABLES, "spill"]
    for sink in TABLES:
        assert letters_of(router.config, sink) == {}
    assert len(letters_of(router.config, "bus")) == 10  # the two large ones were files
    plain.post(port, "/orders", b"late", "text/plain")
    wait_until(
        lambda: [len(letters_of(router.config, sink)) for sink in TABLES] == [1, 1, 1], LIMIT, "a new letter everywhere"
    )
