"""Records that a sink turned down at write time, after they had been judged as routed (JUDGING.md#sink-rejected).

A rejected record ends as one dead letter, ``sink-rejected``, whatever the number of its sinks: those that took it keep
it, and the letter says which did not and why. Letters are written after all sinks of events and before the batch
commits, so a crash in between repeats the batch and loses none. In the tally the record moves from routed to
dead-letter, as if the matcher had said so; the circuit breaker looks before the first write and does not see it.

The same letters are made of a whole batch that an operator sets aside. Their detail is ``sink NAME: why; sink OTHER:
why`` and names exactly the sinks that do not have the record, so that a replay sends it to those alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import pyarrow as pa

from router.routing.limits import LetterLimits
from router.routing.routes import Routes
from router.settings.names import dead_letter_values
from router.sinks.contract import Rejected

REASON: Final = "sink-rejected"
DETAIL_CAP: Final = 3_900
"""Characters of a detail: fewer than a Kafka header keeps, so that no sink's name is cut off."""
_NAMED: Final = re.compile(r"(?:^|; )sink ([^:;]+): ")
_MARKS: Final = {"%": "%25", ":": "%3A", ";": "%3B"}
"""Characters that a sink's name may have and that our form needs for itself, the escape first."""


def detail_of(reasons: Mapping[str, str]) -> str:
    """Return the detail of a letter that these sinks do not have, each with why; all names are in it, in full."""
    # The text of a sink must not look as if it named another sink.
    escaped = {_escaped(name): why.replace("; sink ", ", sink ") for name, why in reasons.items()}
    share = max(0, DETAIL_CAP // max(1, len(escaped)) - max(map(len, escaped), default=0) - len("; sink : "))
    return "; ".join(f"sink {name}: {why[:share]}" for name, why in escaped.items())


def sinks_of(detail: str) -> tuple[str, ...]:
    """Return the sinks that a letter's detail names, the inverse of :func:`detail_of`; () when it names none."""
    if not detail.startswith("sink "):
        return ()
    return tuple(dict.fromkeys(_plain(name) for name in _NAMED.findall(detail)))


def _escaped(name: str) -> str:
    for mark, code in _MARKS.items():
        name = name.replace(mark, code)
    return name


def _plain(name: str) -> str:
    for mark, code in reversed(_MARKS.items()):
        name = name.replace(code, mark)
    return name


class Rejections:
    """What sinks rejected of one batch; *routes* say where its dead letters go, *limits* which are spilled."""

    def __init__(self, routes: Routes, limits: LetterLimits) -> None:
        self._routes = routes
        self._limits = limits
        self._records: dict[str, Rejected] = {}
        self._details: dict[str, dict[str, str]] = {}

    def __bool__(self) -> bool:
        """Whether anything was rejected."""
        return bool(self._records)

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """Rejected records by endpoint and definition, each once."""
        return Counter((record.endpoint, record.message) for record in self._records.values())

    def of_sink(self, sink: str) -> Counter[str]:
        """Return the records that one sink rejected, by endpoint."""
        rejected = (self._records[position] for position, sinks in self._details.items() if sink in sinks)
        return Counter(record.endpoint for record in rejected)

    @property
    def routes(self) -> frozenset[int]:
        """The routes that take the letters of rejected records."""
        return frozenset(self._routes.letters(record.endpoint, REASON) for record in self._records.values())

    def letters_on(self, routes: Collection[int]) -> Counter[str]:
        """Return the rejected records whose letter one of these routes takes, by endpoint."""
        endpoints = Counter(record.endpoint for record in self._records.values())
        return Counter(
            {name: count for name, count in endpoints.items() if self._routes.letters(name, REASON) in routes}
        )

    @property
    def details(self) -> dict[str, str]:
        """The detail of each rejected record's letter, by position."""
        return {position: detail_of(reasons) for position, reasons in self._details.items()}

    def add(self, sink: str, rejected: Iterable[Rejected]) -> None:
        """Take what one sink rejected."""
        for record in rejected:
            self._records[record.position] = record
            self._details.setdefault(record.position, {})[sink] = record.reason

    def table(self) -> pa.Table:
        """Return what the letter of each record has of its own, by position (``at``).

        That is its detail, its route with the topics there, and the bytes above which it is spilled (``limit``).
        """
        records = list(self._records.values())
        taking = [self._routes.letters(record.endpoint, REASON) for record in records]
        columns: dict[str, list[str]] = {
            "at": [record.position for record in records],
            "detail": [detail_of(self._details[record.position]) for record in records],
        }
        for name, template in self._routes.letter_topics.items():
            columns[f"letters_{name}"] = [
                template.expand(dead_letter_values(record.endpoint, REASON), escape="_") for record in records
            ]
        numbers = {
            "route": pa.array(taking, pa.int32()),
            "limit": pa.array([self._limits.of(route) for route in taking], pa.int64()),
        }
        return pa.table({**{name: pa.array(values, pa.string()) for name, values in columns.items()}, **numbers})
