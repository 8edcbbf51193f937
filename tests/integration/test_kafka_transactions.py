"""Transactions of Kafka: what is aborted or open is routed nowhere, and the offsets of such records are no loss."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from router.cli import run_command_line
from tests.conftest import Kafka, TopicFactory
from tests.reliability.test_reload_kills import DEFINITIONS, catalog, change, has, numbers, said, settings
from tests.support import load, plain
from tests.support.kafka import Transactions, ends, produce, read_all
from tests.support.router import RouterProcess
from tests.support.tables import column_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
LIMIT: Final = 240.0


def of(first: int, count: int) -> list[Any]:
    """Return records with these numbers, all of which conform."""
    return list(load.records(count, DEFINITIONS, start=first, bad=0))


def at_rest(router: RouterProcess) -> bool:
    """Whether nothing waits by the broker's word, and nothing is missed by the accounts."""
    told = router.metrics()
    lag = [value for name, value in told.items() if name.startswith("xrouter_source_lag_records")]
    gap = [value for name, value in told.items() if name.startswith("xrouter_conservation_gap")]
    return bool(lag and gap) and not any(lag) and not any(gap)


def rests(router: RouterProcess) -> None:
    """Wait until the router is at rest."""
    shown = ("xrouter_source_lag", "xrouter_conservation", "xrouter_source_empty")

    def figures() -> str:
        told = {name: value for name, value in router.metrics().items() if name.startswith(shown)}
        return f"{told}; log:\n{router.log[-3000:]}"

    wait_until(lambda: at_rest(router), LIMIT, figures)


def test_what_is_aborted_or_open_is_not_routed(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    """Nor by a router after one that read open transactions, as older ones did: it waits until they end."""
    topic = topic_factory("transactions")
    change(router, catalog(kafka.bootstrap, [topic]))
    source = {"endpoint": f"/endpoints/plant0-{topic}"}
    uncommitted = {**source, "kafka": {"isolation.level": "read_uncommitted"}}
    router.configure(settings(kafka, router.folder, sources=[uncommitted]))
    one, other = (Transactions(kafka.bootstrap, f"{topic}-{name}") for name in ("one", "other"))
    wanted: set[int] = set()

    def arrives(*sent: int) -> None:
        wanted.update(sent)
        wait_until(partial(has, router, wanted), LIMIT, said(router))

    def aborted(by: Transactions, first: int, count: int) -> None:
        by.begin(topic, of(first, count))
        by.abort()

    one.begin(topic, of(1_000, 5))
    router.start()
    arrives(*range(1_000, 1_005))
    rests(router)
    assert router.stop() == 0, router.log[-3000:]
    other.begin(topic, of(0, 10))
    other.commit()
    aborted(other, 100, 10)
    router.configure(settings(kafka, router.folder, sources=[source]))
    router.launch()
    waiting = f"{topic}-0 is read up to offset 5, and committed up to 0"
    wait_until(lambda: waiting in router.log, LIMIT, said(router))
    one.commit()
    arrives(*range(10))
    rests(router)

    # Open over several batches of what others commit; records behind it wait until it has ended.
    one.begin(topic, of(10, 3))
    produce(kafka.bootstrap, topic, of(20, 2))
    other.begin(topic, of(30, 2))
    other.commit()
    rests(router)
    assert set(numbers(router.folder / "wide")) == wanted
    one.commit()
    arrives(10, 11, 12, 20, 21, 30, 31)
    rests(router)

    # Many aborted in a row: batches with nothing in them end as well, and so do those of a start.
    for each in range(20):
        aborted(one, 200 + each, 1)
    rests(router)
    # Aborted records, and the markers of transactions.
    wait_until(lambda: router.total("xrouter_empty_offsets_total") > 50, LIMIT, said(router))
    one.begin(topic, of(40, 2))
    assert router.stop() == 0, router.log[-3000:]
    one.abort()
    produce(kafka.bootstrap, topic, of(50, 1))
    aborted(one, 300, 5)
    router.launch("--once")
    assert router.wait() == 0, router.log[-3000:]
    assert numbers(router.folder / "wide") == Counter(wanted | {50})
    assert ends(kafka.bootstrap, topic)[0] > 70


def test_a_compacted_topic_with_tombstones(kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess) -> None:
    """What compaction removed is no loss; a record without a value is an event without data."""
    # The broker leaves the segment that is written to.
    cleaned = {"segment_ms": 100, "min_cleanable_dirty_ratio": 0.0, "delete_retention_ms": 3_600_000}
    topic = topic_factory("compacted", cleanup_policy="compact", **cleaned)
    router.configure(settings(kafka, router.folder, max_records_per_batch=7))
    change(router, catalog(kafka.bootstrap, [topic]))

    def send(number: int, key: bytes, *, tombstone: bool = False) -> None:
        [(_, value, headers)] = of(number, 1)
        produce(kafka.bootstrap, topic, [(key, None if tombstone else value, headers)])

    for number in range(0, 400, 10):
        send(number, b"same")
    send(400, b"gone", tombstone=True)

    def compacted() -> bool:
        send(500, b"more")
        return len(read_all(kafka.bootstrap, topic)) < 20

    wait_until(compacted, LIMIT, "the broker to compact")
    router.start()
    rests(router)
    send(600, b"after")
    wait_until(lambda: any(b'"n": 600' in data for data in bodies(router)), LIMIT, said(router))
    rests(router)
    left = read_all(kafka.bootstrap, topic)
    assert ends(kafka.bootstrap, topic)[0] > 2 * len(left)
    assert router.total("xrouter_empty_offsets_total") > 0
    assert router.stop() == 0, router.log[-3000:]
    found = bodies(router)
    assert found.count(b"") == 1
    assert {message.value or b"" for message in left} <= set(found)


def bodies(router: RouterProcess) -> list[bytes]:
    """Return the data of all events in the table; none is empty."""
    return [bytes(data or b"") for data in column_of(router.folder / "wide")]


def test_plan_reads_as_many_records_as_it_is_asked_for(
    kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not as many offsets: it goes back over what transactions left there."""
    topic = topic_factory("tail")
    one = Transactions(kafka.bootstrap, topic)
    for number in range(20):
        one.begin(topic, of(number, 1))
        one.commit()
        one.begin(topic, of(100, 3))
        one.abort()
    document = plain.write(tmp_path, catalog(kafka.bootstrap, [topic]))
    told = {**settings(kafka, tmp_path), "state": str(tmp_path / "state")}
    (tmp_path / "router.yaml").write_text(yaml.safe_dump(told))

    def read(*arguments: str) -> dict[str, Any]:
        command = ["plan", str(tmp_path / "router.yaml"), "--new", str(document), "--format", "json", *arguments]
        assert run_command_line(command) == 0
        place: dict[str, Any] = json.loads(capsys.readouterr().out)["places"][0]
        return place

    assert read("--last", "8") == {"place": f"topic {topic}", "records": 8, "notes": []}
    assert read("--last", "50") == {"place": f"topic {topic}", "records": 20, "notes": ["it has no more than 20"]}
    assert read("--since", "2020-01-01")["records"] == 20
    one.begin(topic, of(30, 1))
    one.abort()
    assert read("--last", "1")["records"] == 1
