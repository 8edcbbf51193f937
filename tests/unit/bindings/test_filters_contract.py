"""Filters of topics and subjects: made of templates and options, and held against each other (MQTT 5.0 4.7, NATS)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from bindings.mqtt import messages
from bindings.nats import binding as nats
from tests.support.cases import read_cases

CASES: dict[str, Any] = read_cases(Path(__file__).parents[2] / "cases" / "values" / "filters.yaml")

Texts = st.SearchStrategy[str]


def takes(wanted: str, subject: str) -> bool:
    """NATS' rule itself, one token after the other."""
    match wanted.split("."), subject.split("."):
        case [[">"], tokens]:
            return bool(tokens)
        case [[first], [token]]:
            return first in ("*", token)
        case [[first, *rest], [token, *others]] if rest and others:
            return first in ("*", token) and takes(".".join(rest), ".".join(others))
    return False


@dataclass(frozen=True)
class Language:
    """How a protocol writes filters, and what ours do with them."""

    covers: Callable[[str, str], bool]
    overlap: Callable[[str, str], bool]
    matches: Callable[[str, str], bool]
    of_template: Callable[[str], str]
    of_templates: Callable[[list[str]], list[str]]
    of_options: Callable[[dict[str, Any]], str | None]
    levels: list[str]
    separator: str
    rest: str

    def filters(self, *wild: str) -> Texts:
        levels = st.lists(st.sampled_from([*self.levels, *wild]), min_size=1, max_size=4).map(self.separator.join)
        ends = st.sampled_from(["", f"{self.separator}{self.rest}"] if wild else [""])
        return st.tuples(levels, ends).map("".join).filter(bool)


LANGUAGES: Final = {
    "mqtt": Language(
        messages.covers,
        messages.overlap,
        messages.matches,
        messages.filter_of_template,
        messages.filters_of_templates,
        messages.filter_of_options,
        ["", "a", "b", "$SYS", "é"],
        "/",
        "#",
    ),
    "nats": Language(
        nats.covers,
        nats.overlap,
        takes,
        nats.subject_of_template,
        nats.subjects_of_templates,
        nats.subject_of_options,
        ["a", "b", "é"],
        ".",
        ">",
    ),
}


@pytest.mark.parametrize(("kind", "wild"), [("mqtt", "+"), ("nats", "*")])
@given(st.data())
def test_what_is_covered_is_taken_and_what_both_take_overlaps(kind: str, wild: str, data: st.DataObject) -> None:
    language = LANGUAGES[kind]
    one, other = data.draw(language.filters(wild)), data.draw(language.filters(wild))
    topic = data.draw(language.filters())
    if language.covers(one, other):
        assert language.overlap(one, other)
        assert language.matches(one, topic) or not language.matches(other, topic)
    if language.matches(one, topic) and language.matches(other, topic):
        assert language.overlap(one, other)
    assert language.overlap(one, other) == language.overlap(other, one)
    if kind == "mqtt":
        assert messages.matches(one, topic) == topic_matches_sub(one, topic)


@pytest.mark.parametrize(
    ("kind", "one", "other", "meet", "covered"),
    CASES["pairs"],
)
def test_filters_meet_and_cover(kind: str, one: str, other: str, meet: bool, covered: bool) -> None:
    assert LANGUAGES[kind].overlap(one, other) is meet
    assert LANGUAGES[kind].covers(one, other) is covered


@pytest.mark.parametrize(
    ("kind", "template", "expected"),
    CASES["templates"],
)
def test_a_template_becomes_a_filter(kind: str, template: str, expected: str) -> None:
    assert LANGUAGES[kind].of_template(template) == expected


@pytest.mark.parametrize(
    ("kind", "templates", "expected"),
    CASES["several"],
)
def test_templates_become_few_filters(kind: str, templates: list[str], expected: list[str]) -> None:
    assert LANGUAGES[kind].of_templates(templates) == expected


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    CASES["options"],
)
def test_options_name_a_filter(kind: str, options: dict[str, Any], expected: str | None) -> None:
    assert LANGUAGES[kind].of_options(options) == expected
