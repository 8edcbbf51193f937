"""``xrouter plan``: preview how a new catalog would change the outcomes of recent records."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import typer

from bindings.inbox.source import InboxView
from bindings.inbox.space import InboxDamaged, InboxFormatError
from bindings.kafka.client import KafkaClient, KafkaUnreachable
from bindings.kafka.offsets import RangeUnreadable, share_equally, tail_of
from bindings.kafka.store import inbox_rows_of
from catalog.comparing import CatalogChange, compare
from catalog.documents.fetching import CASES
from catalog.findings import Declarations, RecordError, one_line
from catalog.model import Catalog
from catalog.parsing.regular import open_input
from router.commands.arguments import OutputFormat, usable_catalog
from router.commands.catalog import description
from router.commands.test.cases import read_cases
from router.commands.test.runner import letter_of_entry
from router.dead_letters.dead_letter import DeadLetter
from router.dead_letters.reading import latest_letters, moment_of
from router.dead_letters.redaction import Redaction, Redactor, SensitiveMarks, marks_of, marks_of_settings, redactor_of
from router.errors import BrokerUnreachable, CatalogUnavailable, ConfigError, RouterError
from router.evaluation.comparing import (
    KINDS,
    CatalogOutcome,
    ChangedRecord,
    Chunk,
    Comparison,
    DifferenceKind,
    SinksByRoute,
    catalog_notes,
    compare_outcomes,
    count_groups,
)
from router.evaluation.evaluator import EVALUATORS, INBOX_COLUMNS
from router.evaluation.plan import Plan
from router.logs import configure_logs
from router.matching.records import entry_of
from router.matching.schema_validation import DATA
from router.replay.batches import rows_of
from router.settings import Settings, load_settings
from router.settings.catalogs import fetcher_of
from router.sources import Source, inbox_client, source_client
from router.state.durable import Pins, clients_of, require_trusted
from router.state.ledger import LetterLedger
from router.terminal import counted, print_json, shown_value, styled, terminal

# Changes by a new catalog: records to evaluate, counts, and samples with their first cause.

# Samples of changes: a record's position, its outcome before and after, and the first cause.

# Sources that records are read from, in chunks with the columns of the source.

ROWS: Final = 5_000
"""Records that are evaluated together."""
BYTES: Final = 256 << 20
"""Bytes of records that are read from one source."""


@dataclass(slots=True)
class RecordFeed:
    """A source of records; ``notes`` and ``records`` are set after reading."""

    name: str
    read: Callable[[RecordFeed], Iterator[Chunk]]
    records: int = 0
    notes: list[str] = field(default_factory=list)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the records, at most :data:`ROWS` at a time, and not many more bytes than :data:`BYTES` in all."""
        size = 0
        for chunk in self.read(self):
            for start in range(0, chunk.rows.num_rows, ROWS):
                some = chunk.rows.slice(start, ROWS)
                self.records += some.num_rows
                yield Chunk(chunk.kind, some)
            size += chunk.rows.nbytes
            if size > BYTES:
                self.notes.append(f"stopped reading after {size >> 20} MiB")
                return


def inbox_chunk(batch: pa.RecordBatch) -> Chunk:
    """Return rows of an inbox."""
    return Chunk("inbox", batch.select(list(INBOX_COLUMNS)))


def letter_of(chunk: Chunk, row: int, reason: str) -> DeadLetter:
    """Return a record as a dead letter, so that it can be redacted."""
    binding, parts, body = chunk.taken_apart(row)
    return DeadLetter(
        id="",
        reason=reason,
        detail="",
        nearest=(),
        endpoint=None,
        protocol=binding.protocol,
        native=binding.native(parts),
        body=body,
        epoch="",
        position=chunk.position(row),
        received=None,
        failed=None,
        attempts=0,
    )


CUT: Final = 200
"""Characters of one value."""
VALUES: Final = 20
"""Attributes of one kind that a sample shows."""
_OF_EVENTS: Final = ("context-", "mapped-attribute-")
_VIOLATION: Final = "schema-violation"


@dataclass(frozen=True, slots=True)
class ChangedSample:
    """One changed record, redacted. ``before`` and ``after`` have the differences, by name."""

    position: str
    kinds: tuple[DifferenceKind, ...]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    cause: str

    def to_json(self) -> dict[str, Any]:
        """Return all members."""
        return {name: getattr(self, name) for name in self.__slots__}


class ChangeSampler:
    """Makes samples. If a record does not show the cause, the differences of the catalogs do."""

    def __init__(self, old: Catalog, new: Catalog, redactor: Redactor) -> None:
        self._old, self._new, self._redactor = old, new, redactor

    @cached_property
    def _changes(self) -> dict[str, list[CatalogChange]]:
        changes: dict[str, list[CatalogChange]] = {}
        for change in sorted(compare(self._old, self._new).changes, key=lambda each: each.compatible):
            for xid in {change.xid, *([change.before] if change.kind == "definition-renamed" else [])}:
                changes.setdefault(xid, []).append(change)
        return changes

    def sample(self, chunk: Chunk, changed: ChangedRecord) -> ChangedSample:
        """Return the redacted sample of one record."""
        before, after = changed.verdicts()
        reasons = (before.reason, after.reason)
        reason = _VIOLATION if _VIOLATION in reasons else next(filter(None, reasons), "")
        redaction = self._redactor.redact(letter_of(chunk, changed.row, reason))
        shown = [_shown(one, other, redaction) for one, other in ((before, after), (after, before))]
        cause = _cut(self._cause(changed.kinds[0], before, after, redaction))
        return ChangedSample(chunk.position(changed.row), changed.kinds, shown[0], shown[1], cause)

    def _cause(self, kind: DifferenceKind, before: CatalogOutcome, after: CatalogOutcome, redaction: Redaction) -> str:
        if kind == "dead-letter" and before.message in self._new.definitions:
            return _mismatch(after, before.message, redaction) or self._change(before) or _detail(after, redaction)
        if kind == "matched" and after.message in self._old.definitions:
            cause = _mismatch(before, after.message, redaction) or _detail(before, redaction)
            return f"before: {cause}" if cause else self._change(after)
        if kind == "event":
            return self._change(before, _OF_EVENTS) or self._change(before)
        return self._change(before) or self._change(after) or _detail(after, redaction)

    def _change(self, verdict: CatalogOutcome, kinds: tuple[str, ...] = ("",)) -> str:
        """Return the first change of the definition of an outcome, incompatible ones first."""
        known = self._changes.get(verdict.message or "", ())
        change = next((each for each in known if each.kind.startswith(kinds)), None)
        return "" if change is None else f"{change.xid}: {change.kind}{description(change)}"


def _mismatch(verdict: CatalogOutcome, message: str | None, redaction: Redaction) -> str:
    """Return the first requirement of a definition that a record does not meet."""
    near = next((each for each in verdict.nearest if each.get("message") == message), None)
    wrong = (near and redaction.near(near).get("mismatches")) or ()
    if not wrong:
        return ""
    asked, there = shown_value(wrong[0].get("expected")), shown_value(wrong[0].get("found"))
    if wrong[0].get("property") == DATA:
        return f"the data is invalid against {asked}, the schema of {message}: {there}"
    return f"{message} requires {wrong[0].get('property')} {asked}, and the record has {there}"


def _detail(verdict: CatalogOutcome, redaction: Redaction) -> str:
    return redaction.detail(verdict.reason, verdict.detail)


def _shown(verdict: CatalogOutcome, other: CatalogOutcome, redaction: Redaction) -> dict[str, Any]:
    """Return an outcome, without attributes and destinations that equal those of *other*."""
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


# Totals of changes: counts by kind and definition, and samples, all bounded.

GROUPS: Final = 1_000
"""Pairs of outcomes before and after that are counted separately; others are counted together."""
OTHERS: Final = ("others", "others")


@dataclass(slots=True)
class ChangeTally:
    """Counts of outcomes: a record is one, a batch of events as many as it has; one may differ in several ways.

    ``groups`` are by kind and what became of records before and after, a definition or a reason.
    """

    samples_each: int
    outcomes: int = 0
    changed: int = 0
    kinds: Counter[DifferenceKind] = field(default_factory=Counter)
    groups: Counter[tuple[DifferenceKind, str, str]] = field(default_factory=Counter)
    samples: dict[DifferenceKind, list[ChangedSample]] = field(default_factory=dict)
    _sampled: Counter[tuple[DifferenceKind, str, str]] = field(default_factory=Counter)

    def add(self, chunk: Chunk, compared: Comparison, sample: Callable[[Chunk, ChangedRecord], ChangedSample]) -> None:
        """Count the outcomes of a chunk, and add samples up to the limit."""
        self.outcomes += compared.outcomes
        self.changed += len(compared.changed)
        for group, number in count_groups(compared.changed).items():
            self.kinds[group[0]] += number
            known = group in self.groups or len(self.groups) < GROUPS
            self.groups[group if known else (group[0], *OTHERS)] += number
        for each in compared.changed:
            # Under its worst kind: the sample names the others.
            kept = self.samples.setdefault(each.kinds[0], [])
            group = (each.kinds[0], each.before, each.after)
            if len(kept) < self.samples_each and self._sampled[group] * 2 < self.samples_each:
                self._sampled[group] += 1
                kept.append(sample(chunk, each))

    def fails(self, kinds: Iterable[DifferenceKind]) -> bool:
        """Whether there is a change of one of these kinds."""
        return any(self.kinds[kind] for kind in kinds)

    def to_json(self, places: Iterable[RecordFeed], notes: Iterable[str], epochs: Mapping[str, str]) -> dict[str, Any]:
        """Return the report in its JSON form."""
        return {
            **epochs,
            "outcomes": self.outcomes,
            "unchanged": self.outcomes - self.changed,
            "changed": {kind: self.kinds[kind] for kind in KINDS},
            "groups": [
                {"kind": kind, "before": before, "after": after, "outcomes": number}
                for (kind, before, after), number in self.groups.most_common()
            ],
            "samples": [sample.to_json() for kind in KINDS for sample in self.samples.get(kind, ())],
            "places": [{"place": each.name, "records": each.records, "notes": each.notes} for each in places],
            "notes": list(notes),
        }


# Files of records: lines as ``emit`` writes and ``match`` reads them, or cases of ``xrouter test``.

MAX_LINE: Final = 64 * 1024 * 1024
_HINT: Final = "records are lines as `xrouter emit` writes and `xrouter match` reads them, or cases"


def file_of(path: Path, most: int, since: datetime | None) -> RecordFeed:
    """Return a file of records, or of cases (``*.cases.yaml``), as a source.

    Reading it raises:
        RouterError: it cannot be read, or a line is not a record; names the line.
    """
    return RecordFeed(f"file {path}", partial(_chunks, path, most, since))


def _chunks(path: Path, most: int, since: datetime | None, place: RecordFeed) -> Iterator[Chunk]:
    letters = _letters(path, _last(path, most, place))
    if since is not None:
        letters = (each for each in letters if each.received is not None and each.received >= since)
    while some := list(islice(letters, ROWS)):
        yield from (Chunk("letters", batch) for batch in rows_of(some).select(list(INBOX_COLUMNS)).to_batches())


def _last(path: Path, most: int, place: RecordFeed) -> Iterable[tuple[str, bytes]]:
    """Return the newest records of a file, each with its position."""
    kept: deque[tuple[str, bytes]] = deque()
    there = size = 0
    for position, line in _records(path):
        there += 1
        kept.append((position, line))
        size += len(line)
        while len(kept) > most or (size > BYTES and len(kept) > 1):
            size -= len(kept.popleft()[1])
    if there > len(kept):
        place.notes.append(f"the last {len(kept)} of its {there} records were read")
    elif there < most:
        place.notes.append(f"it has no more than {there}" if there else "it is empty")
    return kept


def _records(path: Path) -> Iterator[tuple[str, bytes]]:
    if CASES in path.suffixes:
        for case in (case for file in read_cases([path]) for case in file.cases):
            yield f"{path}: {case.name}", case.record
        return
    try:
        with open_input(path) as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise RouterError(f"{path}:{number}: a line of more than {MAX_LINE} bytes is no record", hint=_HINT)
                if line.strip():
                    yield f"{path}:{number}", line
    except OSError as error:
        raise RouterError(f"{path} cannot be read: {error.strerror or type(error).__name__}") from error


def _letters(path: Path, records: Iterable[tuple[str, bytes]]) -> Iterator[DeadLetter]:
    for number, (position, line) in enumerate(records):
        try:
            yield replace(letter_of_entry(entry_of(number, line)[0]), position=position)
        except RecordError as error:
            raise RouterError(f"{position}: {error}", hint=_HINT) from error


# The newest records of a router: of its topics, inbox and dead letters.

MOST_LETTERS: Final = 10_000
"""Maximum dead letters to read: all are in memory."""
_NO_STATE_HINT: Final = (
    "start the broker, or correct bootstrap_servers and credentials; `--from inbox` or `--records FILE` does without it"
)
_INBOX: Final = "inbox"


@dataclass(slots=True)
class RecordSelection:
    """Select the newest ``most`` records per source, or those since ``since`` (at most ``most``)."""

    most: int
    since: datetime | None = None
    _seen: set[str] = field(default_factory=set)

    def topics(self, plan: Plan) -> Iterator[RecordFeed]:
        """Yield the topics that a plan reads."""
        known: set[tuple[str, str]] = set()
        for source in plan.sources:
            if not source.pushed and (source.servers, source.topic) not in known:
                known.add((source.servers, source.topic))
                yield RecordFeed(f"topic {source.topic}", partial(self._topic, source))

    def inbox(self, settings: Settings) -> Iterator[RecordFeed]:
        """Yield the inbox, if it exists."""
        folder = Path(settings.state) / _INBOX
        if settings.inbox.kafka is not None or folder.is_dir():
            yield RecordFeed(_INBOX, partial(self._inbox, settings, folder))

    def letters(self, settings: Settings) -> Iterator[RecordFeed]:
        """Yield the dead letters; read them last, since those already read from topics and inbox are skipped."""
        yield RecordFeed("dead letters", partial(self._letters, settings))

    def _topic(self, source: Source, place: RecordFeed) -> Iterator[Chunk]:
        chunks = map(partial(Chunk, "kafka"), self._records(source_client(source), source.topic, place))
        return self._answered(f"source {source.endpoint}", chunks)

    def _answered(self, name: str, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Yield the chunks; raise BrokerUnreachable if brokers do not respond."""
        try:
            for chunk in chunks:
                self._seen.update(chunk.positions())
                yield chunk
        except (KafkaUnreachable, RangeUnreadable) as error:
            raise BrokerUnreachable(f"{name}: {error}", hint=_NO_STATE_HINT) from error

    def _records(self, client: KafkaClient, topic: str, place: RecordFeed) -> Iterator[pa.RecordBatch]:
        since = None if self.since is None else int(self.since.timestamp() * 1000)
        tail = tail_of(client, topic, self.most, since)
        if tail is None:
            place.notes.append("the topic does not exist")
            return
        yield from tail.read()
        if self.since is None and tail.whole:
            self._note(place, tail.records)
        elif self.since is not None and not tail.whole:
            self._note(place, self.most + 1)

    def _inbox(self, settings: Settings, folder: Path, place: RecordFeed) -> Iterator[Chunk]:
        topic = settings.inbox.kafka
        if topic is not None:
            batches = self._records(inbox_client(topic), topic.topic, place)
            yield from self._answered("inbox", (inbox_chunk(inbox_rows_of(batch)) for batch in batches))
            return
        try:
            view = InboxView(folder)
            spans = {number: (view.first(number), view.end(number)) for number in view.partitions}
            rows = {number: view.count(number, *span) for number, span in spans.items()}
            self._note(place, sum(rows.values()))
            for number, share in share_equally(rows, self.most).items():
                first, end = spans[number]
                start = view.advance(number, first, rows[number] - share, end)
                for batch in view.read(number, view.spans(number, start, end)):
                    chunk = inbox_chunk(self._from_then_on(batch))
                    self._seen.update(chunk.positions())
                    yield chunk
        except (InboxDamaged, InboxFormatError) as error:
            # A running router may remove routed segments while they are read here.
            place.notes.append(f"reading stopped: {error}")

    def _from_then_on(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.since is None:
            return batch
        moment = pa.scalar(self.since, pa.timestamp("us", tz="UTC"))
        return batch.filter(pc.greater_equal(batch.column("received"), moment))

    def _letters(self, settings: Settings, place: RecordFeed) -> Iterator[Chunk]:
        try:
            letters = latest_letters(settings, min(self.most, MOST_LETTERS))
        except ConfigError as error:
            place.notes.append(error.message)
            return
        if len(letters) < self.most:
            place.notes.append(
                f"{counted(len(letters), 'letter')} found among the newest" if letters else "there are none"
            )
        with LetterLedger.open(Path(settings.state), create=False) as ledger:
            standing = ledger.standing(each.id for each in letters)
        mine = [
            each
            for each in letters
            if standing[each.id] != "replayed"
            and (self.since is None or (each.failed is not None and each.failed >= self.since))
            and each.position.partition("#")[0] not in self._seen
        ]
        if len(mine) < len(letters):
            left = counted(len(letters) - len(mine), "letter")
            place.notes.append(f"{left}skipped: replayed, older than --since, or already read from their source")
        for batch in rows_of(mine).select(list(INBOX_COLUMNS)).to_batches():
            yield Chunk("letters", batch)

    def _note(self, place: RecordFeed, there: int) -> None:
        """Add a note if the number of records is not the requested one."""
        if self.since is None and there < self.most:
            place.notes.append(f"it has no more than {there}" if there else "it is empty")
        elif self.since is not None and there > self.most:
            place.notes.append(f"only the last {self.most} were read")


# The text report.

SHOWN_GROUPS: Final = 20
"""Pairs of before and after shown per kind; JSON has all of them."""
_STYLES: Final = {"dead-letter": "bold red", "definition": "bold red", "matched": "bold green"}


def write_report(tally: ChangeTally, places: Iterable[RecordFeed], notes: Iterable[str]) -> None:
    """Print the changes by kind, and the sources."""
    console = terminal(soft_wrap=True)
    for place in places:
        summary = "; ".join([counted(place.records, "record"), *place.notes])
        console.print(styled(one_line(f"{place.name}: {summary}")))
    for note in notes:
        console.print(styled(("note", "yellow"), one_line(f": {note}")))
    for kind, words in KINDS.items():
        if not tally.kinds[kind]:
            continue
        console.print(styled((f"{words}: {tally.kinds[kind]}", _STYLES.get(kind, "bold yellow"))))
        groups = [(each, number) for each, number in tally.groups.most_common() if each[0] == kind]
        for (_, before, after), number in groups[:SHOWN_GROUPS]:
            console.print(styled(one_line(f"  {number}  {before if before == after else f'{before} -> {after}'}")))
        if len(groups) > SHOWN_GROUPS:
            console.print(f"  and {len(groups) - SHOWN_GROUPS} more pairs, which --format json has")
        for sample in tally.samples.get(kind, ()):
            for line in _lines(sample):
                console.print(styled(one_line(line)))
    total = counted(tally.outcomes, "outcome")
    console.print(f"{total}: {tally.outcomes - tally.changed} unchanged, {tally.changed} changed")


def _lines(sample: ChangedSample) -> Iterator[str]:
    others = f" (also {', '.join(KINDS[kind] for kind in sample.kinds[1:])})" if sample.kinds[1:] else ""
    yield f"    {sample.position}{others}"
    yield f"      before: {_verdict_line(sample.before)}"
    yield f"      after:  {_verdict_line(sample.after)}"
    if sample.cause:
        yield f"      cause:  {sample.cause}"


def _verdict_line(verdict: Mapping[str, Any]) -> str:
    """Return one side of a sample as a line."""
    if "message" in verdict:
        text = str(verdict["message"])
    else:
        detail = f": {verdict['detail']}" if "detail" in verdict else ""
        text = f"dead letter, {verdict['reason']}{detail}"
    text += f" -> {', '.join(verdict['sinks'])}"
    for name in ("topics", "context", "attributes"):
        if name in verdict:
            values = (f"{key}={'(none)' if value is None else value}" for key, value in verdict[name].items())
            text += f"; {name}: {', '.join(values)}"
    return text


LAST: Final = 1_000
MOST: Final = 100_000
FAILED: Final = 1
PENDING: Final = 3
"""Unreachable references that are named."""
_AGAIN: Final = "retry when it responds; a reload waits for it too"


class RecordSource(StrEnum):
    """Where records are read from."""

    topics = "topics"
    inbox = "inbox"
    letters = "dead-letters"


class FailOn(StrEnum):
    """Changes that cause exit code 1."""

    letter = "dead-letter"
    definition = "definition"
    route = "route"
    event = "event"
    none = "none"


def plan(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file, with the current catalog.")],
    new: Annotated[
        list[str],
        typer.Option("--new", metavar="CATALOG", help="File, folder or URL of the new catalog; repeatable."),
    ],
    last: Annotated[
        int | None,
        typer.Option(
            "--last", metavar="N", min=1, max=MOST, help=f"The newest N records per source; {LAST} by default."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=f"Records since then (2026-01-02T03:04:05Z, a date, 2h); at most {MOST} per source.",
        ),
    ] = None,
    origins: Annotated[
        list[RecordSource] | None,
        typer.Option("--from", help="Where to read records; repeatable. By default all three, or none with --records."),
    ] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option("--records", metavar="FILE", help="File of records for `match`, or of cases; repeatable."),
    ] = None,
    fail_on: Annotated[
        list[FailOn] | None,
        typer.Option(
            "--fail-on", help="Changes that cause exit code 1; repeatable. By default dead-letter and definition."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(metavar="N", min=0, max=1_000, help="Samples per kind of change.")] = 5,
    reveal: Annotated[bool, typer.Option("--reveal", help="Show what is marked as sensitive.")] = False,
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` prints one object.")] = OutputFormat.text,
) -> None:
    """Evaluate recent records with the current and a new catalog, and show which outcomes would change.

    Records are read from topics, inbox, dead letters and files. Nothing is written or committed. Exit code 1: records
    would become dead letters or change their definition (see --fail-on).

    Example: xrouter plan router.yaml --new next.xreg.json --last 5000
    """
    if last is not None and since is not None:
        raise typer.BadParameter("--last and --since exclude each other; give one of them")
    chosen = fail_on or [FailOn.letter, FailOn.definition]
    if FailOn.none in chosen and len(chosen) > 1:
        raise typer.BadParameter("--fail-on none cannot be combined with others")
    settings = load_settings(config)
    configure_logs(settings.log)
    old, old_marks = _loaded(list(settings.catalog.source), settings)
    coming, new_marks = _loaded(new, settings)
    before, after = Plan(old, settings), Plan(coming, settings)
    marks = old_marks | new_marks | marks_of_settings(settings.dead_letters.redact)
    sampling = ChangeSampler(old, coming, redactor_of(marks, reveal=reveal))
    moment = moment_of(since, "--since")
    wanted = RecordSelection((LAST if last is None else last) if moment is None else MOST, moment)
    read = origins if origins else [] if records else list(RecordSource)
    if read:
        # Do not contact servers that must not see our credentials: the router may have rejected what the catalog says
        # now.
        require_trusted(clients_of(settings, old, before.sources), Pins(Path(settings.state)))
    places: list[RecordFeed] = []
    tally, ways = ChangeTally(samples), SinksByRoute.of(settings)
    for place in _places(wanted, before, read, records or ()):
        places.append(place)
        for chunk in place.chunks():
            judge = EVALUATORS[chunk.kind]
            one, other = judge(before.judge, chunk.rows), judge(after.judge, chunk.rows)
            tally.add(chunk, compare_outcomes(chunk, one, other, ways), sampling.sample)
    notes = list(catalog_notes(before, after))
    if format is OutputFormat.json:
        print_json(tally.to_json(places, notes, {"before": old.epoch, "after": coming.epoch}))
    else:
        write_report(tally, places, notes)
    if tally.fails(cast(DifferenceKind, each.value) for each in chosen):
        raise typer.Exit(FAILED)


def _loaded(sources: list[str], settings: Settings) -> tuple[Catalog, SensitiveMarks]:
    """Load a catalog as the settings say; return it with what it marks as sensitive."""
    declarations, read = Declarations(), settings.catalog
    loaded = usable_catalog(sources, fetcher_of(settings), base_uri=read.base_uri, declarations=declarations)
    if loaded.pending:
        # A reload waits for them; without them their definitions would look removed.
        away = ", ".join(loaded.pending[:PENDING])
        raise CatalogUnavailable(f"{', '.join(sources)} has references that cannot be reached: {away}", hint=_AGAIN)
    return loaded, marks_of(declarations, loaded)


def _places(
    last: RecordSelection, before: Plan, origins: Sequence[RecordSource], files: Sequence[Path]
) -> Iterator[RecordFeed]:
    settings = before.settings
    if RecordSource.topics in origins:
        yield from last.topics(before)
    if RecordSource.inbox in origins:
        yield from last.inbox(settings)
    if RecordSource.letters in origins:
        yield from last.letters(settings)
    yield from (file_of(path, last.most, last.since) for path in files)
