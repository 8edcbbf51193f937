"""The records of ``tests/cases/poison``: each is a list of parts and a body, as an inbox row."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from typing import Any, Final

import yaml

from bindings.parts import InboxRow, Part
from tests.support.cases import read_cases
from tests.support.readme import ROOT

CASES: Final = ROOT / "tests" / "cases" / "poison"
SENT: Final = 1_767_323_045_000_000
CAPTURES: Final = 200
STRUCTURED: Final = "application/cloudevents+json"


@dataclass(frozen=True, slots=True)
class Case:
    """One record, and how many outcomes it has."""

    name: str
    row: InboxRow
    outcomes: int
    small: bool


def catalog() -> dict[str, Any]:
    """Return the catalog, with a template of many placeholders where its file asks for one."""
    captures = "-".join(f"{{c{n}}}" for n in range(CAPTURES))
    text = (CASES / "catalog.yaml").read_text(encoding="utf-8").replace("{CAPTURES}", captures)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def cases() -> list[Case]:
    """Return all records."""
    told = read_cases(CASES / "records.yaml")
    return [
        Case(each["name"], _row(n, each), int(each.get("outcomes", 1)), bool(each.get("small")))
        for n, each in enumerate(told)
    ]


def _row(number: int, told: dict[str, Any]) -> InboxRow:
    if "mqtt" in told:
        parts = [Part("topic_name", _bytes(told["mqtt"]))]
        parts += [Part(name, value.encode()) for name, value in told.get("properties", {}).items()]
        return InboxRow("/endpoints/mqtt", "MQTT/5.0", SENT + number, parts, b"{}")
    path = told.get("native", "/web")
    parts = [Part("method", b"POST"), Part("path", _bytes(path))]
    headers = _headers(number, told)
    parts += [Part(f"headers.{name}", value) for name, value in headers]
    return InboxRow("/endpoints/web", "HTTP", SENT + number, parts, _body(told))


def _headers(number: int, told: dict[str, Any]) -> list[tuple[str, bytes]]:
    if "batch" in told:
        return [("content-type", b"application/cloudevents-batch+json")]
    if "structured" in told:
        return [("content-type", STRUCTURED.encode())]
    content = told.get("content", "application/json").encode()
    if "native" in told:
        return [("content-type", content)]
    attributes = {"specversion": "1.0", "id": f"id-{number}", "source": "/s", "type": told.get("type", "plain")}
    attributes |= told.get("set", {})
    attributes |= {f"ext{n}": "x" for n in range(told.get("set_many", 0))}
    headers = [(f"ce-{name}", _percent(_bytes(value))) for name, value in attributes.items()]
    headers += [("content-type", content)]
    headers += [(name, value.encode()) for name, value in told.get("headers", {}).items()]
    headers += [(name, base64.b64decode(value)) for name, value in told.get("headers_base64", {}).items()]
    return headers + [(f"x-{n}", b"v") for n in range(told.get("headers_many", 0))]


def _body(told: dict[str, Any]) -> bytes | None:
    if "batch" in told:
        return _thousand() if told["batch"] == "thousand" else _bytes(told["batch"])
    if "structured" in told:
        return _bytes(told["structured"])
    if "body_base64" in told:
        return base64.b64decode(told["body_base64"])
    body = told.get("body", "{}")
    return None if body is None else _bytes(body)


def _bytes(recipe: Any) -> bytes:
    """Return the bytes of a text, or of a recipe: texts one after the other, those in lists so many times."""
    if isinstance(recipe, str):
        return recipe.encode()
    if "gzip" in recipe:
        text, times = recipe["gzip"]
        return gzip.compress(text.encode() * times)
    if "bytes" in recipe:
        return b"".join(bytes.fromhex(p) if isinstance(p, str) else bytes.fromhex(p[0]) * p[1] for p in recipe["bytes"])
    return b"".join(p.encode() if isinstance(p, str) else p[0].encode() * p[1] for p in recipe["parts"])


def _percent(value: bytes) -> bytes:
    """Write a value as the HTTP binding asks for it."""
    return b"".join(bytes((c,)) if 0x21 <= c <= 0x7E and c not in b'"%' else b"%%%02X" % c for c in value)


def _thousand() -> bytes:
    return json.dumps(
        [{"specversion": "1.0", "id": f"b{n}", "source": "/s", "type": "plain", "data": n} for n in range(1_000)]
    ).encode()
