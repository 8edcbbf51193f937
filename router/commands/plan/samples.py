"""Samples of what changes: a record's place, what becomes of it before and after, and the first cause, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from catalog.comparing import Change, compare
from catalog.model import Catalog
from router.commands.catalog.diff import description
from router.commands.plan.chunks import letter_of
from router.judging.chunk import Chunk
from router.judging.comparing import Changed, DifferenceKind, Verdict
from router.letters.redaction import Redaction, Redactor
from router.matching.conformance import DATA
from router.terminal import shown_value

CUT: Final = 200
"""Characters of one value."""
VALUES: Final = 20
"""Attributes of one kind that a sample shows."""
_OF_EVENTS: Final = ("context-", "mapped-attribute-")
_VIOLATION: Final = "schema-violation"


@dataclass(frozen=True, slots=True)
class Sample:
    """One record that changes, as it may be shown. ``before`` and ``after`` hold what is different, by name."""

    position: str
    kinds: tuple[DifferenceKind, ...]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    cause: str

    def to_json(self) -> dict[str, Any]:
        """Return all members."""
        return {name: getattr(self, name) for name in self.__slots__}


class Sampling:
    """Makes samples. What changed between the catalogs gives the words for causes, where no record does."""

    def __init__(self, old: Catalog, new: Catalog, redactor: Redactor) -> None:
        self._old, self._new, self._redactor = old, new, redactor

    @cached_property
    def _changes(self) -> dict[str, list[Change]]:
        changes: dict[str, list[Change]] = {}
        for change in sorted(compare(self._old, self._new).changes, key=lambda each: each.compatible):
            for xid in {change.xid, *([change.before] if change.kind == "definition-renamed" else [])}:
                changes.setdefault(xid, []).append(change)
        return changes

    def sample(self, chunk: Chunk, changed: Changed) -> Sample:
        """Return what is shown of one record; what is sensitive in it is hidden."""
        before, after = changed.verdicts()
        reasons = (before.reason, after.reason)
        reason = _VIOLATION if _VIOLATION in reasons else next(filter(None, reasons), "")
        redaction = self._redactor.redact(letter_of(chunk, changed.row, reason))
        shown = [_shown(one, other, redaction) for one, other in ((before, after), (after, before))]
        cause = _cut(self._cause(changed.kinds[0], before, after, redaction))
        return Sample(chunk.position(changed.row), changed.kinds, shown[0], shown[1], cause)

    def _cause(self, kind: DifferenceKind, before: Verdict, after: Verdict, redaction: Redaction) -> str:
        if kind == "dead-letter" and before.message in self._new.definitions:
            return _mismatch(after, before.message, redaction) or self._change(before) or _detail(after, redaction)
        if kind == "matched" and after.message in self._old.definitions:
            cause = _mismatch(before, after.message, redaction) or _detail(before, redaction)
            return f"before: {cause}" if cause else self._change(after)
        if kind == "event":
            return self._change(before, _OF_EVENTS) or self._change(before)
        return self._change(before) or self._change(after) or _detail(after, redaction)

    def _change(self, verdict: Verdict, kinds: tuple[str, ...] = ("",)) -> str:
        """Return the first change of the definition of a verdict, one that takes something away before others."""
        known = self._changes.get(verdict.message or "", ())
        change = next((each for each in known if each.kind.startswith(kinds)), None)
        return "" if change is None else f"{change.xid}: {change.kind}{description(change)}"


def _mismatch(verdict: Verdict, message: str | None, redaction: Redaction) -> str:
    """Return the first thing that a definition asks for and a record has not."""
    near = next((each for each in verdict.nearest if each.get("message") == message), None)
    wrong = (near and redaction.near(near).get("mismatches")) or ()
    if not wrong:
        return ""
    asked, there = shown_value(wrong[0].get("expected")), shown_value(wrong[0].get("found"))
    if wrong[0].get("property") == DATA:
        return f"the data does not fit {asked}, the schema of {message}: {there}"
    return f"{message} asks for {wrong[0].get('property')} {asked}, and the record has {there}"


def _detail(verdict: Verdict, redaction: Redaction) -> str:
    return redaction.detail(verdict.reason, verdict.detail)


def _shown(verdict: Verdict, other: Verdict, redaction: Redaction) -> dict[str, Any]:
    """Return a verdict, without the attributes and destinations that are as in the *other*."""
    shown: dict[str, Any] = {"message": verdict.message} if verdict.message else {"reason": verdict.reason or ""}
    if verdict.detail:
        shown["detail"] = _cut(_detail(verdict, redaction))
    shown["sinks"] = list(verdict.sinks)
    if verdict.topics != other.topics:
        shown["topics"] = {name: _cut(redaction.text(topic)) for name, topic in verdict.topics.items()}
    if verdict.message and other.message:
        for name in ("context", "attributes"):
            differing = _differing(getattr(verdict, name), getattr(other, name), redaction)
            if differing:
                shown[name] = differing
    return shown


def _differing(mine: Mapping[str, str], others: Mapping[str, str], redaction: Redaction) -> dict[str, str | None]:
    names = sorted(name for name in {*mine, *others} if mine.get(name) != others.get(name))
    return {name: None if name not in mine else _cut(redaction.derived(name, mine[name])) for name in names[:VALUES]}


def _cut(text: str) -> str:
    return text if len(text) <= CUT else f"{text[:CUT]}..."
