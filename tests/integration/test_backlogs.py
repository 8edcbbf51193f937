"""What waits at real sources, asked of themselves and of checkpoints as Spark leaves them; no query runs."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from bindings.inbox.format import to_offset
from bindings.inbox.log import Inbox
from bindings.inbox.source import InboxView
from bindings.kafka.client import KafkaClient
from bindings.kafka.offsets import KafkaOffsets
from bindings.parts import InboxRow
from catalog.load import load as load_catalog
from router.evaluation.plan import Plan
from router.reading import backlogs, generations
from router.reading.backlogs import InboxRows, TopicBacklogs
from router.reading.generations import Generation
from router.running.monitoring import BacklogPoller
from router.settings import settings_from_dict
from router.sources import INBOX
from router.state.state import StateFolder
from router.watching.backlogs import Backlog
from router.watching.metrics import Metrics
from router.watching.status import AWAY_SECONDS, RouterStatus
from tests.conftest import Kafka, TopicFactory
from tests.support import load, plain, shop
from tests.support.brokers import KafkaBroker
from tests.support.kafka import create_topics, produce
from tests.support.waiting import wait_until

PLANT = "/endpoints/plant"
LIMIT = 60.0


def committed(generation: Generation, offset: dict[str, Any], batch: int = 0) -> None:
    """Leave what Spark leaves of a batch that is done."""
    for folder, lines in (
        ("offsets", ["v1", json.dumps({"batchTimestampMs": 0}), json.dumps(offset)]),
        ("commits", ["v1", "{}"]),
    ):
        path = generation.path / folder / str(batch)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))


def kafka_plan(folder: Path, bootstrap: str, topic: str, **source: Any) -> Plan:
    catalog = plain.write(folder, load.catalog(3, topic=topic))
    sources = [{"endpoint": PLANT, "bootstrap_servers": bootstrap, **source}]
    told = load.settings(bootstrap, catalog, plain.tables(folder, "lake", "dead"), sources=sources)
    told["state"] = str(folder / "state")
    return Plan(load_catalog([str(catalog)]), settings_from_dict(told, {}, folder))


def test_topics_say_what_waits_behind_a_position_and_how_old_it_is(kafka: Kafka, topic_factory: TopicFactory) -> None:
    topic, empty = topic_factory("waits", 2), topic_factory("empty")
    began = time.time() * 1000
    produce(kafka.bootstrap, topic, load.records(30, 3))
    with TopicBacklogs(KafkaClient(kafka.bootstrap)) as topics:
        for _ in range(2):  # The second time by the same connections, with what is known by then.
            found = topics.look([topic, empty, "nosuch"], {})
            backlog = found[topic]
            assert backlog is not None and backlog.oldest is not None
            assert backlog.records == 30
            assert began - 1000 <= backlog.oldest <= time.time() * 1000
            assert found[empty] == Backlog(0)
            assert found["nosuch"] is None
            assert topics.read_until.seconds == 0
        ends = KafkaOffsets(KafkaClient(kafka.bootstrap)).end_offsets([topic])[topic]
        read = topics.look([topic], {topic: {"0": ends[0], "1": ends[1] - 1}})[topic]
        assert read is not None and read.oldest is not None
        assert read.records == 1
        assert topics.look([topic], {topic: {"0": ends[0], "1": ends[1]}})[topic] == Backlog(0)
        assert topics.read_until.seconds * 1000 > began
        # Neither what comes meanwhile nor a topic that is not there keeps anybody from knowing what has been read.
        produce(kafka.bootstrap, topic, load.records(1, 3))
        asked = time.time()
        positions = {topic: {"0": ends[0], "1": ends[1]}}
        topics.look([topic, "nosuch"], positions)
        positions[topic] = {
            str(n): end for n, end in KafkaOffsets(KafkaClient(kafka.bootstrap)).end_offsets([topic])[topic].items()
        }
        produce(kafka.bootstrap, topic, load.records(1, 3))
        last = topics.look([topic, "nosuch"], positions)[topic]
        assert last is not None and last.arrived == 2
        assert topics.read_until.seconds >= asked


@pytest.mark.full
def test_a_broker_that_is_away_gives_no_figure_and_one_that_is_back_does(tmp_path: Path, state: StateFolder) -> None:
    with KafkaBroker(tmp_path / "broker") as broker:
        create_topics(broker.bootstrap, ["in"])
        produce(broker.bootstrap, "in", load.records(20, 3))
        plan = kafka_plan(tmp_path, broker.bootstrap, "in")
        [query] = {source.query for source in plan.sources}
        generation = generations.begin(state, query, ("in",))
        committed(generation, {"in": {"0": 15}})
        metrics = Metrics()
        now = itertools.count(step=AWAY_SECONDS)
        status = RouterStatus(clock=lambda: next(now))
        status.query(query, "running")

        def figure(name: str) -> float | None:
            return metrics.registry.get_sample_value(f"xrouter_source_{name}", {"endpoint": PLANT})

        with BacklogPoller(state, lambda: plan, metrics.backlogs, status, topics_seconds=0.2):
            # No query runs, and its last batch says nothing of what came since.
            wait_until(lambda: figure("lag_records") == 5, LIMIT, "what waits to be told")
            assert figure("up") == 1
            assert (figure("oldest_seconds") or 0) > 0
            committed(generation, {"in": {"0": 20}}, batch=1)
            wait_until(lambda: figure("lag_records") == 0, LIMIT, "nothing to wait")
            broker.kill()
            wait_until(lambda: figure("up") == 0, LIMIT, "the broker to be missed")
            assert figure("lag_records") is None
            assert figure("oldest_seconds") is None
            source = f"the source of query {query} does not answer: Kafka at {broker.bootstrap} "
            assert any(each.startswith(source) for each in status.check_readiness()[1]["reasons"])
            broker.restart()
            wait_until(lambda: figure("lag_records") == 0, LIMIT, "the broker to answer again")
            assert not any(source in each for each in status.check_readiness()[1]["reasons"])


def committed_to(bootstrap: str, group: str, topic: str) -> list[int]:
    """Return what Kafka's own tools see of a consumer group."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    places = asked[group].result(LIMIT).topic_partitions
    return [place.offset for place in sorted(places, key=lambda each: each.partition) if place.topic == topic]


def test_kafkas_own_tools_see_how_far_a_source_is_read(
    tmp_path: Path, state: StateFolder, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    topic, group = topic_factory("watched", 2), f"watching-{tmp_path.name}"
    produce(kafka.bootstrap, topic, load.records(20, 3))
    plan = kafka_plan(tmp_path, kafka.bootstrap, topic, commit_offsets_to=group)
    [query] = {source.query for source in plan.sources}
    generation = generations.begin(state, query, (topic,))
    committed(generation, {topic: {"0": 3, "1": 0}})
    metrics = Metrics()
    with BacklogPoller(state, lambda: plan, metrics.backlogs, RouterStatus(), topics_seconds=0.2):
        wait_until(lambda: committed_to(kafka.bootstrap, group, topic) == [3, 0], LIMIT, "offsets in the group")
        committed(generation, {topic: {"0": 3, "1": 2}}, batch=1)
        wait_until(lambda: committed_to(kafka.bootstrap, group, topic) == [3, 2], LIMIT, "the next batch in the group")
    # What the group says is for people: reading goes on from the checkpoint.
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_consumer_groups([group])[group].result(LIMIT)
    with BacklogPoller(state, lambda: plan, metrics.backlogs, RouterStatus(), topics_seconds=60):
        wait_until(
            lambda: metrics.registry.get_sample_value("xrouter_source_lag_records", {"endpoint": PLANT}) == 15,
            LIMIT,
            "the same lag",
        )
        committed(generation, {topic: {"0": 10, "1": 2}}, batch=2)
    # The last batch is told at the end, however long it was to the next look.
    wait_until(lambda: committed_to(kafka.bootstrap, group, topic) == [10, 2], LIMIT, "the last batch in the group")


def test_the_inbox_says_what_waits_of_each_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlogs, "CHUNK_ROWS", 7)
    monkeypatch.setattr(backlogs, "LOOK_ROWS", 30)
    monkeypatch.setattr(backlogs, "MAX_CHUNKS", 3)
    random = Random(34)
    inbox = Inbox(tmp_path / "inbox", partitions=2)
    view, rows = InboxView(tmp_path / "inbox"), InboxRows()
    sent: list[str] = []
    try:
        reached = {number: view.first_position(number) for number in view.partitions}
        arrived: Counter[str] = Counter()
        for turn in range(40):
            names = random.choices(
                ["/endpoints/a", "/endpoints/b", "/endpoints/c"], [70, 20, 1], k=random.randrange(20)
            )
            inbox.append_many(
                [InboxRow(name, "HTTP", len(sent) + n + 1, [], b"") for n, name in enumerate(names)]
            ).result(60)
            sent += names
            ends = {number: view.end_position(number) for number in view.partitions}
            while (found := rows.look(view, reached, ends)) is None:
                pass
            arrived.update(names if turn else [])
            waits = [
                (row["endpoint"], int(row["received"].timestamp() * 1000))
                for number, position in reached.items()
                for batch in view.read_spans(number, view.plan_spans(number, position, ends[number]))
                for row in batch.select(["endpoint", "received"]).to_pylist()
            ]
            for name in {name for name, _ in waits} | set(found):
                ages = [at for each, at in waits if each == name]
                assert found[name] == Backlog(len(ages), min(ages, default=None))
                assert found[name].arrived == arrived[name]
            # A batch ends in the midst of what was summed up together.
            reached = {
                number: view.advance_position(number, position, random.randrange(9), ends[number])
                for number, position in reached.items()
            }
    finally:
        inbox.close()


def test_endpoints_of_the_inbox_have_figures_of_their_own(tmp_path: Path, state: StateFolder) -> None:
    shop.write_catalog(tmp_path, fixed=False)
    told = shop.settings(tmp_path, "http://127.0.0.1:9/", state=str(tmp_path / "state"))
    plan = Plan(load_catalog([str(tmp_path / "catalog.json")]), settings_from_dict(told, {}, tmp_path))
    inbox = Inbox(state.inbox, partitions=2)
    metrics = Metrics()

    def figure(name: str, endpoint: str) -> float | None:
        return metrics.registry.get_sample_value(f"xrouter_{name}", {"endpoint": endpoint})

    try:
        with BacklogPoller(state, lambda: plan, metrics.backlogs, RouterStatus(), inbox_seconds=0.05):
            wait_until(lambda: figure("inbox_endpoint_records", shop.SHOP) == 0, LIMIT, "an empty inbox")
            now = int(time.time() * 1_000_000)
            inbox.append_many([InboxRow(shop.SHOP, "HTTP", now - 9_000_000, [], b"{}") for _ in range(10)]).result(60)
            wait_until(lambda: figure("inbox_endpoint_records", shop.SHOP) == 10, LIMIT, "what waits of the shop")
            assert (figure("inbox_endpoint_oldest_seconds", shop.SHOP) or 0) >= 8
            assert metrics.registry.get_sample_value("xrouter_inbox_records") == 10
            assert (metrics.registry.get_sample_value("xrouter_inbox_oldest_seconds") or 0) >= 8
            assert figure("arrived_records_total", shop.SHOP) == 10
            assert figure("inbox_endpoint_records", shop.EMPTY) == figure("arrived_records_total", shop.EMPTY) == 0
            # No broker is there to say where a topic ends, and the sum of what waits counts each record once.
            assert figure("source_up", shop.SHOP) is figure("source_lag_records", shop.SHOP) is None
            view = InboxView(state.inbox)
            generation = generations.begin(state, INBOX, ())
            committed(generation, to_offset(inbox.layout.inbox, {n: view.end_position(n) for n in view.partitions}))
            wait_until(lambda: figure("inbox_endpoint_records", shop.SHOP) == 0, LIMIT, "nothing to wait")
            assert metrics.registry.get_sample_value("xrouter_inbox_oldest_seconds") == 0
            assert figure("arrived_records_total", shop.SHOP) == 10
    finally:
        inbox.close()
