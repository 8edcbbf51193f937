"""The shadow catalog in a worker: it counts what ``xrouter plan`` tells, within its time, and changes no outcome."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any, Final, cast

import pytest

from bindings.envelope import Envelope
from bindings.parts import Part
from bindings.protocols import BINDINGS
from catalog.load import load
from catalog.protocols.properties import CONNECTION_HEADERS
from router.commands.plan import make_file_feed
from router.evaluation.comparing import (
    CHANGED,
    DIFFERENCE_LABELS,
    FAILED,
    FIRST_SAMPLE_ROWS,
    MAX_SAVED_SECONDS,
    MIN_SAMPLE_ROWS,
    SAME,
    Chunk,
    ShadowBudget,
    ShadowCatalog,
    SinksByRoute,
    compare_outcomes,
)
from router.evaluation.evaluator import EVALUATORS, TallyAccumulator, evaluate
from router.evaluation.forwarding import forwarded_header_name
from router.evaluation.outputs import Tally, _forwarded_headers, sum_tallies
from router.evaluation.plan import Evaluator, Plan
from router.matching.record_columns import ExactReading
from router.settings import Settings, settings_from_dict
from tests.support.spark_cluster import catalog, lines, message, record

TOLD: Final[dict[str, Any]] = {
    "sinks": {"events": {"type": "jsonl"}, "alarms": {"type": "jsonl"}, "dead": {"type": "jsonl", "path": "dead"}},
    "routes": [{"when": {"message": "*/Alarm*"}, "to": ["alarms"]}, {"to": ["events"]}],
    "dead_letters": {"sinks": ["dead"]},
}
RECORDS: Final = [record(kind, str(n % 7)) for n in range(60) for kind in ("reading", "alarm", "valve", "door")]


def changed() -> dict[str, Any]:
    """Return the catalog with a definition more, one less, one renamed, and one of other placeholders."""
    new = copy.deepcopy(catalog())
    messages = new["messagegroups"]["Plant"]["messages"]
    messages["Door"] = message("door")
    del messages["Valve"]
    messages["Siren"] = messages.pop("Alarm")
    messages["Reading"]["envelopemetadata"]["subject"]["value"] = "of/{line}"
    return new


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_from_dict({**TOLD, "catalog": {"shadow_share": 10}}, {}, tmp_path)


@pytest.fixture
def plans(tmp_path: Path, settings: Settings) -> tuple[Plan, Plan]:
    made: list[Plan] = []
    for name, tree in (("old", catalog()), ("new", changed())):
        (tmp_path / name).write_text(json.dumps(tree))
        made.append(Plan(load([tmp_path / name]), settings))
    return made[0], made[1]


@pytest.fixture
def chunks(tmp_path: Path) -> list[Chunk]:
    return list(make_file_feed(lines(tmp_path / "records.jsonl", RECORDS), 100_000, None).iter_chunks())


def beside(active: Plan, shadow: ShadowCatalog) -> Evaluator:
    return replace(active.evaluator, shadow=shadow)


def counted(judge: Evaluator, chunks: list[Chunk]) -> Tally:
    counts = (evaluate(chunk.kind, judge, chunk.rows).tally for chunk in chunks)
    return sum_tallies((text for text in counts if text is not None), judge.matcher.targets)


def of_kinds(tally: Tally) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for (_, _, _, what, _, _), number in tally.shadow.items():
        kinds[what] += number
    return kinds


def groups(tally: Tally) -> Iterator[tuple[tuple[str, str, str], int]]:
    yield from (((what, was, now), n) for (*_, what, was, now), n in tally.shadow.items() if what in DIFFERENCE_LABELS)


def test_it_counts_what_plan_tells(plans: tuple[Plan, Plan], chunks: list[Chunk], settings: Settings) -> None:
    old, new = plans
    kinds: Counter[str] = Counter()
    expected: Counter[tuple[str, str, str]] = Counter()
    different = 0
    for chunk in chunks:
        judge = EVALUATORS[chunk.kind]
        both = judge(old.evaluator, chunk.rows), judge(new.evaluator, chunk.rows)
        compared = compare_outcomes(chunk, *both, SinksByRoute.from_settings(settings))
        kinds.update(kind for each in compared.changed for kind in each.kinds)
        expected.update((kind, each.before, each.after) for each in compared.changed for kind in each.kinds)
        different += len(compared.changed)
    assert {"matched", "dead-letter", "definition", "route", "event"} <= set(kinds)

    tally = counted(beside(old, ShadowCatalog.from_plans(old, new)), chunks)
    found = of_kinds(tally)
    assert {kind: found[kind] for kind in kinds} == dict(kinds)
    assert (found[SAME], found[CHANGED]) == (len(RECORDS) - different, different)
    assert Counter(dict(groups(tally))) == expected
    assert {key[:3] for key in tally.shadow} == {(old.epoch, new.epoch, "/endpoints/plant")}
    assert Tally.from_json(json.loads(json.dumps(tally.to_json()))).shadow == tally.shadow


def test_outcomes_and_their_counts_are_those_without_it(plans: tuple[Plan, Plan], chunks: list[Chunk]) -> None:
    old, new = plans
    shadowed = beside(old, ShadowCatalog.from_plans(old, new))
    for chunk in chunks:
        alone, both = (evaluate(chunk.kind, judge, chunk.rows) for judge in (old.evaluator, shadowed))
        assert alone.columns == both.columns
        assert alone.column("context") == both.column("context")
        told, more = (json.loads(each.tally or "{}") for each in (alone, both))
        assert more.pop("shadow")
        assert more == told


def test_what_fails_in_it_is_counted_and_fails_nothing(plans: tuple[Plan, Plan], chunks: list[Chunk]) -> None:
    old, new = plans
    broken = replace(ShadowCatalog.from_plans(old, new), evaluator=cast(Evaluator, object()), shadow_epoch="another")
    tally = counted(beside(old, broken), chunks)
    assert dict(tally.shadow) == {(old.epoch, "another", "/endpoints/plant", FAILED, "AttributeError", ""): 240}
    assert tally.records == counted(old.evaluator, chunks).records


def test_it_takes_no_more_of_the_time_than_its_share() -> None:
    for share, each in ((0.25, 2.0), (0.25, 0.1), (3.0, 2.0), (0.01, 30.0)):
        allowance, judged, spent, looked_at, worst = ShadowBudget(share), 0.0, 0.0, 0, 0.0
        for rows in (10_000, 300, 40, 40, 5_000, 1) * 200:
            allowance.earn(rows * 1e-5)
            judged += rows * 1e-5
            left = rows
            while number := allowance.allowed_rows(left):
                # One of many is ten times as slow.
                seconds = number * 1e-5 * each * (10 if looked_at % 7 == 3 else 1)
                allowance.spend(seconds, number)
                spent, worst, looked_at, left = spent + seconds, max(worst, seconds), looked_at + 1, left - number
        assert looked_at
        assert spent <= judged * share + worst


def test_few_rows_are_no_look_and_time_is_not_saved_up_for_ever() -> None:
    allowance = ShadowBudget(1.0)
    assert allowance.allowed_rows(10) == 0
    for _ in range(100):
        allowance.earn(1.0)
    assert allowance.allowed_rows(20_000) == FIRST_SAMPLE_ROWS
    allowance.spend(1.0, 100)
    assert allowance.allowed_rows(20_000) == int(MAX_SAVED_SECONDS / 0.01)
    allowance.spend(0.9, 90)
    assert allowance.allowed_rows(20_000) == 0
    assert allowance.allowed_rows(5) == 5 < MIN_SAMPLE_ROWS


# Headers that go on with a record which becomes an event.


KEPT = ("x-receipt", "accept", "date")


def test_no_header_that_speaks_of_the_connection_goes_on() -> None:
    parts = [Part(f"headers.{name}", b"v") for name in (*sorted(CONNECTION_HEADERS), *KEPT)]
    reading = ExactReading(parts, b"", Envelope("native"))
    assert {"proxy-connection", "trailer", "upgrade"} < CONNECTION_HEADERS
    assert _forwarded_headers(reading, list(BINDINGS).index("HTTP")) == [(name, b"v") for name in KEPT]


def test_such_names_of_other_protocols_say_nothing_of_a_connection() -> None:
    assert (
        forwarded_header_name("user_properties.host") == forwarded_header_name("application-properties.host") == "host"
    )
    assert (
        forwarded_header_name("headers.host")
        is forwarded_header_name("query.host")
        is forwarded_header_name("path")
        is None
    )


# Counts of Arrow batches, as Spark adds them up when it judges some of them again.


def test_a_batch_that_was_judged_again_counts_once() -> None:
    adding = TallyAccumulator()
    tries = [{"0.1": "a", "0.2": "b"}, {"1.1": "c"}, {"0.1": "a", "0.2": "b"}, {}]
    for order in permutations(tries):
        total = adding.zero({})
        for each in order:
            total = adding.addInPlace(total, each)
        assert total == {"0.1": "a", "0.2": "b", "1.1": "c"}
