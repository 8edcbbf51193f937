"""Each case of ``tests/cases/suggest.yaml``: what is drafted from records; and drafting ends, whatever they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.convert import to_json_text
from catalog.documents.documents import Document
from catalog.documents.fetching import Fetcher
from catalog.findings import Findings
from catalog.load import build_catalog, load
from catalog.model import PROTOCOLS
from catalog.parsing.texts import parse_text
from catalog.record import Record
from router.commands.dead_letters.drafts import (
    MAX_KINDS,
    TOO_MANY_KINDS,
    FrequencyTable,
    Traits,
    extract_traits,
)
from router.commands.dead_letters.suggest import BaseCatalog, suggest
from router.commands.emit.producer import encode_record_line
from router.errors import RouterError
from router.matching.records import RecordMatcher
from tests.support.cases import examples, read_cases
from tests.support.commands import NO, fits

CASES: Final = Path(__file__).resolve().parents[4] / "cases" / "suggest.yaml"


def make_word(number: int) -> str:
    """Return a word that does not look like an id."""
    return "".join("abcdefghij"[int(digit)] for digit in str(number))


def write_catalog(case: dict[str, Any], file: Path) -> BaseCatalog:
    endpoints = {
        name: {
            "usage": ["consumer"],
            "protocol": protocol,
            "messagegroups": [f"/messagegroups/{group}" for group in groups],
        }
        for name, (protocol, *groups) in case.get("endpoints", {"e": ["MQTT/5.0", "G"]}).items()
    }
    groups = case.get("groups", {"G": {"messages": {}}})
    file.write_text(json.dumps({"specversion": "1.0-rc4", "endpoints": endpoints, "messagegroups": groups}))
    return BaseCatalog([file], Fetcher(network=False))


def make_records(form: dict[str, Any]) -> list[Record]:
    """Return the records that one entry of a case stands for."""
    native = {**({"topic_name": form["topic"]} if "topic" in form else {}), **form.get("native", {})}
    body = form.get("body", {})
    whole = json.dumps([native, body if isinstance(body, str) else json.dumps(body)])
    filled = (
        json.loads(whole.replace("{n}", str(number)).replace("{w}", make_word(number)))
        for number in range(form.get("times", 9))
    )
    place = (form.get("protocol", "MQTT/5.0"), form.get("endpoint", "/endpoints/e"))
    return [Record(place[0], native, body.encode(), place[1]) for native, body in filled]


@pytest.mark.parametrize("case", read_cases(CASES), ids=lambda case: case["case"])
def test_drafts_are_as_their_case_says(case: dict[str, Any], tmp_path: Path) -> None:
    basis = write_catalog(case, tmp_path / "catalog.json")
    kinds = [make_records(form) for form in case["records"]]
    records = [record for kind in kinds for record in kind]
    options = {"fewest": 1, "hides": lambda name, path: name in case.get("hides", ()), **case.get("suggest", {})}
    if "error" in case:
        with pytest.raises(RouterError, match=case["error"]):
            suggest(records, basis, **options)
        return
    found = suggest(records, basis, **options)
    groups = found.fragment.get("messagegroups", {})
    drafts = {f"{group}/{name}": each for group in groups for name, each in groups[group]["messages"].items()}
    assert case.get("drafts", [*drafts]) == [*drafts] and all(each.matched == 1 for each in found.drafts)
    assert case.get("addresses") in (None, sorted(each.address for each in found.drafts))
    if "message" in case:
        ((message),) = drafts.values()
        assert fits(case["message"], message), message
    told = {name: getattr(found, name) for name in ("attached", "left_out", "fragment")}
    told["notes"] = [note for each in found.drafts for note in each.notes]
    assert all(fits(value, told[name]) for name, value in case.get("found", {}).items()), told
    assert not [text for text in case.get(NO, ()) if text in json.dumps(found.fragment)]
    if not case.get("lost"):
        (tmp_path / "drafts.json").write_text(json.dumps(found.fragment))
        matcher = RecordMatcher(load([tmp_path / "catalog.json", tmp_path / "drafts.json"]), validation="always")
        routed = list(matcher.outcomes(encode_record_line(record) for record in records))
        assert {each["outcome"] for each in routed} <= {"routed"}, routed
        due = [name for kind, name in zip(kinds, case.get("become", ()), strict=False) for _ in kind]
        became = ["/".join(each["message"].split("/")[2::2]) for each in routed]
        assert due in ([], became)


def traits(topic: str, body: bytes = b"{}") -> Traits:
    found = extract_traits(
        Record("MQTT/5.0", {"topic_name": topic}, body), lambda protocol: False, lambda name, path: False
    )
    assert isinstance(found, Traits)
    return found


def test_a_sample_is_bounded_and_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.commands.dead_letters.drafts.MAX_SAMPLED", 10)
    monkeypatch.setattr("router.commands.dead_letters.drafts.MAX_BYTES", 100_000)
    table = FrequencyTable()
    for number in range(1000):
        table.add(traits(f"a/{number}"))
        table.add(traits(f"b/{number}/c", b"x" * 5_000))
    assert [(each.letters, len(each.records)) for each in table.list_drafts(1)] == [(1000, 6), (1000, 6)]


def test_kinds_of_large_records_do_not_take_ever_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.commands.dead_letters.drafts.MAX_BYTES", 100_000)
    table = FrequencyTable()
    for number in range(100):
        table.add(traits(f"{make_word(number)}/x", b"x" * 5_000))
    assert table.left_out[TOO_MANY_KINDS] == 100 - sum(each.letters for each in table.list_drafts(1)) > 80


def test_there_are_not_ever_more_kinds_or_words() -> None:
    table = FrequencyTable()
    table.add(traits("/" * 998))
    assert [each.address for each in table.list_drafts(1)] == [""]
    for number in range(MAX_KINDS + 4):
        table.add(traits(f"a{'/' * (number % 100)}{make_word(number)}"))
    assert table.left_out == {TOO_MANY_KINDS: 5}


# Whatever the letters hold, suggesting ends, and what it gives is a catalog that loads.

TEXT: Final = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", "a/b/7", "a/b/c", "a//b", "{x}/7", "+/#", "a.b.9", "*.>", "%zz/é", "v1", "2026-01-02", "text/plain", "1.0"]
    ),
)
NAMES: Final = st.sampled_from(
    ["specversion", "id", "source", "type", "subject", "typ", "content-type", "x", "x.y", "", "X Y", "data", "cookie"]
)
ENTRIES: Final = st.lists(
    st.one_of(
        st.builds(lambda name, value: {"name": name, "value": value}, NAMES | TEXT, TEXT | st.none() | st.integers()),
        st.builds(lambda name: {"name": f"ce-{name}", "value": "1.0"}, NAMES),
        st.builds(lambda name: {"name": f"ce_{name}", "value": "1.0"}, NAMES),
    ),
    max_size=5,
)
MAPS: Final = st.dictionaries(NAMES | TEXT, TEXT | st.integers() | st.booleans(), max_size=4)
NATIVE: Final[st.SearchStrategy[dict[str, Any]]] = st.fixed_dictionaries(
    {},
    optional={
        "topic_name": TEXT,
        "topic": TEXT,
        "subject": TEXT,
        "path": TEXT,
        "method": TEXT,
        "key": TEXT,
        "status": TEXT | st.integers(),
        "content_type": TEXT,
        "headers": ENTRIES,
        "query": ENTRIES,
        "user_properties": ENTRIES,
        "properties": MAPS,
        "application-properties": MAPS,
        "qos": st.integers(),
    },
)
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
BODIES: Final = st.one_of(st.none(), st.binary(max_size=8), JSON.map(lambda value: to_json_text({"v": value}).encode()))
ENDPOINTS: Final = st.sampled_from([None, "/endpoints/e", "/endpoints/new", "/endpoints/a b", "odd", ""])
RECORDS: Final = st.builds(Record, st.sampled_from([*PROTOCOLS, "MQTT", "HTTP/1.1", "odd"]), NATIVE, BODIES, ENDPOINTS)
CATALOG: Final = (
    '{"endpoints": {"e": {"usage": ["consumer"], "messagegroups": ["/messagegroups/G"]}}, "messagegroups": {"G":'
    ' {"messages": {"M": {"protocol": "NATS", "protocoloptions": {"subject": {"value": "known.{x}"}}}}}}}'
)


@pytest.mark.slow
@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.lists(RECORDS, max_size=8), st.sampled_from([1, 2]))
def test_any_records_give_a_fragment_that_loads_without_errors(
    tmp_path_factory: Any, records: list[Record], least: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "suggest-robustness.json"
    if not file.exists():
        file.write_text(CATALOG)
    found = suggest([*records, *records], BaseCatalog([file], Fetcher(network=False)), fewest=least)

    text = to_json_text(found.fragment)
    alone = build_catalog([Document("drafts", parse_text("drafts", text.encode()).tree)], Findings())
    if found.drafts:
        assert {each.xid for each in found.drafts} == set(alone.definitions)
        assert not [each for each in alone.findings if each.severity == "error"]
    assert sum(each.letters for each in found.drafts) + sum(found.left_out.values()) == 2 * len(records)
    assert not [each for each in found.findings if each.startswith("error")]
