"""Every rule of router/MATCHING.md, from tests/conformance/rules: per protocol by ``match``, by the plain reference
matcher and through Spark, with the same outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from catalog.model import PROTOCOLS
from tests.support.rule_ways import Told, by_match, by_reference, by_run, differences
from tests.support.rules import Rule, RuleError, read_rules, suite_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNEQUAL: Final = ("id",)
EACH: Final = 4
"""One of so many rules and protocols goes through Spark in every run, and one of so many records by itself."""
RULES: Final = read_rules()
SUITE: Final = suite_of(RULES)


@cache
def matched() -> Sequence[Told]:
    return by_match(catalog(), SUITE.samples)


@cache
def referred() -> Sequence[Told]:
    return by_reference(catalog(), SUITE.samples)


@cache
def catalog() -> Any:
    return SUITE.catalog()


@pytest.fixture(scope="module")
def ran(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Mapping[int, Told]:
    """All samples that tests ask for through Spark at once, since jobs take their time; what is known to fail must not
    stop the rest.
    """
    asked = {place for item in request.session.items for place in _places(item)}
    sound = [place for place in sorted(asked) if "run" not in SUITE.samples[place].bugs]
    return by_run(spark, catalog(), SUITE.samples, sound, tmp_path_factory.mktemp("rules"))


def _places(item: pytest.Item) -> Sequence[int]:
    """Return the places of the samples that a test is to run."""
    called = getattr(item, "callspec", None)
    return called.params["places"] if called is not None and getattr(item, "originalname", "") == "test_run" else ()


def cells(way: str) -> list[Any]:
    """Give the places of the samples of each rule; those with a known bug in *way* apart, as failing.

    Spark has each rule by some of the protocols in every run, in turn; the others have all protocols at once.
    """
    found: dict[tuple[str, str, str], list[int]] = {}
    for place, sample in enumerate(SUITE.samples):
        protocol = sample.protocol if way == "run" else "all"
        found.setdefault((sample.rule, protocol, sample.bugs.get(way, "")), []).append(place)
    return [
        pytest.param(
            places,
            id=f"{rule}-{protocol}" + ("-bug" if bug else ""),
            marks=[
                *([pytest.mark.xfail(strict=True, reason=bug)] if bug else []),
                *([pytest.mark.full] if way == "run" and number % EACH and not bug else []),
            ],
        )
        for number, ((rule, protocol, bug), places) in enumerate(found.items())
    ]


def hold(places: Sequence[int], outcomes: Sequence[Told] | Mapping[int, Told]) -> None:
    wrong = [
        f"{SUITE.samples[place].place}: {different}\n  {SUITE.samples[place].record}"
        for place in places
        if (different := differences(SUITE.samples[place], place, outcomes[place]))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("places", cells("match"))
def test_match(places: list[int]) -> None:
    hold(places, matched())


@pytest.mark.parametrize("share", [pytest.param(n, marks=[pytest.mark.full] * (n > 0)) for n in range(EACH)])
def test_a_record_by_itself_has_the_outcome_that_it_has_in_columns(share: int) -> None:
    some = SUITE.samples[share::EACH]
    for sample, alone, columns in zip(some, by_match(catalog(), some, together=1), matched()[share::EACH], strict=True):
        assert [_comparable(each) for each in alone] == [_comparable(each) for each in columns], sample.place


@pytest.mark.parametrize("places", cells("reference"))
def test_reference(places: list[int]) -> None:
    hold(places, referred())


@pytest.mark.spark
@pytest.mark.parametrize("places", cells("run"))
def test_run(places: list[int], ran: Mapping[int, Told], spark: SparkSession, tmp_path: Path) -> None:
    alone = not set(places) <= set(ran)
    hold(places, by_run(spark, catalog(), SUITE.samples, places, tmp_path) if alone else ran)


@pytest.mark.spark
def test_match_and_run_say_the_same_to_the_last_word(ran: Mapping[int, Told]) -> None:
    for place, other in ran.items():
        one = matched()[place]
        assert [_comparable(each) for each in one] == [_comparable(each) for each in other], SUITE.samples[place].place


def _comparable(outcome: dict[str, Any]) -> dict[str, Any]:
    """Without what only one of them can tell: the body, and an id made of the record's place."""
    told = {name: value for name, value in outcome.items() if name != "body"}
    event = told.get("cloudevent", {})
    return {**told, "cloudevent": {name: text for name, text in event.items() if name not in UNEQUAL}}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_has_both_kinds_of_record_for_each_protocol_it_applies_to(rule: Any) -> None:
    met = {(sample.protocol, sample.positive) for sample in SUITE.samples if sample.rule == rule.id}
    wanted = {(protocol, kind) for protocol in rule.protocols for kind in (True, False)}
    empty = [f"{protocol} {'positive' if kind else 'negative'}" for protocol, kind in sorted(wanted - met)]
    assert not empty, f"{rule.id} has no record for {', '.join(empty)}; write one, or say why it cannot apply"
    stale = sorted({protocol for protocol, _ in met} & set(rule.inapplicable))
    assert not stale, f"{rule.id} has records for {stale}, to which it is said not to apply"
    assert all(why for why in rule.inapplicable.values())


def test_the_topics_that_decide_outcomes_are_all_there() -> None:
    topics = {rule.id.partition("-")[0].partition(".")[0] for rule in RULES}
    assert topics == {"1", "2", "3", "4", "5", "6", "7", "8", "10", "11"}
    assert {sample.protocol for sample in SUITE.samples} == set(PROTOCOLS)


def test_a_rule_that_cannot_be_read_is_told_by_name(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(
        "- {id: 9.9-x, title: t, cases: [{records: [{txet: a}], messages: {}}]}", "utf-8"
    )
    with pytest.raises(RuleError, match=r"one\.yaml: 9\.9-x case 0: unknown txet"):
        read_rules(tmp_path)


def test_a_word_that_a_protocol_cannot_say_is_told_by_name() -> None:
    case = {"protocols": ["MQTT/3.1.1"], "messages": {"M": {"where": {"other": {"value": "a"}}}}, "records": []}
    with pytest.raises(RuleError, match=r"one\.yaml: 9\.9-x case 0 for MQTT/3\.1\.1: .*one text property"):
        suite_of([Rule("9.9-x", "t", "one.yaml", {}, [case])])
