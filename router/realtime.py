"""Real-time mode: its preconditions, the records that it sends and counts, and the fallback topic."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from bindings.envelope import ATTRIBUTE_NAME, DATA, REQUIRED
from bindings.kafka.binding import PROTOCOL
from bindings.kafka.client import KafkaUnreachable
from bindings.kafka.offsets import KafkaOffsets
from bindings.kafka.record_columns import ATTRIBUTE, CONTENT_TYPE, HEADER, LINEAGE, VERSION
from bindings.kafka.store import first_header_text
from catalog.definitions.constraints import CONTENT_TYPE_KEY, Constraint, MatchCandidate
from catalog.schemas.ids.deciding import first_byte
from router.errors import BrokerUnreachable, ConfigError
from router.evaluation.outcome_rows import HEADERS_TYPE, header_column, needs_milliseconds
from router.evaluation.outputs import ROUTED, Tally
from router.evaluation.plan import TOPIC_PREFIX, Plan
from router.logs import get_logger
from router.matching.context import find_slots
from router.matching.index.classes import separator_of, template_segments
from router.reading.generations import Generation, reaching_brokers
from router.rendering.lineage import encode_lineage_form, lineage_spark_columns
from router.routing import SizeLimits
from router.settings import Settings
from router.settings.values import LineageForm
from router.sources import REST, make_rest_client, make_source_client
from router.state.state import Accounts, StateFolder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from router.errors import RouterError
    from router.reading.generations import Spans
    from router.watching.metrics import Metrics
    from router.watching.status import RouterStatus

# The fast path: Spark expressions match and route events without the matcher, by a table of event types.
#
# A type of a channel is in the table if only one candidate definition of the channel matches events of that type, if
# its other constraints are simple (:class:`HeaderConstraint`), and if its route does not depend on values. The matcher
# decides all other events. The table may lack a type, which only costs time, but the matcher must never decide
# otherwise than the table.

TYPE_KEY: Final = "e.type"
WHOLE_VALUE: Final = -1
FORMS: Final = ("uri", "urireference", "uritemplate", "timestamp", "integer")
"""Types with a pattern of plain values (:data:`PLAIN_FORMS`) that are valid."""


@dataclass(frozen=True, slots=True)
class HeaderConstraint:
    """A definition's constraint on one header; without ``text``, ``segments`` and ``type`` it must only be present.

    ``text`` is the required value. ``segments`` are those of a template, None for a placeholder; a single one is the
    whole value. ``type`` is the required type, one of :data:`FORMS`. An ``optional`` header may be absent.
    """

    header: str
    text: str | None
    segments: tuple[str | None, ...]
    type: str | None
    optional: bool


@dataclass(frozen=True, slots=True)
class HeaderSegment:
    """A context attribute: segment ``index`` of a header's value, or the whole value with :data:`WHOLE_VALUE`."""

    name: str
    header: str
    index: int
    decodes: bool


@dataclass(frozen=True, slots=True)
class FixedRoute:
    """The destination of all events of a type; ``limit`` is the maximum bytes of key and body."""

    sink: str
    topic: str
    lineage: LineageForm
    limit: int


@dataclass(frozen=True, slots=True)
class FastPathType:
    """An event type of a topic with its definition and route; its events must meet all ``constraints``."""

    topic: str
    type: str
    message: str
    endpoint: str | None
    route: FixedRoute
    constraints: tuple[HeaderConstraint, ...]
    context: tuple[HeaderSegment, ...]
    frame_start: bytes | None = None
    """The first byte of framed bodies, whose schema ids only the matcher reads."""


def find_fast_types(plan: Plan) -> list[FastPathType]:
    """Find the event types for the fast path, by topic and type; their outcome depends on neither ties nor bodies."""
    return [
        each
        for name, number in sorted(plan.evaluator.channel_numbers.items())
        if name.startswith(TOPIC_PREFIX)
        for each in _types_of_channel(plan, number, name.removeprefix(TOPIC_PREFIX))
    ]


def _types_of_channel(plan: Plan, channel: int, topic: str) -> list[FastPathType]:
    matcher = plan.evaluator.matcher
    numbers_of: Mapping[str, list[int]] = defaultdict(list)
    for number in matcher.channels[channel].candidates:
        target = matcher.targets[number]
        if target.event is None or target.protocol not in (None, PROTOCOL):
            continue
        text = _literal_type(target)
        if text is None:
            return []  # It may match events of any type.
        numbers_of[text].append(number)
    limits = SizeLimits(plan.settings)
    types = (
        _fast_type(plan, limits, channel, numbers[0], topic, text)
        for text, numbers in sorted(numbers_of.items())
        if len(numbers) == 1
    )
    return [each for each in types if each is not None]


def _literal_type(target: MatchCandidate) -> str | None:
    for key, constraint in target.event or ():
        if key == TYPE_KEY and constraint.kind == "literal" and constraint.is_exact:
            return constraint.value
    return None


def _fast_type(plan: Plan, limits: SizeLimits, channel: int, number: int, topic: str, text: str) -> FastPathType | None:
    matcher = plan.evaluator.matcher
    target = matcher.targets[number]
    if target.definition.relation is not None:
        return None  # Its lineage has more members.
    constraints = target.event or ()
    slots, equal = find_slots(constraints)
    required = [_header_constraint(key, constraint) for key, constraint in constraints]
    parts = [(slot.name, _to_header(slot.key), slot.place, slot.constraint.decodes) for slot in slots]
    route = _fixed_route(plan, limits, channel, number)
    is_complex = any(header is None or index < WHOLE_VALUE for _, header, index, _ in parts)
    if equal or is_complex or route is None or None in required:
        return None
    context = tuple(HeaderSegment(name, header or "", index, decodes) for name, header, index, decodes in parts)
    endpoint = matcher.channels[channel].endpoint_of(number)
    frame = first_byte(matcher.ids.framing(channel)) if matcher.ids.finds(channel) else None
    return FastPathType(topic, text, target.xid, endpoint, route, tuple(filter(None, required)), context, frame)


def _fixed_route(plan: Plan, limits: SizeLimits, channel: int, number: int) -> FixedRoute | None:
    """Return the route of events that match this target; None if it depends on values or is not a single topic."""
    decision = plan.evaluator.outputs.destinations.routes_of_target(channel, number, event=True).decision
    if decision is None or decision.fault or plan.routes.always_validates(decision.route):
        return None
    sinks = plan.settings.routes[decision.route].to
    topics = [topic for topic in decision.topics if topic is not None]
    sink = plan.settings.sinks[sinks[0]].topics
    if len(sinks) > 1 or len(topics) != 1 or sink is None or sink.key is not None or sink.mode != "binary":
        return None
    return FixedRoute(sinks[0], topics[0], sink.lineage, limits.max_bytes(decision.route))


def _header_constraint(key: str, constraint: Constraint) -> HeaderConstraint | None:
    """Convert a constraint for the fast path; None if the fast path does not support it."""
    header = _to_header(key)
    if header is None:
        return None
    if constraint.kind == "media":
        # Only the same text: another text may be an equal media type, which the matcher decides.
        return HeaderConstraint(header, constraint.value, (), None, constraint.optional)
    if constraint.kind == "literal":
        return (
            HeaderConstraint(header, constraint.value, (), None, constraint.optional) if constraint.is_exact else None
        )
    if constraint.kind == "template":
        template = constraint.template
        segments = [None] if template.is_bare else template_segments(template)
        if segments is None or constraint.type == "timestamp" or separator_of(template) != "/":
            return None
        return HeaderConstraint(header, None, tuple(segments), None, constraint.optional)
    if constraint.accepts_any_text:
        return HeaderConstraint(header, None, (), None, constraint.optional)
    return (
        HeaderConstraint(header, None, (), constraint.type, constraint.optional) if constraint.type in FORMS else None
    )


def _to_header(key: str) -> str | None:
    """Return the header of a property in Kafka's binary mode; None if it has none."""
    if key in (CONTENT_TYPE_KEY, "e.datacontenttype", f"{HEADER}{CONTENT_TYPE}"):
        return CONTENT_TYPE
    if key.startswith("e."):
        return f"{ATTRIBUTE}{key.removeprefix('e.')}"
    return key.removeprefix(HEADER) if key.startswith(HEADER) else None


# The fast path in Spark expressions.
#
# No condition here may accept a record for which matcher or exact codec would decide otherwise; but it may leave more
# records to them. The conditions are those of :mod:`bindings.kafka.record_columns`, made stricter.

FAST_PATH: Final = "fast_path"
NUMBER: Final = "number"
PLAIN_FORMS: Final[Mapping[str, str]] = {
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~/-]*",
    "urireference": r"[A-Za-z0-9._~/-]+",
    "uritemplate": r"[A-Za-z0-9._~/-]+",
    "timestamp": (
        r"(?:19|20)[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
        r"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?Z"
    ),
    "integer": r"0|-?[1-9][0-9]{0,8}",
}
"""By type, a pattern that only valid values match, though not all of them."""
_SCHEMA: Final = (
    "number int, topic string, type string, message string, endpoint string, to string, lineage string, limit bigint, "
    "constraints array<struct<header:string,text:string,segments:array<string>,type:string,optional:boolean>>, "
    "context array<struct<name:string,header:string,index:int,decodes:boolean>>, frame binary"
)
_ESCAPED: Final = r'[\x00-\x1f"\\]'
_FORBIDDEN: Final = (
    r"[\x00-\x1F\x7F-\x9F\uFDD0-\uFDEF"
    + "".join(rf"\x{{{plane + 0xFFFE:X}}}\x{{{plane + 0xFFFF:X}}}" for plane in range(0, 0x110000, 0x10000))
    + "]"
)
"""The pattern :data:`bindings.events.FORBIDDEN_CHARS` for Java."""
_SOURCE_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def create_type_table(spark: SparkSession, types: Sequence[FastPathType]) -> DataFrame:
    """Create the table of the fast path; ``number`` is the index of a type in *types*."""
    rows = [
        (
            *(number, each.topic, each.type, each.message, each.endpoint),
            *(each.route.topic, encode_lineage_form(each.route.lineage), each.route.limit),
            [(one.header, one.text, list(one.segments), one.type, one.optional) for one in each.constraints],
            [(part.name, part.header, part.index, part.decodes) for part in each.context],
            each.frame_start,
        )
        for number, each in enumerate(types)
    ]
    return spark.createDataFrame(rows, _SCHEMA)


def add_fast_path(rows: DataFrame, table: DataFrame) -> DataFrame:
    """Add the columns of the fast path to rows of Spark's Kafka source, by a broadcast join.

    ``fast_path`` says whether a row is on the fast path. Then ``to`` is its destination topic, and ``number``,
    ``message``, ``endpoint``, ``lineage`` and ``context`` are those of its type; in other rows they are undefined.
    """
    from pyspark.sql import functions as F

    # Below the join, so that it is computed once for each row: the columns above use it many times.
    names, texts = F.col("headers.key").alias("names"), F.transform("headers", _header_text).alias("texts")
    typed = rows.select(
        *_SOURCE_COLUMNS, names, texts, first_header_text("headers", f"{ATTRIBUTE}type").alias("type")
    ).alias("r")
    same = (F.col("t.topic") == F.col("r.topic")) & (F.col("t.type") == F.col("r.type"))
    joined = typed.join(F.broadcast(table.alias("t")), same, "left")
    size = F.coalesce(F.octet_length("r.key"), F.lit(0)) + F.coalesce(F.octet_length("r.value"), F.lit(0))
    is_fast = F.col("t.message").isNotNull() & _is_plain_event() & (size <= F.col("t.limit"))
    is_fast = is_fast & F.coalesce(F.substring("r.value", 1, 1) != F.col("t.frame"), F.lit(True))
    is_fast = is_fast & F.forall("t.constraints", _meets_constraint) & F.forall("t.context", _is_plain_segment)
    return joined.select(
        *(F.col(f"r.{name}").alias(name) for name in _SOURCE_COLUMNS),
        *(F.col(f"t.{name}").alias(name) for name in (NUMBER, "message", "endpoint", "to", "lineage")),
        _context_json().alias("context"),
        F.coalesce(is_fast, F.lit(False)).alias(FAST_PATH),
    )


def event_headers(epoch: str) -> Column:
    """Return the headers of the sent event of a row on the fast path."""
    from pyspark.sql import functions as F

    position = F.concat_ws("-", "topic", "partition", "offset")
    members = {"endpoint": F.col("endpoint"), "epoch": F.lit(epoch), "position": position}

    def lineage_in_form(form: LineageForm) -> Column:
        named = lineage_spark_columns(F.col("message"), F.col("context"), members, form)
        return F.array(*(header_column(name, value) for name, value in named.items()))

    form = F.col("lineage")
    more = F.when(form == "separate", lineage_in_form("separate")).when(form != "", lineage_in_form(True))
    return F.concat("headers", more.otherwise(F.array().cast(HEADERS_TYPE)))


def _is_plain_event() -> Column:
    """Whether a row is an event in binary mode whose headers the exact codec need not read."""
    from pyspark.sql import functions as F

    plain = F.size(F.array_distinct("r.names")) == F.size("r.names")
    plain = plain & F.forall("r.headers", _is_plain_header) & (_text_by_name(F.lit(VERSION)) == "1.0")
    for name in REQUIRED:
        plain = plain & (F.length(_text_by_name(F.lit(f"{ATTRIBUTE}{name}"))) > 0)
    return plain


def _is_plain_header(entry: Column) -> Column:
    """Whether a header does not need the exact codec and does not change the event's key, body or mode."""
    from pyspark.sql import functions as F

    name, text = entry["key"], _header_text(entry)
    is_text = entry["value"].isNull() | text.isNotNull()
    special = [f"{ATTRIBUTE}{each}" for each in (DATA, "partitionkey", "datacontenttype")]
    attribute = name.rlike(f"^{ATTRIBUTE}(?:{ATTRIBUTE_NAME.pattern})\\z") & ~name.isin(special) & is_text
    # Only texts with these characters may make the event invalid.
    attribute = attribute & ~F.coalesce(text, F.lit("")).rlike(_FORBIDDEN)
    # Not by lower(), which depends on languages and is slow.
    # A content type without a value counts as absent, so the matcher omits it.
    media = text.isNotNull() & ~text.rlike(f"(?i)cloudevents|{_FORBIDDEN}")
    return (
        F.when(name.startswith(ATTRIBUTE), attribute)
        .when(name == CONTENT_TYPE, media)
        .otherwise(name.isNotNull() & ~name.startswith(LINEAGE) & ~name.rlike(f"(?i)^{CONTENT_TYPE}\\z"))
    )


def _header_text(entry: Column) -> Column:
    """Return the value of a header as text; null if there is none or it is invalid UTF-8."""
    from pyspark.sql import functions as F

    return F.try_validate_utf8(entry["value"].cast("string"))


def _text_by_name(name: Column) -> Column:
    """Return the text of the only header of that name; null if there is none."""
    from pyspark.sql import functions as F

    return F.get("r.texts", F.array_position("r.names", name).cast("int") - 1)


def _meets_constraint(constraint: Column) -> Column:
    """Whether a row meets the constraint on one header; null if unknown."""
    from pyspark.sql import functions as F

    text, segments, type_ = _text_by_name(constraint["header"]), constraint["segments"], constraint["type"]
    parts = F.when(F.size(segments) > 1, F.split(text, "/")).otherwise(F.array(text))
    fits = F.zip_with(parts, segments, _segment_matches)
    templated = (F.size(parts) == F.size(segments)) & F.forall(fits, lambda fit: fit)
    value = F.when(constraint["text"].isNotNull(), text == constraint["text"]).when(F.size(segments) > 0, templated)
    value = value.when(type_.isNotNull(), _is_plain_value(text, type_)).otherwise(text.isNotNull())
    # A header without a text may count as absent or be invalid UTF-8; the matcher decides.
    return F.when(F.array_position("r.names", constraint["header"]) == 0, constraint["optional"]).otherwise(value)


def _segment_matches(part: Column, segment: Column) -> Column:
    from pyspark.sql import functions as F

    return F.when(segment.isNull(), part != "").otherwise(part == segment)


def _is_plain_value(text: Column, form: Column) -> Column:
    """Whether a text is a plain valid value of a type; other texts may be valid too."""
    tests = ((form == name) & text.rlike(f"^(?:{pattern})\\z") for name, pattern in PLAIN_FORMS.items())
    return reduce(lambda one, other: one | other, tests)


def _segment_value(segment: Column) -> Column:
    from pyspark.sql import functions as F

    text = _text_by_name(segment["header"])
    return F.when(segment["index"] == WHOLE_VALUE, text).otherwise(F.get(F.split(text, "/"), segment["index"]))


def _is_plain_segment(segment: Column) -> Column:
    """Whether a value needs neither decoding nor escaping in JSON."""
    from pyspark.sql import functions as F

    value = _segment_value(segment)
    return value.isNotNull() & ~value.rlike(_ESCAPED) & ~(segment["decodes"] & F.contains(value, F.lit("%")))


def _context_json() -> Column:
    """Return the context of a fast row as JSON, as :func:`router.rendering.lineage.context_json` does."""
    from pyspark.sql import functions as F

    def render_member(segment: Column) -> Column:
        return F.concat(F.lit('"'), segment["name"], F.lit('":"'), _segment_value(segment), F.lit('"'))

    return F.concat(F.lit("{"), F.array_join(F.transform("t.context", render_member), ","), F.lit("}"))


# The fallback topic: records that only the matcher can decide, unchanged, with their origin.
#
# The origin of a record is in its last headers. Headers of the sender stay as they are, and are never mistaken for
# these. A record of the fallback topic without an origin was written by somebody else; it is evaluated as a record of
# that topic, which no source reads.

_ORIGIN: Final = ("topic", "partition", "offset", "timestamp")
_NAMES: Final = tuple(f"{LINEAGE}rest-{name}" for name in _ORIGIN)


def origin_headers() -> Column:
    """Return the headers of a row of Spark's Kafka source, followed by its origin, for the fallback topic."""
    from pyspark.sql import functions as F

    values = (
        F.col("topic"),
        *(F.col(name).cast("string") for name in _ORIGIN[1:3]),
        F.unix_millis("timestamp").cast("string"),
    )
    ours = F.array(*(header_column(name, value) for name, value in zip(_NAMES, values, strict=True)))
    return F.concat(F.coalesce("headers", F.array().cast(HEADERS_TYPE)), ours)


def restore_origin(rows: DataFrame) -> DataFrame:
    """Restore the source rows from rows of the fallback topic.

    *rows* are those of Spark's Kafka source, or of the router's Kafka client; timestamps become milliseconds.
    """
    from pyspark.sql import functions as F

    count = len(_ORIGIN)
    ours = F.when(F.size("headers") >= count, F.slice("headers", -count, count))
    timestamp = F.unix_millis("timestamp") if needs_milliseconds(rows, "kafka") else F.col("timestamp")
    marked = rows.withColumns({"timestamp": timestamp, "ours": ours})
    texts = [F.try_validate_utf8(F.get("ours", F.lit(place))["value"].cast("string")) for place in range(count)]
    numbers = [text.try_cast(kind) for text, kind in zip(texts[1:], ("int", "bigint", "bigint"), strict=True)]
    is_ours = F.coalesce(F.transform("ours", lambda entry: entry["key"]) == F.array(*map(F.lit, _NAMES)), F.lit(False))
    for value in (texts[0], *numbers):
        is_ours = is_ours & value.isNotNull()
    left = F.slice("headers", 1, F.greatest(F.size("headers") - count, F.lit(0)))
    # A record without headers has null, not an empty list.
    original = F.when(F.size(left) > 0, left)
    origin = dict(zip(_ORIGIN, (texts[0], *numbers), strict=True))
    return marked.select(
        "key",
        "value",
        *(F.when(is_ours, value).otherwise(F.col(name)).alias(name) for name, value in origin.items()),
        F.when(is_ours, original).otherwise(F.col("headers")).alias("headers"),
    )


# The records that a real-time query sends, and their counts, in expressions that Spark's real-time mode supports.

COUNTS: Final = "settled"
"""The name of the counts in Spark's progress reports."""


def to_sent_records(rows: DataFrame, plan: Plan, types: Sequence[FastPathType], rest: str) -> DataFrame:
    """Convert rows of Spark's Kafka source to the records to send: topic, key, value and headers.

    Rows on the fast path go to the topic of their type, all others unchanged to the topic *rest*.
    """
    from pyspark.sql import functions as F

    matched = add_fast_path(rows, create_type_table(rows.sparkSession, types))
    # Exact, since there are not more numbers than bars; no other count by value works without groups.
    bars = max(len(types), 2)
    number = F.when(F.col(FAST_PATH), F.col(NUMBER))
    counted = matched.observe(COUNTS, F.histogram_numeric(number, F.lit(bars)).alias(COUNTS))
    return counted.select(
        F.when(F.col(FAST_PATH), F.col("to")).otherwise(F.lit(rest)).alias("topic"),
        "key",
        "value",
        F.when(F.col(FAST_PATH), event_headers(plan.epoch)).otherwise(origin_headers()).alias("headers"),
    )


def read_tally(progress: Mapping[str, Any], types: Sequence[FastPathType]) -> Tally:
    """Return the tally of a finished batch from Spark's report, without records for the fallback topic."""
    tally = Tally()
    observed = (progress.get("observedMetrics") or {}).get(COUNTS)
    for bar in (observed[COUNTS] or ()) if observed is not None else ():
        type_, count = types[int(bar["x"])], int(bar["y"])
        endpoint = type_.endpoint or ""
        tally.records[(endpoint, ROUTED, "")] += count
        tally.delivered[(type_.route.sink, endpoint)] += count
        tally.definitions[endpoint, type_.message] += count
    return tally


_POLL_SECONDS: Final = 0.05
_NOISY_LOGGERS: Final = (
    "org.apache.spark.util.Utils",
    "org.apache.spark.scheduler.TaskSchedulerImpl",
    "org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
)
"""Loggers that report killed tasks, also after an orderly stop."""
_log = get_logger()


class RealTimeQuery:
    """A real-time query of one plan: it sends records one by one. Not for concurrent use.

    Spark commits offsets at the end of each batch. A query that is stopped inside a batch would send its records again,
    so the router waits for the end of the batch before it stops the query; after a crash the batch is repeated. No
    batch is pinned: each record is sent as the plan of the moment says.
    """

    def __init__(
        self, name: str, generation: Generation, plan: Plan, metrics: Metrics, status: RouterStatus, accounts: Accounts
    ) -> None:
        self.name = name
        self.generation = generation
        self.plan = plan
        self.last: int | None = None
        self.failure: RouterError | None = None
        self.renewed: Spans = {}
        self._metrics = metrics
        self._status = status
        self._accounts = accounts
        self._types = find_fast_types(plan)
        self._query: StreamingQuery | None = None
        self._batch_began = time.monotonic()
        self._drain_batch: int | None = None
        assert plan.settings.realtime is not None
        self._settings = plan.settings.realtime
        metrics.init_query_series(name)
        metrics.resume(name, accounts.of(name))

    def start(self, rows: DataFrame, state: StateFolder) -> StreamingQuery:
        """Start it on rows of Spark's Kafka source; its checkpoint is the generation's folder."""
        seconds = self._settings.checkpoint.total_seconds()
        records = to_sent_records(rows, self.plan, self._types, self._settings.rest)
        writer = records.writeStream.queryName(self.name).format("kafka")
        writer = writer.options(**{"kafka.linger.ms": "0", **make_rest_client(self.plan.settings).jvm_options()})
        writer = writer.option("checkpointLocation", f"file://{self.generation.path}").outputMode("update")
        self._batch_began = time.monotonic()
        _silence_task_logs()
        trigger = {"realTime": f"{int(seconds * 1000)} milliseconds"}
        self._query = writer.trigger(**trigger).start()
        _log.info("records are sent on one by one", query=self.name, settled_types=len(self._types))
        return self._query

    def record_progress(self, progress: Any) -> None:
        """Record Spark's progress report on the last finished batch."""
        number = int(progress["batchId"])
        if number == self.last:
            return
        tally = read_tally(progress, self._types)
        with self._accounts.changing(self.name) as account:
            account.count(tally)
        self._metrics.outcomes(tally)
        self._status.query(self.name, "running", batch=number)
        self.last = number
        self._batch_began = time.monotonic()

    def drain(self) -> None:
        """Request that the query ends after its current batch."""
        if self._drain_batch is None:
            self._drain_batch = -1 if self.last is None else self.last

    @property
    def draining(self) -> bool:
        """Whether the query is requested to end."""
        return self._drain_batch is not None

    @property
    def ended_batch(self) -> bool:
        """Whether a batch has finished since :meth:`drain`."""
        return self._drain_batch is not None and self.last is not None and self.last > self._drain_batch

    def wait_idle(self, seconds: float) -> bool:
        """Wait until a batch has finished since :meth:`drain`; false at once if none can in time."""
        deadline = time.monotonic() + seconds
        ends = self._batch_began + self._settings.checkpoint.total_seconds()
        while not self.ended_batch:
            if time.monotonic() > deadline or ends > deadline:
                return False
            if self._query is None or not self._query.isActive:
                return True
            time.sleep(_POLL_SECONDS)
            if (progress := self._query.lastProgress) is not None:
                self.record_progress(progress)
        return True

    def stop(self) -> None:
        """Stop the query now; the next start repeats what the current batch has sent."""
        if self._query is not None:
            self._query.stop()


def _silence_task_logs() -> None:
    """Turn off Spark's long logs about killed tasks after a query was stopped.

    The error of a query has the cause of a failed task.
    """
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    assert jvm is not None
    log4j = jvm.org.apache.logging.log4j
    for name in _NOISY_LOGGERS:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


# The preconditions of real-time queries that the settings alone do not show.


def require_real_time(plan: Plan, *, once: bool = False) -> None:
    """Check that real-time mode can read the sources of a plan; a plan in batches passes.

    With *once* the router ends when everything is read, which only batches support.

    Raises:
        ConfigError: a source is no Kafka topic or is the fallback topic, the sources need several queries, or no event
            type has a fast path.
    """
    settings = plan.settings
    if settings.realtime is not None:
        for source in plan.sources:
            if source.topic == settings.realtime.rest:
                raise ConfigError(
                    f"source {source.endpoint}: its topic is the fallback topic, so records would loop forever",
                    key="realtime.rest",
                    hint="use a topic that only the router uses",
                )
    if not settings.is_real_time:
        return
    if once:
        raise ConfigError(
            "--once ends when all is read, and real-time mode waits for more",
            key="trigger",
            hint="set trigger to a duration; XROUTER_TRIGGER=500ms does so for one run",
        )
    for source in plan.sources:
        if source.pushed:
            raise ConfigError(
                f"source {source.endpoint}: real-time mode reads Kafka topics, and this is {source.kind}",
                key="sources",
                hint="read it with another router, or set trigger to a duration",
            )
    if len({source.query for source in plan.sources}) > 1:
        names = ", ".join(source.endpoint for source in plan.sources)
        raise ConfigError(
            f"sources {names}: real-time mode reads one Kafka cluster, with one login and without lanes",
            key="sources",
            hint="use one router per cluster, and remove lanes",
        )
    if plan.sources and not find_fast_types(plan):
        raise ConfigError(
            "no definition can be settled without the matcher, so that nothing would be quicker in real-time mode",
            key="trigger",
            hint="see the operations notes on real-time mode for the supported definitions, or set a duration",
        )


def require_rest_topic(settings: Settings, state: StateFolder) -> None:
    """Check that the fallback topic exists, and that no earlier one was left unread.

    Raises:
        ConfigError: it does not exist; or the settings have none, and one was read before.
        BrokerUnreachable: its brokers do not answer.
    """
    checkpoint = state.checkpoints / REST
    if settings.realtime is None:
        if checkpoint.exists():
            raise ConfigError(
                f"a fallback topic was read before, as {checkpoint} says, and may have unrouted records",
                key="realtime.rest",
                hint=f"keep realtime.rest; once `xrouter_rest_records` is 0, remove that folder and {REST!r} from "
                f'"generations" in {state.inventory.path}',
            )
        return
    try:
        known = KafkaOffsets(make_rest_client(settings)).find_partitions([settings.realtime.rest])
    except KafkaUnreachable as error:
        raise BrokerUnreachable(
            f"fallback topic: {error}", hint="start the broker, or correct bootstrap_servers"
        ) from error
    if settings.realtime.rest not in known:
        raise ConfigError(
            f"the fallback topic {settings.realtime.rest} does not exist",
            key="realtime.rest",
            hint="create it with a sufficient retention; each of its partitions needs a core",
        )


def require_cores(spark: SparkSession, plan: Plan, topics: Sequence[str]) -> None:
    """Check that Spark has a core for each partition of the sources and of the fallback topic.

    A real-time query occupies its cores, and waits silently for a missing one.

    Raises:
        ConfigError: Spark has fewer; the message has both numbers.
        BrokerUnreachable: the brokers do not say how many partitions there are.
    """
    assert plan.settings.realtime is not None
    with reaching_brokers():
        read = KafkaOffsets(make_source_client(plan.sources[0])).find_partitions(topics)
        rest = KafkaOffsets(make_rest_client(plan.settings)).find_partitions([plan.settings.realtime.rest])
    sources, others, there = sum(map(len, read.values())), sum(map(len, rest.values())), count_task_slots(spark)
    needed = sources + others
    if there < needed:
        raise ConfigError(
            f"real-time mode needs {needed} cores, one per partition: {sources} for sources, {others} for the fallback "
            f"topic; spark.master has {there}",
            key="spark.master",
            hint=f"set spark.master: local[{needed}], which may be more than the machine has; or add executors",
        )


def count_task_slots(spark: SparkSession) -> int:
    """Return the number of tasks that can run at the same time."""
    context = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
