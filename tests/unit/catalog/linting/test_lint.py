"""Lint by cases: for each rule documents that trigger it, where and how, and near misses that do not."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bindings.protocols import binding_of
from catalog.definitions.candidates import competing_candidate, find_never_winning
from catalog.linting.attributes import load_rules
from catalog.load import load
from catalog.model import PROTOCOLS, Finding
from catalog.record import parse_record
from tests.support.cases import read_cases
from tests.support.generation import ENDPOINT, conforming, random_catalog
from tests.support.reference import Reference

CASES = Path(__file__).parents[3] / "cases" / "lint"
ELSEWHERE = {
    *("unresolvable-schema", "schema-unreachable", "network-off", "unknown-schema-format", "schema-format-conflict"),
    *("invalid-schema", "unreachable-reference", "too-many", "too-many-findings"),
    *(
        "settings",
        "sink",
        "other-catalog",
        "unknown-endpoint",
        "source",
        "no-source",
        "no-definitions",
        "unusable-source",
    ),
    "incompatible-change",
    *("unreached-route", "unrouted-definition", "unsettled-definition", "plain-text-credentials", "kept-by-broker"),
    *("plain-text-secret", "moved-address", "schema-ids", "shadowed-route", "open-cluster", "overlap", "unheld-schema"),
    "unkeyed-events",
}
"""Rules of linking schemas, of fetching, of limits and of the router; their cases are with the tests of those."""


def cases(kind: str) -> list[Any]:
    found = []
    for path in sorted(CASES.glob("*.yaml")):
        for rule, case in read_cases(path).items():
            found += [pytest.param(rule, each, id=f"{rule}-{n}") for n, each in enumerate(case[kind])]
    return found


def document_of(case: dict[str, Any]) -> Any:
    if "message" in case:
        return {"messagegroups": {"g": {"messages": {"m": case["message"]}}}}
    if "endpoint" in case:
        return {"endpoints": {"e": case["endpoint"]}}
    if "named" in case:
        return {"messagegroups": {"g": {"messages": {"m" * case["named"]: {}}}}}
    if "chain" in case:
        names = [f"m{n}" for n in range(case["chain"])]
        links = {name: {"basemessage": f"/messagegroups/g/messages/{base}"} for base, name in pairwise(names)}
        return {"messagegroups": {"g": {"messages": {names[0]: {}, **links}}}}
    return case["document"]


def findings_of(case: dict[str, Any], folder: Path) -> list[Finding]:
    path = folder / "case.json"
    path.write_text(case["text"] if "text" in case else json.dumps(document_of(case)), "utf-8")
    if case.get("folder") or "beside" in case:
        (folder / "beside.json").write_text(json.dumps(case.get("beside", {"messagegroups": {}})), "utf-8")
    catalog = load([folder if (folder / "beside.json").exists() else path])
    return [finding for finding in catalog.findings if finding.file == str(path)]


@pytest.mark.parametrize(("rule", "case"), cases("triggers"))
def test_triggers(rule: str, case: dict[str, Any], tmp_path: Path) -> None:
    found = [finding for finding in findings_of(case, tmp_path) if finding.rule == rule]
    at_place = [f for f in found if f.pointer == case.get("pointer", f.pointer) and case["says"] in f.message]
    assert len(at_place) == 1, found
    assert at_place[0].severity == case.get("severity", load_rules()[rule].severity)
    assert case.get("hint", "") in at_place[0].hint
    assert "hunter2" not in str(found)


@pytest.mark.parametrize(("rule", "case"), cases("near-misses"))
def test_near_misses(rule: str, case: dict[str, Any], tmp_path: Path) -> None:
    found = [finding for finding in findings_of(case, tmp_path) if finding.rule == rule]
    pointer = case.get("pointer")
    assert not [finding for finding in found if pointer is None or finding.pointer == pointer]


def test_every_rule_has_cases() -> None:
    for kind in ("triggers", "near-misses"):
        assert {parameters.values[0] for parameters in cases(kind)} == set(load_rules()) - ELSEWHERE


def test_what_loses_by_lint_never_wins_by_the_reference_matcher() -> None:
    """Whatever conforms to a definition that lint calls indistinguishable or never reached is routed elsewhere."""
    told: Counter[str] = Counter()
    for seed in range(150):
        rng = Random(seed)
        catalog = random_catalog(rng, rng.choice((2, 6, 14)))
        endpoint = catalog.endpoints[ENDPOINT]
        found = [competing_candidate(definition, endpoint) for definition in catalog.definitions.values()]
        competing = [candidate for candidate in found if candidate is not None]
        meant = {candidate.definition.xid: candidate.is_for_events for candidate in competing}
        reference = Reference(catalog, endpoint=ENDPOINT)
        for xid, verdict in find_never_winning(competing):
            told[verdict.rule] += verdict.severity == "warning" or verdict.rule == "never-reached"
            if verdict.severity == "info" and verdict.rule == "indistinguishable":
                continue
            definition = catalog.definitions[xid]
            for _ in range(8):
                protocol = definition.protocol or endpoint.protocol or rng.choice(PROTOCOLS)
                line = json.dumps(conforming(rng, definition, protocol))
                outcome = reference.outcome(line)
                for each in outcome.get("events", [outcome]):
                    won = each["outcome"] == "routed" and each["message"] == xid
                    assert not won or (meant[xid] and not is_event(line)), (seed, xid, verdict, line)
    assert min(told.values()) > 5, told


def is_event(line: str) -> bool:
    record = parse_record(line)
    binding = binding_of(record.protocol)
    assert binding is not None
    return binding.read_envelope(binding.split(record.native), record.body, lambda: True).is_event


@pytest.mark.slow
@pytest.mark.parametrize("number", [300, 3000])
def test_ten_times_the_definitions_are_no_hundred_times_the_pairs(number: int, tmp_path: Path) -> None:
    """All alike, and all different in what does not count: the two worst cases for comparing in pairs."""
    alike = {f"a{n}": {"envelopemetadata": {"type": {"value": "t"}}} for n in range(number)}
    unlike = {f"u{n}": {"envelopemetadata": {f"x{n}": {"required": True}}} for n in range(number)}
    path = tmp_path / "big.json"
    groups = {"g": {"envelope": "CloudEvents/1.0", "messages": {**alike, **unlike}}}
    path.write_text(json.dumps({"messagegroups": groups}), "utf-8")
    found = [finding for finding in load([path]).findings if finding.rule == "indistinguishable"]
    assert len(found) == number
    assert all(len(finding.message) < 400 for finding in found)
