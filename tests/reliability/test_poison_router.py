"""Records and definitions chosen to break judging, validating, mapping and each sink, through a whole router.

Each record ends in exactly one outcome, no batch takes long, and no Python worker grows past its bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import Kafka, TopicFactory
from tests.support import plain, shop
from tests.support.kafka import produce
from tests.support.mqtt import Mosquitto
from tests.support.nats import NatsServer, make_stream
from tests.support.poison import Case, cases, catalog
from tests.support.qpid import amqp_for_tests
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until
from tests.support.watched import Footprint
from tests.support.web import Webhook

LIMIT: Final = 900.0
GIB: Final = 1 << 30
BATCH_SECONDS: Final = 30.0
LARGEST: Final = 900_000
"""Bytes of a record that a broker takes at its defaults, and so do topics of its copies with further headers."""
Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def configure(router: RouterProcess, mqtt: str, sinks: dict[str, Any], sources: Sequence[dict[str, str]] = ()) -> None:
    """Write catalog and settings: every event to every sink, every body held against its schema.

    *mqtt* is the broker of the MQTT source. It is no sink's, since what a sink sent there would come back.
    """
    folder = router.folder
    told = catalog()
    told["endpoints"]["mqtt"]["protocoloptions"]["endpoints"] = [{"uri": mqtt}]
    for source in sources:
        told["endpoints"][source["topic"]] = plain.endpoint("KAFKA", {"topic": source["topic"]}, "P")
    inbox = [{"endpoint": "/endpoints/web"}, {"endpoint": "/endpoints/mqtt"}]
    topics = [
        {"endpoint": f"/endpoints/{source['topic']}", "bootstrap_servers": source["bootstrap"]} for source in sources
    ]
    sinks = {
        **plain.tables(folder, "lake"),
        **plain.tables(folder, "kinds", layout="definition"),
        **plain.tables(folder, "parquet", format="parquet"),
        **plain.lines(folder, "lines"),
        **sinks,
        **plain.tables(folder, "dead"),
    }
    more = {"sources": [*inbox, *topics], "http": {"port": 0}, "match": {"validate": "always"}}
    router.configure(plain.routed(plain.write(folder, told), sinks, **more))


def on_kafka(case: Case) -> Record | None:
    """Return the record of a case in a topic; None for what no topic takes, or what has no such form."""
    headers = [
        (part.key.removeprefix("headers.").replace("ce-", "ce_", 1), part.value)
        for part in case.row.properties
        if part.key.startswith("headers.")
    ]
    size = len(case.row.body or b"") + sum(len(value or b"") for _, value in headers)
    if not headers or case.outcomes > 1 or size > LARGEST:
        return None
    return b"", case.row.body, headers


def odd_records() -> list[Record]:
    """Return records that only a topic can have: no key, no value, nulls among headers, names that are twice there."""
    event: list[tuple[str, bytes | None]] = [
        ("ce_specversion", b"1.0"),
        ("ce_id", b"odd"),
        ("ce_source", b"/s"),
        ("ce_type", b"plain"),
    ]
    return [
        (None, None, []),
        (b"", b"", []),
        (None, None, event),
        (b"\xff\x00", b"{}", [*event, ("ce_subject", None)]),
        (b"k", b"{}", [*event, ("", b""), ("\u2028", None), ("content-type", None)]),
        (b"k" * 100_000, b"{}", [*event, ("ce_type", b"twin")]),
        (b"k", b"{}", [("ce_specversion", None), ("ce_id", b""), ("ce_type", b"\xff")]),
    ]


def poison(router: RouterProcess, chosen: Sequence[Case], elsewhere: Sequence[int]) -> int:
    """Run the records through the router, check their outcomes, and return the largest size of a worker.

    *elsewhere* are the outcomes of the records that come by another source than the inbox, a number each. An empty
    batch has none: it is counted as empty and written nowhere.
    """
    shop.fill(router.folder / "state", [case.row for case in chosen])
    outcomes = [*(case.outcomes for case in chosen), *elsewhere]
    empty = outcomes.count(0)
    expected = sum(outcomes)
    router.start()
    with Footprint(router.pid) as peaks:
        wait_until(
            lambda: router.total("xrouter_records_total") >= expected + empty,
            LIMIT,
            lambda: f"{router.total('xrouter_records_total')} of {expected}; {router.log[-5000:]}",
        )
        wait_until(lambda: router.readiness()["ready"], LIMIT, lambda: router.log[-3000:])
        total = router.total("xrouter_records_total")
        batches_of_none = router.total("xrouter_records_total", outcome="empty")
        slow = router.total("xrouter_batch_seconds_count") - router.total("xrouter_batch_seconds_bucket", le="30.0")
        log = router.log
        assert router.stop() == 0, router.log[-3000:]
    assert (total, batches_of_none) == (expected + empty, empty)
    assert "Traceback" not in log, log[-6000:]
    letters = shop.rows_of(router.folder / "dead")
    events = shop.rows_of(router.folder / "lake")
    dead = Counter(row["position"] for row in letters)
    live = Counter(row["position"] for row in events)
    assert not [position for position, count in (dead + Counter()).items() if count > 1]
    assert not [position for position, count in live.items() if count > 1]
    # A record that one sink refused is a letter, and at the sinks that took it.
    refused = {row["position"] for row in letters if row["reason"] == "sink-rejected"}
    assert not (dead.keys() & live.keys()) - refused
    assert len(dead.keys() | live.keys()) == expected
    assert slow == 0, f"{slow} batches took longer than {BATCH_SECONDS} s"
    return peaks.worker


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_poison_and_every_sink(
    router: RouterProcess, kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    binary, structured, incoming = topic_factory("binary"), topic_factory("structured"), topic_factory("incoming")
    everything = cases()
    odd = odd_records()
    sent = [(record, case.outcomes) for case in everything if (record := on_kafka(case))]
    produce(kafka.bootstrap, incoming, [*odd, *(record for record, _ in sent)])
    with (
        Webhook() as hook,
        Mosquitto(tmp_path / "source") as source,
        Mosquitto(tmp_path / "mosquitto") as mosquitto,
        NatsServer(tmp_path / "nats") as nats,
        amqp_for_tests(tmp_path / "qpid") as amqp,
    ):
        make_stream(nats, ("poison.>",))
        named = "{type}"
        configure(
            router,
            source.uri,
            {
                "binary": {"type": "kafka", "bootstrap_servers": kafka.bootstrap, "topic": binary},
                "structured": {
                    "type": "kafka",
                    "bootstrap_servers": kafka.bootstrap,
                    "topic": structured,
                    "mode": "structured",
                },
                "hook": {"type": "http", "url": f"{hook.url}/{named}/{{context.a}}"},
                "mqtt": {"type": "mqtt", "uri": mosquitto.uri, "topic": f"poison/{named}/{{context.a}}"},
                "nats": {"type": "nats", "uri": nats.uri, "subject": f"poison.{named}"},
                "amqp": {"type": "amqp", "uri": amqp, "node": "q.poison"},
            },
            [{"topic": incoming, "bootstrap": kafka.bootstrap}],
        )
        assert len(everything) >= 60
        assert len(catalog()["messagegroups"]["P"]["messages"]) >= 20
        most = poison(router, everything, [*(1 for _ in odd), *(outcomes for _, outcomes in sent)])
    assert most < 1.5 * GIB
