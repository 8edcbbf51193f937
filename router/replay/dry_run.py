"""What would become of dead letters under the catalog and settings of now: by the plan of ``run``, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from router.judging.judging import INBOX_COLUMNS, outcome_lists
from router.judging.plan import Plan
from router.letters.letter import Letter
from router.replay.rows import rows_of
from router.state.key_order import HELD, Turns, held_up


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one letter: routed by the definition ``message`` to ``sinks``, or dead for ``reason``."""

    letter: str
    message: str | None
    sinks: tuple[str, ...]
    reason: str | None = None
    detail: str = ""


def verdicts(plan: Plan, letters: Sequence[Letter]) -> list[Verdict]:
    """Judge letters by a plan; returns one verdict for each, in their order.

    ``sinks`` are all of the route; which of them a replay leaves out, since they have the record, is not said here.

    Raises:
        RouterError: the record of a letter cannot be taken apart.
    """
    if not letters:
        return []
    rows = rows_of(letters).select(list(INBOX_COLUMNS)).combine_chunks().to_batches()[0]
    judged, _ = outcome_lists("letters", plan.judge, rows)
    routes = plan.settings.routes
    results: list[Verdict] = []
    for letter, outcomes in zip(letters, judged.to_pylist(), strict=True):
        dead = next((each for each in outcomes if each["route"] < 0), None)
        if dead is not None or not outcomes:
            cause = dead or {"reason": letter.reason, "detail": "nothing came of it"}
            results.append(Verdict(letter.id, None, (), cause["reason"], cause["detail"] or ""))
        else:
            results.append(Verdict(letter.id, outcomes[0]["message"], tuple(routes[outcomes[0]["route"]].to)))
    return results


def in_turn(judged: Sequence[Verdict], turns: Turns) -> Iterator[Verdict]:
    """Yield the verdicts of a batch with those that would wait behind another of it, and count the rest as replayed."""
    lasting = [each.letter for each in judged if each.reason is not None]
    keys = turns.order.keys(each.letter for each in judged)
    held = held_up((each.letter for each in judged), lasting, keys)
    for each in judged:
        if each.letter in held:
            yield Verdict(each.letter, None, (), HELD)
            continue
        if each.reason is None:
            turns.passed(each.letter)
        yield each
