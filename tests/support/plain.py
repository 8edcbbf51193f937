"""Small catalogs and settings for routers of tests: one endpoint after the other, every event to every sink."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx

from tests.support.ports import LOOPBACK

if TYPE_CHECKING:
    from tests.support.kafka import Headers

SECONDS: Final = 300.0
JSON: Final = "application/json"
STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"


def event(kind: str, **more: Any) -> dict[str, Any]:
    """Return a definition of events of one type."""
    return {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": kind}}, **more}


def events(*kinds: str) -> dict[str, Any]:
    """Return definitions of events of these types, each of which has its type as its id."""
    return {kind: event(kind) for kind in kinds}


def endpoint(
    protocol: str, options: Mapping[str, Any], *groups: str, uri: str = "", usage: str = "consumer"
) -> dict[str, Any]:
    """Return an endpoint with these message groups; *options* are those of its protocol."""
    places = {"endpoints": [{"uri": uri}]} if uri else {}
    return {
        "usage": [usage],
        "protocol": protocol,
        "protocoloptions": {**places, "options": dict(options)},
        "messagegroups": [f"/messagegroups/{group}" for group in groups],
    }


def catalog(endpoints: Mapping[str, Any], **groups: Mapping[str, Any]) -> dict[str, Any]:
    """Return a catalog; *groups* are messages by their ids."""
    return {
        "endpoints": dict(endpoints),
        "messagegroups": {name: {"messages": dict(messages)} for name, messages in groups.items()},
    }


def write(folder: Path, document: Mapping[str, Any], name: str = "catalog.json") -> Path:
    """Write a catalog as a router would meet it: whole or not at all."""
    fresh = folder / f".{name}"
    fresh.write_text(json.dumps(document))
    return fresh.replace(folder / name)


def tables(folder: Path, *names: str, **more: Any) -> dict[str, Any]:
    """Return sinks that are tables of these names."""
    return {name: {"type": "table", "path": str(folder / name), **more} for name in names}


def lines(folder: Path, *names: str) -> dict[str, Any]:
    """Return sinks that are folders of JSON lines."""
    return {name: {"type": "jsonl", "path": str(folder / name)} for name in names}


def topics(bootstrap: str, **names: str) -> dict[str, Any]:
    """Return sinks that are topics of Kafka."""
    return {name: {"type": "kafka", "bootstrap_servers": bootstrap, "topic": topic} for name, topic in names.items()}


def routed(source: Path, sinks: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return settings that send each event to all sinks but ``dead``, which has the dead letters."""
    return {
        "catalog": {"source": str(source)},
        "sinks": dict(sinks),
        "routes": [{"to": [name for name in sinks if name != "dead"]}],
        "dead_letters": {"sinks": ["dead"]},
        **more,
    }


def attributes(kind: str, id: object = "1", source: str = "/s", **more: str) -> dict[str, str]:
    """Return the attributes of an event."""
    return {"specversion": "1.0", "id": str(id), "source": source, "type": kind, **more}


def kafka_headers(kind: str, id: object = "1", source: str = "/s", content: str = "", **more: str) -> Headers:
    """Return the headers of an event of Kafka in binary mode."""
    named = {f"ce_{name}": text for name, text in attributes(kind, id, source, **more).items()}
    return [(name, text.encode()) for name, text in {**named, **({"content-type": content} if content else {})}.items()]


def http_headers(kind: str, id: object = "1", source: str = "/s", content: str = JSON) -> dict[str, str]:
    """Return the headers of an event of HTTP in binary mode."""
    return {**{f"ce-{name}": text for name, text in attributes(kind, id, source).items()}, "content-type": content}


def post(port: int, path: str, body: Any = None, content: str = JSON, **headers: str) -> None:
    """Send a message over HTTP, which is taken; a body that is no bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = f"http://{LOOPBACK}:{port}{path}"
    answer = httpx.post(url, content=data, headers={"content-type": content, **headers}, timeout=SECONDS)
    assert answer.status_code == 202, answer.text


def lines_of(*folders: Path) -> list[dict[str, Any]]:
    """Return all JSON lines below folders, in the order of their files."""
    files = [file for folder in folders for file in sorted(folder.rglob("*.jsonl"))]
    return [json.loads(line) for file in files for line in file.read_bytes().split(b"\n") if line]
