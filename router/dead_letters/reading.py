"""Read dead letters back from their sinks: all as a stream, the newest, filtered, listed, explained."""

from __future__ import annotations

import fnmatch
import heapq
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

from catalog.model import Catalog
from catalog.schemas.ids.deciding import FrameSettings
from router.dead_letters.dead_letter import DeadLetter
from router.dead_letters.redaction import HIDDEN, Redaction, Redactor
from router.dead_letters.stores import BEGINNING, IdSelector, LetterStore
from router.errors import ConfigError, RouterError, hint_near
from router.matching.explanation import FITS, EventExplanation, ExplainedCandidate, Explainer, RecordExplanation
from router.matching.records import RecordMatcher
from router.schemaids.framing import frame_settings
from router.settings import Settings, SourceSettings, dead_letter_sinks
from router.settings.routes import REASONS
from router.settings.values import parse_duration
from router.state.ledger import LedgerEntry, LetterLedger, Standing, instant, parse_instant

_ID: Final = re.compile(r"[0-9a-f]{32}")


def open_stores(settings: Settings, sinks: Sequence[str] = ()) -> list[LetterStore]:
    """Open the stores of these sinks of dead letters (default: all that can be read); uses neither disk nor network.

    Raises:
        ConfigError: a sink has no dead letters or cannot be read back, or no sink can.
    """
    spill = Path(settings.state) / "spill"
    chosen = [(name, settings.sinks[name]) for name in readable_sinks(settings, sinks)]
    return [resolve_name(sink.letters)(name, sink, spill) for name, sink in chosen]


def read_dead_letters(settings: Settings, *, sinks: Sequence[str] = (), bodies: bool = True) -> Iterator[DeadLetter]:
    """Yield the dead letters of these sinks (default: all that can be read), each id once, oldest first per sink.

    Without *bodies*, they are not read from tables, which is much faster.

    Raises:
        ConfigError: a sink has no dead letters or cannot be read back; raised before the first letter.
        SinkError: a sink cannot be read now.
    """
    return _read_once_per_id(open_stores(settings, sinks), bodies)


def readable_sinks(settings: Settings, wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the sinks to read dead letters from.

    Raises:
        ConfigError: one of *wanted* has no dead letters or cannot be read back, or no sink can.
    """
    takers = dead_letter_sinks(settings)
    readable = tuple(name for name in takers if settings.sinks[name].readable)
    hint = (
        f"read {', '.join(readable)} instead" if readable else "add a table, a folder or a topic to dead_letters.sinks"
    )
    for name in wanted:
        if name not in takers:
            raise ConfigError(f"sink {name} has no dead letters", key="dead_letters.sinks", hint=hint)
        if name not in readable:
            raise ConfigError(f"dead letters in sink {name} cannot be read back", key=f"sinks.{name}", hint=hint)
    if not readable:
        text = f"dead letters in {', '.join(takers)} cannot be read back"
        raise ConfigError(text, key="dead_letters.sinks", hint=hint)
    return tuple(dict.fromkeys(wanted)) or readable


def _read_once_per_id(stores: Iterable[LetterStore], bodies: bool) -> Iterator[DeadLetter]:
    # Ids are 32 hexadecimal digits; integers need a third of the memory.
    seen: set[int | str] = set()
    for store in stores:
        for letter in store.read(bodies=bodies):
            key = int(letter.id, 16) if _ID.fullmatch(letter.id) else letter.id
            if key not in seen:
                seen.add(key)
                yield letter


# The newest dead letters, without reading all of them: for pages that are refreshed often.

_HINT: Final = "`xrouter dead-letters show` searches all of them"


def read_latest(settings: Settings, limit: int) -> list[DeadLetter]:
    """Return the newest dead letters, newest first, complete; at most *limit*.

    Raises:
        RouterError: no sink of dead letters can be read back, or one cannot be read now.
    """
    return _select_newest(settings, lambda found: {letter for _, letter in heapq.nlargest(limit, found)})[:limit]


def find_recent(settings: Settings, letter: str) -> DeadLetter:
    """Return a dead letter by its id, if it is among the newest.

    Raises:
        LookupError: it is not.
        RouterError: as :func:`read_latest`.
    """
    letters = _select_newest(settings, lambda found: {letter} & {each for _, each in found})
    if not letters:
        raise LookupError(f"this dead letter is not among the newest; {_HINT}")
    return letters[0]


def _select_newest(settings: Settings, select_ids: IdSelector) -> list[DeadLetter]:
    letters: dict[str, DeadLetter] = {}
    for store in open_stores(settings):
        for letter in store.select_newest(select_ids):
            letters.setdefault(letter.id, letter)
    return sorted(letters.values(), key=lambda each: (each.failed or BEGINNING, each.id), reverse=True)


# The filter of dead letters, and its options, the same for all commands.

Reasons = Annotated[
    list[str] | None, typer.Option("--reason", metavar="CODE", help="Only dead letters with this reason; repeatable.")
]
Endpoints = Annotated[
    list[str] | None,
    typer.Option("--endpoint", metavar="XID", help="Only this endpoint, with `*` as wildcard; repeatable."),
]
Messages = Annotated[
    list[str] | None,
    typer.Option("--message", metavar="XID", help="Only with this nearest definition, `*` as wildcard; repeatable."),
]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Only since this time: 2026-01-02T03:04:05Z, a date, or an age such as 2h."),
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Only before this time; same formats as --since.")]


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """A filter of dead letters: each member must match, by any of its values. An empty member matches all.

    ``since`` (inclusive) and ``until`` (exclusive) apply to the time when the letter was written; a letter without it
    matches neither. ``messages`` and ``endpoints`` may contain shell-style ``*``.
    """

    ids: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    endpoints: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    standings: frozenset[Standing] = frozenset()

    def matches(self, letter: DeadLetter, standing: Standing) -> bool:
        """Whether the filter matches a dead letter with that standing."""
        return (
            (not self.ids or letter.id in self.ids)
            and (not self.reasons or letter.reason in self.reasons)
            and (not self.standings or standing in self.standings)
            and (not self.endpoints or _fits(self.endpoints, letter.endpoint or ""))
            and (not self.messages or any(_fits(self.messages, str(near.get("message"))) for near in letter.nearest))
            and (self.since is None or (letter.failed is not None and letter.failed >= self.since))
            and (self.until is None or (letter.failed is not None and letter.failed < self.until))
        )


def build_filter(
    *,
    ids: Sequence[str] | None = None,
    reasons: Sequence[str] | None = None,
    endpoints: Sequence[str] | None = None,
    messages: Sequence[str] | None = None,
    since: str | None = None,
    until: str | None = None,
    standings: Sequence[Standing] = (),
) -> DeadLetterFilter:
    """Build a filter from options of the command line.

    Raises:
        RouterError: a time or reason is invalid; the error names the option.
    """
    require_reasons(reasons)
    return DeadLetterFilter(
        frozenset(ids or ()),
        frozenset(reasons or ()),
        tuple(endpoints or ()),
        tuple(messages or ()),
        parse_time_option(since, "--since"),
        parse_time_option(until, "--until"),
        frozenset(standings),
    )


def require_reasons(given: Sequence[str] | None) -> None:
    """Raise if the option ``--reason`` has something else than reasons of dead letters.

    Raises:
        RouterError: names it.
    """
    for each in given or ():
        if each not in REASONS:
            raise RouterError(f"--reason {each!r} is not a dead-letter reason", hint=hint_near(each, REASONS))


def parse_time_option(text: str | None, option: str) -> datetime | None:
    """Parse a time from the command line: RFC 3339, a date (midnight UTC), or a duration before now.

    Raises:
        RouterError: the text is not a valid time.
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
        raise RouterError(f"{option} {text!r} is not a valid time", hint=hint) from error
    assert isinstance(ago, timedelta)
    return datetime.now(UTC) - ago


def _fits(globs: Sequence[str], value: str) -> bool:
    return any(fnmatch.fnmatchcase(value, glob) for glob in globs)


GroupBy = Literal["reason", "endpoint", "nearest"]
NONE: Final = "(none)"
_CHUNK: Final = 500
_NAMED: Final = 5
_WHOLE_ID: Final = 32


@dataclass(slots=True)
class DeadLetterCounts:
    """Counts of dead letters per group, and the most recent ones as JSON, newest first.

    ``seen`` counts all letters, ``total`` the letters that match the filter.
    """

    seen: int = 0
    total: int = 0
    counts: dict[GroupBy, Counter[str]] = field(default_factory=dict)
    newest: list[dict[str, Any]] = field(default_factory=list)


def list_dead_letters(
    letters: Iterable[DeadLetter],
    ledger: LetterLedger,
    selection: DeadLetterFilter,
    redactor: Redactor,
    by: Sequence[GroupBy],
    limit: int,
) -> DeadLetterCounts:
    """Count the dead letters that match the filter, and return the *limit* most recent ones."""
    result = DeadLetterCounts(counts={each: Counter() for each in by})
    heap: list[tuple[datetime, int, dict[str, Any]]] = []
    for letter, entry in join_ledger_entries(letters, ledger):
        result.seen += 1
        standing = get_standing(entry)
        if not selection.matches(letter, standing):
            continue
        result.total += 1
        nearest = str(letter.nearest[0].get("message")) if letter.nearest else NONE
        values = {"reason": letter.reason, "endpoint": letter.endpoint or NONE, "nearest": nearest}
        for each in by:
            result.counts[each][values[each]] += 1
        age = letter.failed or BEGINNING
        if limit and (len(heap) < limit or age >= heap[0][0]):
            # If times are equal, the letter read later counts as newer.
            keep = heapq.heappush if len(heap) < limit else heapq.heappushpop
            named = [str(near.get("message")) for near in letter.nearest]
            listed = letter_to_json(redactor.redact(letter).letter, entry) | {"nearest": named}
            keep(heap, (age, result.total, listed))
    result.newest = [listed for _, _, listed in sorted(heap, key=lambda each: each[:2], reverse=True)]
    return result


def join_ledger_entries(
    letters: Iterable[DeadLetter], ledger: LetterLedger
) -> Iterator[tuple[DeadLetter, LedgerEntry | None]]:
    """Yield dead letters, each with its ledger entry or None; entries are read in blocks."""
    source = iter(letters)
    while chunk := list(islice(source, _CHUNK)):
        known = ledger.entries([letter.id for letter in chunk])
        for letter in chunk:
            yield letter, known.get(letter.id)


def get_standing(entry: LedgerEntry | None) -> Standing:
    """Return the standing of a dead letter from its ledger entry; ``open`` without an entry."""
    return entry.standing if entry is not None else "open"


def find_dead_letter(letters: Iterable[DeadLetter], prefix: str) -> DeadLetter:
    """Return the only dead letter whose id starts with *prefix*.

    Raises:
        RouterError: there is none, or there are several.
    """
    beginning = prefix.strip().lower()
    matches: list[DeadLetter] = []
    for letter in letters:
        if not beginning or not letter.id.startswith(beginning):
            continue
        if letter.id == beginning and len(beginning) == _WHOLE_ID:
            return letter
        matches.append(letter)
        if len(matches) > _NAMED:
            break
    if not matches:
        raise RouterError(
            f"no dead letter id starts with {prefix!r}", hint="`xrouter dead-letters list` shows their ids"
        )
    if len(matches) > 1:
        names = ", ".join(letter.id for letter in matches[:_NAMED]) + (", …" if len(matches) > _NAMED else "")
        raise RouterError(f"several dead letter ids start with {prefix!r}: {names}", hint="give more of the id")
    return matches[0]


def letter_to_json(letter: DeadLetter, entry: LedgerEntry | None) -> dict[str, Any]:
    """Return what lists and pages say of a dead letter; ``attempts`` counts the first write and all replays."""
    return {
        "letter": letter.id,
        "failed": None if letter.failed is None else instant(letter.failed),
        "reason": letter.reason,
        "endpoint": letter.endpoint,
        "detail": letter.detail,
        "attempts": letter.attempts + (entry.attempts if entry is not None else 0),
        "standing": get_standing(entry),
        "sink": letter.sink,
    }


# Explaining a dead letter with the current catalog, candidate by candidate, like ``match --explain``.

_BY_NAME = ("context", "cloudevent")


def explain_with_catalog(letter: DeadLetter, catalog: Catalog, settings: Settings) -> RecordExplanation:
    """Explain a dead letter's record with *catalog*, using the matcher of ``match``.

    The candidates are those of the letter's endpoint; without an endpoint, all definitions.
    """
    explainer = make_explainer(catalog, settings, letter.endpoint)
    return explainer.explain(1, msgspec.json.encode(letter.to_record().to_json()))


def make_explainer(catalog: Catalog, settings: Settings, endpoint: str | None) -> Explainer:
    """Return an explainer for records of an endpoint; slow to create for thousands of definitions."""
    matcher = RecordMatcher(
        catalog,
        hop_by_hop=settings.match.hop_by_hop,
        validation=settings.match.validation,
        ambiguous=settings.match.ambiguous,
        frames=_find_frame_settings(settings, endpoint),
    )
    return Explainer(matcher)


def _find_frame_settings(settings: Settings, endpoint: str | None) -> FrameSettings:
    """Return the schema id framing of an endpoint; the default if it is not a source of the settings."""
    source = next((each for each in settings.sources if each.endpoint == endpoint), None)
    if source is None:
        source = SourceSettings(endpoint=endpoint if endpoint is not None else "/endpoints/any")
    return frame_settings(settings, [source])[source.endpoint]


def redact_explanation(explanation: RecordExplanation, redaction: Redaction) -> RecordExplanation:
    """Return an explanation with the redactions of its dead letter applied."""
    return replace(
        explanation,
        main=tuple((name, redaction.redact_value(name, text) or "") for name, text in explanation.main),
        events=tuple(_redact_event(event, redaction) for event in explanation.events),
        error=redaction.redact_text(explanation.error),
    )


def _redact_event(event: EventExplanation, redaction: Redaction) -> EventExplanation:
    return replace(
        event,
        faults=tuple(map(redaction.redact_text, event.faults)),
        candidates=tuple(_redact_candidate(candidate, redaction) for candidate in event.candidates),
        why=redaction.redact_text(event.why),
        outcome=_redact_outcome(event.outcome, redaction),
    )


def _redact_candidate(candidate: ExplainedCandidate, redaction: Redaction) -> ExplainedCandidate:
    checks = tuple(
        replace(
            check,
            expected=redaction.redact_value(check.property, check.expected),
            actual=redaction.redact_value(check.property, check.actual),
        )
        for check in candidate.checks
    )
    schema = tuple(map(redaction.redact_text, candidate.schema))
    if redaction.body_hidden and schema not in ((), FITS):
        schema = (HIDDEN,)
    return replace(candidate, checks=checks, schema=schema, verdict=redaction.redact_text(candidate.verdict))


def _redact_outcome(outcome: Mapping[str, Any], redaction: Redaction) -> dict[str, Any]:
    shown = dict(outcome)
    for member in _BY_NAME:
        if member in shown:
            shown[member] = {name: redaction.redact_value(name, text) for name, text in shown[member].items()}
    if "detail" in shown:
        shown["detail"] = redaction.redact_detail(shown.get("reason"), shown["detail"])
    if "nearest" in shown:
        shown["nearest"] = [redaction.redact_near(each) for each in shown["nearest"]]
    return shown
