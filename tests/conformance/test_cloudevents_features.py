"""CloudEvents over HTTP and Kafka: what comes in is read right, and leaves right in both modes (issue: done when 2).

The cases are data, ``cloudevents/features.yaml``. Each is read by ``match``, and by ``run`` up to its Kafka sinks.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bindings.events import to_json_members
from bindings.protocols import BINDINGS
from catalog.record import Record
from router.commands.emit.producer import encode_record_line
from router.matching.records import RecordMatcher, envelope_of_row
from tests.support.cases import read_cases
from tests.support.processes import ANY_EVENT, Sent, any_event, at_endpoint, leave

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CASES: list[dict[str, Any]] = read_cases(Path(__file__).parent / "cloudevents" / "features.yaml")["cases"]
VALID = [case for case in CASES if "reason" not in case]
PROTOCOLS = ("HTTP", "KAFKA")


@dataclass(frozen=True)
class Event:
    """What a case says that an event is."""

    attributes: Mapping[str, str | int]
    data: bytes | None
    passed: Mapping[str, str]
    key: str | None


def name_of(case: dict[str, Any]) -> str:
    return f"{case['protocol']}: {case['name']}"


def record_of(case: dict[str, Any]) -> Record:
    headers = [
        {"name": name, "value_base64": value["base64"]} if isinstance(value, dict) else {"name": name, "value": value}
        for name, value in case.get("headers", {}).items()
    ]
    native: dict[str, Any] = {"headers": [{k: _text(v) for k, v in each.items()} for each in headers]}
    native |= {"key": case["key"]} if "key" in case else {}
    native |= {"topic": "in"} if case["protocol"] == "KAFKA" else {"method": "POST", "path": "/in"}
    return at_endpoint(Record(case["protocol"], native, bytes_of(case, "body")))


def events_of(case: dict[str, Any]) -> Iterator[Event]:
    for told in case.get("events", [case]):
        attributes = {name: v if isinstance(v, int) else _text(v) for name, v in told["attributes"].items()}
        yield Event(attributes, bytes_of(told, "data"), told.get("passed", {}), told.get("out_key"))


def _text(value: Any) -> str:
    """YAML reads an unquoted timestamp as one; events have text."""
    return value if isinstance(value, str) else value.isoformat().replace("+00:00", "Z")


def bytes_of(form: Mapping[str, Any], member: str) -> bytes | None:
    if f"{member}_base64" in form:
        return base64.b64decode(form[f"{member}_base64"])
    return form[member].encode() if member in form else None


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_in(case: dict[str, Any]) -> None:
    matcher = RecordMatcher(any_event(case["protocol"]))
    _, (decided,) = matcher.judge([encode_record_line(record_of(case))])
    ((_, outcome),) = matcher.numbered_outcomes(decided)
    if "reason" in case:
        assert outcome["reason"] == case["reason"]
        assert all(word in outcome["detail"] for word in case["words"]), outcome["detail"]
        return
    assert (outcome["outcome"] == "batch") is ("events" in case)
    outcomes = outcome["events"] if "events" in case else [outcome]
    rows = [row for row, source in enumerate(decided.outcomes.facts.sources.tolist()) if source >= 0]
    data = [envelope_of_row(decided.outcomes.facts, row, decided.entries[0]).data for row in rows]
    expected = list(events_of(case))
    assert [each["message"] for each in outcomes] == [ANY_EVENT.xid] * len(expected)
    assert [each["cloudevent"] for each in outcomes] == [event.attributes for event in expected]
    assert data == [event.data for event in expected]


@pytest.mark.spark
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_out(protocol: str, spark: SparkSession, tmp_path: Path) -> None:
    cases = [case for case in VALID if case["protocol"] == protocol]
    expected = [(case, event) for case in cases for event in events_of(case)]
    sent = leave(spark, tmp_path, [record_of(case) for case in cases])
    assert {mode: len(each) for mode, each in sent.items()} == dict.fromkeys(sent, len(expected))
    for (case, event), binary, structured in zip(expected, sent["binary"], sent["structured"], strict=True):
        assert binary.named == binary_headers(event), name_of(case)
        assert binary.value == event.data, name_of(case)
        assert structured.named == structured_headers(event), name_of(case)
        assert json_of(structured) == {**event.attributes, **data_member(event)}, name_of(case)
        read = BINDINGS["KAFKA"].read_envelope(parts_of(structured), structured.value, lambda: False)
        assert (to_json_members(read.attributes), read.data) == (event.attributes, event.data), name_of(case)
        assert {binary.key, structured.key} == {None if event.key is None else event.key.encode()}, name_of(case)


def binary_headers(event: Event) -> dict[str, bytes]:
    named = {f"ce_{name}": text for name, text in event.attributes.items() if name != "datacontenttype"}
    content = event.attributes.get("datacontenttype")
    named |= {"content-type": content} if content else {}
    # Headers have texts alone.
    texts = {name: json.dumps(v) if isinstance(v, int) else v for name, v in {**named, **event.passed}.items()}
    return {name: text.encode() for name, text in texts.items()}


def structured_headers(event: Event) -> dict[str, bytes]:
    named = {"content-type": "application/cloudevents+json", **event.passed}
    return {name: text.encode() for name, text in named.items()}


def json_of(sent: Sent) -> Any:
    assert sent.value is not None
    return json.loads(sent.value)


def data_member(event: Event) -> dict[str, Any]:
    """How the JSON format writes an event's data: as JSON, as text, or in base64.

    White space around JSON would not survive as JSON, and data without a content type are not to be taken for JSON.
    """
    content = str(event.attributes.get("datacontenttype", "")).partition(";")[0]
    if event.data is None:
        return {}
    if content == "application/json" and event.data == event.data.strip():
        return {"data": json.loads(event.data)}
    try:
        if content not in ("application/json", ""):
            return {"data": event.data.decode()}
    except UnicodeDecodeError:
        pass
    return {"data_base64": base64.b64encode(event.data).decode()}


def parts_of(sent: Sent) -> list[Any]:
    headers = [{"name": name, "value": value.decode()} for name, value in sent.headers]
    return BINDINGS["KAFKA"].split({"headers": headers})


def test_both_protocols_have_every_kind_of_case() -> None:
    for protocol in PROTOCOLS:
        names = {case["name"].partition(",")[0] for case in CASES if case["protocol"] == protocol}
        assert names >= {"binary", "structured", "batch"}
