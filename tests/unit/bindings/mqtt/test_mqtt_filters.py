"""Topic filters against the tables of MQTT 5.0 section 4.7."""

from __future__ import annotations

import pytest

from bindings.mqtt import messages


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


@pytest.mark.parametrize(("topic", "fault"), [("a/b", ""), ("a/+", "wildcards"), ("", "empty"), ("a\0", "U+0000")])
def test_topics_to_publish_to(topic: str, fault: str) -> None:
    found = messages.topic_fault(topic)
    assert fault in found
    assert bool(found) == bool(fault)
