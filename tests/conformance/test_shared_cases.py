"""The cases shared with the specification, where they are beside the repository: one test per catalog, all hold.

Their records by pushed protocols have one outcome more to keep: as rows of the inbox, what the exact codec gives them.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from catalog.load import load
from catalog.model import Endpoint
from router.judging.judging import outcome_lists
from router.matching.records import RecordMatcher
from tests.support.inbox_rows import ENDPOINT, batch_of, judge_of, judged_exactly, row_of

TOGETHER: Final = 500
"""Rows of one batch: below the number of dead letters that are explained."""
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


def cases_of(name: str) -> list[dict[str, Any]]:
    """Return the cases of a file."""
    with gzip.open(SHARED / "cases" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def failures(name: str, path: str) -> list[str]:
    """Return each case of a file that does not hold, with what was found."""
    catalog = load([SHARED / path])
    matchers: dict[str | None, RecordMatcher] = {}
    failed: list[str] = []
    cases = cases_of(name)
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


@pytest.mark.skipif(not INDEX, reason="the shared cases are not beside the repository")
@pytest.mark.parametrize("name", sorted(INDEX))
def test_rows_of_the_inbox_have_the_outcomes_of_the_exact_codec(name: str) -> None:
    catalog = load([SHARED / INDEX[name]])
    channel = Endpoint(ENDPOINT, candidates=tuple(catalog.definitions))
    judge = judge_of(replace(catalog, endpoints={ENDPOINT: channel}), Path())
    rows = [row_of(case["record"]) for case in cases_of(name)]
    given = [row for row in rows if row is not None and row["protocol"].upper() != "KAFKA"]
    for begin in range(0, len(given), TOGETHER):
        batch = batch_of(given[begin : begin + TOGETHER])
        (lists, counts), (due, due_counts) = outcome_lists("inbox", judge, batch), judged_exactly(judge, batch)
        assert lists.to_pylist() == due.to_pylist()
        assert counts == due_counts
