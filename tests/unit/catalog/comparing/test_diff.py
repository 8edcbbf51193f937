"""Comparing catalogs: cases as data, and every claim of wider, narrower or same held against the plain matcher."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.comparing import SchemaState, compare_catalogs, compare_match_sets, compare_schemas
from catalog.load import load
from catalog.model import Catalog, Definition, Property
from tests.support.cases import examples, read_cases
from tests.support.generation import GROUP, conforming, random_definition, random_property, spoil
from tests.support.reference import Reference

CASES = Path(__file__).parents[3] / "cases" / "diff"
RECORDS = 12


def cases(name: str) -> list[Any]:
    read = read_cases(CASES / f"{name}.yaml")
    return [pytest.param(case, id=key) for key, case in read.items()]


def loaded(path: Path, document: Any) -> Catalog:
    path.write_text(json.dumps(document), "utf-8")
    return load([path])


@pytest.mark.parametrize("case", cases("definitions"))
def test_definition(case: dict[str, Any], tmp_path: Path) -> None:
    old, new = (
        loaded(tmp_path / f"{side}.json", {"messagegroups": {"g": {"messages": {"m": case[side]}}}})
        for side in ("before", "after")
    )
    whole, *parts = compare_catalogs(old, new).changes or (None,)
    assert (whole.relation if whole else "none") == case["relation"]
    told = [f"{'' if each.compatible else '!'}{each.kind} {each.name} {each.relation or ''}" for each in parts]
    assert [" ".join(each.split()) for each in told] == case["changes"]
    if whole:
        assert whole.compatible == (whole.relation in ("same", "wider") and all(each.compatible for each in parts))


@pytest.mark.parametrize("case", cases("catalogs"))
def test_catalogs(case: dict[str, Any], tmp_path: Path) -> None:
    old, new = (loaded(tmp_path / f"{side}.json", case[side]) for side in ("before", "after"))
    difference = compare_catalogs(old, new)
    assert [f"{each.kind} {each.xid} {each.name}" for each in difference.changes] == case["changes"]
    assert difference.compatible == case["compatible"]
    assert ":q@" not in json.dumps(difference.to_json())
    assert not compare_catalogs(new, new).changes


@pytest.mark.parametrize("case", cases("schemas"))
def test_schemas(case: dict[str, Any]) -> None:
    states = [SchemaState(case["family"].lower(), "", case[side], "", "") for side in ("before", "after")]
    verdict, detail = compare_schemas(*states)
    assert verdict == case["verdict"]
    assert detail or verdict in ("same", "compatible")


def test_documents_that_nest_too_deeply_are_not_compared() -> None:
    texts = ('{"items":' * 600 + f'{{"type":"{kind}"}}' + "}" * 600 for kind in ("string", "integer"))
    assert compare_schemas(*(SchemaState("jsonschema", "", each, "", "") for each in texts))[0] == "unknown"


def edited(rng: Random, definition: Definition) -> Definition:
    """Change, add or drop one property, or another thing that definitions select by."""
    section = rng.choice(("envelopemetadata", "protocoloptions"))
    properties: list[Property] = list(getattr(definition, section))
    action = rng.random()
    if action < 0.1:
        return replace(definition, datacontenttype=rng.choice((None, "text/plain", "text/plain; a=b")))
    if action < 0.2:
        return replace(definition, protocol_declared=not definition.protocol_declared)
    if not properties:
        return definition
    place = rng.randrange(len(properties))
    chosen = properties[place]
    if action < 0.3:
        del properties[place]
    elif action < 0.4:
        properties.append(random_property(rng, chosen.name))
    elif action < 0.5:
        properties[place] = replace(chosen, required=not chosen.required)
    elif action < 0.75:
        near = random_property(rng, chosen.name)
        properties[place] = replace(chosen, value=near.value) if rng.random() < 0.5 else replace(chosen, type=near.type)
    else:
        properties[place] = random_property(rng, chosen.name)
    if section == "envelopemetadata":
        return replace(definition, envelopemetadata=tuple(properties))
    return replace(definition, protocoloptions=tuple(properties))


def matches(definition: Definition, line: str) -> bool:
    """Whether a record matches the definition when it is the only candidate; a mapping that fails has matched."""
    catalog = Catalog({definition.xid: definition}, {GROUP: (definition.xid,)}, {})
    outcome = Reference(catalog, group=GROUP).outcome(line)
    events = outcome.get("events", [outcome])
    return all(each["outcome"] == "routed" or each.get("reason") == "unmappable" for each in events)


def pair(rng: Random) -> tuple[Definition, Definition]:
    before = after = random_definition(rng, 1, [])
    for _ in range(rng.choice((1, 1, 2))):
        after = edited(rng, after)
    return before, after


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_called_wider_narrower_or_same_is_so(seed: int) -> None:
    rng = Random(seed)
    before, after = pair(rng)
    relation = compare_match_sets(before, after)
    for _ in range(RECORDS):
        protocol = before.protocol or rng.choice(("KAFKA", "HTTP", "NATS"))
        record = conforming(rng, rng.choice((before, after)), protocol)
        for _ in range(rng.choice((0, 0, 1, 2))):
            spoil(rng, record)
        line = json.dumps(record)
        was, now = matches(before, line), matches(after, line)
        assert relation not in ("wider", "same") or now or not was, (before, after, line)
        assert relation not in ("narrower", "same") or was or not now, (before, after, line)


def test_generated_edits_are_of_every_relation() -> None:
    rng = Random(1)
    pairs = [pair(rng) for _ in range(400)]
    seen = Counter(compare_match_sets(*each) for each in pairs if each[0] != each[1])
    assert all(seen[relation] >= 20 for relation in ("same", "wider", "narrower", "different")), seen
