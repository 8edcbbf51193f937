"""The cases shared with the specification, where they are beside the repository: one test per catalog, all hold."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Final

import pytest

from catalog.load import load
from router.matching.records import RecordMatcher

SHARED: Final = Path(__file__).resolve().parents[3] / "shared"
INDEX: Final[dict[str, str]] = (
    json.loads((SHARED / "cases" / "index.json").read_text("utf-8"))
    if (SHARED / "cases" / "index.json").exists()
    else {}
)


def holds(expected: dict[str, Any], found: dict[str, Any]) -> bool:
    """Everything that a case expects must hold; what it leaves out is free."""
    for name, value in expected.items():
        if name == "cloudevent":
            event = found.get("cloudevent") or {}
            if any(event.get(attribute) != text for attribute, text in value.items()):
                return False
        elif name == "events":
            events = found.get("events") or []
            if len(events) != len(value) or not all(map(holds, value, events)):
                return False
        elif found.get(name) != value:
            return False
    return True


def failures(name: str, path: str) -> list[str]:
    """Return each case of a file that does not hold, with what was found."""
    catalog = load([SHARED / path])
    matchers: dict[str | None, RecordMatcher] = {}
    failed: list[str] = []
    with gzip.open(SHARED / "cases" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    for group in {case.get("group"): None for case in cases}:
        matcher = matchers.setdefault(group, RecordMatcher(catalog, group=group))
        mine = [case for case in cases if case.get("group") == group]
        outcomes = matcher.decide([json.dumps(case["record"]) for case in mine])
        for case, found in zip(mine, outcomes, strict=True):
            if not holds(case["expect"], found):
                failed.append(f"{json.dumps(case)}\nfound {json.dumps(found)}")
    return failed


@pytest.mark.skipif(not INDEX, reason="the shared cases are not beside the repository")
@pytest.mark.parametrize("name", sorted(INDEX))
def test_shared_cases(name: str) -> None:
    failed = failures(name, INDEX[name])
    assert not failed, f"{len(failed)} cases of {name} fail, the first:\n{failed[0][:3000]}"
