"""Messages that are no events and say what trace they are part of, as deploy/docs/howto/telemetry.md says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from catalog.load import load
from router.matching.records import RecordMatcher

GUIDE: Final = Path(__file__).resolve().parents[4] / "deploy" / "docs" / "howto" / "telemetry.md"
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ORDER: Final = {
    "protocol": "HTTP",
    "envelope": "CloudEvents/1.0",
    "envelopemetadata": {"type": {"value": "order"}, "source": {"value": "/shop"}},
}


def traced() -> dict[str, Any]:
    """Return the definition of the guide."""
    (block,) = (each for each in GUIDE.read_text().split("```json\n") if each.startswith('{"basemessage"'))
    definition: dict[str, Any] = json.loads(block.partition("```")[0])
    return definition


@pytest.fixture
def matcher(tmp_path: Path) -> RecordMatcher:
    messages = {"Order": ORDER, "TracedOrder": traced()}
    endpoint = {"usage": ["consumer"], "protocol": "HTTP", "messagegroups": ["/messagegroups/Shop"]}
    path = tmp_path / "shop.json"
    path.write_text(json.dumps({"endpoints": {"e": endpoint}, "messagegroups": {"Shop": {"messages": messages}}}))
    catalog = load([path])
    assert not catalog.findings
    return RecordMatcher(catalog)


@pytest.mark.parametrize(
    ("headers", "message", "trace"),
    [({"traceparent": TRACE}, "TracedOrder", TRACE), ({"other": TRACE}, "Order", None)],
    ids=["traced", "not traced"],
)
def test_an_event_has_the_trace_of_its_message(
    matcher: RecordMatcher, headers: dict[str, str], message: str, trace: str | None
) -> None:
    native = {"method": "POST", "headers": [{"name": name, "value": value} for name, value in headers.items()]}
    record = {"endpoint": "/endpoints/e", "protocol": "HTTP", "native": native, "body": "{}"}
    (found,) = matcher.decide([json.dumps(record)])
    assert found["message"].endswith(f"/{message}")
    assert found["cloudevent"].get("traceparent") == trace
