"""How ``xrouter match --explain`` shows what becomes of a record: in colours on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, TextIO

from catalog.errors import one_line
from router.matching.explanation import FITS, EventExplained, ExplainedCandidate, RecordExplained
from router.matching.nearest import ConstraintResult
from router.terminal import counted, styled, terminal

_SHOWN: Final = 300
"""Characters of a value; the rest is left out."""
_MODES: Final = {
    "native": "no CloudEvent",
    "binary": "a CloudEvent in binary mode",
    "structured": "a CloudEvent in structured mode",
    "undecodable": "undecodable",
}
Line = tuple[str, str]
"""A line and its style."""


class ExplanationWriter:
    """Writes explanations to a stream, with signs and texts that its encoding can show."""

    def __init__(self, output: TextIO | None = None) -> None:
        self._output = output if output is not None else sys.stdout
        self._console = terminal(file=self._output, soft_wrap=True)
        self._encoding = self._output.encoding or "utf-8"
        fancy = self._shows("✓✗…")
        self._yes, self._no, self._cut = ("✓", "✗", "…") if fancy else ("+", "-", "...")

    def write(self, explained: RecordExplained) -> None:
        """Write one record's explanation, and an empty line."""
        for text, style in (*self._record(explained), ("", "")):
            safe = one_line(text).encode(self._encoding, "backslashreplace").decode(self._encoding)
            self._console.print(styled((safe, style)))

    def _shows(self, signs: str) -> bool:
        try:
            signs.encode(self._encoding)
        except UnicodeEncodeError:
            return False
        return True

    def _record(self, explained: RecordExplained) -> Iterator[Line]:
        at = f" at {self._text(explained.endpoint)}" if explained.endpoint else ""
        yield f"record {explained.number}: {self._text(explained.protocol) or 'no record'}{at}", "bold"
        if explained.error:
            yield f"  {self._no} {self._text(explained.error)}", "red"
            return
        main = [f"{name.rpartition('.')[2]} {self._quoted(text)}" for name, text in explained.main]
        size = "no body" if explained.size is None else f"{explained.size} bytes of body"
        yield "  " + ", ".join((*main, size)), ""
        if not explained.events:
            yield "  a batch without events", ""
        for event in explained.events:
            yield from self._event(event)

    def _event(self, event: EventExplained) -> Iterator[Line]:
        if event.place >= 0:
            yield f"  event {event.place} of the batch", "bold"
        yield f"  envelope: {_MODES.get(event.mode, event.mode)}", ""
        for fault in event.faults:
            yield f"    {self._no} {self._text(fault)}", "red"
        for candidate in event.candidates:
            yield from self._candidate(candidate)
        if event.more:
            yield f"  and {event.more} more candidate{'' if event.more == 1 else 's'} (--all shows all)", "dim"
        if event.why:
            yield f"  why: {event.why}", ""
        yield from self._outcome(event.outcome)

    def _candidate(self, candidate: ExplainedCandidate) -> Iterator[Line]:
        good = candidate.matches and candidate.schema in ((), FITS)
        style = "bold green" if candidate.wins else "green" if good else "yellow"
        sign = self._yes if good else self._no
        specific = f" ({counted(candidate.literals, 'literal')}, {counted(candidate.characters, 'character')})"
        yield f"  {sign} {candidate.message}: {candidate.verdict}{specific if candidate.matches else ''}", style
        for check in candidate.checks:
            yield self._check(check)
        fits = candidate.schema == FITS
        for verdict in candidate.schema:
            yield f"      {self._yes if fits else self._no} schema: {self._text(verdict)}", "" if fits else "red"

    def _check(self, check: ConstraintResult) -> Line:
        name, value = self._text(check.property), self._value(check)
        # What is asked for is a description there, and the very value or template elsewhere.
        described = check.constraint is not None and check.constraint.kind in ("present", "optional")
        expected = check.expected or "" if described else self._quoted(check.expected or "")
        if not check.holds:
            return f"      {self._no} {name}: expected {expected}, found {value}", "red"
        as_expected = "" if check.actual in (None, check.expected) else f", as {expected}"
        return f"      {self._yes} {name}: {value}{as_expected}", ""

    def _value(self, check: ConstraintResult) -> str:
        if check.actual is None:
            return "absent, and may be" if check.holds else "nothing"
        return self._quoted(check.actual)

    def _outcome(self, outcome: Mapping[str, Any]) -> Iterator[Line]:
        if outcome["outcome"] != "routed":
            # The candidates above have said what a detail of this reason would.
            detail = "" if outcome["reason"] == "no-match" else f": {self._text(outcome['detail'])}"
            yield f"  dead letter, {outcome['reason']}{detail}", "bold red"
            return
        yield f"  routed to {outcome['message']}", "bold green"
        for name in ("context", "cloudevent"):
            pairs = [f"{self._text(key)}={self._quoted(text)}" for key, text in outcome[name].items()]
            yield f"    {name}: {', '.join(pairs) or 'none'}", ""

    def _quoted(self, text: str) -> str:
        return f"'{self._text(text)}'"

    def _text(self, text: str | None) -> str:
        """Return a text of foreign origin without what moves a terminal's cursor, and not too long."""
        shown = text or ""
        if len(shown) > _SHOWN:
            shown = shown[:_SHOWN] + self._cut
        return one_line(shown)
