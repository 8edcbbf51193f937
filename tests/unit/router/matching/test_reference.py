"""The vectorised matcher against the plain one (tests.support.reference), on records made for the purpose."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from catalog.load import load
from catalog.model import PROTOCOLS, Catalog
from router.matching.records import FEW, RecordMatcher, parse_entry
from router.matching.schema_validation import Validation
from tests.support.cases import seeds
from tests.support.corpora import CORPORA
from tests.support.generation import ENDPOINT, GROUP, random_catalog, random_record
from tests.support.reference import POSITION, Reference

ROOT = Path(__file__).resolve().parents[4]
SAMPLES = sorted((ROOT / "catalog" / "samples").glob("*.xreg.*"))
DOCUMENTS = sorted(p for p in CORPORA.rglob("*") if p.is_file() and ".xreg." in p.name) or SAMPLES
UNTOLD = ("detail", "nearest")


def told(outcome: dict[str, Any]) -> dict[str, Any]:
    """An outcome without its explanation."""
    if outcome["outcome"] == "batch":
        return {"outcome": "batch", "events": [told(event) for event in outcome["events"]]}
    return {name: value for name, value in outcome.items() if name not in UNTOLD}


def disagreement(line: str, expected: dict[str, Any], found: dict[str, Any]) -> str:
    """Say what differs, empty when nothing does; an id made of the record's position is any."""
    found = told(found)
    if expected.get("cloudevent", {}).get("id") == POSITION and "cloudevent" in found:
        expected = {**expected, "cloudevent": {**expected["cloudevent"], "id": found["cloudevent"].get("id")}}
    return "" if expected == found else f"{line}\nreference: {expected}\nmatcher:   {found}"


def agree(catalog: Catalog, lines: Sequence[str], **scope: Any) -> Counter[str]:
    """Hold both matchers against each other; returns how often each outcome was met."""
    reference, matcher = Reference(catalog, **scope), RecordMatcher(catalog, **scope)
    outcomes: Counter[str] = Counter()
    for line, found in zip(lines, matcher.decide(list(lines)), strict=True):
        expected = reference.outcome(line)
        outcomes[expected.get("reason", expected["outcome"])] += 1
        assert not (different := disagreement(line, expected, found)), different
    return outcomes


def records(rng: Random, catalog: Catalog, count: int) -> list[str]:
    return [json.dumps(random_record(rng, catalog)) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(24, quick=3))
def test_random_catalogs(seed: int) -> None:
    rng = Random(seed)
    catalog = random_catalog(rng, rng.choice((2, 8, 40)))
    lines = records(rng, catalog, 250)
    agree(catalog, lines)
    agree(catalog, lines, endpoint=ENDPOINT)
    agree(catalog, lines[:50], group=GROUP)
    agree(catalog, lines[:50], hop_by_hop=True)
    agree(catalog, lines[:50], validation="always")
    agree(catalog, lines[:50], validation="never")


@pytest.mark.slow
def test_random_catalogs_meet_every_outcome() -> None:
    met: Counter[str] = Counter()
    for seed in range(1000, 1006):
        rng = Random(seed)
        catalog = random_catalog(rng, 12)
        validation = ("ambiguous", "always")[seed % 2]
        met += agree(catalog, records(rng, catalog, 300), endpoint=ENDPOINT, validation=validation)
    wanted = {"routed", "batch", "no-match", "ambiguous", "schema-violation"}
    wanted |= {"invalid-cloudevent", "undecodable", "unmappable"}
    assert wanted <= {outcome for outcome, count in met.items() if count >= 5}, met


@pytest.mark.slow
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_sample_catalogs(path: Path) -> None:
    catalog = load([path])
    lines = records(Random(path.name), catalog, 600)
    assert agree(catalog, lines)["routed"] > 100
    for endpoint in catalog.endpoints:
        agree(catalog, lines[:300], endpoint=endpoint)


@pytest.mark.slow
@pytest.mark.shared
def test_corpora() -> None:
    for path in DOCUMENTS[::4]:
        _over_document(path, 25)


@pytest.mark.full
@pytest.mark.shared
@pytest.mark.timeout(1800)
def test_corpora_in_full() -> None:
    each = 100_000 // len(DOCUMENTS) + 1
    for path in DOCUMENTS:
        _over_document(path, each)


def _over_document(path: Path, count: int) -> None:
    catalog = load([path])
    if catalog.definitions:
        lines = records(Random(path.name), catalog, count)
        agree(catalog, lines)
        for endpoint in list(catalog.endpoints)[:2]:
            agree(catalog, lines[: count // 2], endpoint=endpoint)


# One record by itself has the outcome that it has among others, in columns.


def without_id(outcome: dict[str, Any]) -> dict[str, Any]:
    """Without the id that names a record's place."""
    return {**outcome, "cloudevent": {**outcome.get("cloudevent", {}), "id": ""}}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_records(seed: int) -> None:
    rng = Random(seed)
    catalog = random_catalog(rng, rng.choice((3, 20, 90)))
    validation: Validation = rng.choice(("never", "ambiguous", "always"))
    matcher = RecordMatcher(catalog, endpoint=ENDPOINT, validation=validation, ambiguous="first")
    lines = [json.dumps(random_record(rng, catalog)) for _ in range(FEW + 100)]
    for line, outcome in zip(lines, matcher.decide(lines), strict=True):
        assert without_id(matcher.decide([line])[0]) == without_id(outcome), line


def test_routed_records_of_every_protocol_need_no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(7)
    catalog = random_catalog(rng, 60)
    matcher = RecordMatcher(catalog, endpoint=ENDPOINT)
    lines = [json.dumps(random_record(rng, catalog)) for _ in range(1_000)]
    routed = [line for line, each in zip(lines, matcher.decide(lines), strict=True) if each["outcome"] == "routed"]
    monkeypatch.setattr(RecordMatcher, "_match_rows", lambda self, rows: [pytest.fail("columns")] if rows else [])
    assert {matcher.decide([line])[0]["outcome"] for line in routed} == {"routed"}
    assert {parse_entry(0, line)[1].protocol for line in routed} == set(PROTOCOLS)
