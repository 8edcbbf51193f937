"""The cases shared with the specification, where they are beside the repository: one test per catalog.

What later issues bring is listed under ``DEVIATIONS``, by file and by the reason that the cases expect; a listed
deviation that no longer deviates fails the test, so that the list never outlives its need.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Final

import pytest

from catalog.load import load
from router.match import RecordMatcher

SHARED: Final = Path(__file__).resolve().parents[3] / "shared"
INDEX: Final[dict[str, str]] = (
    json.loads((SHARED / "cases" / "index.json").read_text("utf-8"))
    if (SHARED / "cases" / "index.json").exists()
    else {}
)
SCHEMAS: Final = "payload schemas do not yet tell candidates apart"
ANY: Final = "*"
DEVIATIONS: Final[dict[str, tuple[str, str]]] = {
    "codegen-samples-protocols-amqp-consumer-endpoint-2grp-ce.xreg.json": ("schema-violation", SCHEMAS),
}
"""By file: which expected reason deviates (or any case may), and why."""


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


def failures(name: str, path: str) -> list[tuple[str, str]]:
    """Return (expected reason, what was found) of each case of a file that does not hold."""
    catalog = load([SHARED / path])
    matchers: dict[str | None, RecordMatcher] = {}
    failed: list[tuple[str, str]] = []
    with gzip.open(SHARED / "cases" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    for group in {case.get("group"): None for case in cases}:
        matcher = matchers.setdefault(group, RecordMatcher(catalog, group=group))
        mine = [case for case in cases if case.get("group") == group]
        outcomes = matcher.decide([json.dumps(case["record"]) for case in mine])
        for case, found in zip(mine, outcomes, strict=True):
            if not holds(case["expect"], found):
                failed.append((case["expect"].get("reason", ""), f"{json.dumps(case)}\nfound {json.dumps(found)}"))
    return failed


@pytest.mark.skipif(not INDEX, reason="the shared cases are not beside the repository")
def test_deviations_are_of_known_files() -> None:
    assert set(DEVIATIONS) <= set(INDEX)


@pytest.mark.skipif(not INDEX, reason="the shared cases are not beside the repository")
@pytest.mark.parametrize("name", sorted(INDEX))
def test_shared_cases(name: str) -> None:
    found = failures(name, INDEX[name])
    deviating, why = DEVIATIONS.get(name, ("", ""))
    explained = [told for reason, told in found if deviating in (ANY, reason) and deviating]
    assert bool(explained) is bool(deviating), f"{name} holds now: take it off the list of deviations ({why})"
    unexplained = [told[:3000] for _, told in found if told not in explained]
    assert not unexplained, f"{len(unexplained)} cases of {name} fail, the first:\n{unexplained[0]}"
