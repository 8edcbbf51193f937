"""Which dead letters are meant: one filter, and one set of options, for every command that takes letters."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Annotated

import typer

from router.errors import RouterError
from router.letters.letter import Letter
from router.settings.routes import REASONS
from router.settings.values import parse_duration
from router.state.instants import parse_instant
from router.state.ledger import Standing

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
