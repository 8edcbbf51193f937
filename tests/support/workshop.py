"""A workshop whose machines speak every schema format: ``tests/cases/workshop.yaml`` as a catalog and as events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support import plain
from tests.support import schemas as typed_bodies
from tests.support.cases import read_cases

CASES: Final = Path(__file__).resolve().parents[1] / "cases" / "workshop.yaml"
GROUP: Final = "Workshop"
ENDPOINT: Final = "/endpoints/workshop"
PATH: Final = "/workshop"
TIME: Final = "2026-03-04T05:06:07.008Z"


@dataclass(frozen=True, slots=True)
class Sent:
    """One event that was sent: the members of the payload that are to be there; None when it does not fit."""

    name: str
    number: int
    body: bytes
    content_type: str
    payload: Mapping[str, Any] | None

    @property
    def xid(self) -> str:
        """The definition that takes it."""
        return f"/messagegroups/{GROUP}/messages/{self.name}"


def cases() -> list[dict[str, Any]]:
    """Return the definitions as the cases have them."""
    found: list[dict[str, Any]] = read_cases(CASES)
    return found


def catalog(*, grown: bool) -> str:
    """Return the catalog, before or after its schemas changed."""
    messages = {
        case["name"]: {
            "envelopemetadata": {
                "type": {"value": f"workshop.{case['name']}"},
                "source": {"value": "/workshop/{bench}", "type": "uritemplate"},
            },
            "datacontenttype": content_type_of(case),
            "dataschemaformat": case["format"],
            "dataschema": stage(case, grown=grown)["schema"],
        }
        for case in cases()
    }
    endpoint = plain.endpoint("HTTP", {"path": PATH, "method": "POST"}, GROUP)
    document = plain.catalog({"workshop": endpoint}, **{GROUP: messages})
    document["messagegroups"][GROUP]["envelope"] = "CloudEvents/1.0"
    return json.dumps(document)


def stage(case: Mapping[str, Any], *, grown: bool) -> Mapping[str, Any]:
    """Return schema, type and rows of a definition before or after the change; most do not change."""
    found: Mapping[str, Any] = case["grown"] if grown and "grown" in case else case
    return found


def content_type_of(case: Mapping[str, Any]) -> str:
    """Return the content type that a definition asks for."""
    return str(case.get("contenttype", typed_bodies.JSON))


def events(*, grown: bool) -> Iterator[Sent]:
    """Give the events of all definitions, or of those that changed alone, numbered within each definition."""
    for case in cases():
        if grown and "grown" not in case:
            continue
        told, content_type = stage(case, grown=grown), content_type_of(case)
        for number, row in enumerate(told["rows"], 100 if grown else 0):
            body = typed_bodies.written(row, case["format"], told["schema"], content_type)
            yield Sent(case["name"], number, body, content_type, row["value"])


def post(url: str, sent: Sent) -> None:
    """Send an event in binary mode; it is taken."""
    headers = {
        "ce-specversion": "1.0",
        "ce-id": f"{sent.name}-{sent.number}",
        "ce-source": f"/workshop/b%2520{sent.number}",  # the binding decodes header values once
        "ce-type": f"workshop.{sent.name}",
        "ce-subject": "bench",
        "ce-time": TIME,
        "ce-shift": "late",
        "content-type": sent.content_type,
        "x-plant": "seven",
    }
    answer = httpx.post(url + PATH, content=sent.body, headers=headers, timeout=30)
    assert answer.status_code == 202, answer.text
