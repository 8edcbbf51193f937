"""Subjects from templates and options, and how they are held against each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.nats import binding

TOKENS = st.sampled_from(["a", "b", "*", "é"])
FILTERS = st.tuples(st.lists(TOKENS, min_size=1, max_size=4).map(".".join), st.sampled_from(["", ".>"])).map("".join)
PLAIN = st.lists(st.sampled_from(["a", "b", "é"]), min_size=1, max_size=5).map(".".join)


def takes(wanted: str, subject: str) -> bool:
    """The rule itself, one token after the other."""
    match wanted.split("."), subject.split("."):
        case [[">"], tokens]:
            return bool(tokens)
        case [[first], [token]]:
            return first in ("*", token)
        case [[first, *rest], [token, *others]] if rest and others:
            return first in ("*", token) and takes(".".join(rest), ".".join(others))
    return False


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("a.b", "a.b"),
        ("a.{x}.b", "a.*.b"),
        ("a.p{x.y}s.>", "a.*.>"),
        ("{x}", ">"),
        ("{x.y}", ">"),
        ("{x}.{y}", "*.*"),
        ("a.{not a name}", "a.{not a name}"),
    ],
)
def test_a_subject_template_becomes_a_filter(template: str, expected: str) -> None:
    assert binding.subject_of_template(template) == expected


def test_templates_of_a_group_become_few_subjects() -> None:
    assert binding.subjects_of_templates(["a.{x}", "a.b", "c", "a.*.>"]) == ["a.*", "c", "a.*.>"]
    assert binding.subjects_of_templates(["a.{x}", "{anything}"]) == [">"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"subject": ""}, None),
        ({"subject": "a.{x}"}, "a.*"),
        ({"subject": "a", "subject-filter": "b.>"}, "b.>"),
        ({"subject": 7}, None),
    ],
)
def test_options_name_a_subject(options: dict[str, Any], expected: str | None) -> None:
    assert binding.subject_of_options(options) == expected


@given(FILTERS, FILTERS, PLAIN)
def test_what_is_covered_is_taken_and_what_both_take_overlaps(one: str, other: str, subject: str) -> None:
    if binding.covers(one, other):
        assert binding.overlap(one, other)
        assert takes(one, subject) or not takes(other, subject)
    if takes(one, subject) and takes(other, subject):
        assert binding.overlap(one, other)
    assert binding.overlap(one, other) == binding.overlap(other, one)


@pytest.mark.parametrize(
    ("one", "other", "meet", "covered"),
    [
        ("a.*", "a.b", True, True),
        ("a.>", "a.b.c", True, True),
        ("a.>", "a", False, False),
        ("a.*", "a.b.c", False, False),
        ("a.b/c", "a.*", True, False),
        (">", "*.>", True, True),
        ("*.>", ">", True, False),
    ],
)
def test_subjects_meet_and_cover(one: str, other: str, meet: bool, covered: bool) -> None:
    assert binding.overlap(one, other) is meet
    assert binding.covers(one, other) is covered
