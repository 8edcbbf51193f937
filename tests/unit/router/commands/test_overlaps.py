"""Overlapping definitions: `check` tells of them with a record that both match, and the plain matcher agrees."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from catalog.documents.documents import Document
from catalog.findings import Findings
from catalog.linting.overlaps import MAX_OVERLAPS, find_overlaps
from catalog.load import build_catalog
from catalog.model import Catalog
from router.commands.check.command import collect_findings, iter_proven_overlaps
from router.matching.records import RecordMatcher
from tests.support import load
from tests.support.cases import read_cases
from tests.support.generation import ENDPOINT, random_catalog
from tests.support.reference import Reference

A, B = "/messagegroups/g/messages/a", "/messagegroups/g/messages/b"
EVENTS = {"envelope": "CloudEvents/1.0"}


def options(protocol: str, **written: Any) -> dict[str, Any]:
    return {"protocol": protocol, "protocoloptions": written}


def attributes(**written: Any) -> dict[str, Any]:
    return {**EVENTS, "envelopemetadata": written}


def tree(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return {"messagegroups": {"g": {"messages": {"a": a, "b": b}}}}


def told(document: dict[str, Any], tmp_path: Path) -> list[tuple[str, str, str]]:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document))
    found, _ = collect_findings([str(path)])
    return [(each.severity, each.pointer, each.message) for each in found if each.rule == "overlap"]


def witnessed(message: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(message.partition("both match ")[2])
    return record


def outcomes(document: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """Return what becomes of a record with each definition alone, and with all of them."""
    catalog = build_catalog([Document("c.json", document)], Findings())
    found = []
    for xids in ((A,), (B,), (A, B)):
        only = Catalog({xid: catalog.definitions[xid] for xid in xids}, {}, {})
        (outcome,) = RecordMatcher(only, validation="never").decide([json.dumps(record)])
        found.append(outcome.get("message") or outcome["reason"])
    return found


PAIRS: Final = read_cases(Path(__file__).resolve().parents[3] / "cases" / "overlaps.yaml")


@pytest.mark.parametrize("name", PAIRS["ambiguous"])
def test_what_overlaps_and_is_as_specific_is_a_warning_with_a_witness(name: str, tmp_path: Path) -> None:
    document = tree(*PAIRS["ambiguous"][name])
    found = told(document, tmp_path)
    assert [each[:2] for each in found] == [("warning", A), ("warning", B)]
    assert outcomes(document, witnessed(found[0][2])) == [A, B, "ambiguous"]


def test_the_more_specific_of_the_two_is_named(tmp_path: Path) -> None:
    document = tree(attributes(type="t", source="/x"), attributes(subject="s"))
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document))
    found = [each for each in collect_findings([str(path)])[0] if each.rule == "overlap"]
    assert [(each.severity, each.pointer) for each in found] == [("info", A), ("info", B)]
    assert all(A in each.hint for each in found)
    assert outcomes(document, witnessed(found[0].message)) == [A, B, A]


@pytest.mark.parametrize(("a", "b"), PAIRS["apart"])
def test_what_is_apart_or_covered_is_no_overlap(a: dict[str, Any], b: dict[str, Any], tmp_path: Path) -> None:
    assert told(tree(a, b), tmp_path) == []


def test_witnesses_of_generated_catalogs_hold_by_the_plain_matcher() -> None:
    made = held = 0
    for seed in range(60):
        catalog = random_catalog(Random(seed), 8)
        found = tuple(find_overlaps(catalog))
        made += len(found)
        for overlap, record, _ in iter_proven_overlaps(found, catalog):
            held += 1
            line = json.dumps({**record, "endpoint": ENDPOINT})
            for xid in (overlap.one.xid, overlap.other.xid):
                channel = replace(catalog.endpoints[ENDPOINT], candidates=(xid,))
                alone = Reference(replace(catalog, endpoints={ENDPOINT: channel}), validation="never")
                outcome = alone.outcome(line)
                assert outcome.get("message") == xid or outcome["reason"] == "unmappable", (seed, record)
    assert held > 0.9 * made > 0


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.full)])
def test_many_definitions_give_no_flood(count: int) -> None:
    crowded = {f"m{n}": options("MQTT/5.0", topic_name=f"{{a}}{n}/{{b}}") for n in range(count)}
    for document in (load.catalog(count, topic="load"), {"messagegroups": {"g": {"messages": crowded}}}):
        catalog = build_catalog([Document("c.json", document)], Findings())
        assert len(tuple(find_overlaps(catalog))) <= MAX_OVERLAPS
