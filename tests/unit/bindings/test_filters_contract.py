"""Filters of topics and subjects: made of templates and options, and held against each other (MQTT 5.0 4.7, NATS)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from bindings.mqtt import messages
from bindings.nats import binding as nats

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
    [
        ("nats", "a.*", "a.b", True, True),
        ("nats", "a.>", "a.b.c", True, True),
        ("nats", "a.>", "a", False, False),
        ("nats", "a.*", "a.b.c", False, False),
        ("nats", "a.b/c", "a.*", True, False),
        ("nats", ">", "*.>", True, True),
        ("nats", "*.>", ">", True, False),
        ("mqtt", "a/+", "+/b", True, False),
        ("mqtt", "a/#", "a", True, True),
        ("mqtt", "a/+/#", "a", False, False),
        ("mqtt", "a/+/c", "a/b/d", False, False),
        ("mqtt", "#", "$SYS/x", False, False),
        ("mqtt", "$SYS/#", "$SYS/x", True, True),
        ("mqtt", "$share/g/a/+", "a/b", True, False),
        ("mqtt", "+", "a/b", False, False),
    ],
)
def test_filters_meet_and_cover(kind: str, one: str, other: str, meet: bool, covered: bool) -> None:
    assert LANGUAGES[kind].overlap(one, other) is meet
    assert LANGUAGES[kind].covers(one, other) is covered


@pytest.mark.parametrize(
    ("kind", "template", "expected"),
    [
        ("nats", "a.b", "a.b"),
        ("nats", "a.{x}.b", "a.*.b"),
        ("nats", "a.p{x.y}s.>", "a.*.>"),
        ("nats", "{x.y}", ">"),
        ("nats", "{x}.{y}", "*.*"),
        ("nats", "a.{not a name}", "a.{not a name}"),
        ("mqtt", "plant/{line}/state", "plant/+/state"),
        ("mqtt", "plant/line-{line}/{machine}.x", "plant/+/+"),
        ("mqtt", "{anything}", "#"),
        ("mqtt", "{a}/{b}", "+/+"),
        ("mqtt", "plant/{not a name}", "plant/{not a name}"),
        ("mqtt", "plant/+/#", "plant/+/#"),
        ("mqtt", "$share/g/plant/{line}", "$share/g/plant/+"),
    ],
)
def test_a_template_becomes_a_filter(kind: str, template: str, expected: str) -> None:
    assert LANGUAGES[kind].of_template(template) == expected


@pytest.mark.parametrize(
    ("kind", "templates", "expected"),
    [
        ("nats", ["a.{x}", "a.b", "c", "a.*.>"], ["a.*", "c", "a.*.>"]),
        ("nats", ["a.{x}", "{anything}"], [">"]),
        ("mqtt", ["a/{x}", "a/b", "c"], ["a/+", "c"]),
        (
            "mqtt",
            ["a/b", "a/+", "a/#", "$share/g/a/b", "a/b", "b", "$SYS/x", "+/c"],
            ["a/#", "$share/g/a/b", "b", "$SYS/x", "+/c"],
        ),
    ],
)
def test_templates_become_few_filters(kind: str, templates: list[str], expected: list[str]) -> None:
    assert LANGUAGES[kind].of_templates(templates) == expected


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("nats", {}, None),
        ("nats", {"subject": ""}, None),
        ("nats", {"subject": "a.{x}"}, "a.*"),
        ("nats", {"subject": "a", "subject-filter": "b.>"}, "b.>"),
        ("nats", {"subject": 7}, None),
        ("mqtt", {}, None),
        ("mqtt", {"topic": ""}, None),
        ("mqtt", {"topic": "a/{x}"}, "a/+"),
        ("mqtt", {"topic": "a", "topic-filter": "b/+"}, "b/+"),
        ("mqtt", {"topicFilter": "b/{x}", "consumer-group": "g"}, "b/+"),
        ("mqtt", {"topicfilter": "$share/h/b", "sharename": "g"}, "$share/h/b"),
    ],
)
def test_options_name_a_filter(kind: str, options: dict[str, Any], expected: str | None) -> None:
    assert LANGUAGES[kind].of_options(options) == expected
