"""Counts of Arrow batches, as Spark adds them up when it judges some of them again."""

from __future__ import annotations

from itertools import permutations

from router.evaluation.evaluator import TallyAccumulator


def test_a_batch_that_was_judged_again_counts_once() -> None:
    adding = TallyAccumulator()
    tries = [{"0.1": "a", "0.2": "b"}, {"1.1": "c"}, {"0.1": "a", "0.2": "b"}, {}]
    for order in permutations(tries):
        total = adding.zero({})
        for each in order:
            total = adding.addInPlace(total, each)
        assert total == {"0.1": "a", "0.2": "b", "1.1": "c"}
