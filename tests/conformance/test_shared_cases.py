"""Native records with the outcomes that are right, case by case: one test per catalog, all hold.

They are the cases beside our samples, and records made for our samples with the outcomes that a plain matcher gives
them (``tests.support.reference``); and those shared with the specification, where they are there
(``tests.support.corpora``). Records by pushed protocols have one outcome more to keep: as rows of the inbox, what the
exact codec gives them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from catalog.load import load
from catalog.model import Endpoint
from router.matching.records import RecordMatcher
from tests.support.cases import FOLDER, read_cases, samples
from tests.support.corpora import SHARED, shared_cases, shared_index
from tests.support.evaluating import outcome_lists
from tests.support.generation import random_record
from tests.support.letters import ENDPOINT, batch_of, judge_of, judged_exactly, row_of
from tests.support.reference import POSITION, Reference

TOGETHER: Final = 500
"""Rows of one batch: below the number of dead letters that are explained."""
MADE: Final = 300
"""Records that are made for a sample."""
Case = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """A catalog, and the cases for it: ``record`` and ``expect``, in some the candidates and when to validate."""

    catalog: Path
    cases: Callable[[], Sequence[Case]]


def written(path: Path) -> list[Case]:
    """Return the cases that stand beside a sample."""
    return [{"record": each["record"], "expect": each["expect"]} for each in read_cases(path)["cases"]]


def made(path: Path) -> list[Case]:
    """Return records made for a catalog, with what the plain matcher says of each."""
    catalog, rng = load([path]), Random(path.name)
    plain, cases = Reference(catalog), []
    for _ in range(MADE):
        record = random_record(rng, catalog)
        outcome = plain.outcome(json.dumps(record))
        for event in (outcome, *outcome.get("events", ())):
            if event.get("cloudevent", {}).get("id") == POSITION:
                del event["cloudevent"]["id"]  # that is the place of the record here
            if (known := catalog.definitions.get(event.get("message", ""))) and known.relation:
                del event["context"]  # the plain matcher knows nothing of relations
        cases.append({"record": record, "expect": outcome})
    return cases


MISSPELT: Final = {("44", "/messagegroups/H/messages/eg"): "/messagegroups/G/messages/eg"}
"""Definitions that cases expect and their catalog does not have, by folder, with the one that is meant."""


def outside(folder: Path) -> list[Case]:
    """Return the cases of a folder of those that were made after what others report."""
    cases = [json.loads(line) for line in (folder / "cases.jsonl").read_text("utf-8").splitlines() if line.strip()]
    for expected in (each["expect"] for each in cases):
        if (meant := MISSPELT.get((folder.name, expected.get("message", "")))) is not None:
            expected["message"] = meant
    return cases


def sources() -> list[Any]:
    """Return each source as a parameter."""
    found = [
        pytest.param(Source(FOLDER / path.name.replace(".cases.", ".xreg."), partial(written, path)), id=path.name)
        for path in sorted(FOLDER.glob("*.cases.yaml"))
    ]
    found += [pytest.param(Source(path, partial(made, path)), id=f"made-{path.name}") for path in samples()]
    shared = [(name, Source(path, partial(shared_cases, name))) for name, path in sorted(shared_index().items())]
    for folder in sorted((SHARED / "outside").iterdir()) if SHARED and (SHARED / "outside").is_dir() else ():
        if folder.is_dir():
            shared.append((f"outside-{folder.name}", Source(folder / "catalog.json", partial(outside, folder))))
    return found + [pytest.param(source, id=name, marks=pytest.mark.shared) for name, source in shared]


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


def failures(source: Source) -> list[str]:
    """Return each case of a source that does not hold, with what was found."""
    catalog, cases = load([source.catalog]), source.cases()
    failed: list[str] = []
    for group, validate in {(case.get("group"), case.get("validate", "ambiguous")): None for case in cases}:
        matcher = RecordMatcher(catalog, group=group, validation=validate)
        mine = [case for case in cases if (case.get("group"), case.get("validate", "ambiguous")) == (group, validate)]
        outcomes = matcher.decide([json.dumps(case["record"]) for case in mine])
        for case, found in zip(mine, outcomes, strict=True):
            if not holds(case["expect"], found):
                failed.append(f"{json.dumps(case)}\nfound {json.dumps(found)}")
    return failed


@pytest.mark.parametrize("source", sources())
def test_each_record_has_its_outcome(source: Source) -> None:
    failed = failures(source)
    assert not failed, f"{len(failed)} cases fail, the first:\n{failed[0][:3000]}"


@pytest.mark.parametrize("source", sources())
def test_rows_of_the_inbox_have_the_outcomes_of_the_exact_codec(source: Source) -> None:
    catalog = load([source.catalog])
    channel = Endpoint(ENDPOINT, candidates=tuple(catalog.definitions))
    judge = judge_of(replace(catalog, endpoints={ENDPOINT: channel}), Path())
    rows = [row_of(case["record"]) for case in source.cases()]
    given = [row for row in rows if row is not None and row["protocol"].upper() != "KAFKA"]
    for begin in range(0, len(given), TOGETHER):
        batch = batch_of(given[begin : begin + TOGETHER])
        (lists, counts), (due, due_counts) = outcome_lists("inbox", judge, batch), judged_exactly(judge, batch)
        assert lists.to_pylist() == due.to_pylist()
        assert counts == due_counts
