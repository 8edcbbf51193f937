"""Records that sinks rejected: one outcome each, whatever the number of sinks, and sums that stay what they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.model import Catalog, Definition, Endpoint, Property
from router.evaluation.outputs import DEAD_LETTER, ROUTED, Tally
from router.routing import HEADER_RESERVE, Routes, SizeLimits
from router.settings import KafkaSink, settings_from_dict
from router.settings.routes import parse_name
from router.sinks import RejectedRow
from router.writing.kafka_records import MAX_HEADER_CHARS
from router.writing.outcomes import SINK_REJECTED, Rejections, format_detail, parse_sinks
from router.writing.writer import may_exceed_cap
from tests.support.cases import read_cases

CASES: Final[Mapping[str, Any]] = read_cases(Path(__file__).parents[3] / "cases" / "values" / "templates.yaml")

M, E = "/messagegroups/G/messages/M", "/endpoints/E"


def test_a_record_rejected_by_two_sinks_counts_once_and_names_both(tmp_path: Path) -> None:
    bus = {"type": "kafka", "bootstrap_servers": "broker:9092"}
    told = {
        "sinks": {
            "out": {**bus, "topic": "out"},
            "dead": {**bus, "topic": "d.{endpointid}.{reason}", "max_message_bytes": 70_000},
        },
        "routes": [
            {"when": {"outcome": "dead-letter", "endpoint": "/endpoints/F"}, "to": "out"},
            {"when": {"outcome": "dead-letter", "reason": SINK_REJECTED}, "to": "dead"},
            {"to": ["out"]},
        ],
        "dead_letters": {"sinks": ["out"]},
    }
    settings = settings_from_dict(told, {}, tmp_path)
    rejected = Rejections(Routes(settings), SizeLimits(settings))
    assert not rejected
    rejected.add("a", [RejectedRow("t-0-1", "too odd", E, M), RejectedRow("t-0-2", "too large", E, M)])
    rejected.add("b", [RejectedRow("t-0-1", "no", E, M)])
    rejected.add("c", [])
    assert rejected
    assert rejected.counts == Counter({(E, M): 2})
    assert rejected.to_table().to_pydict() == {
        "at": ["t-0-1", "t-0-2"],
        "detail": ["sink a: too odd; sink b: no", "sink a: too large"],
        "letters_dead": ["d.E.sink-rejected"] * 2,
        "letters_out": ["out"] * 2,
        "route": [-3] * 2,
        "limit": [70_000 - HEADER_RESERVE] * 2,
    }


def test_a_tally_keeps_its_sum() -> None:
    tally = Tally(Counter({(E, ROUTED, ""): 5, (E, DEAD_LETTER, "no-match"): 1}), Counter({(E, M): 5}))
    tally.reject(Counter({(E, M): 2}), SINK_REJECTED)
    assert (tally.total, tally.dead_letters) == (6, 3)
    assert tally.records[(E, ROUTED, "")] == 3
    assert tally.records[(E, DEAD_LETTER, "sink-rejected")] == 2
    assert tally.definitions[E, M] == 3


# The detail of a refused record names the sinks that lack it, whatever they are called and whatever they said.


NAMES = st.text(alphabet="ab-_.:;% ", min_size=1, max_size=12)
REASONS = st.one_of(st.text(max_size=40), st.just("no; sink other: never"), st.just("x" * 6_000))


@given(st.dictionaries(NAMES, REASONS, min_size=1, max_size=12))
def test_names_are_read_back_and_fit_into_a_header(reasons: dict[str, str]) -> None:
    detail = format_detail(reasons)
    assert parse_sinks(detail) == tuple(reasons)
    assert len(detail) <= MAX_HEADER_CHARS


def test_other_details_name_no_sink() -> None:
    assert parse_sinks("70000 bytes of key and data; a sink of its route accepts 67232") == ()
    assert parse_sinks("") == ()


# Which templates of Kafka topics have to be counted, as far as the catalog tells.


TYPED = Property("type", "string", "t")


def catalog(*attributes: Property) -> Catalog:
    definitions = {f"/m/{n}": Definition(f"/m/{n}", "/m", envelopemetadata=attributes) for n in range(3)}
    return Catalog(definitions, endpoints={f"/endpoints/{n}": Endpoint(f"/endpoints/{n}") for n in range(2)})


@pytest.mark.parametrize(("template", "most", "counted"), CASES["counted"])
def test_only_what_the_catalog_does_not_bound_is_counted(template: str, most: int, counted: bool) -> None:
    sink = KafkaSink(type="kafka", bootstrap_servers="b", topic=template, max_destinations=most)
    assert may_exceed_cap(sink, parse_name(template), catalog(TYPED)) is counted


@pytest.mark.parametrize("prop", [Property("type", "string", "t.{x}"), Property("type", "string")])
def test_an_attribute_that_one_definition_leaves_open_is_counted(prop: Property) -> None:
    sink = KafkaSink(type="kafka", bootstrap_servers="b", topic="{type}")
    assert may_exceed_cap(sink, parse_name("{type}"), catalog(prop))
