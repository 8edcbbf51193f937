"""A message sink against a real HTTP server: each event once, refusals by row, and outages without duplicates."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest

from router.errors import SinkError
from router.settings import load_settings
from router.sinks import ArrowSink, Commit, open_sink
from router.sinks.messages.sink import MESSAGE
from tests.support.web import Answer, Taken, Webhook

FIRST = Commit("app", 1)


def sink(tmp_path: Path, hook: Webhook, text: str = "", **environ: str) -> ArrowSink:
    path = tmp_path / "router.yaml"
    path.write_text(
        f"sinks: {{s: {{type: http, url: '{hook.url}/in/{{type}}'{text}}}}}\nroutes: [{{to: s}}]", encoding="utf-8"
    )
    return open_sink("s", load_settings(path, environ).sinks["s"], "events")


def rows(count: int, **columns: Any) -> pa.Table:
    made: list[Mapping[str, Any]] = [
        {
            **dict.fromkeys(MESSAGE.names),
            "id": f"i{n}",
            "source": "/s é",
            "specversion": "1.0",
            "type": "a/b",
            "datacontenttype": "application/json",
            "data": b'{"n": %d.0}' % n,
            "extensions": [("seq", str(n))],
            "context": [("plant", "7")],
            "message": "/messagegroups/G/messages/M",
            "endpoint": "/endpoints/E",
            "epoch": "e",
            "position": f"t-{n % 3}-{n}",
            # Nine hundred thousand years from now: Kafka lets producers say so.
            "received": 2**61,
            **columns,
        }
        for n in range(count)
    ]
    return pa.Table.from_pylist(made, MESSAGE)


def ids(requests: list[Taken]) -> list[str]:
    return [request.attributes()["id"] for request in requests]


def test_events_arrive_whole_and_in_the_order_of_their_partition(tmp_path: Path) -> None:
    with Webhook() as hook:
        result = sink(tmp_path, hook).write(rows(30), FIRST)
    assert (result.rows, result.refused) == (30, ())
    assert sorted(ids(hook.taken)) == sorted(f"i{n}" for n in range(30))
    for lane in range(3):
        numbers = [int(name[1:]) for name in ids(hook.taken) if int(name[1:]) % 3 == lane]
        assert numbers == sorted(numbers)
    request = next(each for each in hook.taken if each.attributes()["id"] == "i7")
    assert request.body == b'{"n": 7.0}'
    assert request.target == "/in/a%2Fb"
    assert request.header("ce-source") == "/s%20%C3%A9"
    assert dict(request.attributes())["source"] == "/s é"
    assert json.loads(unquote(request.header("xrouter-lineage") or ""))["position"] == "t-1-7"
    assert json.loads((request.header("xrouter-context") or "").replace("%22", '"')) == {"plant": "7"}


def test_structured_without_lineage_and_with_credentials(tmp_path: Path) -> None:
    text = ", mode: structured, lineage: false, bearer: '${TOKEN}', headers: {X-Team: plant}, api_key: '${TOKEN}'"
    text += ", allow_plaintext_password: true"
    with Webhook() as hook:
        sink(tmp_path, hook, text, TOKEN="hush").write(rows(1), FIRST)
    (request,) = hook.taken
    assert request.header("content-type") == "application/cloudevents+json"
    assert b'"data":{"n": 0.0}' in request.body
    assert (request.header("authorization"), request.header("x-api-key")) == ("Bearer hush", "hush")
    assert request.header("x-team") == "plant"
    assert request.header("xrouter-lineage") is None


def test_refused_rows_are_told_and_the_rest_is_sent(tmp_path: Path) -> None:
    def answer(request: Taken) -> Answer:
        return Answer(400, body=b"odd") if int(request.attributes()["seq"]) % 4 == 1 else Answer()

    with Webhook(answer) as hook:
        target = sink(tmp_path, hook)
        result = target.write(rows(10), FIRST)
        again = target.write(rows(10), FIRST)
    assert [record.position for record in result.refused] == ["t-1-1", "t-2-5", "t-0-9"]
    assert all("answers 400 Bad Request: odd" in record.reason for record in result.refused)
    assert (result.refused[0].endpoint, result.refused[0].message) == ("/endpoints/E", "/messagegroups/G/messages/M")
    assert again == result
    assert len(hook.seen) == 10


def test_a_body_past_the_limit_is_refused_unsent(tmp_path: Path) -> None:
    with Webhook() as hook:
        table = pa.concat_tables([rows(1), rows(1, data=b"x" * 100, position="t-9-9")])
        result = sink(tmp_path, hook, ", max_body: 99").write(table, FIRST)
    assert [record.reason for record in result.refused] == ["a body of 100 bytes exceeds the sink's max_body, 99"]
    assert len(hook.seen) == 1


def test_a_target_that_was_away_gets_each_event_once(tmp_path: Path) -> None:
    broken: list[str] = []

    def answer(request: Taken) -> Answer:
        name = request.attributes()["id"]
        if name == "i13" and len(broken) < 3:
            broken.append(name)
            return Answer(503)
        return Answer()

    with Webhook(answer) as hook:
        target = sink(tmp_path, hook, ", timeout: 5s")
        with pytest.raises(SinkError, match=r"3 of 20 messages were not confirmed: http://\S+/in/a%2Fb answers 503"):
            target.write(rows(20), FIRST)
        hook.close()
        with pytest.raises(SinkError, match="does not answer"):
            target.write(rows(20), FIRST)
        hook.open()
        assert target.write(rows(20), FIRST).rows == 20
        assert set(Counter(ids(hook.taken)).values()) == {1}
        assert len(hook.taken) == 20
        assert target.write(rows(20), Commit("app", 2)).rows == 20
        assert target.write(rows(20), Commit("other", 2)).rows == 20
        assert set(Counter(ids(hook.taken)).values()) == {3}


def test_files_of_credentials_are_relative_to_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    text = "sinks: {s: {type: nats, uri: 'nats://h', subject: a, seed: keys/seed}}\nroutes: [{to: s}]"
    path.write_text(text, encoding="utf-8")
    assert getattr(load_settings(path, {}).sinks["s"], "seed", "") == str(tmp_path / "keys" / "seed")
