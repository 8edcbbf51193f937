"""Real-time mode: what must hold before it begins, what it sends and counts, and the rest topic."""

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
from bindings.private_files import create_private_folder
from catalog.definitions.constraints import CONTENT_TYPE_KEY, Constraint, MatchCandidate
from catalog.schemas.ids.deciding import first_byte
from router.errors import BrokerUnreachable, ConfigError
from router.evaluation.outcome_rows import HEADERS_TYPE, converts, header_column
from router.evaluation.outputs import ROUTED, Tally
from router.evaluation.plan import TOPIC_PREFIX, Plan
from router.logs import get_logger
from router.matching.context import find_slots
from router.matching.index.classes import separator_of, template_segments
from router.reading.generations import Generation
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

# Which Kafka rows expressions of the JVM may settle without the matcher, and those expressions.

# Which events expressions of the JVM may settle: a table of types, each with the one definition that it can be.
#
# A type of a channel is *settled* by its definition when no other candidate of the channel takes an event of that type,
# all that the definition asks besides can be decided without patterns that go back and forth
# (:class:`HeaderConstraint`), and no value of an event decides where it goes. What is not in the table is left to the
# matcher. So the table may lack a type at no cost but time, and must have none for which the matcher might decide
# otherwise.

TYPE_KEY: Final = "e.type"
WHOLE_VALUE: Final = -1
PLAIN_TYPES: Final = ("uri", "urireference", "uritemplate", "timestamp", "integer")
"""Types whose values the JVM knows to be valid where they are written plainly."""


@dataclass(frozen=True, slots=True)
class HeaderConstraint:
    """What a definition asks of one header; with neither ``text``, ``segments`` nor ``type`` it asks for presence.

    ``text`` is to be equal. ``segments`` are those of a template, None for a placeholder; one alone is the whole value.
    ``type`` is the type that a value must be of, one of :data:`PLAIN_TYPES`. ``optional`` lets the header be absent.
    """

    header: str
    text: str | None
    segments: tuple[str | None, ...]
    type: str | None
    optional: bool


@dataclass(frozen=True, slots=True)
class HeaderSegment:
    """A context attribute: the segment ``index`` of a header's value, or with :data:`WHOLE_VALUE` all of it."""

    name: str
    header: str
    index: int
    decodes: bool


@dataclass(frozen=True, slots=True)
class FixedRoute:
    """Where events of a type go: the sink and its topic, whether they get headers of lineage, and most bytes of key and
    body.
    """

    sink: str
    topic: str
    lineage: LineageForm
    limit: int


@dataclass(frozen=True, slots=True)
class FastPathType:
    """What becomes of events of one type from one topic that give what is ``constraints``."""

    topic: str
    type: str
    message: str
    endpoint: str | None
    route: FixedRoute
    constraints: tuple[HeaderConstraint, ...]
    context: tuple[HeaderSegment, ...]
    frame_start: bytes | None = None
    """How a body begins whose schema id the matcher looks at."""


def find_fast_path_types(plan: Plan) -> list[FastPathType]:
    """Return the types that a plan settles, by topic and type; ties and bodies never matter to them."""
    judge = plan.judge
    return [
        settled
        for name, number in sorted(judge.channel_numbers.items())
        if name.startswith(TOPIC_PREFIX)
        for settled in _types_of_channel(plan, number, name.removeprefix(TOPIC_PREFIX))
    ]


def _types_of_channel(plan: Plan, channel: int, topic: str) -> list[FastPathType]:
    matcher = plan.judge.matcher
    takers: Mapping[str, list[int]] = defaultdict(list)
    for number in matcher.channels[channel].candidates:
        target = matcher.targets[number]
        if target.event is None or target.protocol not in (None, PROTOCOL):
            continue
        text = _literal_type(target)
        if text is None:
            return []  # It may take events of any type.
        takers[text].append(number)
    limits = SizeLimits(plan.settings)
    settled = (
        _fast_path_type(plan, limits, channel, numbers[0], topic, text)
        for text, numbers in sorted(takers.items())
        if len(numbers) == 1
    )
    return [each for each in settled if each is not None]


def _literal_type(target: MatchCandidate) -> str | None:
    for key, constraint in target.event or ():
        if key == TYPE_KEY and constraint.kind == "literal" and constraint.is_exact:
            return constraint.value
    return None


def _fast_path_type(
    plan: Plan, limits: SizeLimits, channel: int, number: int, topic: str, text: str
) -> FastPathType | None:
    matcher = plan.judge.matcher
    target = matcher.targets[number]
    if target.definition.relation is not None:
        return None  # Its lineage says more than that of others.
    constraints = target.event or ()
    slots, equal = find_slots(constraints)
    asked = [_header_constraint(key, constraint) for key, constraint in constraints]
    context = [(slot.name, _header_of_property(slot.key), slot.place, slot.constraint.decodes) for slot in slots]
    way = _fixed_route(plan, limits, channel, number)
    if (
        equal
        or way is None
        or None in asked
        or any(header is None or place < WHOLE_VALUE for _, header, place, _ in context)
    ):
        return None
    taken = tuple(HeaderSegment(name, header or "", place, decodes) for name, header, place, decodes in context)
    endpoint = matcher.channels[channel].endpoint_of(number)
    frame = first_byte(matcher.ids.framing(channel)) if matcher.ids.finds(channel) else None
    return FastPathType(topic, text, target.xid, endpoint, way, tuple(each for each in asked if each), taken, frame)


def _fixed_route(plan: Plan, limits: SizeLimits, channel: int, number: int) -> FixedRoute | None:
    """Return where events go that this target wins; None where values decide, or where it is no one topic."""
    decision = plan.judge.outputs.destinations.routes_of_target(channel, number, event=True).decision
    if decision is None or decision.fault or plan.routes.always_validates(decision.route):
        return None
    sinks = plan.settings.routes[decision.route].to
    topics = [topic for topic in decision.topics if topic is not None]
    sink = plan.settings.sinks[sinks[0]].topics
    if len(sinks) > 1 or len(topics) != 1 or sink is None or sink.key is not None or sink.mode != "binary":
        return None
    return FixedRoute(sinks[0], topics[0], sink.lineage, limits.max_bytes(decision.route))


def _header_constraint(key: str, constraint: Constraint) -> HeaderConstraint | None:
    """Return a constraint as the JVM decides it; None for one that it does not."""
    header = _header_of_property(key)
    if header is None:
        return None
    if constraint.kind == "media":
        # The very text alone: what is written otherwise may be equal, and is left to the matcher.
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
        HeaderConstraint(header, None, (), constraint.type, constraint.optional)
        if constraint.type in PLAIN_TYPES
        else None
    )


def _header_of_property(key: str) -> str | None:
    """Return the header that a property is; None for one that is no header of Kafka's binary mode."""
    if key in (CONTENT_TYPE_KEY, "e.datacontenttype", f"{HEADER}{CONTENT_TYPE}"):
        return CONTENT_TYPE
    if key.startswith("e."):
        return f"{ATTRIBUTE}{key.removeprefix('e.')}"
    return key.removeprefix(HEADER) if key.startswith(HEADER) else None


# Rows of Kafka as columns of the JVM: which of them the table of settled types decides, and what they become.
#
# No condition here may let a record through that the matcher, or the exact codec, would decide otherwise; each may err
# on the other side, where records are left to them. The conditions are those of :mod:`bindings.kafka.record_columns`,
# coarser.

FAST_PATH: Final = "settled"
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
"""By type, what some of its valid values look like, and no other text does."""
_SCHEMA: Final = (
    "number int, topic string, type string, message string, endpoint string, to string, lineage string, limit bigint, "
    "asked array<struct<header:string,text:string,segments:array<string>,form:string,optional:boolean>>, "
    "context array<struct<name:string,header:string,place:int,decodes:boolean>>, frame binary"
)
_ESCAPED: Final = r'[\x00-\x1f"\\]'
_FORBIDDEN: Final = (
    r"[\x00-\x1F\x7F-\x9F\uFDD0-\uFDEF"
    + "".join(rf"\x{{{plane + 0xFFFE:X}}}\x{{{plane + 0xFFFF:X}}}" for plane in range(0, 0x110000, 0x10000))
    + "]"
)
"""What :data:`bindings.events.FORBIDDEN_CHARS` says, for Java."""
_SOURCE_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def create_type_table(spark: SparkSession, types: Sequence[FastPathType]) -> DataFrame:
    """Return the table of settled types; ``number`` is the place of each in *types*."""
    rows = [
        (
            *(number, each.topic, each.type, each.message, each.endpoint),
            *(each.route.topic, encode_lineage_form(each.route.lineage), each.route.limit),
            [
                (asked.header, asked.text, list(asked.segments), asked.type, asked.optional)
                for asked in each.constraints
            ],
            [(taken.name, taken.header, taken.index, taken.decodes) for taken in each.context],
            each.frame_start,
        )
        for number, each in enumerate(types)
    ]
    return spark.createDataFrame(rows, _SCHEMA)


def add_fast_path(rows: DataFrame, table: DataFrame) -> DataFrame:
    """Return the rows of Spark's Kafka source with what settles them, by a join that is broadcast.

    ``settled`` tells whether expressions decide a row. Then ``to`` is the topic that it goes to, and ``number``,
    ``message``, ``endpoint``, ``lineage`` and ``context`` are those of its type; in other rows they mean nothing.
    """
    from pyspark.sql import functions as F

    # Below the join, so that it is made once for each row: the columns above it use it many times.
    names, texts = F.col("headers.key").alias("names"), F.transform("headers", _header_text).alias("texts")
    typed = rows.select(
        *_SOURCE_COLUMNS, names, texts, first_header_text("headers", f"{ATTRIBUTE}type").alias("type")
    ).alias("r")
    same = (F.col("t.topic") == F.col("r.topic")) & (F.col("t.type") == F.col("r.type"))
    joined = typed.join(F.broadcast(table.alias("t")), same, "left")
    size = F.coalesce(F.octet_length("r.key"), F.lit(0)) + F.coalesce(F.octet_length("r.value"), F.lit(0))
    settled = F.col("t.message").isNotNull() & _is_plain_event() & (size <= F.col("t.limit"))
    settled = settled & F.coalesce(F.substring("r.value", 1, 1) != F.col("t.frame"), F.lit(True))
    settled = settled & F.forall("t.asked", _meets_constraint) & F.forall("t.context", _is_plain_segment)
    return joined.select(
        *(F.col(f"r.{name}").alias(name) for name in _SOURCE_COLUMNS),
        *(F.col(f"t.{name}").alias(name) for name in (NUMBER, "message", "endpoint", "to", "lineage")),
        _context_json().alias("context"),
        F.coalesce(settled, F.lit(False)).alias(FAST_PATH),
    )


def event_headers(epoch: str) -> Column:
    """Return the headers that a settled row is sent on with."""
    from pyspark.sql import functions as F

    position = F.concat_ws("-", "topic", "partition", "offset")
    members = {"endpoint": F.col("endpoint"), "epoch": F.lit(epoch), "position": position}

    def added(form: LineageForm) -> Column:
        named = lineage_spark_columns(F.col("message"), F.col("context"), members, form)
        return F.array(*(header_column(name, value) for name, value in named.items()))

    more = F.when(F.col("lineage") == "separate", added("separate")).when(F.col("lineage") != "", added(True))
    return F.concat("headers", more.otherwise(F.array().cast(HEADERS_TYPE)))


def _is_plain_event() -> Column:
    """Return whether a row is a binary event whose headers the exact codec need not read."""
    from pyspark.sql import functions as F

    plain = F.size(F.array_distinct("r.names")) == F.size("r.names")
    plain = plain & F.forall("r.headers", _is_plain_header) & (_text_by_name(F.lit(VERSION)) == "1.0")
    for name in REQUIRED:
        plain = plain & (F.length(_text_by_name(F.lit(f"{ATTRIBUTE}{name}"))) > 0)
    return plain


def _is_plain_header(entry: Column) -> Column:
    """Return whether a header neither makes a row odd nor gives the event another key, body or mode."""
    from pyspark.sql import functions as F

    name, text = entry["key"], _header_text(entry)
    is_text = entry["value"].isNull() | text.isNotNull()
    special = [f"{ATTRIBUTE}{each}" for each in (DATA, "partitionkey", "datacontenttype")]
    attribute = name.rlike(f"^{ATTRIBUTE}(?:{ATTRIBUTE_NAME.pattern})\\z") & ~name.isin(special) & is_text
    # No text that may make the event invalid: such have these characters.
    attribute = attribute & ~F.coalesce(text, F.lit("")).rlike(_FORBIDDEN)
    # Not by lower(): it follows languages, which takes longer than all the rest.
    # One without a value counts as absent, and the matcher leaves it out.
    media = text.isNotNull() & ~text.rlike(f"(?i)cloudevents|{_FORBIDDEN}")
    return (
        F.when(name.startswith(ATTRIBUTE), attribute)
        .when(name == CONTENT_TYPE, media)
        .otherwise(name.isNotNull() & ~name.startswith(LINEAGE) & ~name.rlike(f"(?i)^{CONTENT_TYPE}\\z"))
    )


def _header_text(entry: Column) -> Column:
    """Return the value of a header as text; null for none, and for what is no UTF-8."""
    from pyspark.sql import functions as F

    return F.try_validate_utf8(entry["value"].cast("string"))


def _text_by_name(name: Column) -> Column:
    """Return the text of the only header of that name; null for none."""
    from pyspark.sql import functions as F

    return F.get("r.texts", F.array_position("r.names", name).cast("int") - 1)


def _meets_constraint(asked: Column) -> Column:
    """Return whether a row has what is asked of one header; null where that is not known."""
    from pyspark.sql import functions as F

    text, segments = _text_by_name(asked["header"]), asked["segments"]
    parts = F.when(F.size(segments) > 1, F.split(text, "/")).otherwise(F.array(text))
    fits = F.zip_with(parts, segments, _segment_matches)
    templated = (F.size(parts) == F.size(segments)) & F.forall(fits, lambda fit: fit)
    value = F.when(asked["text"].isNotNull(), text == asked["text"]).when(F.size(segments) > 0, templated)
    value = value.when(asked["form"].isNotNull(), _is_plain_value(text, asked["form"])).otherwise(text.isNotNull())
    # A header without a text may count as absent or be no UTF-8; that is not decided here.
    return F.when(F.array_position("r.names", asked["header"]) == 0, asked["optional"]).otherwise(value)


def _segment_matches(part: Column, wanted: Column) -> Column:
    from pyspark.sql import functions as F

    return F.when(wanted.isNull(), part != "").otherwise(part == wanted)


def _is_plain_value(text: Column, form: Column) -> Column:
    """Return whether a text is plainly valid for a type. Other texts may be valid too."""
    tests = ((form == name) & text.rlike(f"^(?:{pattern})\\z") for name, pattern in PLAIN_FORMS.items())
    return reduce(lambda one, other: one | other, tests)


def _segment_value(taken: Column) -> Column:
    from pyspark.sql import functions as F

    text = _text_by_name(taken["header"])
    return F.when(taken["place"] == WHOLE_VALUE, text).otherwise(F.get(F.split(text, "/"), taken["place"]))


def _is_plain_segment(taken: Column) -> Column:
    """Whether a value stands in JSON, and in the context, as it is."""
    from pyspark.sql import functions as F

    value = _segment_value(taken)
    return value.isNotNull() & ~value.rlike(_ESCAPED) & ~(taken["decodes"] & F.contains(value, F.lit("%")))


def _context_json() -> Column:
    """Return the context of a settled row as JSON, as :func:`router.writing.kafka_records.context_json` writes it."""
    from pyspark.sql import functions as F

    def member(taken: Column) -> Column:
        return F.concat(F.lit('"'), taken["name"], F.lit('":"'), _segment_value(taken), F.lit('"'))

    return F.concat(F.lit("{"), F.array_join(F.transform("t.context", member), ","), F.lit("}"))


# One real-time query: it sends records on one by one, and notes how far it is when a batch of its time ends.
#
# Spark writes the offsets of such a batch at its end. A query that is stopped inside one sends the records of it again,
# so the router asks for the end of the batch at hand, and stops the query right after it; a crash repeats what came
# since the last note. Nothing is pinned: whatever plan takes a record, it is sent to where that says, or to the rest
# topic.

# The rest topic: records that only the matcher decides, as they came, with where they came from.
#
# Where a record came from stands in its last headers, by their place: whatever headers a sender gave stay as they are,
# and are never taken for ours. A record of the rest topic that does not end so was written by somebody else; it is
# judged as a record of that topic, which no source reads.

_ORIGIN: Final = ("topic", "partition", "offset", "timestamp")
_NAMES: Final = tuple(f"{LINEAGE}rest-{name}" for name in _ORIGIN)


def origin_headers() -> Column:
    """Return the headers that a row of Spark's Kafka source goes to the rest topic with."""
    from pyspark.sql import functions as F

    values = (
        F.col("topic"),
        *(F.col(name).cast("string") for name in _ORIGIN[1:3]),
        _timestamp_milliseconds().cast("string"),
    )
    ours = F.array(*(header_column(name, value) for name, value in zip(_NAMES, values, strict=True)))
    return F.concat(F.coalesce("headers", F.array().cast(HEADERS_TYPE)), ours)


def restored(rows: DataFrame) -> DataFrame:
    """Return rows of the rest topic as those that they were in the topics that they came by.

    *rows* are those of Spark's Kafka source, or of our own client; timestamps become milliseconds.
    """
    from pyspark.sql import functions as F

    count = len(_ORIGIN)
    ours = F.when(F.size("headers") >= count, F.slice("headers", -count, count))
    timestamp = _timestamp_milliseconds() if converts(rows, "kafka") else F.col("timestamp")
    marked = rows.withColumns({"timestamp": timestamp, "ours": ours})
    texts = [F.try_validate_utf8(F.get("ours", F.lit(place))["value"].cast("string")) for place in range(count)]
    numbers = [text.try_cast(kind) for text, kind in zip(texts[1:], ("int", "bigint", "bigint"), strict=True)]
    is_ours = F.coalesce(F.transform("ours", lambda entry: entry["key"]) == F.array(*map(F.lit, _NAMES)), F.lit(False))
    for value in (texts[0], *numbers):
        is_ours = is_ours & value.isNotNull()
    left = F.slice("headers", 1, F.greatest(F.size("headers") - count, F.lit(0)))
    # A record without headers has none, and not an empty list of them.
    came = F.when(F.size(left) > 0, left)
    origin = dict(zip(_ORIGIN, (texts[0], *numbers), strict=True))
    return marked.select(
        "key",
        "value",
        *(F.when(is_ours, value).otherwise(F.col(name)).alias(name) for name, value in origin.items()),
        F.when(is_ours, came).otherwise(F.col("headers")).alias("headers"),
    )


def _timestamp_milliseconds() -> Column:
    from pyspark.sql import functions as F

    return F.unix_millis("timestamp")


# What a real-time query sends, and what it counts of it; all in expressions that Spark's real-time mode takes.

COUNTS: Final = "settled"
"""The name of the counts in Spark's reports."""


def to_sent_records(rows: DataFrame, plan: Plan, types: Sequence[FastPathType], rest: str) -> DataFrame:
    """Return what becomes of rows of Spark's Kafka source: topic, key, value and headers of a record for each.

    What *types* settle goes where its type says, all else to the topic *rest*, as it came.
    """
    from pyspark.sql import functions as F

    decided = add_fast_path(rows, create_type_table(rows.sparkSession, types))
    # Exact, since there are no more numbers than it may keep apart; it is the one count by value that needs no groups.
    kept_apart = max(len(types), 2)
    number = F.when(F.col(FAST_PATH), F.col(NUMBER))
    counted = decided.observe(COUNTS, F.histogram_numeric(number, F.lit(kept_apart)).alias(COUNTS))
    return counted.select(
        F.when(F.col(FAST_PATH), F.col("to")).otherwise(F.lit(rest)).alias("topic"),
        "key",
        "value",
        F.when(F.col(FAST_PATH), event_headers(plan.epoch)).otherwise(origin_headers()).alias("headers"),
    )


def read_tally(progress: Mapping[str, Any], types: Sequence[FastPathType]) -> Tally:
    """Return the counts of a batch that Spark reports as done; what went to the rest topic is not among them."""
    tally = Tally()
    observed = (progress.get("observedMetrics") or {}).get(COUNTS)
    for bar in (observed[COUNTS] or ()) if observed is not None else ():
        settled, count = types[int(bar["x"])], int(bar["y"])
        endpoint = settled.endpoint or ""
        tally.records[(endpoint, ROUTED, "")] += count
        tally.delivered[(settled.route.sink, endpoint)] += count
        tally.definitions[settled.endpoint or "", settled.message] += count
    return tally


_POLL_SECONDS: Final = 0.05
_NOISY_LOGGERS: Final = (
    "org.apache.spark.util.Utils",
    "org.apache.spark.scheduler.TaskSchedulerImpl",
    "org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
)
"""The logger that reports tasks that are ended, also in order."""
_log = get_logger()


class RealTimeQuery:
    """A real-time query of one plan. Not for concurrent use."""

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
        self._types = find_fast_path_types(plan)
        self._query: StreamingQuery | None = None
        self._batch_began = time.monotonic()
        self._drain_batch: int | None = None
        assert plan.settings.realtime is not None
        self._settings = plan.settings.realtime
        metrics.init_query_series(name)
        metrics.resume(name, accounts.of(name))

    def start(self, rows: DataFrame, state: StateFolder) -> StreamingQuery:
        """Start it on rows of Spark's Kafka source; its checkpoint is the generation's folder."""
        # A query in batches has its pins there, and the next start looks for it.
        create_private_folder(state.batches / self.name)
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
        """Take Spark's report on the last batch that has ended."""
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
        """Ask for the end of the batch at hand."""
        if self._drain_batch is None:
            self._drain_batch = -1 if self.last is None else self.last

    @property
    def draining(self) -> bool:
        """Whether the query is to end."""
        return self._drain_batch is not None

    @property
    def ended_batch(self) -> bool:
        """Whether a batch has ended since :meth:`drain`."""
        return self._drain_batch is not None and self.last is not None and self.last > self._drain_batch

    def wait_idle(self, seconds: float) -> bool:
        """Wait until a batch has ended since :meth:`drain`; False at once when none can within the time."""
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
        """End it now; what it has sent since its last note is sent again by the next start."""
        if self._query is not None:
            self._query.stop()


def _silence_task_logs() -> None:
    """Keep Spark from logging tasks that end, which it does at length and moments after their query was stopped.

    Why one failed is in the error of its query.
    """
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    assert jvm is not None
    log4j = jvm.org.apache.logging.log4j
    for name in _NOISY_LOGGERS:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


# What must hold before a real-time query begins, besides what the settings alone show.


def require_real_time(plan: Plan, *, once: bool = False) -> None:
    """Make sure that real-time mode can read the sources of a plan; nothing is asked of one in batches.

    With *once* the router would end when all is read, which only batches can do.

    Raises:
        ConfigError: a source is no Kafka topic, they are not of one query, one is the rest topic, or no definition can
            be settled without the matcher; names it.
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
    if plan.sources and not find_fast_path_types(plan):
        raise ConfigError(
            "no definition can be settled without the matcher, so that nothing would be quicker in real-time mode",
            key="trigger",
            hint="see the operations notes on real-time mode for the supported definitions, or set a duration",
        )


def require_rest_topic(settings: Settings, state: StateFolder) -> None:
    """Make sure that the rest topic is there, and that none is left whose records would never be read.

    Raises:
        ConfigError: it does not exist; or the settings have none, or another, and one was read before.
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
    """Make sure that each partition of the sources has a core for itself, and each of the rest topic another.

    A real-time query keeps its cores, and waits silently for one that it lacks.

    Raises:
        ConfigError: Spark has fewer; names both numbers.
        BrokerUnreachable: the brokers do not say how many partitions there are.
    """
    assert plan.settings.realtime is not None
    try:
        read = KafkaOffsets(make_source_client(plan.sources[0])).find_partitions(topics)
        rest = KafkaOffsets(make_rest_client(plan.settings)).find_partitions([plan.settings.realtime.rest])
    except KafkaUnreachable as error:
        raise BrokerUnreachable(str(error)) from error
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
    """Return how many tasks run at the same time."""
    context = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
