"""Open exchanges: paired in any order, once, given up in time or for room, and delivered as they were promised."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import pytest
from deltalake import DeltaTable
from prometheus_client import CollectorRegistry

from bindings.parts import first_part
from bindings.sending import MessageRefusal, Outbound, Unsettled
from router import request_reply as relating
from router.errors import SinkError
from router.evaluation.forwarding import RelatedRecord
from router.request_reply import Exchanges, Half, Pairing, RecordToPair
from router.settings import KafkaSink, Settings, settings_from_dict
from router.sinks import pairs
from router.sinks.contract import Commit
from router.sinks.pairs import PairRow
from router.watching.metrics import RelationMetrics
from tests.support.cases import read_cases
from tests.support.waiting import wait_until

CASES: Final = Path(__file__).resolve().parents[3] / "cases" / "relations.yaml"
ASK, ANSWER = "/messagegroups/g/messages/ask", "/messagegroups/g/messages/answer"


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.behind = 0.0
        """For how many seconds what arrived has not been read."""

    def __call__(self) -> float:
        return self.now


def opened(folder: Path, clock: Clock, *, wait: float = 60.0, most: int = 1000) -> Exchanges:
    return Exchanges(folder, wait=wait, most=most, read_until=lambda: clock.now - clock.behind, clock=clock)


def ask(key: str, place: int = 0) -> RecordToPair:
    return RecordToPair(
        Half(ASK, key, f"t-0-{place}", "2026-01-02T03:04:05+00:00", "e"), RelatedRecord(key, (f"k{key}",))
    )


def answer(key: str, place: int = 0) -> RecordToPair:
    half = Half(ANSWER, f"a{place}", f"u-0-{place}", "", "e", "reply", key)
    return RecordToPair(half, RelatedRecord(half.id, (), f"k{key}", key))


def batch(number: int, part: str = "", within: tuple[str, ...] = ()) -> Commit:
    return Commit(f"g{part}-relations", number, within)


def delivered(exchanges: Exchanges) -> list[PairRow]:
    rows: list[PairRow] = []
    while (delivery := exchanges.delivery()) is not None:
        rows += delivery.rows
        exchanges.delivered(delivery)
    return rows


def record_of(word: str) -> RecordToPair:
    """Return what a word of a case stands for."""
    names, _, place = word.partition("@")
    if names in "?!":
        half = Half(ASK, "b", "t-0-1", "", "e") if names == "?" else Half(ANSWER, "a", "t-0-0", "", "e", "reply")
        return RecordToPair(half, RelatedRecord(half.id, (), "" if names == "!" else None))
    if "?" in names[1:]:
        key, _, own = names[1:].partition("?")
        half = Half(ANSWER, own, "t-0-1", "", "e", "reply", key)
        return RecordToPair(half, RelatedRecord(own, (f"k{own}",), f"k{key}", key))
    return (ask if names[0] == "?" else answer)(names[1:], int(place or 0))


@pytest.mark.parametrize("case", read_cases(CASES), ids=lambda case: case["case"])
def test_exchanges_end_as_their_case_says(case: dict[str, Any], tmp_path: Path) -> None:
    clock, most = Clock(), case.get("most", 1000)
    exchanges = opened(tmp_path, clock, most=most)
    for number, step in enumerate(case["steps"]):
        clock.now += step.get("later", 0)
        clock.behind = step.get("behind", clock.behind)
        if step.get("restarts"):
            exchanges.close()
            exchanges = opened(tmp_path, clock, most=most)
        if "take" in step:
            query = step.get("query", "q")
            commit = Commit(
                f"g{step.get('part', '')}-{query}", step.get("batch", number), tuple(step.get("within", ()))
            )
            told = exchanges.take(commit, query, [record_of(word) for word in step["take"].split()])
            assert told == step.get("told", {})
        if "expire" in step:
            assert exchanges.overdue() == step.get("overdue", exchanges.overdue())
            assert exchanges.expire() == step["expire"]
        if "rows" in step:
            rows = [[each.outcome, each.cause, each.question_id, each.answer_id] for each in delivered(exchanges)]
            assert sorted(map(str, rows)) == sorted(map(str, step["rows"]))
        assert exchanges.open == step.get("open", exchanges.open)


def test_a_row_tells_of_both_messages(tmp_path: Path) -> None:
    exchanges = opened(tmp_path, Clock())
    exchanges.take(batch(0), "q", [ask("1", 0), ask("1", 1), answer("1"), answer("1", 2)])
    first, second = delivered(exchanges)
    assert (first.relation, first.correlation, first.question_position) == ("reply", "1", "t-0-1")
    assert first.question_received == "2026-01-02T03:04:05+00:00" and first.answer_received is None
    assert first.id != second.id


def test_a_delivery_ends_by_its_text_as_well(tmp_path: Path) -> None:
    """Each row is far larger than ours are, so that a few of them fill a delivery."""
    clock = Clock()
    exchanges = opened(tmp_path, clock)
    long = "x" * (3 * 2**20)
    silent = [RecordToPair(Half(ASK, f"{n}{long}", "t-0-0", "", "e"), RelatedRecord(f"{n}")) for n in range(7)]
    exchanges.take(batch(0), "q", silent)
    sizes: list[int] = []
    while (delivery := exchanges.delivery()) is not None:
        exchanges.close()
        exchanges = opened(tmp_path, clock)
        assert exchanges.delivery() == delivery
        sizes.append(len(delivery.rows))
        exchanges.delivered(delivery)
    assert sizes == [3, 3, 1]


def test_what_is_due_is_given_up_a_bounded_text_at_a_time(tmp_path: Path) -> None:
    clock = Clock()
    exchanges = opened(tmp_path, clock)
    long = "x" * (3 * 2**20)
    asks = [
        RecordToPair(Half(ASK, f"{n}{long}", "t-0-0", "", "e"), RelatedRecord(f"{n}", (f"k{n}",))) for n in range(7)
    ]
    exchanges.take(batch(0), "q", asks)
    assert not exchanges.overdue()
    clock.now += 61
    given_up: list[int] = []
    while exchanges.overdue():
        given_up.append(exchanges.expire()["unanswered"])
    assert given_up == [3, 3, 1]


def test_a_restored_copy_delivers_under_another_commit(tmp_path: Path) -> None:
    """The sink has the numbers of its deliveries, and ids of its pairs, from what came after the copy."""
    clock = Clock()
    exchanges = opened(tmp_path / "one", clock)
    exchanges.take(batch(0), "q", [ask("1"), ask("2"), ask("3"), answer("1")])
    pending = exchanges.delivery()
    exchanges.close()
    for name in ("two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.db").write_bytes((tmp_path / "one" / "state.db").read_bytes())
    apps: set[str] = set()
    ids: set[str | None] = set()
    for name in ("one", "two", "three"):
        exchanges = opened(tmp_path / name, clock)
        assert pending is not None and exchanges.delivery() == pending  # The sink has the very rows of it, if any.
        exchanges.delivered(pending)
        exchanges.take(batch(1), "q", [answer("2"), answer("3")])
        delivery = exchanges.delivery()
        assert delivery is not None
        apps.add(delivery.commit.app)
        ids.update(row.id for row in delivery.rows)
    assert (len(apps), len(ids)) == (3, 6)


def test_a_delivery_repeats_as_it_was_until_it_is_settled(tmp_path: Path) -> None:
    clock = Clock()
    exchanges = opened(tmp_path, clock)
    exchanges.take(batch(0), "q", [ask("1"), answer("1")])
    first = exchanges.delivery()
    exchanges.take(batch(1), "q", [answer("1", 7)])
    exchanges.close()
    exchanges = opened(tmp_path, clock)
    assert first is not None and exchanges.delivery() == first
    exchanges.delivered(first)
    second = exchanges.delivery()
    assert second is not None and second.commit.version == first.commit.version + 1
    assert [row.answer_id for row in second.rows] == ["a7"]
    exchanges.delivered(second)
    assert (exchanges.delivery(), exchanges.undelivered) == (None, 0)


@pytest.mark.parametrize("seed", range(5))
def test_any_order_and_any_repeats_give_each_pair_once(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    records = [ask(str(number), number) for number in range(40)] + [answer(str(number), number) for number in range(30)]
    random.shuffle(records)
    clock = Clock()
    exchanges = opened(tmp_path, clock)
    rows: list[PairRow] = []
    for number in range(14):
        for _ in range(random.randint(1, 3)):
            exchanges.take(batch(number), "q", records[5 * number : 5 * number + 5])
            if random.random() < 0.3:
                exchanges.close()
                exchanges = opened(tmp_path, clock)
        if random.random() < 0.5:
            rows += delivered(exchanges)
    rows += delivered(exchanges)
    assert sorted((row.question_id, row.answer_id) for row in rows) == sorted((str(n), f"a{n}") for n in range(30))


# The thread that delivers pairs: to a table once, again where the sink refused, at the latest when the router ends.


KAFKA = {"type": "kafka", "bootstrap_servers": "localhost:1", "topic": "pairs"}


def settings_of(folder: Path, sink: dict[str, Any], **more: Any) -> Settings:
    events = {"type": "table", "path": str(folder / "events")}
    return settings_from_dict(
        {
            "sinks": {"pairs": sink, "events": events},
            "routes": [{"to": ["events"]}],
            "relations": {"to": "pairs", **more},
            "state": str(folder / "state"),
        },
        {},
        folder,
    )


def row(id: str, **exchange: Any) -> dict[str, Any]:
    text = msgspec.json.encode(RelatedRecord(id, **exchange)).decode()
    received = datetime(2026, 1, 2, tzinfo=UTC)
    return {"message": f"/m/{id}", "position": f"t-0-{id}", "received": received, "relation": None, "exchange": text}


def test_a_table_has_each_pair_once(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {"type": "table", "path": str(tmp_path / "pairs")})
    rows = [row("1", asks=("k",)), row("2", answers="k", correlation="k"), row("3", answers="k", correlation="k")]
    for number in (0, 0, 1):
        registry = CollectorRegistry()
        with Pairing(settings, RelationMetrics(registry, lambda result: None), time.time) as pairing:
            pairing.take(iter(rows if number == 0 else rows[2:]), Commit("g-relations", number), "q", "e")
        assert registry.get_sample_value("xrouter_relations_undelivered") == 0
    table = DeltaTable(str(tmp_path / "pairs")).to_pyarrow_table().to_pylist()
    assert sorted(each["answer_id"] for each in table) == ["2", "3", "3"]
    assert len({each["id"] for each in table}) == 3
    assert {each["answer_received"] for each in table} == {datetime(2026, 1, 2, tzinfo=UTC)}


class Publisher:
    """Takes messages once it is up, ``limit`` of them at a time."""

    def __init__(self, limit: int | None = None) -> None:
        self.up = False
        self.limit = limit
        self.calls: list[int] = []
        self.sent: list[Outbound] = []

    def send(self, messages: Sequence[Outbound]) -> list[MessageRefusal | None]:
        if not self.up:
            raise Unsettled("nobody is there")
        self.calls.append(len(messages))
        if self.limit is not None and len(messages) > self.limit:
            self.sent += messages[: self.limit]
            raise Unsettled("it is away again", dict.fromkeys(range(self.limit)))
        self.sent += messages
        return [None for _ in messages]

    def close(self) -> None:
        """Do nothing."""


def test_a_topic_gets_pairs_as_events_once_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher()
    monkeypatch.setattr(KafkaSink, "publisher", lambda *_: publisher)
    written: list[str] = []
    with Pairing(
        settings_of(tmp_path, KAFKA, most=1), RelationMetrics(CollectorRegistry(), written.append), time.time
    ) as pairing:
        rows = [row("1", asks=("k",)), row("2", answers="k", correlation="c")]
        pairing.take(rows, Commit("g-relations", 0), "q", "e")
        wait_until(lambda: "error" in written, 30, lambda: "a refused write")
        with pytest.raises(SinkError, match=r"relations\.most"):
            pairing.require_room()
        publisher.up = True
        wait_until(lambda: publisher.sent, 60, lambda: "the pair to be sent")
    (message,) = publisher.sent
    parts = {part.key: part.text for part in message.parts}
    assert (message.address, parts["key"], parts["headers.ce_type"]) == (
        "pairs",
        "c",
        "io.xregistry.router.relation.paired",
    )
    told = json.loads(message.body or b"")
    assert (told["question_id"], told["answer_id"], told["correlation"]) == ("1", "2", "c")
    assert told["id"] == parts["headers.ce_id"] and first_part(message.parts, "headers.content-type") is not None


def test_what_time_gives_up_is_delivered_without_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher()
    publisher.up = True
    monkeypatch.setattr(KafkaSink, "publisher", lambda *_: publisher)
    registry = CollectorRegistry()
    with Pairing(
        settings_of(tmp_path, KAFKA, wait="1s"), RelationMetrics(registry, lambda result: None), time.time
    ) as pairing:
        pairing.take([row("1", asks=("k",))], Commit("g-relations", 0), "q", "e")
        wait_until(lambda: publisher.sent, 60, lambda: "the question to be given up")
    assert registry.get_sample_value("xrouter_relations_total", {"outcome": "unanswered"}) == 1
    assert registry.get_sample_value("xrouter_relations_open") == 0


def test_time_is_kept_while_the_sink_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are due, and however long the sink is left alone between two tries."""
    monkeypatch.setattr(KafkaSink, "publisher", lambda *_: Publisher())
    monkeypatch.setattr(relating, "AT_ONCE", 10)
    monkeypatch.setattr(relating, "RETRY", (3600.0, 3600.0))
    registry = CollectorRegistry()
    with Pairing(
        settings_of(tmp_path, KAFKA, wait="1s"), RelationMetrics(registry, lambda result: None), time.time
    ) as pairing:
        rows = [row(str(number), asks=(f"k{number}",)) for number in range(100)]
        pairing.take([*rows, row("lost", answers="")], Commit("g-relations", 0), "q", "e")
        given_up = {"outcome": "unanswered"}
        wait_until(
            lambda: registry.get_sample_value("xrouter_relations_total", given_up) == 100,
            30,
            lambda: "all to be given up",
        )


def test_a_topic_gets_what_is_left_and_no_pair_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher(limit=200)
    publisher.up = True
    monkeypatch.setattr(KafkaSink, "publisher", lambda *_: publisher)
    settings = settings_of(tmp_path, KAFKA)
    sink = pairs.open_pairs("pairs", settings.sinks["pairs"])
    rows = [PairRow(id=str(number), outcome="paired", settled="2026-01-02T00:00:00+00:00") for number in range(1100)]
    for _ in range(5):
        with pytest.raises(SinkError, match="away again"):
            sink.write(rows, Commit("relations", 1))
    sink.write(rows, Commit("relations", 1))
    assert [message.id for message in publisher.sent] == [each.id for each in rows]
    assert publisher.calls == [500, 500, 500, 500, 300, 100]
    publisher.limit = None
    sink.write(rows, Commit("relations", 2))
    assert len(publisher.sent) == 2200


def test_rows_and_members_are_the_same() -> None:
    assert sorted(pairs.PAIRS.names) == sorted(each.name for each in msgspec.structs.fields(PairRow))
