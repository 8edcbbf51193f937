"""Samples of what arrives: a record as it came, its verdict, and what leaves of it, hidden and cut for people."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from bindings.kafka.facts import ATTRIBUTE, CONTENT_TYPE
from catalog.record import Record
from router.commands.plan.chunks import letter_of
from router.commands.tap.choosing import PREFIXES, Choice, value_at
from router.judging.chunk import Chunk
from router.judging.comparing import Ways
from router.judging.judging import JUDGING
from router.judging.outputs import Decided
from router.judging.plan import Plan
from router.letters.redaction import Redaction, Redactor
from router.letters.showing import BODY_SHOWN, CUT, body_lines, native_rows
from router.matching.inbox_facts import arrival_times

EXAMINED: Final = 200
"""Records of one round that are looked at one by one."""
NEAREST: Final = 3
VALUES: Final = 50
"""Values of one kind that a sample has."""
TEXT: Final = 500
"""Characters of one value."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One outcome as it may be shown, and the whole ``record`` it is of; ``tree`` is the body as JSON, if it is."""

    document: Mapping[str, Any]
    record: Record
    tree: Any = None

    def values(self, name: str) -> Sequence[str]:
        """Return the values of a name in a condition."""
        if name.startswith("/"):
            return value_at(self.tree, name)
        for prefix in PREFIXES:
            if name.startswith(prefix):
                rest = name.removeprefix(prefix)
                if prefix == "native.":
                    return [text for path, text in self.document["before"]["native"] if path == rest]
                after = self.document["after"] or {}
                return [value for key, value in after.get(prefix[:-1], {}).items() if key == rest]
        value = self.document[name]
        return list(value) if isinstance(value, list) else [] if value is None else [value]


class Sampling:
    """Judges what arrives as ``run`` does, and makes samples of some of it."""

    def __init__(self, plan: Plan, redactor: Redactor, choice: Choice) -> None:
        self._plan, self._redactor, self._choice = plan, redactor, choice
        self._ways = Ways.of(plan.settings)
        self.judged = 0

    def samples(self, chunk: Chunk, most: int) -> Iterator[Sample]:
        """Yield up to so many samples of some rows, drawn by lot: traffic has rhythms that a fixed step would meet."""
        decided = JUDGING[chunk.kind](self._plan.judge, chunk.rows)
        self.judged += len(decided.order)
        taken = list(self._taken(decided))
        wanted = most if not self._choice.conditions else EXAMINED
        for row in sorted(random.sample(taken, min(len(taken), max(0, wanted)))):
            if most <= 0:
                return
            sample = self._sample(chunk, decided, row)
            if self._choice.fits(sample.values):
                most -= 1
                yield sample

    def _taken(self, decided: Decided) -> Iterator[int]:
        order = pa.array(decided.order)
        names = ("endpoint", "message", "reason")
        columns = (decided.column(name).take(order).cast(pa.string()).to_pylist() for name in names)
        for row, *values in zip(decided.order.tolist(), *columns, strict=True):
            if self._choice.takes(*values):
                yield row

    def _sample(self, chunk: Chunk, decided: Decided, row: int) -> Sample:
        outcomes, columns = decided.outcomes, decided.columns
        source = int(decided.sources[row])
        endpoint, message = (decided.column(name)[row].as_py() for name in ("endpoint", "message"))
        reason = outcomes.reasons.get(row)
        redaction = self._redactor.redact(letter_of(chunk, source, reason or ""))
        shown, detail = redaction.letter, outcomes.details.get(row, "")
        body = body_lines(shown.body) if shown.body is not None else []
        size = len(chunk.taken_apart(source)[2] or b"")
        document = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "position": shown.position,
            "endpoint": endpoint,
            "protocol": shown.protocol,
            "outcome": "dead-letter" if message is None else "routed",
            "message": message,
            "reason": reason,
            "detail": _cut(redaction.detail(reason, detail)),
            "nearest": [_near(redaction.near(each)) for each in outcomes.nearest.get(row, ())[:NEAREST]],
            "sinks": list(self._ways.sinks(int(columns["route"][row].as_py()))),
            "topics": _topics(columns, row, redaction, routed=message is not None),
            "before": {
                "native": [[_cut(path), _cut(text)] for path, text in _first(native_rows(shown.native))],
                "body": "\n".join(body),
                "body_bytes": size,
                "body_cut": size > BODY_SHOWN,
            },
            "after": None if message is None else _after(chunk, decided, row, redaction),
            "epoch": self._plan.epoch,
        }
        time = arrival_times(chunk.rows.column("received").slice(source, 1))[0].as_py() if chunk.pushed else None
        record = Record(shown.protocol, shown.native, shown.body, endpoint, time, shown.position)
        return Sample(document, record, _tree(shown.body))


def _after(chunk: Chunk, decided: Decided, row: int, redaction: Redaction) -> dict[str, Any]:
    context = dict(decided.outcomes.contexts[row].as_py() or ())
    values = {"attributes": _attributes(chunk, decided, row), "context": context}
    return {
        kind: {name: _cut(redaction.derived(name, text)) for name, text in list(given.items())[:VALUES]}
        for kind, given in values.items()
    }


def _attributes(chunk: Chunk, decided: Decided, row: int) -> dict[str, str]:
    """Return the attributes that an event leaves with: those that are mapped, else those that it came with."""
    mapped = decided.columns["attributes"][row].as_py()
    if mapped is None:
        reading = decided.outcomes.facts.readings.get(row)
        if reading is not None:
            return dict(reading.envelope.attributes)
        binding, parts, body = chunk.taken_apart(int(decided.sources[row]))
        return dict(binding.envelope(parts, body, lambda: False).attributes)
    return {
        "datacontenttype" if each["key"] == CONTENT_TYPE else each["key"].removeprefix(ATTRIBUTE): (
            each["value"] or b""
        ).decode("utf-8", "backslashreplace")
        for each in mapped
    }


def _topics(columns: Mapping[str, pa.Array], row: int, redaction: Redaction, *, routed: bool) -> dict[str, str]:
    prefix = "topic_" if routed else "letters_"
    topics = {name.removeprefix(prefix): columns[name][row].as_py() for name in columns if name.startswith(prefix)}
    return {name: _cut(redaction.text(topic)) for name, topic in topics.items() if topic is not None}


def _near(nearest: Mapping[str, Any]) -> dict[str, Any]:
    wrong = [each for each in nearest.get("mismatches") or () if isinstance(each, Mapping)][:NEAREST]
    names = ("property", "expected", "found")
    mismatches = [{name: None if each.get(name) is None else _cut(str(each[name])) for name in names} for each in wrong]
    return {"message": str(nearest.get("message")), "mismatches": mismatches}


def _tree(body: bytes | None) -> Any:
    try:
        return None if body is None else json.loads(body)
    except (ValueError, RecursionError):
        return None


def _first(rows: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    return (pair for pair, _ in zip(rows, range(VALUES), strict=False))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[:TEXT]}{CUT}"
