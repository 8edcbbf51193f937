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
from typing import Annotated, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import typer

from bindings.inbox.source import InboxView
from bindings.inbox.space import InboxDamaged, InboxFormatError
from bindings.kafka.client import KafkaClient, KafkaUnreachable
from bindings.kafka.offsets import RangeUnreadable, open_tail, share_equally
from bindings.kafka.store import to_inbox_rows
from catalog.comparing import CatalogChange, compare_catalogs
from catalog.documents.fetching import CASES
from catalog.findings import Declarations, RecordError, to_one_line
from catalog.model import Catalog
from catalog.parsing.regular import open_input
from catalog.record import Record
from router.commands.arguments import JsonObject, Reveal, load_catalog_of
from router.commands.catalog import describe_change
from router.commands.test.cases import MAX_MESSAGE, read_cases
from router.commands.test.runner import RECORDS_HINT, describe_mismatch, iter_record_lines
from router.dead_letters.dead_letter import DeadLetter, cut, rows_of
from router.dead_letters.reading import parse_time_option, read_latest
from router.dead_letters.redaction import Redaction, Redactor, SensitiveMarks, find_marks, make_redactor, parse_marks
from router.errors import WRONG, BrokerUnreachable, CatalogUnavailable, ConfigError, RouterError
from router.evaluation import comparing
from router.evaluation.evaluator import EVALUATORS, INBOX_COLUMNS
from router.evaluation.plan import Plan
from router.logs import configure_logs, shorten_list
from router.matching.records import parse_entry
from router.settings import Settings, load_settings
from router.sources import Source, make_inbox_client, make_source_client
from router.state.durable import require_trusted
from router.state.ledger import LetterLedger
from router.terminal import MAX_LISTED, plural, print_json, terminal, to_text

# Sources that records are read from, in chunks with the columns of the source.

CHUNK_ROWS: Final = 5_000
"""Maximum records that are evaluated together."""
MAX_FEED_BYTES: Final = 256 << 20
"""Approximate maximum bytes of records that are read from one source."""


@dataclass(slots=True)
class RecordFeed:
    """A source of records; ``notes`` and ``records`` are set after reading."""

    name: str
    read: Callable[[RecordFeed], Iterator[comparing.Chunk]]
    records: int = 0
    notes: list[str] = field(default_factory=list)

    def iter_chunks(self) -> Iterator[comparing.Chunk]:
        """Yield at most :data:`CHUNK_ROWS` records at a time, and about :data:`MAX_FEED_BYTES` in all."""
        size = 0
        for chunk in self.read(self):
            for start in range(0, chunk.rows.num_rows, CHUNK_ROWS):
                some = chunk.rows.slice(start, CHUNK_ROWS)
                self.records += some.num_rows
                yield comparing.Chunk(chunk.kind, some)
            size += chunk.rows.nbytes
            if size > MAX_FEED_BYTES:
                self.notes.append(f"stopped reading after {size >> 20} MiB")
                return


def make_inbox_chunk(batch: pa.RecordBatch) -> comparing.Chunk:
    """Return rows of an inbox."""
    return comparing.Chunk("inbox", batch.select(list(INBOX_COLUMNS)))


def to_dead_letter(chunk: comparing.Chunk, row: int, reason: str) -> DeadLetter:
    """Return a record as a dead letter, so that it can be redacted."""
    binding, parts, body = chunk.split_record(row)
    record = Record(binding.protocol, binding.build(parts), body, None, None, chunk.position_of(row))
    return DeadLetter.of_record(record, reason=reason)


_OF_EVENTS: Final = ("context-", "mapped-attribute-")
_VIOLATION: Final = "schema-violation"


class ChangeSampler:
    """Makes samples. If a record does not show the cause, the differences of the catalogs do."""

    def __init__(self, old: Catalog, new: Catalog, redactor: Redactor) -> None:
        self._old, self._new, self._redactor = old, new, redactor

    @cached_property
    def _changes_by_xid(self) -> dict[str, list[CatalogChange]]:
        changes: dict[str, list[CatalogChange]] = {}
        for change in sorted(compare_catalogs(self._old, self._new).changes, key=lambda each: each.compatible):
            for xid in {change.xid, *([change.before] if change.kind == "definition-renamed" else [])}:
                changes.setdefault(xid, []).append(change)
        return changes

    def make_sample(self, chunk: comparing.Chunk, changed: comparing.ChangedRecord) -> dict[str, Any]:
        """Return the redacted sample of one record; ``before`` and ``after`` have the differences, by name."""
        before, after = changed.load_outcomes()
        reasons = (before.reason, after.reason)
        reason = _VIOLATION if _VIOLATION in reasons else next(filter(None, reasons), "")
        redaction = self._redactor.redact(to_dead_letter(chunk, changed.row, reason))
        return {
            "position": chunk.position_of(changed.row),
            "kinds": changed.kinds,
            "before": _redact_outcome(before, after, redaction),
            "after": _redact_outcome(after, before, redaction),
            "cause": _cut(self._cause(changed.kinds[0], before, after, redaction)),
        }

    def _cause(
        self,
        kind: comparing.DifferenceKind,
        before: comparing.CatalogOutcome,
        after: comparing.CatalogOutcome,
        redaction: Redaction,
    ) -> str:
        if kind == "dead-letter" and before.message in self._new.definitions:
            return (
                _describe_mismatch(after, before.message, redaction)
                or self._find_change(before)
                or _redact_detail(after, redaction)
            )
        if kind == "matched" and after.message in self._old.definitions:
            cause = _describe_mismatch(before, after.message, redaction) or _redact_detail(before, redaction)
            return f"before: {cause}" if cause else self._find_change(after)
        if kind == "event":
            return self._find_change(before, _OF_EVENTS) or self._find_change(before)
        return self._find_change(before) or self._find_change(after) or _redact_detail(after, redaction)

    def _find_change(self, verdict: comparing.CatalogOutcome, kinds: tuple[str, ...] = ("",)) -> str:
        """Return the first change of the definition of an outcome, incompatible ones first."""
        known = self._changes_by_xid.get(verdict.message or "", ())
        change = next((each for each in known if each.kind.startswith(kinds)), None)
        return "" if change is None else f"{change.xid}: {change.kind}{describe_change(change)}"


def _describe_mismatch(verdict: comparing.CatalogOutcome, message: str | None, redaction: Redaction) -> str:
    """Return the first requirement of a definition that a record does not meet."""
    near = next((each for each in verdict.nearest if each.get("message") == message), None)
    wrong = (near and redaction.redact_near(near).get("mismatches")) or ()
    if not wrong:
        return ""
    return describe_mismatch(message or "", *(wrong[0].get(name) for name in ("property", "expected", "found")))


def _redact_detail(verdict: comparing.CatalogOutcome, redaction: Redaction) -> str:
    return redaction.redact_detail(verdict.reason, verdict.detail)


def _redact_outcome(
    verdict: comparing.CatalogOutcome, other: comparing.CatalogOutcome, redaction: Redaction
) -> dict[str, Any]:
    """Return an outcome, without attributes and destinations that equal those of *other*."""
    shown: dict[str, Any] = {"message": verdict.message} if verdict.message else {"reason": verdict.reason or ""}
    if verdict.detail:
        shown["detail"] = _cut(_redact_detail(verdict, redaction))
    shown["sinks"] = list(verdict.sinks)
    if verdict.topics != other.topics:
        shown["topics"] = {name: _cut(redaction.redact_text(topic)) for name, topic in verdict.topics.items()}
    if verdict.message and other.message:
        for name in ("context", "attributes"):
            differing = _redact_changed(getattr(verdict, name), getattr(other, name), redaction)
            if differing:
                shown[name] = differing
    return shown


def _redact_changed(mine: Mapping[str, str], others: Mapping[str, str], redaction: Redaction) -> dict[str, str | None]:
    names = sorted(name for name in {*mine, *others} if mine.get(name) != others.get(name))
    return {key: _cut(redaction.redact_derived(key, mine[key])) if key in mine else None for key in names[:MAX_LISTED]}


def _cut(text: str) -> str:
    return cut(text, MAX_MESSAGE)


# Totals of changes: counts by kind and definition, and samples.


class ChangeTally:
    """Counts of outcomes: a record is one, a batch of events as many as it has; one may differ in several ways."""

    def __init__(self, samples_each: int) -> None:
        """*samples_each* is the maximum number of samples per kind of change."""
        self._samples_each = samples_each
        self._outcomes = self._changed = 0
        # By kind and what became of records before and after, a definition or a reason.
        self._groups: Counter[tuple[comparing.DifferenceKind, str, str]] = Counter()
        self._sampled: Counter[tuple[comparing.DifferenceKind, str, str]] = Counter()
        self._samples: dict[comparing.DifferenceKind, list[dict[str, Any]]] = {
            kind: [] for kind in comparing.DIFFERENCE_LABELS
        }

    def add(self, chunk: comparing.Chunk, compared: comparing.Comparison, sampler: ChangeSampler) -> None:
        """Count the outcomes of a chunk, and add samples up to the limit."""
        self._outcomes += compared.outcome_count
        self._changed += len(compared.changed)
        self._groups.update(comparing.count_differences(compared.changed))
        for each in compared.changed:
            # Under its worst kind: the sample names the others.
            kept, group = self._samples[each.kinds[0]], (each.kinds[0], each.before, each.after)
            if len(kept) < self._samples_each and self._sampled[group] * 2 < self._samples_each:
                self._sampled[group] += 1
                kept.append(sampler.make_sample(chunk, each))

    def to_json(self, places: Iterable[RecordFeed], notes: Iterable[str], epochs: Mapping[str, str]) -> dict[str, Any]:
        """Return the report in its JSON form."""
        kinds: Counter[comparing.DifferenceKind] = Counter()
        for (kind, _, _), number in self._groups.items():
            kinds[kind] += number
        return {
            **epochs,
            "outcomes": self._outcomes,
            "unchanged": self._outcomes - self._changed,
            "changed": {kind: kinds[kind] for kind in comparing.DIFFERENCE_LABELS},
            "groups": [
                {"kind": kind, "before": before, "after": after, "outcomes": number}
                for (kind, before, after), number in self._groups.most_common()
            ],
            "samples": [sample for kept in self._samples.values() for sample in kept],
            "places": [{"place": each.name, "records": each.records, "notes": each.notes} for each in places],
            "notes": list(notes),
        }


# Files of records: lines as ``emit`` writes and ``match`` reads them, or cases of ``xrouter test``.


def make_file_feed(path: Path, max_records: int, since: datetime | None) -> RecordFeed:
    """Return a file of records, or of cases (``*.cases.yaml``), as a source.

    Reading it raises:
        RouterError: it cannot be read, or a line is not a record; names the line.
    """
    return RecordFeed(f"file {path}", partial(_iter_file_chunks, path, max_records, since))


def _iter_file_chunks(
    path: Path, max_records: int, since: datetime | None, feed: RecordFeed
) -> Iterator[comparing.Chunk]:
    letters = _iter_file_letters(path, _read_newest(path, max_records, feed))
    if since is not None:
        letters = (each for each in letters if each.received is not None and each.received >= since)
    while some := list(islice(letters, CHUNK_ROWS)):
        yield from (
            comparing.Chunk("letters", batch) for batch in rows_of(some).select(list(INBOX_COLUMNS)).to_batches()
        )


def _read_newest(path: Path, max_records: int, feed: RecordFeed) -> Iterable[tuple[str, bytes]]:
    """Return the newest records of a file, each with its position."""
    newest: deque[tuple[str, bytes]] = deque()
    total = size = 0
    for position, line in _iter_file_records(path):
        total += 1
        newest.append((position, line))
        size += len(line)
        while len(newest) > max_records or (size > MAX_FEED_BYTES and len(newest) > 1):
            size -= len(newest.popleft()[1])
    if total > len(newest):
        feed.notes.append(f"the last {len(newest)} of its {total} records were read")
    elif total < max_records:
        feed.notes.append(f"it has no more than {total}" if total else "it is empty")
    return newest


def _iter_file_records(path: Path) -> Iterator[tuple[str, bytes]]:
    if CASES in path.suffixes:
        for case in (case for file in read_cases([path]) for case in file.cases):
            yield f"{path}: {case.name}", case.record
        return
    try:
        with open_input(path) as file:
            yield from ((f"{path}:{number}", line) for number, line in iter_record_lines(file))
    except OSError as error:
        raise RouterError(f"{path} cannot be read: {error.strerror or type(error).__name__}") from error


def _iter_file_letters(path: Path, records: Iterable[tuple[str, bytes]]) -> Iterator[DeadLetter]:
    for number, (position, line) in enumerate(records):
        try:
            record = parse_entry(number, line)[0].record
            yield replace(DeadLetter.to_evaluate(record, number), position=position)
        except RecordError as error:
            raise RouterError(f"{position}: {error}", hint=RECORDS_HINT) from error


# The newest records of a router: of its topics, inbox and dead letters.

MAX_LETTERS: Final = 10_000
"""Maximum dead letters to read: all are in memory."""
_NO_STATE_HINT: Final = (
    "start the broker, or correct bootstrap_servers and credentials; `--from inbox` or `--records FILE` does without it"
)
_INBOX: Final = "inbox"


@dataclass(slots=True)
class RecordSelection:
    """Select the newest ``most`` records per source, or those since ``since`` (at most ``most``)."""

    max_records: int
    since: datetime | None = None
    _seen: set[str] = field(default_factory=set)

    def iter_topic_feeds(self, plan: Plan) -> Iterator[RecordFeed]:
        """Yield the topics that a plan reads."""
        known: set[tuple[str, str]] = set()
        for source in plan.sources:
            if not source.pushed and (source.servers, source.topic) not in known:
                known.add((source.servers, source.topic))
                yield RecordFeed(f"topic {source.topic}", partial(self._iter_topic_chunks, source))

    def iter_inbox_feeds(self, settings: Settings) -> Iterator[RecordFeed]:
        """Yield the inbox, if it exists."""
        folder = Path(settings.state) / _INBOX
        if settings.inbox.kafka is not None or folder.is_dir():
            yield RecordFeed(_INBOX, partial(self._iter_inbox_chunks, settings, folder))

    def _iter_topic_chunks(self, source: Source, feed: RecordFeed) -> Iterator[comparing.Chunk]:
        chunks = map(
            partial(comparing.Chunk, "kafka"), self._iter_topic_rows(make_source_client(source), source.topic, feed)
        )
        return self._require_response(f"source {source.endpoint}", chunks)

    def _require_response(self, name: str, chunks: Iterator[comparing.Chunk]) -> Iterator[comparing.Chunk]:
        """Yield the chunks; raise BrokerUnreachable if brokers do not respond."""
        try:
            for chunk in chunks:
                self._seen.update(chunk.iter_positions())
                yield chunk
        except (KafkaUnreachable, RangeUnreadable) as error:
            raise BrokerUnreachable(f"{name}: {error}", hint=_NO_STATE_HINT) from error

    def _iter_topic_rows(self, client: KafkaClient, topic: str, feed: RecordFeed) -> Iterator[pa.RecordBatch]:
        since = None if self.since is None else int(self.since.timestamp() * 1000)
        tail = open_tail(client, topic, self.max_records, since)
        if tail is None:
            feed.notes.append("the topic does not exist")
            return
        yield from tail.read()
        if self.since is None and tail.includes_oldest:
            self._note_record_count(feed, tail.records)
        elif self.since is not None and not tail.includes_oldest:
            self._note_record_count(feed, self.max_records + 1)

    def _iter_inbox_chunks(self, settings: Settings, folder: Path, feed: RecordFeed) -> Iterator[comparing.Chunk]:
        topic = settings.inbox.kafka
        if topic is not None:
            batches = self._iter_topic_rows(make_inbox_client(topic), topic.topic, feed)
            yield from self._require_response("inbox", (make_inbox_chunk(to_inbox_rows(batch)) for batch in batches))
            return
        try:
            view = InboxView(folder)
            spans = {number: (view.first_position(number), view.end_position(number)) for number in view.partitions}
            rows = {number: view.count_rows(number, *span) for number, span in spans.items()}
            self._note_record_count(feed, sum(rows.values()))
            for number, share in share_equally(rows, self.max_records).items():
                first, end = spans[number]
                start = view.advance_position(number, first, rows[number] - share, end)
                for batch in view.read_spans(number, view.plan_spans(number, start, end)):
                    chunk = make_inbox_chunk(self._filter_since(batch))
                    self._seen.update(chunk.iter_positions())
                    yield chunk
        except (InboxDamaged, InboxFormatError) as error:
            # A running router may remove routed segments while they are read here.
            feed.notes.append(f"reading stopped: {error}")

    def _filter_since(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.since is None:
            return batch
        moment = pa.scalar(self.since, pa.timestamp("us", tz="UTC"))
        return batch.filter(pc.greater_equal(batch.column("received"), moment))

    def iter_letter_chunks(self, settings: Settings, feed: RecordFeed) -> Iterator[comparing.Chunk]:
        try:
            letters = read_latest(settings, min(self.max_records, MAX_LETTERS))
        except ConfigError as error:
            feed.notes.append(error.message)
            return
        if len(letters) < self.max_records:
            feed.notes.append(
                f"{plural(len(letters), 'letter')} found among the newest" if letters else "there are none"
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
            left = plural(len(letters) - len(mine), "letter")
            feed.notes.append(f"{left} skipped: replayed, older than --since, or already read from their source")
        for batch in rows_of(mine).select(list(INBOX_COLUMNS)).to_batches():
            yield comparing.Chunk("letters", batch)

    def _note_record_count(self, feed: RecordFeed, found: int) -> None:
        """Add a note if the number of records is not the requested one."""
        if self.since is None and found < self.max_records:
            feed.notes.append(f"it has no more than {found}" if found else "it is empty")
        elif self.since is not None and found > self.max_records:
            feed.notes.append(f"only the last {self.max_records} were read")


# The text report.

_STYLES: Final = {"dead-letter": "bold red", "definition": "bold red", "matched": "bold green"}


def write_report(report: Mapping[str, Any]) -> None:
    """Print the sources, and the changes by kind."""
    console = terminal(soft_wrap=True)
    for place in report["places"]:
        summary = "; ".join([plural(place["records"], "record"), *place["notes"]])
        console.print(to_text(to_one_line(f"{place['place']}: {summary}")))
    for note in report["notes"]:
        console.print(to_text(("note", "yellow"), to_one_line(f": {note}")))
    for kind, words in comparing.DIFFERENCE_LABELS.items():
        if not report["changed"][kind]:
            continue
        console.print(to_text((f"{words}: {report['changed'][kind]}", _STYLES.get(kind, "bold yellow"))))
        groups = [each for each in report["groups"] if each["kind"] == kind]
        for each in groups[:MAX_LISTED]:
            before, after = each["before"], each["after"]
            pair = before if before == after else f"{before} -> {after}"
            console.print(to_text(to_one_line(f"  {each['outcomes']}  {pair}")))
        if len(groups) > MAX_LISTED:
            console.print(f"  and {len(groups) - MAX_LISTED} more pairs, which --format json has")
        for sample in report["samples"]:
            for line in _iter_sample_lines(sample) if sample["kinds"][0] == kind else ():
                console.print(to_text(to_one_line(line)))
    changed = report["outcomes"] - report["unchanged"]
    console.print(f"{plural(report['outcomes'], 'outcome')}: {report['unchanged']} unchanged, {changed} changed")


def _iter_sample_lines(sample: Mapping[str, Any]) -> Iterator[str]:
    others = ", ".join(comparing.DIFFERENCE_LABELS[kind] for kind in sample["kinds"][1:])
    yield f"    {sample['position']}{f' (also {others})' if others else ''}"
    yield f"      before: {_format_outcome(sample['before'])}"
    yield f"      after:  {_format_outcome(sample['after'])}"
    if sample["cause"]:
        yield f"      cause:  {sample['cause']}"


def _format_outcome(verdict: Mapping[str, Any]) -> str:
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


DEFAULT_RECORDS: Final = 1_000
MAX_RECORDS: Final = 100_000
_RETRY: Final = "retry when it responds; a reload waits for it too"


RecordSource = StrEnum("RecordSource", ["topics", "inbox", "dead-letters"])
FailOn = StrEnum("FailOn", ["dead-letter", "definition", "route", "event", "none"])


def plan(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file, with the current catalog.")],
    new: Annotated[
        list[str], typer.Option("--new", metavar="CATALOG", help="File, folder or URL of the new catalog; repeatable.")
    ],
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            metavar="N",
            min=1,
            max=MAX_RECORDS,
            help=f"The newest N records per source; {DEFAULT_RECORDS} by default.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=f"Records since then (2026-01-02T03:04:05Z, a date, 2h); at most {MAX_RECORDS} per source.",
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
    reveal: Reveal = False,
    format: JsonObject = "text",
) -> None:
    """Evaluate recent records with the current and a new catalog, and show which outcomes would change.

    Records are read from topics, inbox, dead letters and files. Nothing is written or committed. Exit code 1: records
    would become dead letters or change their definition (see --fail-on).

    Example: xrouter plan router.yaml --new next.xreg.json --last 5000
    """
    if last is not None and since is not None:
        raise typer.BadParameter("--last and --since exclude each other; give one of them")
    chosen = fail_on or [FailOn("dead-letter"), FailOn("definition")]
    if "none" in chosen and len(chosen) > 1:
        raise typer.BadParameter("--fail-on none cannot be combined with others")
    settings = load_settings(config)
    configure_logs(settings.log)
    old_catalog, old_marks = _load_catalog(list(settings.catalog.source), settings)
    new_catalog, new_marks = _load_catalog(new, settings)
    before, after = Plan(old_catalog, settings), Plan(new_catalog, settings)
    marks = old_marks | new_marks | parse_marks(settings.dead_letters.redact)
    sampling = ChangeSampler(old_catalog, new_catalog, make_redactor(marks, reveal=reveal))
    moment = parse_time_option(since, "--since")
    selection = RecordSelection((DEFAULT_RECORDS if last is None else last) if moment is None else MAX_RECORDS, moment)
    read = origins or ([] if records else list(RecordSource))
    if read:
        # Do not contact servers that must not see our credentials: the router may have rejected what the catalog says
        # now.
        require_trusted(settings, old_catalog, before.sources)
    feeds: list[RecordFeed] = []
    tally, ways = ChangeTally(samples), comparing.SinksByRoute.from_settings(settings)
    for feed in _iter_feeds(selection, before, read, records or ()):
        feeds.append(feed)
        for chunk in feed.iter_chunks():
            judge = EVALUATORS[chunk.kind]
            one, other = judge(before.evaluator, chunk.rows), judge(after.evaluator, chunk.rows)
            tally.add(chunk, comparing.compare_outcomes(chunk, one, other, ways), sampling)
    epochs = {"before": old_catalog.epoch, "after": new_catalog.epoch}
    report = tally.to_json(feeds, comparing.iter_catalog_notes(before, after), epochs)
    if format == "json":
        print_json(report)
    else:
        write_report(report)
    if any(report["changed"].get(each) for each in chosen):
        raise typer.Exit(WRONG)


def _load_catalog(sources: list[str], settings: Settings) -> tuple[Catalog, SensitiveMarks]:
    """Load a catalog as the settings say; return it with what it marks as sensitive."""
    declarations = Declarations()
    loaded = load_catalog_of(settings, sources, declarations=declarations)
    if loaded.pending:
        # A reload waits for them; without them their definitions would look removed.
        away = shorten_list(loaded.pending)
        raise CatalogUnavailable(f"{', '.join(sources)} has references that cannot be reached: {away}", hint=_RETRY)
    return loaded, find_marks(declarations, loaded)


def _iter_feeds(
    selection: RecordSelection, before: Plan, origins: Sequence[RecordSource], files: Sequence[Path]
) -> Iterator[RecordFeed]:
    settings = before.settings
    if "topics" in origins:
        yield from selection.iter_topic_feeds(before)
    if "inbox" in origins:
        yield from selection.iter_inbox_feeds(settings)
    if "dead-letters" in origins:
        # Last, since those already read from topics and inbox are skipped.
        yield RecordFeed("dead letters", partial(selection.iter_letter_chunks, settings))
    yield from (make_file_feed(path, selection.max_records, selection.since) for path in files)
