"""Real-time mode: what it is not able to do is refused by the name of the setting that asks for it."""

from __future__ import annotations

from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.errors import ConfigError
from router.settings import Settings, load_settings

BUS = {"type": "kafka", "bootstrap_servers": "broker:9092", "topic": "out"}
GOOD: dict[str, Any] = {
    "trigger": "realtime",
    "realtime": {"rest": "rest"},
    "sinks": {"bus": BUS, "far": {**BUS, "bootstrap_servers": "other:9092"}, "files": {"type": "jsonl"}},
    "routes": [{"to": "bus"}],
}


def load(folder: Path, told: dict[str, Any]) -> Settings:
    path = folder / "router.yaml"
    path.write_text(yaml.safe_dump(told))
    return load_settings(path, {})


def with_set(place: str, value: Any) -> dict[str, Any]:
    told = deepcopy(GOOD)
    *path, last = place.split(".")
    node: Any = told
    for step in path:
        node = node[int(step)] if step.isdigit() else node.setdefault(step, {})
    if value is None:
        del node[last]
    else:
        node[last] = value
    return told


def test_what_it_is_able_to_do_is_read(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD)
    assert settings.is_real_time and settings.realtime is not None
    assert (settings.realtime.rest, settings.realtime.checkpoint) == ("rest", timedelta(minutes=1))
    # Batches of the rest topic begin as those of a router that says nothing.
    assert settings.between_batches == Settings.model_fields["trigger"].default


@pytest.mark.parametrize(
    ("place", "value", "key", "words"),
    [
        ("realtime", None, "realtime.rest", "is required with trigger: realtime"),
        ("realtime", {}, "realtime.rest", "is required"),
        ("realtime.rest", "out", "realtime.rest", "is also the topic of sink"),
        ("realtime.checkpoint", "4s", "realtime.checkpoint", "greater than or equal to 5 seconds"),
        ("routes.0.to", "files", "sinks.files", "writes to Kafka topics only"),
        ("routes.0.to", ["bus", "far"], "sinks.far.bootstrap_servers", "has another cluster"),
        ("routes.0.to", ["bus", "files"], "routes.0.to", "names several sinks"),
        ("sinks.bus.mode", "structured", "sinks.bus.mode", "use binary"),
        ("match.validate", "always", "match.validate", "does not read bodies"),
        ("routes.0.validate", "always", "routes.0.validate", "does not read bodies"),
        ("dead_letters.max_ratio", 0.5, "dead_letters.max_ratio", "before the ratio is known"),
        ("dead_letters.order", "park", "dead_letters.order", "use continue"),
        ("trigger", "quickly", "trigger", "or realtime"),
    ],
)
def test_what_it_is_not_able_to_do_is_refused_by_name(
    place: str, value: Any, key: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, with_set(place, value))
    named = dict(problem.split(": ", 1) for problem in caught.value.problems)
    assert words in named[key], caught.value.problems


def test_the_rest_topic_may_be_read_out_in_batches(tmp_path: Path) -> None:
    settings = load(tmp_path, {**GOOD, "trigger": "1s"})
    assert not settings.is_real_time and settings.between_batches == timedelta(seconds=1)
    with pytest.raises(ConfigError, match="requires a Kafka sink of events"):
        load(tmp_path, {**GOOD, "trigger": "1s", "routes": [{"to": "files"}]})
