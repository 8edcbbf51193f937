"""A running router whose sinks send messages: what targets take and refuse."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Kafka, TopicFactory
from tests.support.kafka import create_topics, produce, read_all
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until
from tests.support.web import Answer, Taken, Webhook

LIMIT = 300.0
LARGE = b'"' + b"x" * 970_000 + b'"'
BATCH = "application/cloudevents-batch+json"
STRUCTURED = "application/cloudevents+json"
LETTERS = ("letters", "refused")


def catalog() -> dict[str, Any]:
    """Return a catalog with an HTTP endpoint that takes readings, and one that they are sent to."""
    reading = {
        "envelope": "CloudEvents/1.0",
        "envelopemetadata": {
            "type": {"value": "reading"},
            "source": {"value": "/plants/{plant}", "type": "uritemplate"},
        },
    }
    sent = {
        **reading,
        "protocol": "HTTP",
        "protocoloptions": {
            "path": {"value": "/shaped/{plant}", "type": "uritemplate"},
            "headers": [{"name": "X-Plant", "value": "{plant}"}],
        },
    }
    return {
        "messagegroups": {"In": {"messages": {"reading": reading}}, "Out": {"messages": {"sent": sent}}},
        "endpoints": {
            "in": {
                "usage": "consumer",
                "protocol": "HTTP",
                "protocoloptions": {"options": {"path": "/in", "method": "POST"}},
                "messagegroups": ["/messagegroups/In"],
            },
        },
    }


def post(port: int, body: Any, content_type: str = STRUCTURED) -> None:
    """Send a message to the router."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/in", json.dumps(body).encode(), {"Content-Type": content_type}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.status == 202


def event(number: int, **more: Any) -> dict[str, Any]:
    """Return a reading."""
    return {"specversion": "1.0", "id": f"i{number}", "source": "/plants/p", "type": "reading", "data": number, **more}


def configure(
    router: RouterProcess, document: dict[str, Any], sinks: dict[str, Any], routes: Sequence[dict[str, Any]] = ()
) -> int:
    """Write catalog and settings; return the port of the router's HTTP gateway.

    What none of *routes* takes goes to all sinks that these do not name.
    """
    port = free_ports(1)[0]
    (router.folder / "c.json").write_text(json.dumps(document))
    named = {name for route in routes for name in route["to"]}
    used = [name for name in LETTERS if name == "letters" or name in named]
    letters = {name: {"type": "jsonl", "path": str(router.folder / name)} for name in used}
    router.configure(
        {
            "catalog": {"source": str(router.folder / "c.json")},
            "sources": [{"endpoint": "/endpoints/in"}],
            "http": {"port": port},
            "sinks": {**sinks, **letters},
            "routes": [*routes, {"to": [name for name in sinks if name not in named]}],
            "dead_letters": {"sinks": ["letters"]},
        }
    )
    return port


def letters_of(folder: Path) -> list[dict[str, Any]]:
    """Return all dead letters."""
    return [letter for name in LETTERS for letter in lines_of(folder / name)]


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return what a sink of lines has."""
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def ids(requests: list[Taken]) -> Counter[str]:
    """Count the events that arrived, by id."""
    return Counter(request.attributes()["id"] for request in requests)


def refuse_odd(request: Taken) -> Answer:
    """Refuse every event with an odd number."""
    return Answer(422) if int(request.envelope().data) % 2 else Answer()


@pytest.mark.full
def test_refused_events_become_dead_letters_once_and_counts_add_up(router: RouterProcess) -> None:
    document = catalog()
    with Webhook(refuse_odd) as strict, Webhook() as shaped:
        document["endpoints"]["out"] = {
            "usage": "producer",
            "protocol": "HTTP",
            "protocoloptions": {"endpoints": [{"uri": shaped.url}]},
            "messagegroups": ["/messagegroups/Out"],
        }
        sinks = {
            "strict": {"type": "http", "url": strict.url + "/{messagegroup}/{context.plant}"},
            "shaped": {"type": "http", "endpoint": "/endpoints/out"},
            "also": {"type": "http", "url": strict.url, "mode": "structured", "lineage": False},
            "kind": {"type": "http", "url": shaped.url + "/{attributes.kind}", "missing": "reject"},
            "lines": {"type": "jsonl", "path": str(router.folder / "lines")},
        }
        routes: list[dict[str, Any]] = [
            {"when": {"outcome": "dead-letter", "reason": "sink-rejected"}, "to": ["refused"]},
            {"when": {"context": {"plant": "q"}}, "to": ["kind", "lines"]},
        ]
        port = configure(router, document, sinks, routes)
        router.start()
        for number in range(10):
            post(port, event(number))
        post(port, [event(20), event(21), {"id": "broken"}], BATCH)
        # One sink misses something at one of these; the other has both.
        post(port, [event(n, source="/plants/q", **more) for n, more in ((30, {"kind": "loud"}), (31, {}))], BATCH)
        wait_until(lambda: router.total("xrouter_records_total") >= 15, LIMIT, lambda: router.log[-3000:])
        counts = {
            outcome: router.total("xrouter_records_total", outcome=outcome) for outcome in ("routed", "dead-letter")
        }
        rejected = router.total("xrouter_records_total", reason="sink-rejected")
        assert router.total("xrouter_sink_writes_total", sink="strict", result="rejected") >= 1
        assert router.interrupt() == 0, router.log[-2000:]
    assert "draining" in router.log
    assert "Traceback" not in router.log
    assert (counts, rejected) == ({"routed": 7, "dead-letter": 8}, 7)
    taken = [*(f"i{n}" for n in range(0, 10, 2)), "i20"]
    assert ids(strict.taken) == Counter({name: 2 for name in taken})
    assert ids(shaped.taken) == Counter([*(f"i{n}" for n in range(10)), "i20", "i21", "i30"])
    targets = {(each.target, each.header("X-Plant")) for each in shaped.taken}
    assert targets == {("/shaped/p", "p"), ("/loud", None)}
    assert sorted(line["cloudevent"]["id"] for line in lines_of(router.folder / "lines")) == ["i30", "i31"]
    assert {each.target for each in strict.taken} == {"/In/p", "/"}
    check_letters(letters_of(router.folder))


def check_letters(letters: list[dict[str, Any]]) -> None:
    """Each refused event has one letter, whole as it came, that names the sinks without it, by a route of its own."""
    (broken, *refused) = letters
    assert broken["reason"] == "invalid-cloudevent"
    assert {letter["reason"] for letter in refused} == {"sink-rejected"}
    assert len({letter["letter"] for letter in letters}) == len(letters) == 8
    (missing,) = [letter for letter in refused if "sink kind" in letter["detail"]]
    assert missing["detail"] == "sink kind: no value for {attributes.kind} of the address"
    assert json.loads(base64.b64decode(missing["body"]))["id"] == "i31"
    refused.remove(missing)
    bodies = sorted(json.loads(base64.b64decode(letter["body"]))["id"] for letter in refused)
    assert bodies == ["i1", "i21", "i3", "i5", "i7", "i9"]
    for letter in refused:
        assert "sink strict: " in letter["detail"] and "sink also: " in letter["detail"]
        assert "answers 422" in letter["detail"]
        headers = {each["name"]: each["value"] for each in letter["native"]["headers"]}
        assert headers["content-type"] == STRUCTURED
        assert letter["endpoint"] == "/endpoints/in"


@pytest.mark.full
def test_refused_records_of_kafka_become_letters_in_kafka_as_they_came(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    source, dead = topic_factory("readings"), topic_factory("dead")
    create_topics(kafka.bootstrap, [f"{dead}.lines.sink-rejected"])
    document = catalog()
    document["endpoints"]["lines"] = {
        "usage": "consumer",
        "protocol": "KAFKA",
        "protocoloptions": {"options": {"topic": source}},
        "messagegroups": ["/messagegroups/In"],
    }
    with Webhook(lambda request: Answer(422)) as hook:
        configure(router, document, {"hook": {"type": "http", "url": hook.url}})
        settings = yaml.safe_load(router.config.read_text())
        settings["sources"] = [{"endpoint": "/endpoints/lines", "bootstrap_servers": kafka.bootstrap}]
        topic = f"{dead}.{{endpointid}}.{{reason}}"
        settings["sinks"]["letters"] = {"type": "kafka", "bootstrap_servers": kafka.bootstrap, "topic": topic}
        router.configure(settings)
        produce(kafka.bootstrap, source, records())
        router.start()
        wait_until(lambda: router.total("xrouter_records_total") >= 4, LIMIT, lambda: router.log[-3000:])
        assert router.total("xrouter_records_total", reason="sink-rejected") == 4
        assert router.total("xrouter_records_total", outcome="routed") == 0
        assert router.total("xrouter_definition_records_total") == 0
        assert router.stop() == 0, router.log[-2000:]
    letters = read_all(kafka.bootstrap, f"{dead}.lines.sink-rejected")
    binary, structured, item, large = sorted(letters, key=lambda letter: letter.header("xrouter-position") or "")
    assert {(letter.header("xrouter-detail") or "")[:22] for letter in letters} == {"sink hook: http://127."}
    assert (binary.key, binary.value, binary.header("ce_id")) == (b"k0", b"0", "i0")
    assert binary.header("content-type") == "application/json"
    assert (structured.key, json.loads(structured.value or b"")) == (b"k1", event(1))
    assert structured.header("content-type") == STRUCTURED
    assert (json.loads(item.value or b"")["id"], item.header("content-type")) == ("i2", STRUCTURED)
    assert (large.value, large.header("ce_id")) == (None, "i3")
    kept = json.loads((router.folder / "state" / (large.header("xrouter-spill") or "")).read_text())
    assert kept["body"] == LARGE.decode()


def records() -> list[tuple[bytes | None, bytes, list[tuple[str, bytes]]]]:
    """Return an event in each mode, and one that no topic of dead letters takes."""
    head = [("ce_specversion", b"1.0"), ("ce_source", b"/plants/p"), ("ce_type", b"reading")]
    media = ("content-type", b"application/json")
    return [
        (b"k0", b"0", [*head, ("ce_id", b"i0"), media]),
        (b"k1", json.dumps(event(1)).encode(), [("content-type", STRUCTURED.encode())]),
        (b"k2", json.dumps([event(2)]).encode(), [("content-type", BATCH.encode())]),
        (b"k3", LARGE, [*head, ("ce_id", b"i3"), media]),
    ]
