"""Load: a catalog of many definitions, and records of which it is known what must become of each."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.support import plain

GROUPS: Final = 5
MEASURED: Final[dict[str, Any]] = {"conf": {"spark.driver.extraJavaOptions": ""}}
"""Settings of Spark with the best code, where tests have a JVM that lives shortly."""
Headers = list[tuple[str, bytes | None]]


def catalog(definitions: int, *, topic: str, types: str = "plant") -> dict[str, Any]:
    """Return a catalog of that many definitions in five groups, all expected on one Kafka topic.

    Of ten definitions seven are CloudEvents with a templated source, two map native records (a header and a
    templated key), one has a templated subject that shares a placeholder with its source.
    """
    groups: dict[str, Any] = {f"{types}.{number}": {"messages": {}} for number in range(GROUPS)}
    for number in range(definitions):
        group = f"{types}.{number % GROUPS}"
        groups[group]["messages"][f"{types}.event{number}"] = _definition(number, types)
    endpoint = {
        "usage": ["consumer"],
        "protocol": "KAFKA",
        "envelopeoptions": {"mode": "binary"},
        "protocoloptions": {"options": {"topic": topic}},
        "messagegroups": [f"/messagegroups/{group}" for group in groups],
    }
    return {"specversion": "1.0-rc2", "endpoints": {types: endpoint}, "messagegroups": groups}


def _definition(number: int, types: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {"type": {"value": f"{types}.event{number}"}}
    if number % 10 < 7:
        attributes["source"] = {"value": f"/{types}/{{plant}}/lines/{{line}}", "type": "uritemplate"}
        return {"envelope": "CloudEvents/1.0", "envelopemetadata": attributes}
    if number % 10 < 9:
        attributes["subject"] = {"value": "{plant}/{machine}", "type": "uritemplate"}
        return {
            "envelope": "CloudEvents/1.0",
            "envelopemetadata": attributes,
            "protocol": "KAFKA",
            "protocoloptions": {
                "key": {"value": "{plant}/{machine}"},
                "headers": [{"name": "kind", "value": f"k{number}"}],
            },
        }
    attributes["source"] = {"value": f"/{types}/{{plant}}", "type": "uritemplate"}
    attributes["subject"] = {"value": "{plant}-{line}", "type": "uritemplate"}
    return {"envelope": "CloudEvents/1.0", "envelopemetadata": attributes}


def settings(bootstrap: str, source: Path, sinks: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return settings of a router that sends all of the load to all sinks, and dead letters to ``dead``."""
    endpoint = {"endpoint": "/endpoints/plant", "bootstrap_servers": bootstrap}
    return plain.routed(source, sinks, **{"sources": [endpoint], **more})


def records(
    count: int, definitions: int, *, types: str = "plant", start: int = 0, bad: int = 50, seed: int = 7
) -> Iterator[tuple[bytes | None, bytes, Headers]]:
    """Yield (key, value, headers). The value's ``n`` numbers the record; ``want`` says what must become of it: the
    definition's message id, or ``dead``. One record in *bad* conforms to nothing."""
    chance = random.Random(seed)
    for number in range(start, start + count):
        if bad and number % bad == bad - 1:
            yield _bad(number, chance)
        else:
            yield _good(number, number % definitions, types, chance)


def numbers(bodies: Iterable[bytes | None]) -> Counter[int]:
    """Count records by the number in their body."""
    return Counter(json.loads(body or b"{}")["n"] for body in bodies)


def _good(number: int, definition: int, types: str, chance: random.Random) -> tuple[bytes | None, bytes, Headers]:
    plant, line = f"p{chance.randrange(50)}", f"l{chance.randrange(200)}"
    want = f"{types}.event{definition}"
    value = json.dumps({"n": number, "want": want, "pad": "x" * 120}).encode()
    if definition % 10 in (7, 8):
        return f"{plant}/{line}".encode(), value, [("kind", f"k{definition}".encode()), ("trace", b"\xff\xfe")]
    headers = [
        ("ce_specversion", "1.0"),
        ("ce_id", str(number)),
        ("ce_type", want),
        ("ce_source", f"/{types}/{plant}" if definition % 10 == 9 else f"/{types}/{plant}/lines/{line}"),
        ("content-type", "application/json"),
    ]
    if definition % 10 == 9:
        headers.append(("ce_subject", f"{plant}-{line}"))
    return plant.encode(), value, [(name, text.encode()) for name, text in headers]


def _bad(number: int, chance: random.Random) -> tuple[bytes | None, bytes, Headers]:
    value = json.dumps({"n": number, "want": "dead"}).encode()
    kinds: list[Headers] = [
        [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_type", b"unknown"), ("ce_source", b"/x")],
        [("ce_specversion", b"1.0"), ("ce_id", b""), ("ce_type", b"plant.event0"), ("ce_source", b"/x")],
        [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_type", b"\xc3("), ("ce_source", b"/x")],
        [("content-type", b"application/cloudevents+json")],
        [("kind", b"nobody")],
    ]
    return None, value, chance.choice(kinds)
