"""The thread that delivers pairs: to a table once, again where the sink refused, at the latest when the router ends."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from prometheus_client import CollectorRegistry

from bindings.parts import first_part
from bindings.sending import MessageRefusal, Outbound, Unsettled
from router import request_reply
from router import request_reply as relating
from router.errors import SinkError
from router.evaluation.forwarding import RelatedRecord
from router.request_reply import Pairing, PairRow
from router.settings import KafkaSink, Settings, settings_from_dict
from router.sinks.contract import Commit
from router.watching.metrics import RelationMetrics
from tests.support.waiting import wait_until

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
    sink = request_reply.open_pairs("pairs", settings.sinks["pairs"])
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
    assert sorted(request_reply.PAIRS.names) == sorted(each.name for each in msgspec.structs.fields(PairRow))
