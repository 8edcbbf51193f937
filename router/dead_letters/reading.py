"""Read dead letters back from their sinks, as a stream.

Every sink returns the same letter for a record, except for the sink's name and texts truncated to fit a header.
Reading returns all letters that existed when it started, and possibly newer ones: sinks may be written to concurrently.
Letters that retention removes during the read are skipped.
"""

from __future__ import annotations

import fnmatch
import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, Final, Literal, cast

import msgspec
import pyarrow as pa
import pyarrow.dataset as pads
import typer
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.fs import LocalFileSystem

from catalog.model import Catalog
from catalog.schemas.ids.deciding import FrameSettings
from router.dead_letters import stores
from router.dead_letters.dead_letter import DeadLetter
from router.dead_letters.redaction import HIDDEN, Redaction, Redactor
from router.errors import ConfigError, RouterError, SinkError
from router.matching.explanation import FITS, EventExplanation, ExplainedCandidate, Explainer, RecordExplanation
from router.matching.records import RecordMatcher
from router.schemaids.framing import frame_settings
from router.settings import JsonLinesSink, KafkaSink, Settings, SourceSettings, TableSink, dead_letter_sinks
from router.settings.routes import REASONS
from router.settings.values import parse_duration
from router.sinks.jsonlines import DEAD_LETTER
from router.sinks.tables.head import open_dataset
from router.state.ledger import LedgerEntry, LetterLedger, Standing, instant, parse_instant

_ID: Final = re.compile(r"[0-9a-f]{32}")


def read_dead_letters(settings: Settings, *, sinks: Sequence[str] = (), bodies: bool = True) -> Iterator[DeadLetter]:
    """Yield the dead letters of these sinks (default: all that can be read), each id once, oldest first per sink.

    Without *bodies*, they are not read from tables, which is much faster.

    Raises:
        ConfigError: a sink has no dead letters or cannot be read back; raised before the first letter.
        SinkError: a sink cannot be read now.
    """
    return _read_once_per_id(settings, readable_sinks(settings, sinks), bodies)


def readable_sinks(settings: Settings, wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the sinks to read dead letters from.

    Raises:
        ConfigError: one of *wanted* has no dead letters or cannot be read back, or no sink can.
    """
    takers = dead_letter_sinks(settings)
    readable = tuple(name for name in takers if settings.sinks[name].readable)
    others = (
        f"read {', '.join(readable)} instead" if readable else "add a table, a folder or a topic to dead_letters.sinks"
    )
    for name in wanted:
        if name not in takers:
            raise ConfigError(f"sink {name} has no dead letters", key="dead_letters.sinks", hint=others)
        if name not in readable:
            raise ConfigError(f"dead letters in sink {name} cannot be read back", key=f"sinks.{name}", hint=others)
    if not readable:
        names = ", ".join(takers)
        raise ConfigError(f"dead letters in {names} cannot be read back", key="dead_letters.sinks", hint=others)
    return tuple(dict.fromkeys(wanted)) or readable


def _read_once_per_id(settings: Settings, names: Iterable[str], bodies: bool) -> Iterator[DeadLetter]:
    # Ids are 32 hexadecimal digits; integers need a third of the memory.
    seen: set[int | str] = set()
    for name in names:
        for letter in _read_sink(name, settings, bodies):
            key = _compact_id(letter.id)
            if key not in seen:
                seen.add(key)
                yield letter


def _read_sink(name: str, settings: Settings, bodies: bool) -> Iterator[DeadLetter]:
    sink = settings.sinks[name]
    read = resolve_name(sink.reader)
    return cast(Iterator[DeadLetter], read(name, sink, Path(settings.state) / "spill", bodies=bodies))


def _compact_id(letter: str) -> int | str:
    return int(letter, 16) if _ID.fullmatch(letter) else letter


# The newest dead letters, without reading all of them: for pages that are refreshed often.
#
# Only the newest files of a table (by its log) or folder are read, and the ends of a topic's partitions. The amount is
# limited: of very many letters written at the same time, any may be shown.

LOOK_ROWS: Final = 50_000
"""Rows of a table whose times are read."""
LOOK_FILES: Final = 20
"""Files of a table or folder that are opened."""
LOOK_BYTES: Final = 4 * 2**20
"""Bytes at the end of a file of lines that are read."""
LOOK_OFFSETS: Final = 200
"""Records at the end of a partition that are read."""
_ROWS: Final = 16
"""Rows with bodies in memory at a time."""
_UNKNOWN: Final = (2**63, 0)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
_KEY_COLUMNS: Final = ["letter", "failed"]
_HINT: Final = "`xrouter dead-letters show` searches all of them"
IdSelector = Callable[[list[tuple[datetime, str]]], set[str]]
"""Selects ids from the newest dead letters, each with the time it was written."""


def read_latest(settings: Settings, limit: int) -> list[DeadLetter]:
    """Return the newest dead letters, newest first, complete; at most *limit*.

    Raises:
        RouterError: no sink of dead letters can be read back, or one cannot be read now.
    """
    return _select_from_sinks(settings, lambda found: {letter for _, letter in heapq.nlargest(limit, found)})[:limit]


def find_recent(settings: Settings, letter: str) -> DeadLetter:
    """Return a dead letter by its id, if it is among the newest.

    Raises:
        LookupError: it is not.
        RouterError: as :func:`read_latest`.
    """
    letters = _select_from_sinks(settings, lambda found: {letter} & {each for _, each in found})
    if not letters:
        raise LookupError(f"this dead letter is not among the newest; {_HINT}")
    return letters[0]


def _select_from_sinks(settings: Settings, select_ids: IdSelector) -> list[DeadLetter]:
    letters: dict[str, DeadLetter] = {}
    for name in readable_sinks(settings):
        sink = settings.sinks[name]
        if not sink.latest:
            continue
        for letter in resolve_name(sink.latest)(name, sink, Path(settings.state) / "spill", select_ids):
            letters.setdefault(letter.id, letter)
    return sorted(letters.values(), key=lambda each: (each.failed or _BEGINNING, each.id), reverse=True)


def select_from_table(name: str, sink: TableSink, spill: Path, select_ids: IdSelector) -> list[DeadLetter]:
    """Return the dead letters that *select_ids* selects from the newest in a table.

    Raises:
        SinkError: it cannot be read.
    """
    try:
        parquet = sink.format == "parquet"
        fragments, schema = _find_in_folder(Path(sink.path)) if parquet else _find_in_delta(name, sink.path)
        return _select_rows(name, fragments, schema, select_ids)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise SinkError(name, f"{sink.path} cannot be read: {error}", hint="check the permissions") from error


def _find_in_delta(name: str, uri: str) -> tuple[Iterable[Any], pa.Schema]:
    if not DeltaTable.is_deltatable(uri):
        return (), DEAD_LETTER
    table = DeltaTable(uri)
    whole = open_dataset(table)
    stores.check_columns(name, uri, whole.schema)
    # The log has the latest time in each file, and when it was added: only the newest files are opened.
    files = pa.table(table.get_add_actions(flatten=True))
    failed = files.column("max.failed").to_pylist() if "max.failed" in files.schema.names else [None] * files.num_rows
    added = files.column("modification_time").to_pylist()
    paths = files.column("path").to_pylist()
    newest = {path: (_to_microseconds(at), since) for path, at, since in zip(paths, failed, added, strict=True)}
    fragments = whole.get_fragments()
    return heapq.nlargest(LOOK_FILES, fragments, key=lambda each: newest.get(each.path, _UNKNOWN)), whole.schema


def _to_microseconds(at: datetime | None) -> int:
    """Return a time as microseconds since 1970; None sorts as the newest."""
    if at is None:
        return _UNKNOWN[0]
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _find_in_folder(folder: Path) -> tuple[Iterable[Any], pa.Schema]:
    files = _find_newest(folder, stores.PARQUET)
    form = pads.ParquetFileFormat()
    return [form.make_fragment(str(path), LocalFileSystem()) for path in files], DEAD_LETTER


def _select_rows(name: str, fragments: Iterable[Any], schema: pa.Schema, select_ids: IdSelector) -> list[DeadLetter]:
    found: list[tuple[datetime, str]] = []
    groups: list[Any] = []
    for fragment in fragments:
        for group in reversed(fragment.split_by_row_group()):
            if len(found) >= LOOK_ROWS:
                break
            groups.append(group)
            for batch in group.to_batches(schema=schema, columns=_KEY_COLUMNS):
                times = batch.column("failed").cast(DEAD_LETTER.field("failed").type).cast(pa.int64()).to_pylist()
                ids = batch.column("letter").to_pylist()
                found += ((stores.to_instant(at) or _BEGINNING, letter) for at, letter in zip(times, ids, strict=True))
    chosen = select_ids(found)
    return list(_read_selected(name, groups, schema, chosen)) if chosen else []


def _read_selected(name: str, groups: Iterable[Any], schema: pa.Schema, chosen: set[str]) -> Iterator[DeadLetter]:
    only = pads.field("letter").isin(pa.array(sorted(chosen), pa.string()))
    for group in groups:
        for batch in group.to_batches(schema=schema, columns=DEAD_LETTER.names, filter=only, batch_size=_ROWS):
            yield from stores.parse_rows(batch, name)


def select_from_files(name: str, sink: JsonLinesSink, spill: Path, select_ids: IdSelector) -> list[DeadLetter]:
    """Return the dead letters that *select_ids* selects from the ends of the newest JSON lines files.

    Raises:
        SinkError: the folder cannot be read.
    """
    letters: list[DeadLetter] = []
    try:
        for path in _find_newest(Path(sink.path), stores.SUFFIX):
            with path.open("rb") as file:
                start = max(0, path.stat().st_size - LOOK_BYTES)
                file.seek(start)
                lines = file.read(LOOK_BYTES).split(b"\n")[1 if start else 0 :]
            whole = ((None, line) for line in lines if line.strip())
            letters += stores.parse_lines(whole, name, path)
            if len(letters) >= LOOK_OFFSETS:
                break
    except OSError as error:
        raise SinkError(name, f"{sink.path} cannot be read: {error.strerror}", hint="check its permissions") from error
    return _select_letters(letters, select_ids)


def select_from_topics(name: str, sink: KafkaSink, spill: Path, select_ids: IdSelector) -> list[DeadLetter]:
    """Return the dead letters that *select_ids* selects from the ends of the partitions of a sink's topics.

    Raises:
        BrokerUnreachable: no broker answers.
    """

    def read_ends() -> Iterator[DeadLetter]:
        return stores.read_topics(name, sink, spill, last=LOOK_OFFSETS)

    # Read twice, since all complete letters may not fit into memory.
    chosen = select_ids([(each.failed or _BEGINNING, each.id) for each in read_ends()])
    return [each for each in read_ends() if each.id in chosen] if chosen else []


def _select_letters(letters: Sequence[DeadLetter], select_ids: IdSelector) -> list[DeadLetter]:
    chosen = select_ids([(each.failed or _BEGINNING, each.id) for each in letters])
    return [each for each in letters if each.id in chosen]


def _find_newest(folder: Path, suffix: str) -> list[Path]:
    """Return the newest files of a folder, newest first, without hidden ones, which are incomplete."""
    if not folder.is_dir():
        return []
    dated: list[tuple[float, str, Path]] = []
    for path in folder.glob(f"*{suffix}"):
        if not path.name.startswith("."):
            try:
                dated.append((path.stat().st_mtime, path.name, path))
            except FileNotFoundError:
                continue  # Retention has removed it.
    return [path for _, _, path in heapq.nlargest(LOOK_FILES, dated)]


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
            and self._is_in_time_range(letter.failed)
        )

    def _is_in_time_range(self, failed: datetime | None) -> bool:
        if self.since is None and self.until is None:
            return True
        if failed is None:
            return False
        return (self.since is None or failed >= self.since) and (self.until is None or failed < self.until)


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
    for reason in reasons or ():
        if reason not in REASONS:
            near = get_close_matches(reason, REASONS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(REASONS)}"
            raise RouterError(f"--reason {reason!r} is not a dead-letter reason", hint=hint)
    return DeadLetterFilter(
        frozenset(ids or ()),
        frozenset(reasons or ()),
        tuple(endpoints or ()),
        tuple(messages or ()),
        parse_time_option(since, "--since"),
        parse_time_option(until, "--until"),
        frozenset(standings),
    )


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


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """A dead letter in a list. ``nearest`` has xids; ``attempts`` counts the first write and all replays."""

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
        """Return the JSON form."""
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
class DeadLetterCounts:
    """Counts of dead letters per group, and the most recent ones, newest first.

    ``seen`` counts all letters, ``total`` the letters that match the filter.
    """

    seen: int = 0
    total: int = 0
    counts: dict[GroupBy, Counter[str]] = field(default_factory=dict)
    newest: list[DeadLetterSummary] = field(default_factory=list)


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
    heap: list[tuple[datetime, int, DeadLetterSummary]] = []
    for letter, entry in join_ledger_entries(letters, ledger):
        result.seen += 1
        standing = get_standing(entry)
        if not selection.matches(letter, standing):
            continue
        result.total += 1
        for each in by:
            result.counts[each][_group_value(letter, each)] += 1
        age = letter.failed or _BEGINNING
        if limit and (len(heap) < limit or age >= heap[0][0]):
            # If times are equal, the letter read later counts as newer.
            keep = heapq.heappush if len(heap) < limit else heapq.heappushpop
            keep(heap, (age, result.total, _summarize(letter, entry, redactor)))
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


def _summarize(letter: DeadLetter, entry: LedgerEntry | None, redactor: Redactor) -> DeadLetterSummary:
    shown = redactor.redact(letter).letter
    return DeadLetterSummary(
        letter.id,
        letter.failed,
        letter.reason,
        letter.endpoint,
        shown.detail,
        tuple(str(near.get("message")) for near in letter.nearest),
        letter.attempts + (entry.attempts if entry is not None else 0),
        get_standing(entry),
        letter.sink,
    )


def _group_value(letter: DeadLetter, by: GroupBy) -> str:
    """Return the value by which a dead letter is grouped; for ``nearest``, its first nearest definition."""
    if by == "reason":
        return letter.reason
    if by == "endpoint":
        return letter.endpoint or NONE
    return str(letter.nearest[0].get("message")) if letter.nearest else NONE


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
