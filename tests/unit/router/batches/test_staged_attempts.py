"""A batch whose sinks all take files of workers: staged in one pass, and taken over once, wherever the process dies."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from router.batches.batch import StoredBatch
from router.batches.waiting import BatchWaiting
from router.reading import generations
from router.sources import INBOX
from router.state.state import StateFolder
from router.writing.writer import BatchWriter
from tests.support.listed import Died, ListOutcomes, ListSink, Process, World, dying, plan_of

STAGED: Final = ("lake", "files")
STAGED_POINTS: Final = (
    *((ListOutcomes, "stage", nth) for nth in (1, 2, 3, 4)),
    *((ListSink, "commit_staged", nth) for nth in (1, 2, 3)),
    *((StoredBatch, name, 1) for name in ("look", "pin", "spill", "settle")),
    *((BatchWriter, name, 1) for name in ("send_events", "send_dead_letters")),
    (ListOutcomes, "evaluate", 1),
    (ListOutcomes, "release", 1),
)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "name", "nth"), STAGED_POINTS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_dying_at_each_step_of_a_batch_that_is_staged_whole_leaves_each_record_once(
    state: StateFolder, world: World, owner: type, name: str, nth: int, when: str
) -> None:
    world.staging |= {"files"}
    plan = plan_of(STAGED)
    generation = generations.begin(state, INBOX, ())
    with dying(owner, name, when, nth), pytest.raises(Died):
        Process(state, plan, world, generation).batch()
    with dying(ListOutcomes, "list_decisions", "before") as asked:
        process = Process(state, plan, world, generation)
        process.batch()
    assert not asked
    for each in STAGED:
        assert Counter(world.numbers(each)) == Counter(set(range(8)) - {5})
    assert set(world.letters()) == {5}
    assert process.counts() == Counter({"routed": 7, "no-match": 1})
    # A process that ended before it could tidy up leaves files that the next sweeps by their names.
    assert name == "release" or not world.files


def test_what_was_staged_for_a_sink_that_is_away_is_staged_again(state: StateFolder, world: World) -> None:
    world.staging |= {"files"}
    generation = generations.begin(state, INBOX, ())
    process = Process(state, plan_of(STAGED), world, generation)
    world.down = {"files"}
    with dying(BatchWaiting, "_wait", "before"), pytest.raises(Died):
        process.batch()
    assert not world.files
    world.down = set()
    with dying(ListOutcomes, "stage", "before", nth=99) as staged:
        process.batch()
    for each in STAGED:
        assert Counter(world.numbers(each)) == Counter(set(range(8)) - {5})
    # The lake took its share of the batch in this process, and nothing is written for it again.
    assert len(staged) == 2 * len(["files", "dead"])
