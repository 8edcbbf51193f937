"""``xrouter tap``: a live sample of incoming records with their outcomes."""

from __future__ import annotations

import fnmatch
import io
import json
import random
import re
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import pyarrow as pa
import typer
from confluent_kafka import Consumer, KafkaException, TopicPartition
from rich.text import Text

from bindings.inbox.format import InboxPosition
from bindings.inbox.source import InboxView
from bindings.inbox.space import InboxDamaged, InboxError
from bindings.kafka.client import KafkaClient, KafkaUnreachable
from bindings.kafka.offsets import KafkaOffsets, consumer_config, to_source_batch, to_source_row
from bindings.kafka.store import to_inbox_rows
from catalog.findings import Declarations
from catalog.parsing.pointers import resolve_pointer
from catalog.record import Record
from router.commands.arguments import Reveal, load_catalog_of
from router.commands.plan import make_inbox_chunk, to_dead_letter
from router.dead_letters.dead_letter import BODY_SHOWN, cut, format_body, iter_values, shorten_nearest
from router.dead_letters.reading import require_reasons
from router.dead_letters.redaction import Redaction, Redactor, find_marks, make_redactor, parse_marks
from router.errors import BrokerUnreachable, ConfigError, RouterError
from router.evaluation.comparing import Chunk, SinksByRoute, read_outcome
from router.evaluation.evaluator import EVALUATORS
from router.evaluation.outputs import RoutedOutcomes
from router.evaluation.plan import Plan
from router.logs import configure_logs
from router.matching.inbox_columns import arrival_times
from router.settings import load_settings
from router.sources import make_inbox_client, make_source_client
from router.terminal import leave_output, plural, print_json_lines, print_text, terminal, to_text

# Selection of records by endpoint, definition, outcome and reason, and by conditions on single values.
#
# A condition is ``NAME=GLOB`` or ``NAME!=GLOB``; all of them must hold, as in a route. Conditions apply to the redacted
# sample, so they cannot match sensitive values.

OUTCOMES: Final = ("routed", "dead-letter")
FIELDS: Final = ("endpoint", "message", "outcome", "reason", "protocol", "position", "sinks")
PREFIXES: Final = ("attributes.", "context.", "native.")
_CONDITION_HINT: Final = (
    f"write NAME=GLOB or NAME!=GLOB, NAME being {', '.join(FIELDS)}, attributes.X, context.X, native.X, "
    "or a JSON pointer into the body, such as /order/id"
)
_CONDITION: Final = re.compile(r"([^=!]+)(!?=)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SampleFilter:
    """The filter of samples. One of several values of an option must match; globs support ``*``, ``?``, ``[...]``.

    ``conditions`` have a name, a glob, and whether the value must match it, or differ or be missing.
    """

    endpoints: Sequence[str]
    messages: Sequence[str]
    outcome: str | None
    reasons: Sequence[str]
    conditions: Sequence[tuple[str, str, bool]]

    def accepts_outcome(self, endpoint: str | None, message: str | None, reason: str | None) -> bool:
        """Whether an outcome passes the filter; ``message`` None is a dead letter."""
        return (
            (not self.outcome or (self.outcome == "routed") == (message is not None))
            and (not self.reasons or reason in self.reasons)
            and (not self.endpoints or any(fnmatch.fnmatchcase(endpoint or "", each) for each in self.endpoints))
            and (not self.messages or any(fnmatch.fnmatchcase(message or "", each) for each in self.messages))
        )

    def accepts_sample(self, values: Callable[[str], Sequence[str]]) -> bool:
        """Whether a sample meets all conditions."""
        return all(
            any(fnmatch.fnmatchcase(value, glob) for value in values(name)) is is_equal
            for name, glob, is_equal in self.conditions
        )


def _parse_condition(text: str) -> tuple[str, str, bool]:
    match = _CONDITION.fullmatch(text)
    name = match[1].strip() if match is not None else ""
    known = name in FIELDS or name.startswith("/") or any(name.startswith(each) and name != each for each in PREFIXES)
    if match is None or not known:
        raise RouterError(f"--where {text!r} cannot be read", hint=_CONDITION_HINT)
    return name, match[3].strip(), match[2] == "="


def read_pointer(tree: Any, pointer: str) -> list[str]:
    """Return the scalar value at a JSON pointer as text, in a list; empty if there is none."""
    try:
        value = resolve_pointer(tree, pointer)
    except KeyError:
        return []
    if isinstance(value, bool):
        return ["true" if value else "false"]
    return [str(value)] if isinstance(value, str | int | float) else []


MAX_EXAMINED: Final = 200
"""Records of one round that are sampled individually."""
MAX_MISMATCHES: Final = 3
"""Mismatches that are shown of a nearest definition."""
MAX_VALUES: Final = 50
"""Maximum values of one kind in a sample."""
MAX_TEXT: Final = 500
"""Maximum characters of one value."""


@dataclass(frozen=True, slots=True)
class TapSample:
    """One redacted outcome, and its complete ``record``; ``tree`` is the body if it is JSON."""

    document: Mapping[str, Any]
    record: Record
    tree: Any = None

    def find_values(self, name: str) -> Sequence[str]:
        """Return the values of a name in a condition."""
        prefix, _, rest = name.partition(".")
        if name.startswith("/"):
            return read_pointer(self.tree, name)
        if prefix == "native":
            return [text for path, text in self.document["before"]["native"] if path == rest]
        if rest:
            values = (self.document["after"] or {}).get(prefix, {})
            return [values[rest]] if rest in values else []
        value = self.document[name]
        return list(value) if isinstance(value, list) else [] if value is None else [value]


class TapSampler:
    """Evaluates incoming records as ``run`` does, and samples some of them."""

    def __init__(self, plan: Plan, redactor: Redactor, choice: SampleFilter) -> None:
        self._plan, self._redactor, self._choice = plan, redactor, choice
        self._ways = SinksByRoute.from_settings(plan.settings)
        self.evaluated = 0

    def iter_samples(self, chunk: Chunk, limit: int) -> Iterator[TapSample]:
        """Yield up to *limit* random samples; fixed steps could coincide with rhythms of the traffic."""
        decided = EVALUATORS[chunk.kind](self._plan.evaluator, chunk.rows)
        self.evaluated += len(decided.order)
        taken = list(self._iter_accepted(decided))
        wanted = limit if not self._choice.conditions else MAX_EXAMINED
        for row in sorted(random.sample(taken, min(len(taken), max(0, wanted)))):
            if limit <= 0:
                return
            sample = self._make_sample(chunk, decided, row)
            if self._choice.accepts_sample(sample.find_values):
                limit -= 1
                yield sample

    def _iter_accepted(self, decided: RoutedOutcomes) -> Iterator[int]:
        order = pa.array(decided.order)
        names = ("endpoint", "message", "reason")
        columns = (decided.column(name).take(order).cast(pa.string()).to_pylist() for name in names)
        for row, *values in zip(decided.order.tolist(), *columns, strict=True):
            if self._choice.accepts_outcome(*values):
                yield row

    def _make_sample(self, chunk: Chunk, decided: RoutedOutcomes, row: int) -> TapSample:
        source = int(decided.source_rows[row])
        outcome, endpoint = read_outcome(chunk, decided, row, self._ways), decided.column("endpoint")[row].as_py()
        redaction = self._redactor.redact(to_dead_letter(chunk, source, outcome.reason or ""))
        shown, routed = redaction.letter, outcome.message is not None
        body = format_body(shown.body) if shown.body is not None else []
        size = len(chunk.split_record(source)[2] or b"")
        document = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "position": shown.position,
            "endpoint": endpoint,
            "protocol": shown.protocol,
            "outcome": "routed" if routed else "dead-letter",
            "message": outcome.message,
            "reason": outcome.reason,
            "detail": _cut(redaction.redact_detail(outcome.reason, outcome.detail)),
            "nearest": [
                shorten_nearest(redaction.redact_near(each), MAX_TEXT, MAX_MISMATCHES) for each in outcome.nearest
            ],
            "sinks": list(outcome.sinks),
            "topics": {name: _cut(redaction.redact_text(topic)) for name, topic in outcome.topics.items()},
            "before": {
                "native": [[_cut(path), _cut(text)] for path, text in islice(iter_values(shown.native), MAX_VALUES)],
                "body": "\n".join(body),
                "body_bytes": size,
                "body_cut": size > BODY_SHOWN,
            },
            "after": {
                "attributes": _redact_values(outcome.attributes, redaction),
                "context": _redact_values(outcome.context, redaction),
            }
            if routed
            else None,
            "epoch": self._plan.epoch,
        }
        time = arrival_times(chunk.rows.column("received").slice(source, 1))[0].as_py() if chunk.is_pushed else None
        record = Record(shown.protocol, shown.native, shown.body, endpoint, time, shown.position)
        try:
            tree = json.loads(shown.body or b"null")
        except (ValueError, RecursionError):
            tree = None
        return TapSample(document, record, tree)


def _redact_values(values: Mapping[str, str], redaction: Redaction) -> dict[str, str]:
    return {name: _cut(redaction.redact_derived(name, text)) for name, text in list(values.items())[:MAX_VALUES]}


def _cut(text: str) -> str:
    return cut(text, MAX_TEXT)


# A sample in a terminal: its outcome in one line, then the record as received, and the resulting event.


def iter_lines(sample: TapSample) -> Iterator[Text]:
    """Yield the lines of a sample, followed by an empty line."""
    document = sample.document
    routed = document["outcome"] == "routed"
    outcome = ("routed", "green") if routed else ("dead letter", "bold red")
    yield to_text(f"{document['at'][11:19]} ", outcome, f" {document['message'] or document['reason']}")
    topics = document["topics"]
    places = ", ".join(f"{name} ({topics[name]})" if topics.get(name) else name for name in document["sinks"])
    yield to_text(
        f"  {document['protocol']} {document['position']} at {document['endpoint'] or 'no endpoint'} to {places or '-'}"
    )
    if document["detail"]:
        yield to_text("  ", (document["detail"], "red"))
    for near in document["nearest"]:
        yield to_text(f"  nearest {near['message']}{''.join(map(_format_mismatch, near['mismatches'][:1]))}")
    yield to_text("  ", ("before", "bold"))
    yield from (to_text("    ", (path, "cyan"), f" {text}") for path, text in document["before"]["native"])
    for line in document["before"]["body"].split("\n") if document["before"]["body"] else ():
        yield to_text("    ", (line, "dim"))
    if document["after"]:
        yield to_text("  ", ("after", "bold"))
        context = {f"context.{name}": text for name, text in document["after"]["context"].items()}
        for name, text in (document["after"]["attributes"] | context).items():
            yield to_text("    ", (name, "cyan"), f" {text}")
    yield to_text("")


def _format_mismatch(mismatch: dict[str, Any]) -> str:
    value = "nothing" if mismatch["found"] is None else mismatch["found"]
    return f": {mismatch['property']} expected {mismatch['expected']}, found {value}"


# New records of topics and inbox, read independently of the router.
#
# Records that cannot be read in time are skipped and counted, so that brokers and disk are hardly loaded.

ROUND_ROWS: Final = 500
"""Records that a follower reads in one round."""
_WAIT_SECONDS: Final = 0.2
_INBOX: Final = "inbox"
_LIMITS: Final = {"queued.max.messages.kbytes": 8192, "fetch.max.bytes": 4 << 20, "fetch.message.max.bytes": 1 << 20}
_HINT: Final = "start the broker, or correct bootstrap_servers and credentials"


class TopicFollower:
    """Follows the topics of one cluster. It joins no group and commits nothing."""

    def __init__(self, client: KafkaClient, topics: Sequence[str], *, inbox: bool = False) -> None:
        """Start at the ends of the topics; with *inbox*, gateways write to them.

        Raises:
            KafkaUnreachable: no broker answers, or they refuse us.
        """
        self.skipped = 0
        self._inbox = inbox
        ends = KafkaOffsets(client).end_offsets(list(topics))
        self.missing_topics = tuple(topic for topic in topics if ends.get(topic) is None)
        """Topics that do not exist."""
        self._positions = {
            (topic, number): end for topic in topics for number, end in sorted((ends.get(topic) or {}).items())
        }
        self._consumer = Consumer({**consumer_config(client), "group.id": "xrouter-tap", **_LIMITS})
        self._consumer.assign([TopicPartition(*place, end) for place, end in self._positions.items()])

    def read_new(self) -> Iterator[Chunk]:
        """Yield new records."""
        messages = self._consumer.consume(ROUND_ROWS, _WAIT_SECONDS)
        rows = [to_source_row(message) for message in messages if message.error() is None]
        for row in rows:
            self._positions[row["topic"], row["partition"]] = row["offset"] + 1
        if rows:
            batch = to_source_batch(rows)
            yield make_inbox_chunk(to_inbox_rows(batch)) if self._inbox else Chunk("kafka", batch)
        if len(messages) >= ROUND_ROWS:
            self._catch_up()

    def _catch_up(self) -> None:
        """Skip ahead in partitions that lag far behind."""
        for (topic, number), position in self._positions.items():
            try:
                # What is cached is the end of all records, also of those that a transaction holds back.
                known = self._consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_WAIT_SECONDS)
                end = known[1] if known is not None else position
                if end - position > 2 * ROUND_ROWS:
                    self._consumer.seek(TopicPartition(topic, number, end - ROUND_ROWS))
                    self.skipped += end - ROUND_ROWS - position
                    self._positions[topic, number] = end - ROUND_ROWS
            except KafkaException:
                continue  # Nothing has been fetched from it yet; the next round tries again.

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


class InboxFollower:
    """Follows an inbox on disk, whose segments a running router writes and removes."""

    def __init__(self, folder: Path) -> None:
        """Start at its end.

        Raises:
            InboxFormatError: there is no inbox, or one of another version.
        """
        self.skipped = 0
        self._view = InboxView(folder)
        self._positions = {number: self._view.end_position(number) for number in self._view.partitions}

    def read_new(self) -> Iterator[Chunk]:
        """Yield new records."""
        left = ROUND_ROWS
        for number, start in self._positions.items():
            end = self._view.end_position(number)
            if end == start:
                continue
            try:
                first = self._skip_backlog(number, start, end, left)
                for batch in self._view.read_spans(number, self._view.plan_spans(number, first, end)):
                    left -= batch.num_rows
                    yield make_inbox_chunk(batch)
            except InboxDamaged:
                self.skipped += 1  # The router removed them after processing; there was at least one.
            self._positions[number] = end

    def _skip_backlog(self, number: int, start: InboxPosition, end: InboxPosition, limit: int) -> InboxPosition:
        """Return the position from which at most *limit* records remain."""
        there = self._view.count_rows(number, start, end)
        over = max(0, there - max(1, limit))
        self.skipped += over
        return self._view.advance_position(number, start, over, end) if over else start


RecordFollower = TopicFollower | InboxFollower
"""Reads new records of one source; ``skipped`` are those passed over because too many arrived."""


@contextmanager
def follow_sources(plan: Plan, note: Callable[[str], None]) -> Iterator[list[RecordFollower]]:
    """Follow all sources of a plan from now on; *note* is called for those that cannot be followed.

    Raises:
        BrokerUnreachable: a cluster does not answer.
        ConfigError: there is nothing that can be followed.
    """
    pushed = any(source.pushed for source in plan.sources)
    followers: list[RecordFollower] = []
    with ExitStack() as stack:
        for name, client, topics, inbox in _iter_clusters(plan, pushed=pushed):
            try:
                follower = TopicFollower(client, topics, inbox=inbox)
            except KafkaUnreachable as error:
                raise BrokerUnreachable(f"{name}: {error}", hint=_HINT) from error
            stack.callback(follower.close)
            followers.append(follower)
            for topic in follower.missing_topics:
                note(f"the brokers have no topic {topic}")
        if pushed and plan.settings.inbox.kafka is None:
            try:
                followers.append(InboxFollower(Path(plan.settings.state) / _INBOX))
            except (InboxError, OSError) as error:
                note(f"the inbox is not read: {error}")
        if not followers:
            hint = "start the router once, or set endpoints with topics under sources"
            raise ConfigError("nothing to tap: no source is a topic, and there is no inbox yet", hint=hint)
        yield followers


def _iter_clusters(plan: Plan, *, pushed: bool) -> Iterator[tuple[str, KafkaClient, list[str], bool]]:
    """Yield each cluster with a name for errors, its topics, and whether gateways fill them."""
    topics: list[tuple[str, KafkaClient, list[str], bool]] = []
    for source in plan.sources:
        if not source.pushed:
            client = make_source_client(source)
            named = next((each[2] for each in topics if each[1] == client), None)
            if named is None:
                topics.append((f"source {source.endpoint}", client, [source.topic], False))
            elif source.topic not in named:
                named.append(source.topic)
    yield from topics
    inbox = plan.settings.inbox.kafka
    if pushed and inbox is not None:
        yield "inbox", make_inbox_client(inbox), [inbox.topic], True


ROUND_SECONDS: Final = 0.5
"""Seconds between two reads."""
RATE: Final = 10.0


def tap(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file; the router need not be running.")],
    endpoint: Annotated[
        list[str] | None, typer.Option("--endpoint", metavar="XID", help="Only this endpoint, with `*` as wildcard.")
    ] = None,
    message: Annotated[
        list[str] | None, typer.Option("--message", metavar="XID", help="Only this definition, with `*` as wildcard.")
    ] = None,
    outcome: Annotated[str | None, typer.Option("--outcome", help="Only `routed` or `dead-letter`.")] = None,
    reason: Annotated[
        list[str] | None,
        typer.Option("--reason", metavar="CODE", help="Only dead letters with this reason; repeatable."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="NAME=GLOB",
            help="Or NAME!=GLOB. NAME is attributes.X, context.X, native.X, or /a/b in a JSON body; all must match.",
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="Exit after this many samples.")] = None,
    rate: Annotated[float, typer.Option("--rate", min=0.1, max=1000, help="Maximum samples per second.")] = RATE,
    reveal: Reveal = False,
    format: Annotated[
        Literal["text", "json", "record"],
        typer.Option("--format", help="`json` prints one object per line; `record` the input of `match`."),
    ] = "text",
) -> None:
    """Show a live sample of incoming records, with the resulting event or the reason for a dead letter.

    Runs until Ctrl-C. Reads new records of topics and inbox with its own consumer and commits no offsets, so the router
    is not affected. Settings and catalog are loaded once, at startup. Records above the rate limit are skipped, and
    counted at the end. Pipe `--format record` into `xrouter test --record -` to create test cases.

    Example: xrouter tap router.yaml --outcome dead-letter --where native.topic=orders -n 5
    """
    if outcome is not None and outcome not in OUTCOMES:
        raise RouterError(f"--outcome {outcome!r} is not an outcome", hint=f"use {' or '.join(OUTCOMES)}")
    require_reasons(reason)
    conditions = [*map(_parse_condition, where or ())]
    choice = SampleFilter(endpoint or (), message or (), outcome, reason or (), conditions)
    settings = load_settings(config)
    configure_logs(settings.log)
    declarations = Declarations()
    catalog = load_catalog_of(settings, declarations=declarations)
    redactor = make_redactor(
        find_marks(declarations, catalog) | parse_marks(settings.dead_letters.redact), reveal=reveal
    )
    plan = Plan(catalog, settings)
    sampling = TapSampler(plan, redactor, choice)
    write = partial(_write_sample, form=format)
    with follow_sources(plan, _print_note) as followers:
        _print_note(f"tapping {plural(len(plan.sources), 'source')}, epoch {plan.epoch}; Ctrl-C ends it")
        try:
            shown = _show_samples(followers, sampling, write, count, rate)
        except KeyboardInterrupt:
            leave_output()
            shown = None
        passed = sum(follower.skipped for follower in followers)
    if passed or shown is None:
        over = f"at least {plural(passed, 'record')}" if passed else "no record known to be"
        _print_note(f"{plural(sampling.evaluated, 'outcome')} looked at, {over} passed over")


def _show_samples(
    followers: list[RecordFollower],
    sampling: TapSampler,
    write: Callable[[TapSample], None],
    count: int | None,
    rate: float,
) -> int:
    """Show samples until the limit is reached."""
    shown, allowance, before = 0, 1.0, time.monotonic()
    gone = _make_reader_check()
    while count is None or shown < count:
        began = time.monotonic()
        allowance = min(max(1.0, rate), allowance + (began - before) * rate)
        before = began
        for follower in followers:
            for chunk in follower.read_new():
                limit = int(allowance) if count is None else min(int(allowance), count - shown)
                for sample in sampling.iter_samples(chunk, limit):
                    write(sample)
                    shown, allowance = shown + 1, allowance - 1
        if gone():
            raise BrokenPipeError
        if count is None or shown < count:
            time.sleep(max(0.0, began + ROUND_SECONDS - time.monotonic()))
    return shown


def _make_reader_check() -> Callable[[], bool]:
    """Return a check for closed output, which would otherwise only be noticed at the next sample."""
    try:
        output = select.poll()
        output.register(sys.stdout.fileno(), 0)
    except (io.UnsupportedOperation, OSError):
        return lambda: False
    return lambda: any(event & select.POLLERR for _, event in output.poll(0))


def _write_sample(sample: TapSample, form: Literal["text", "json", "record"]) -> None:
    if form != "text":
        print_json_lines([sample.document if form == "json" else sample.record.to_json()])
        return
    console = terminal(soft_wrap=True)
    for line in iter_lines(sample):
        console.print(line)


def _print_note(text: str) -> None:
    print_text(text, err=True)
