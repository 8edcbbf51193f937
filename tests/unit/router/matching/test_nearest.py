"""The vectorised matcher against the plain one (tests.support.reference), on records made for the purpose."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from catalog.load import load
from catalog.model import CLOUDEVENTS, PROTOCOLS, Catalog, Definition, Endpoint, Property
from router.matching.nearest import LOOKS, MOST, SPELLED, property_name
from router.matching.records import FEW, RecordMatcher, parse_entry
from router.matching.schema_validation import Validation
from tests.support.cases import seeds
from tests.support.corpora import CORPORA
from tests.support.generation import ENDPOINT, GROUP, random_catalog, random_record
from tests.support.reference import POSITION, Reference
from tests.support.reference_nearest import nearest

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


# The nearest definitions of records that match nothing, against a plain look at every candidate.


def plain(catalog: Catalog, line: str) -> list[tuple[str, tuple[str, ...]]]:
    """The nearest by the plain look, properties under the names that explanations give them."""
    found = nearest(catalog, catalog.endpoints[ENDPOINT], line)[:MOST]
    return [(xid, tuple(sorted(_told(key) for key in failed))) for xid, failed in found]


def _told(key: str) -> str:
    return key if key in ("protocol", "envelope") else property_name(key)


def nearest_of(outcome: dict[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    """The nearest that an outcome gives; a placeholder that differs counts as its property."""
    return [
        (each["message"], tuple(sorted(found["property"].partition(" {")[0] for found in each["mismatches"])))
        for each in outcome["nearest"]
    ]


def is_own(record: dict[str, Any]) -> bool:
    """Whether a Kafka record has members of Kafka alone; others are none of its properties, and no column has them."""
    return record["protocol"] != "KAFKA" or set(record["native"]) <= {"topic", "key", "key_base64", "headers"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(30, quick=10))
def test_the_nearest_of_random_catalogs(seed: int) -> None:
    rng = Random(seed)
    catalog = random_catalog(rng, rng.choice((3, 20, 90)))
    lines = [json.dumps(record) for record in (random_record(rng, catalog) for _ in range(150)) if is_own(record)]
    compared = 0
    for line, outcome in zip(lines, RecordMatcher(catalog, endpoint=ENDPOINT).decide([*lines]), strict=True):
        # What schemas drop is explained by their faults.
        schemas = any(
            found["property"] == "data" for each in outcome.get("nearest", ()) for found in each["mismatches"]
        )
        if outcome.get("reason") == "no-match" and not schemas:
            compared += 1
            assert nearest_of(outcome) == plain(catalog, line), line
    assert compared or len(catalog.definitions) > 3


def catalog_of(*definitions: Definition) -> Catalog:
    xids = tuple(each.xid for each in definitions)
    return Catalog(
        {each.xid: each for each in definitions}, {GROUP: xids}, {ENDPOINT: Endpoint(ENDPOINT, candidates=xids)}
    )


def define(name: str, **properties: str) -> Definition:
    options = tuple(Property(f"headers.{key}", "string", value) for key, value in properties.items())
    return Definition(f"{GROUP}/messages/{name}", GROUP, protocol="KAFKA", protocoloptions=options)


def headers(**values: str) -> str:
    native = {"headers": [{"name": name, "value": value} for name, value in values.items()]}
    return json.dumps({"protocol": "KAFKA", "native": native})


def test_the_finder_goes_to_workers_in_any_state() -> None:
    catalog = catalog_of(define("a", x="1"), define("b", x="22"))
    matcher = RecordMatcher(catalog, endpoint=ENDPOINT)
    (before,) = matcher.decide([headers(x="2")])
    (after,) = pickle.loads(pickle.dumps(matcher)).decide([headers(x="2")])
    assert after["nearest"] == before["nearest"] != []


def only(catalog: Catalog, line: str) -> list[dict[str, Any]]:
    (outcome,) = RecordMatcher(catalog, endpoint=ENDPOINT).decide([line])
    assert outcome["reason"] == "no-match"
    found: list[dict[str, Any]] = outcome["nearest"]
    return found


def test_placeholders_that_differ_are_failures_among_others() -> None:
    """What array operations cannot see must not make a definition seem nearer than it is."""
    unequal = [define(f"a{number:02}", a="{x}", b="{x}", c="{x}", d="{x}") for number in range(40)]
    nearer = define("z", a="1", b="2", c="3", d="other")
    found = only(catalog_of(*unequal, nearer), headers(a="1", b="2", c="3", d="4"))
    assert [each["message"][-3:] for each in found] == ["s/z", "a00", "a01"]
    assert [each["expected"] for each in found[1]["mismatches"]] == ["1 as in protocoloptions.headers.a"] * 3


def test_a_definition_that_two_endpoints_see_is_listed_once() -> None:
    definition = Definition(
        f"{GROUP}/messages/m", GROUP, envelope=CLOUDEVENTS, envelopemetadata=(Property("x", "string", "1"),)
    )
    catalog = catalog_of(definition)
    found = only(catalog, json.dumps({"protocol": "KAFKA", "native": {}}))
    assert len(found) == 1 and [each["property"] for each in found[0]["mismatches"]] == [
        "envelope",
        "envelopemetadata.x",
    ]


def test_looks_are_bounded() -> None:
    """Past the bound the answer may be a definition too far, and is still one."""
    unequal = [define(f"a{number:03}", a="{x}", b="{x}", c="{x}") for number in range(LOOKS + 10)]
    assert len(only(catalog_of(*unequal, define("z", a="1", b="2", c="4")), headers(a="1", b="2", c="3"))) == MOST


def mqtt(name: str, topic: str) -> Definition:
    options = (Property("topic_name", "uritemplate", topic),)
    return Definition(f"{GROUP}/messages/{name}", GROUP, protocol="MQTT/5.0", protocoloptions=options)


def names(found: list[dict[str, Any]]) -> list[str]:
    return [each["message"].rpartition("/")[2] for each in found]


@pytest.mark.slow
@pytest.mark.parametrize("typo", ["order.7777.placedd", "ordr.7777.placed", "Xrder.7777.placed"])
def test_a_typo_is_found_among_thousands(typo: str) -> None:
    """All of them fail by one property, and the one that was meant is far behind in the alphabet."""
    definitions = [define(f"m{number:04}", type=f"order.{number}.placed") for number in range(9_000)]
    assert names(only(catalog_of(*definitions), headers(type=typo)))[0] == "m7777"


def test_endless_values_are_far_and_quickly_told() -> None:
    """A value of a megabyte costs no more than a short one, and xids decide."""
    definitions = [define(name, type=name * 150) for name in "cba"]
    assert names(only(catalog_of(*definitions), headers(type="c" * 1_000_000))) == ["a", "b", "c"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20, quick=5))
def test_likeness_is_that_of_the_plain_look(seed: int) -> None:
    """Templates and literals, and values a few letters away from them."""
    rng = Random(seed)
    alphabet = "ab{x}/é."

    def text(most: int) -> str:
        return "".join(rng.choices(("a", "b", "/", "{x}", "é", ".", "abba"), k=rng.randint(1, most)))

    definitions = [mqtt(f"m{number}", text(8)) for number in range(SPELLED)]
    catalog = catalog_of(*definitions)
    for _ in range(60):
        value = list(text(12).replace("{x}", rng.choice(("a", "bb", "c"))))
        for _ in range(rng.randint(0, 3)):
            value[rng.randrange(len(value))] = rng.choice(alphabet)
        line = json.dumps({"protocol": "MQTT/5.0", "native": {"topic_name": "".join(value)}})
        (outcome,) = RecordMatcher(catalog, endpoint=ENDPOINT).decide([line])
        if outcome.get("reason") == "no-match":
            assert nearest_of(outcome) == plain(catalog, line), line
