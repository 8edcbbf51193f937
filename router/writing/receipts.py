"""What sinks say they have of an attempt, held against what its outcomes say they are to have."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from router.sinks.contract import WriteResult
from router.writing.rejections import Rejections

if TYPE_CHECKING:
    from router.judging.tally import Tally
    from router.routing.routes import Routes


class Receipts:
    """The receipts of one attempt.

    A sink without a receipt counts as complete: Spark's write to Kafka fails unless each record was acknowledged, and
    the receipt of what a sink took before this attempt was checked then. A repeated commit cannot fall short either:
    the sink knows that it has the commit but not how many rows, and reports those that it was given now.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[str, bool], int] = {}

    def add(self, sink: str, result: WriteResult, *, letters: bool = False) -> None:
        """Note what a sink said of its share of the events, or of the dead letters."""
        self._said[sink, letters] = result.rows + result.before

    def waive(self, sink: str) -> None:
        """Ask for no receipt of a sink's events: it already had more of them than it is given now."""
        self._said.pop((sink, False), None)

    def settle(self, tally: Tally, routes: Routes, rejections: Rejections | None = None) -> None:
        """Add to a tally what each sink has of it, and how much is missing that no sink rejected.

        The tally is that of the judging; what became a dead letter since is in *rejections*.
        """
        for name, numbers in routes.event_sinks.items():
            due, size = _due(tally, numbers)
            if rejections is not None:
                due -= rejections.of_sink(name)
            self._settle(tally, name, due, size, letters=False)
        for name, numbers in routes.letter_sinks.items():
            due, size = _due(tally, numbers)
            if rejections is not None:
                due += rejections.letters_on(numbers)
            self._settle(tally, name, due, size, letters=True)

    def _settle(self, tally: Tally, sink: str, due: Counter[str], size: Counter[str], *, letters: bool) -> None:
        said = self._said.get((sink, letters))
        if said is not None:
            tally.missing += max(0, due.total() - said)
        for endpoint, count in due.items():
            tally.delivered[sink, endpoint] += count
            tally.delivered_bytes[sink, endpoint] += size[endpoint]


def _due(tally: Tally, numbers: tuple[int, ...]) -> tuple[Counter[str], Counter[str]]:
    """Return how many outcomes of each endpoint these routes take, and their bytes."""
    due, size = Counter[str](), Counter[str]()
    for (endpoint, route), (count, taken) in tally.routes.items():
        if route in numbers:
            due[endpoint] += count
            size[endpoint] += taken
    return due, size
