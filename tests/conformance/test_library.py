"""The library says of records what ``xrouter match`` and ``run`` say, over every rule of router/MATCHING.md.

``tests/integration/test_library_on_spark.py`` asks the same of DataFrames.
"""

from __future__ import annotations

import pyarrow as pa

from tests.support.library_cases import PLACES, SUITE, differences, inputs, suite_catalog
from tests.support.rule_ways import events_of


def test_columns_say_what_single_records_say() -> None:
    asked = 0
    for given in inputs():
        if given.kind == "kafka":
            found = given.matcher.match_table(pa.Table.from_batches([given.rows])).to_pylist()
        else:
            found = given.matcher.match_batch(given.kind, given.rows).to_pylist()
        assert differences(given, found) == {}
        asked += len(given.places)
    assert asked == len(PLACES) > 500


def test_events_of_a_batch_have_an_outcome_each() -> None:
    batches = [place for place in PLACES if len(SUITE.samples[place].expected) > 1]
    outcome = suite_catalog().match(SUITE.samples[batches[0]].record)
    assert outcome.outcome == "batch"
    assert len(events_of({"outcome": "batch", "events": list(outcome.events)})) == len(
        SUITE.samples[batches[0]].expected
    )
