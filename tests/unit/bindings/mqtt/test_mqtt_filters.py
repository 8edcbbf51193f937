"""Topic filters against the tables of MQTT 5.0 section 4.7."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from bindings.mqtt import messages

LEVELS = st.sampled_from(["", "a", "b", "$SYS", "+", "é"])
TOPICS = st.lists(st.sampled_from(["", "a", "b", "$SYS", "é"]), min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.tuples(st.lists(LEVELS, min_size=1, max_size=4).map("/".join), st.sampled_from(["", "/#"])).map("".join)


@pytest.mark.parametrize(
    ("text", "should", "should_not"),
    [
        ("sport/tennis/player1/#", ["sport/tennis/player1", "sport/tennis/player1/score/x"], ["sport/tennis/player2"]),
        ("sport/+", ["sport/", "sport/x"], ["sport", "sport/x/y"]),
        ("+/+", ["/finance"], ["finance"]),
        ("/+", ["/finance"], ["finance"]),
        ("#", ["a", "a/b", "/"], ["$SYS/a", "$x"]),
        ("+/monitor", ["a/monitor"], ["$SYS/monitor"]),
        ("$SYS/#", ["$SYS", "$SYS/a"], ["SYS/a"]),
        ("$share/group/a/+", ["a/b"], ["a", "$share/group/a/b"]),
        ("a/$b", ["a/$b"], ["a/b"]),
        ("é/+", ["é/ü"], ["e/ü"]),
    ],
)
def test_matches(text: str, should: list[str], should_not: list[str]) -> None:
    assert [topic for topic in should if not messages.matches(text, topic)] == []
    assert [topic for topic in should_not if messages.matches(text, topic)] == []


@given(FILTERS.filter(bool), TOPICS)
def test_matches_as_paho_does(text: str, topic: str) -> None:
    assert messages.matches(text, topic) == topic_matches_sub(text, topic)


@given(FILTERS.filter(bool), FILTERS.filter(bool), TOPICS)
def test_what_is_covered_is_matched(wide: str, narrow: str, topic: str) -> None:
    if messages.covers(wide, narrow) and messages.matches(narrow, topic):
        assert messages.matches(wide, topic)


def test_what_is_covered_is_left_out() -> None:
    asked = ["a/b", "a/+", "a/#", "$share/g/a/b", "a/b", "b", "$SYS/x", "+/c"]
    assert messages.drop_covered(asked) == ["a/#", "$share/g/a/b", "b", "$SYS/x", "+/c"]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plant/{line}/state", "plant/+/state"),
        ("plant/line-{line}/{machine}.x", "plant/+/+"),
        ("{anything}", "#"),
        ("{a}/{b}", "+/+"),
        ("plant/{not a name}", "plant/{not a name}"),
        ("plant/+/#", "plant/+/#"),
        ("$share/g/plant/{line}", "$share/g/plant/+"),
    ],
)
def test_templates_become_filters(template: str, expected: str) -> None:
    assert messages.filter_of_template(template) == expected


def test_templates_of_a_group_become_few_filters() -> None:
    assert messages.filters_of_templates(["a/{x}", "a/b", "c"]) == ["a/+", "c"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"topic": ""}, None),
        ({"topic": "a/{x}"}, "a/+"),
        ({"topic": "a", "topic-filter": "b/+"}, "b/+"),
        ({"topicFilter": "b/{x}", "consumer-group": "g"}, "b/+"),
        ({"topicfilter": "$share/h/b", "sharename": "g"}, "$share/h/b"),
    ],
)
def test_options_name_a_filter(options: dict[str, object], expected: str | None) -> None:
    assert messages.filter_of_options(options) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/#/b",
        "a#",
        "a/b+",
        "+a",
        "a\0b",
        "\ud800",
        "x" * 65_536,
        "$share/g",
        "$share/g/",
        "$share//a",
        "$share/+/a",
    ],
)
def test_no_filters(text: str) -> None:
    with pytest.raises(messages.TopicFilterError):
        messages.check_filter(text)


@pytest.mark.parametrize("options", [{"topic": 7}, {"topic": "a#"}])
def test_options_that_name_none(options: dict[str, object]) -> None:
    with pytest.raises(messages.TopicFilterError):
        messages.filter_of_options(options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, "a/+"), ({"consumer-group": "g"}, "$share/g/a/+"), ({"group": 3}, None), ({"group": "x/y"}, None)],
)
def test_options_share_a_filter(options: dict[str, object], expected: str | None) -> None:
    if expected is not None:
        assert messages.share_filter("a/+", options) == expected
        assert messages.share_filter("$share/h/a/+", options) == "$share/h/a/+"
        return
    with pytest.raises(messages.TopicFilterError):
        messages.share_filter("a/+", options)


@given(FILTERS.filter(bool), FILTERS.filter(bool), TOPICS)
def test_filters_that_take_one_topic_overlap(one: str, other: str, topic: str) -> None:
    if messages.matches(one, topic) and messages.matches(other, topic):
        assert messages.overlap(one, other)
    assert messages.overlap(one, other) == messages.overlap(other, one)
    if messages.covers(one, other):
        assert messages.overlap(one, other)


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("a/+", "+/b", True),
        ("a/#", "a", True),
        ("a/+/#", "a", False),
        ("a/+/c", "a/b/d", False),
        ("#", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("$share/g/a/+", "a/b", True),
        ("+", "a/b", False),
    ],
)
def test_overlap(one: str, other: str, meet: bool) -> None:
    assert messages.overlap(one, other) is meet


@pytest.mark.parametrize(("topic", "fault"), [("a/b", ""), ("a/+", "wildcards"), ("", "empty"), ("a\0", "U+0000")])
def test_topics_to_publish_to(topic: str, fault: str) -> None:
    found = messages.topic_fault(topic)
    assert fault in found
    assert bool(found) == bool(fault)
