"""Counting dead letters and finding the newest, in one pass and with a bounded number of them in memory."""

from __future__ import annotations

import fnmatch
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from itertools import islice
from typing import Annotated, Any, Final, Literal

import typer

from router.errors import RouterError
from router.letters.letter import Letter
from router.letters.redaction import Redactor
from router.settings.names import REASONS
from router.settings.values import parse_duration
from router.state.ledger import LedgerEntry, LetterLedger, Standing
from router.state.ledger_database import instant, parse_instant

# Which dead letters are meant: one filter, and one set of options, for every command that takes letters.

Reasons = Annotated[
    list[str] | None, typer.Option("--reason", metavar="CODE", help="Letters of this reason; may be repeated.")
]
Endpoints = Annotated[
    list[str] | None,
    typer.Option("--endpoint", metavar="XID", help="Letters of this endpoint, `*` for any text; may be repeated."),
]
Messages = Annotated[
    list[str] | None,
    typer.Option(
        "--message", metavar="XID", help="Letters with this definition among the nearest, `*` for any text; repeatable."
    ),
]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Letters from that time on: 2026-01-02T03:04:05Z, a day, or 2h ago.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Letters from before that time, written as --since.")]


@dataclass(frozen=True, slots=True)
class Filter:
    """All given members must hold, and of several values of one member any. An empty member takes every letter.

    ``since`` (included) and ``until`` (not) look at when the letter was written; one without that time is taken by
    neither. ``messages`` and ``endpoints`` may have shell-style ``*``.
    """

    ids: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    endpoints: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    standings: frozenset[Standing] = frozenset()

    def takes(self, letter: Letter, standing: Standing) -> bool:
        """Tell whether the filter takes a letter of that standing."""
        return (
            (not self.ids or letter.id in self.ids)
            and (not self.reasons or letter.reason in self.reasons)
            and (not self.standings or standing in self.standings)
            and (not self.endpoints or _any(self.endpoints, letter.endpoint or ""))
            and (not self.messages or any(_any(self.messages, str(near.get("message"))) for near in letter.nearest))
            and self._in_time(letter.failed)
        )

    def _in_time(self, failed: datetime | None) -> bool:
        if self.since is None and self.until is None:
            return True
        if failed is None:
            return False
        return (self.since is None or failed >= self.since) and (self.until is None or failed < self.until)


def filter_of(
    *,
    ids: Sequence[str] | None = None,
    reasons: Sequence[str] | None = None,
    endpoints: Sequence[str] | None = None,
    messages: Sequence[str] | None = None,
    since: str | None = None,
    until: str | None = None,
    standings: Sequence[Standing] = (),
) -> Filter:
    """Build the filter of a command line.

    Raises:
        RouterError: a time cannot be read, or there is no such reason; names the option.
    """
    for reason in reasons or ():
        if reason not in REASONS:
            near = get_close_matches(reason, REASONS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(REASONS)}"
            raise RouterError(f"--reason {reason!r} is no reason of dead letters", hint=hint)
    return Filter(
        frozenset(ids or ()),
        frozenset(reasons or ()),
        tuple(endpoints or ()),
        tuple(messages or ()),
        moment_of(since, "--since"),
        moment_of(until, "--until"),
        frozenset(standings),
    )


def moment_of(text: str | None, option: str) -> datetime | None:
    """Read a time of a command line: RFC 3339, a day (its beginning in UTC), or a duration before now.

    Raises:
        RouterError: it is none of them.
    """
    if text is None:
        return None
    moment = parse_instant(text.strip())
    if moment is not None:
        return moment
    try:
        ago = parse_duration(text.strip().removesuffix("ago"))
    except ValueError as error:
        hint = f"write {option} 2026-01-02T03:04:05Z, {option} 2026-01-02, or {option} 2h for two hours ago"
        raise RouterError(f"{option} {text!r} is no time", hint=hint) from error
    assert isinstance(ago, timedelta)
    return datetime.now(UTC) - ago


def _any(globs: Sequence[str], value: str) -> bool:
    return any(fnmatch.fnmatchcase(value, glob) for glob in globs)


By = Literal["reason", "endpoint", "nearest"]
NONE: Final = "(none)"
_CHUNK: Final = 500
_NAMED: Final = 5
_WHOLE_ID: Final = 32
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of the list. ``nearest`` are xids; ``attempts`` counts the first writing and all replays."""

    id: str
    failed: datetime | None
    reason: str
    endpoint: str | None
    detail: str
    nearest: tuple[str, ...]
    attempts: int
    standing: Standing
    sink: str

    def to_json(self) -> dict[str, Any]:
        """Return the form for machines."""
        return {
            "letter": self.id,
            "failed": None if self.failed is None else instant(self.failed),
            "reason": self.reason,
            "endpoint": self.endpoint,
            "detail": self.detail,
            "nearest": list(self.nearest),
            "attempts": self.attempts,
            "standing": self.standing,
            "sink": self.sink,
        }


@dataclass(slots=True)
class Listing:
    """What a pass over the letters found: how many by what, and the newest of them, newest first.

    ``seen`` counts all letters there are, ``total`` those that the filter takes.
    """

    seen: int = 0
    total: int = 0
    counts: dict[By, Counter[str]] = field(default_factory=dict)
    newest: list[Listed] = field(default_factory=list)


def listing(
    letters: Iterable[Letter], ledger: LetterLedger, selection: Filter, redactor: Redactor, by: Sequence[By], limit: int
) -> Listing:
    """Count the letters that the filter takes, and keep the *limit* newest by when they were written."""
    result = Listing(counts={each: Counter() for each in by})
    heap: list[tuple[datetime, int, Listed]] = []
    for letter, entry in with_entries(letters, ledger):
        result.seen += 1
        standing = standing_of(entry)
        if not selection.takes(letter, standing):
            continue
        result.total += 1
        for each in by:
            result.counts[each][_group(letter, each)] += 1
        age = letter.failed or _BEGINNING
        if limit and (len(heap) < limit or age >= heap[0][0]):
            # Of letters that were written together, the later counts as newer.
            keep = heapq.heappush if len(heap) < limit else heapq.heappushpop
            keep(heap, (age, result.total, _listed(letter, entry, redactor)))
    result.newest = [listed for _, _, listed in sorted(heap, key=lambda each: each[:2], reverse=True)]
    return result


def with_entries(letters: Iterable[Letter], ledger: LetterLedger) -> Iterator[tuple[Letter, LedgerEntry | None]]:
    """Yield letters with what the ledger knows of them, None for nothing; the ledger is asked for many at once."""
    source = iter(letters)
    while chunk := list(islice(source, _CHUNK)):
        known = ledger.entries([letter.id for letter in chunk])
        for letter in chunk:
            yield letter, known.get(letter.id)


def standing_of(entry: LedgerEntry | None) -> Standing:
    """Return the standing of a letter with that entry."""
    return entry.standing if entry is not None else "open"


def find_letter(letters: Iterable[Letter], prefix: str) -> Letter:
    """Return the one letter whose id is *prefix* or begins with it.

    Raises:
        RouterError: there is none, or there are several.
    """
    beginning = prefix.strip().lower()
    matches: list[Letter] = []
    for letter in letters:
        if not beginning or not letter.id.startswith(beginning):
            continue
        if letter.id == beginning and len(beginning) == _WHOLE_ID:
            return letter
        matches.append(letter)
        if len(matches) > _NAMED:
            break
    if not matches:
        raise RouterError(f"there is no dead letter {prefix!r}", hint="`xrouter dead-letters list` shows their ids")
    if len(matches) > 1:
        names = ", ".join(letter.id for letter in matches[:_NAMED]) + (", …" if len(matches) > _NAMED else "")
        raise RouterError(f"several dead letters begin with {prefix!r}: {names}", hint="give more of the id")
    return matches[0]


def _listed(letter: Letter, entry: LedgerEntry | None, redactor: Redactor) -> Listed:
    shown = redactor.redact(letter).letter
    return Listed(
        letter.id,
        letter.failed,
        letter.reason,
        letter.endpoint,
        shown.detail,
        tuple(str(near.get("message")) for near in letter.nearest),
        letter.attempts + (entry.attempts if entry is not None else 0),
        standing_of(entry),
        letter.sink,
    )


def _group(letter: Letter, by: By) -> str:
    """Return what a letter is counted under; of its nearest definitions the nearest."""
    if by == "reason":
        return letter.reason
    if by == "endpoint":
        return letter.endpoint or NONE
    return str(letter.nearest[0].get("message")) if letter.nearest else NONE
