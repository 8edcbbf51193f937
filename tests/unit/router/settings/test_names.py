"""Destination names: every value escaped, distinct ones distinct, none that leads astray."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.settings.routes import (
    DEAD_LETTER_VARIABLES,
    Escape,
    NameTemplateError,
    escape_value,
    make_dead_letter_values,
    make_event_values,
    parse_name,
)
from tests.support.cases import read_cases

CASES: dict[str, Any] = read_cases(Path(__file__).parents[3] / "cases" / "values" / "names.yaml")

SAFE = re.compile(r"[A-Za-z0-9._-]+")
ESCAPES: list[Escape] = ["_", "%"]


@pytest.mark.parametrize(
    ("value", "kafka", "file"),
    [*CASES["escapes"], ("\ud800", "_ED_A0_80", "%ED%A0%80")],
)
def test_escape(value: str, kafka: str, file: str) -> None:
    assert escape_value(value, "_") == kafka
    assert escape_value(value, "%") == file


@pytest.mark.parametrize("escape", ESCAPES)
@given(st.text(min_size=1, max_size=6, alphabet="_%/.2F5é A"), st.text(min_size=1, max_size=6, alphabet="_%/.2F5é A"))
def test_distinct_values_stay_distinct(escape: Escape, one: str, other: str) -> None:
    assert (escape_value(one, escape) == escape_value(other, escape)) == (one == other)


@given(st.text(max_size=400), st.text(max_size=400))
def test_names_are_always_legal(group: str, context: str) -> None:
    values = {"messagegroup": group, "context.x": context}
    for template in ("{messagegroup}", "{messagegroup}{context.x}", "e.{context.x}"):
        name = parse_name(template).expand(values)
        assert SAFE.fullmatch(name)
        assert name not in (".", "..")
        assert len(name) <= 249


def test_values_of_an_event() -> None:
    values = make_event_values("/messagegroups/Contoso.Sensors/messages/M", "/endpoints/E", "T", {"plant": "7"})
    template = "{messagegroup}.{messageid}.{endpointid}.{type}.{context.plant}.{context.none}"
    assert parse_name(template).expand(values) == "Contoso.Sensors.M.E.T.7._"
    assert parse_name(template).variables[-1] == "context.none"
    assert make_event_values("/endpoints/E/messages/M", "/endpoints/E", "T", {})["messagegroup"] == "E"
    assert make_event_values("", "", "", {})["messagegroup"] == ""


def test_values_of_the_event_itself() -> None:
    told = {"type": "T", "source": "/a/b", "ext": "e", "subject": ""}
    values = make_event_values("/messagegroups/G/messages/M", "/endpoints/E", "", {}, told)
    assert parse_name("{type}.{source}.{attributes.ext}.{attributes.type}").expand(values) == "T._2Fa_2Fb.e.T"
    assert parse_name("{subject}.{attributes.none}").expand(values) == "_._"


@pytest.mark.parametrize(
    ("template", "name", "missing"),
    CASES["missing"],
)
def test_what_is_missing_has_a_default_or_a_placeholder(template: str, name: str | None, missing: list[str]) -> None:
    values = make_event_values("/m", "/e", "T", {}, {"subject": ""})
    if name is None:
        with pytest.raises(NameTemplateError, match=r"no default after \{context.plant\|"):
            parse_name(template)
        return
    assert parse_name(template).expand(values) == name
    assert list(parse_name(template).missing(values)) == missing


def test_what_is_not_known_yet_stays_as_it_was_written() -> None:
    template = parse_name("e.{type}.{context.plant|none}.{subject}.{source|-}")
    filled = template.fill_known({"type": "a/b", "source": ""}, escape_value)
    assert filled == "e.a_2Fb.{context.plant|none}.{subject}.-"


def test_long_names_end_in_a_digest() -> None:
    one, other = (parse_name("{type}").expand({"type": "x" * 300 + end}) for end in "ab")
    assert len(one) == len(other) == 249
    assert one != other


@pytest.mark.parametrize(
    ("template", "fault"),
    CASES["faults"],
)
def test_bad_templates(template: str, fault: str) -> None:
    with pytest.raises(NameTemplateError, match=fault):
        parse_name(template)


def test_dead_letters_have_no_definition() -> None:
    values = make_dead_letter_values("/endpoints/E", "no-match")
    assert parse_name("dead.{endpointid}.{reason}", DEAD_LETTER_VARIABLES).expand(values) == "dead.E.no-match"
    with pytest.raises(NameTemplateError, match=r"unknown \{messagegroup\}, \{context\.x\}"):
        parse_name("{messagegroup}{context.x}", DEAD_LETTER_VARIABLES)
