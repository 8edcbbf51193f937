"""Which Kafka rows expressions of the JVM may settle without the matcher, and those expressions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from bindings.envelope import ATTRIBUTE_NAME, DATA, REQUIRED
from bindings.kafka.binding import PROTOCOL
from bindings.kafka.facts import ATTRIBUTE, CONTENT_TYPE, HEADER, LINEAGE, VERSION
from bindings.kafka.store import first_text
from catalog.definitions.constraints import CONTENT, Constraint, MatchCandidate
from catalog.schemas.ids.deciding import first_byte
from router.judging.plan import TOPIC, Plan
from router.judging.stages import HEADERS_TYPE, header
from router.matching.context import slots_of
from router.matching.index.classes import segments_of, separator_of
from router.routing.destinations import SizeLimits

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Which events expressions of the JVM may settle: a table of types, each with the one definition that it can be.
#
# A type of a channel is *settled* by its definition when no other candidate of the channel takes an event of that type,
# all that the definition asks besides can be decided without patterns that go back and forth
# (:class:`HeaderConstraint`), and no value of an event decides where it goes. What is not in the table is left to the
# matcher. So the table may lack a type at no cost but time, and must have none for which the matcher might decide
# otherwise.

TYPE: Final = "e.type"
WHOLE: Final = -1
FORMS: Final = ("uri", "urireference", "uritemplate", "timestamp", "integer")
"""Types whose values the JVM knows to be valid where they are written plainly."""


@dataclass(frozen=True, slots=True)
class HeaderConstraint:
    """What a definition asks of one header; with neither ``text``, ``segments`` nor ``form`` it asks for presence.

    ``text`` is to be equal. ``segments`` are those of a template, None for a placeholder; one alone is the whole value.
    ``form`` is the type that a value must be of, one of :data:`FORMS`. ``optional`` lets the header be absent.
    """

    header: str
    text: str | None
    segments: tuple[str | None, ...]
    form: str | None
    optional: bool


@dataclass(frozen=True, slots=True)
class HeaderSegment:
    """A context attribute: the segment ``place`` of a header's value, or with :data:`WHOLE` all of it."""

    name: str
    header: str
    place: int
    decodes: bool


@dataclass(frozen=True, slots=True)
class FixedRoute:
    """Where events of a type go: the sink and its topic, whether they get headers of lineage, and most bytes of key and
    body.
    """

    sink: str
    topic: str
    lineage: bool
    limit: int


@dataclass(frozen=True, slots=True)
class SettledType:
    """What becomes of events of one type from one topic that give what is ``asked``."""

    topic: str
    type: str
    message: str
    endpoint: str | None
    way: FixedRoute
    asked: tuple[HeaderConstraint, ...]
    context: tuple[HeaderSegment, ...]
    frame: bytes | None = None
    """How a body begins whose schema id the matcher looks at."""


def settled_types(plan: Plan) -> list[SettledType]:
    """Return the types that a plan settles, by topic and type; ties and bodies never matter to them."""
    judge = plan.judge
    return [
        settled
        for name, number in sorted(judge.channels.items())
        if name.startswith(TOPIC)
        for settled in _of_channel(plan, number, name.removeprefix(TOPIC))
    ]


def _of_channel(plan: Plan, channel: int, topic: str) -> list[SettledType]:
    matcher = plan.judge.matcher
    takers: Mapping[str, list[int]] = defaultdict(list)
    for number in matcher.channels[channel].candidates:
        target = matcher.targets[number]
        if target.event is None or target.protocol not in (None, PROTOCOL):
            continue
        text = _type_of(target)
        if text is None:
            return []  # It may take events of any type.
        takers[text].append(number)
    limits = SizeLimits(plan.settings)
    settled = (
        _settled(plan, limits, channel, numbers[0], topic, text)
        for text, numbers in sorted(takers.items())
        if len(numbers) == 1
    )
    return [each for each in settled if each is not None]


def _type_of(target: MatchCandidate) -> str | None:
    for key, constraint in target.event or ():
        if key == TYPE and constraint.kind == "literal" and constraint.is_exact:
            return constraint.value
    return None


def _settled(plan: Plan, limits: SizeLimits, channel: int, number: int, topic: str, text: str) -> SettledType | None:
    matcher = plan.judge.matcher
    target = matcher.targets[number]
    if target.definition.relation is not None:
        return None  # Its lineage says more than that of others.
    constraints = target.event or ()
    slots, equal = slots_of(constraints)
    asked = [_asked(key, constraint) for key, constraint in constraints]
    context = [(slot.name, _header(slot.key), slot.place, slot.constraint.decodes) for slot in slots]
    way = _way(plan, limits, channel, number)
    if equal or way is None or None in asked or any(header is None or place < WHOLE for _, header, place, _ in context):
        return None
    taken = tuple(HeaderSegment(name, header or "", place, decodes) for name, header, place, decodes in context)
    endpoint = matcher.channels[channel].endpoint_of(number)
    frame = first_byte(matcher.ids.framing(channel)) if matcher.ids.finds(channel) else None
    return SettledType(topic, text, target.xid, endpoint, way, tuple(each for each in asked if each), taken, frame)


def _way(plan: Plan, limits: SizeLimits, channel: int, number: int) -> FixedRoute | None:
    """Return where events go that this target wins; None where values decide, or where it is no one topic."""
    decision = plan.judge.outputs.destinations.pair(channel, number, event=True).decision
    if decision is None or decision.fault or plan.routes.always(decision.route):
        return None
    sinks = plan.settings.routes[decision.route].to
    topics = [topic for topic in decision.topics if topic is not None]
    sink = plan.settings.sinks[sinks[0]].topics
    if len(sinks) > 1 or len(topics) != 1 or sink is None or sink.key is not None or sink.mode != "binary":
        return None
    return FixedRoute(sinks[0], topics[0], sink.lineage, limits.of(decision.route))


def _asked(key: str, constraint: Constraint) -> HeaderConstraint | None:
    """Return a constraint as the JVM decides it; None for one that it does not."""
    header = _header(key)
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
        segments = [None] if template.is_bare else segments_of(template)
        if segments is None or constraint.type == "timestamp" or separator_of(template) != "/":
            return None
        return HeaderConstraint(header, None, tuple(segments), None, constraint.optional)
    if constraint.takes_any_text:
        return HeaderConstraint(header, None, (), None, constraint.optional)
    return (
        HeaderConstraint(header, None, (), constraint.type, constraint.optional) if constraint.type in FORMS else None
    )


def _header(key: str) -> str | None:
    """Return the header that a property is; None for one that is no header of Kafka's binary mode."""
    if key in (CONTENT, "e.datacontenttype", f"{HEADER}{CONTENT_TYPE}"):
        return CONTENT_TYPE
    if key.startswith("e."):
        return f"{ATTRIBUTE}{key.removeprefix('e.')}"
    return key.removeprefix(HEADER) if key.startswith(HEADER) else None


# Rows of Kafka as columns of the JVM: which of them the table of settled types decides, and what they become.
#
# No condition here may let a record through that the matcher, or the exact codec, would decide otherwise; each may err
# on the other side, where records are left to them. The conditions are those of :mod:`bindings.kafka.facts`, coarser.

SETTLED: Final = "settled"
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
    "number int, topic string, type string, message string, endpoint string, to string, lineage boolean, limit bigint, "
    "asked array<struct<header:string,text:string,segments:array<string>,form:string,optional:boolean>>, "
    "context array<struct<name:string,header:string,place:int,decodes:boolean>>, frame binary"
)
_ESCAPED: Final = r'[\x00-\x1f"\\]'
_FORBIDDEN: Final = (
    r"[\x00-\x1F\x7F-\x9F\uFDD0-\uFDEF"
    + "".join(rf"\x{{{plane + 0xFFFE:X}}}\x{{{plane + 0xFFFF:X}}}" for plane in range(0, 0x110000, 0x10000))
    + "]"
)
"""What :data:`bindings.events.FORBIDDEN` says, for Java."""
_OF_ROWS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def table_of(spark: SparkSession, types: Sequence[SettledType]) -> DataFrame:
    """Return the table of settled types; ``number`` is the place of each in *types*."""
    rows = [
        (
            *(number, each.topic, each.type, each.message, each.endpoint),
            *(each.way.topic, each.way.lineage, each.way.limit),
            [(asked.header, asked.text, list(asked.segments), asked.form, asked.optional) for asked in each.asked],
            [(taken.name, taken.header, taken.place, taken.decodes) for taken in each.context],
            each.frame,
        )
        for number, each in enumerate(types)
    ]
    return spark.createDataFrame(rows, _SCHEMA)


def with_settled(rows: DataFrame, table: DataFrame) -> DataFrame:
    """Return the rows of Spark's Kafka source with what settles them, by a join that is broadcast.

    ``settled`` tells whether expressions decide a row. Then ``to`` is the topic that it goes to, and ``number``,
    ``message``, ``endpoint``, ``lineage`` and ``context`` are those of its type; in other rows they mean nothing.
    """
    from pyspark.sql import functions as F

    # Below the join, so that it is made once for each row: the columns above it use it many times.
    names, texts = F.col("headers.key").alias("names"), F.transform("headers", _text_of).alias("texts")
    typed = rows.select(*_OF_ROWS, names, texts, first_text("headers", f"{ATTRIBUTE}type").alias("type")).alias("r")
    same = (F.col("t.topic") == F.col("r.topic")) & (F.col("t.type") == F.col("r.type"))
    joined = typed.join(F.broadcast(table.alias("t")), same, "left")
    size = F.coalesce(F.octet_length("r.key"), F.lit(0)) + F.coalesce(F.octet_length("r.value"), F.lit(0))
    settled = F.col("t.message").isNotNull() & _plain() & (size <= F.col("t.limit"))
    settled = settled & F.coalesce(F.substring("r.value", 1, 1) != F.col("t.frame"), F.lit(True))
    settled = settled & F.forall("t.asked", _given) & F.forall("t.context", _readable)
    return joined.select(
        *(F.col(f"r.{name}").alias(name) for name in _OF_ROWS),
        *(F.col(f"t.{name}").alias(name) for name in (NUMBER, "message", "endpoint", "to", "lineage")),
        _context().alias("context"),
        F.coalesce(settled, F.lit(False)).alias(SETTLED),
    )


def sent_headers(epoch: str) -> Column:
    """Return the headers that a settled row is sent on with."""
    from pyspark.sql import functions as F

    values = {
        "message": F.col("message"),
        "endpoint": F.col("endpoint"),
        "epoch": F.lit(epoch),
        "position": F.concat_ws("-", "topic", "partition", "offset"),
        "context": F.col("context"),
    }
    added = F.array(*(header(f"{LINEAGE}{name}", value) for name, value in values.items()))
    return F.concat("headers", F.when(F.col("lineage"), added).otherwise(F.array().cast(HEADERS_TYPE)))


def _plain() -> Column:
    """Return whether a row is a binary event whose headers the exact codec need not read."""
    from pyspark.sql import functions as F

    plain = F.size(F.array_distinct("r.names")) == F.size("r.names")
    plain = plain & F.forall("r.headers", _harmless) & (_text(F.lit(VERSION)) == "1.0")
    for name in REQUIRED:
        plain = plain & (F.length(_text(F.lit(f"{ATTRIBUTE}{name}"))) > 0)
    return plain


def _harmless(entry: Column) -> Column:
    """Return whether a header neither makes a row odd nor gives the event another key, body or mode."""
    from pyspark.sql import functions as F

    name, text = entry["key"], _text_of(entry)
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


def _text_of(entry: Column) -> Column:
    """Return the value of a header as text; null for none, and for what is no UTF-8."""
    from pyspark.sql import functions as F

    return F.try_validate_utf8(entry["value"].cast("string"))


def _text(name: Column) -> Column:
    """Return the text of the only header of that name; null for none."""
    from pyspark.sql import functions as F

    return F.get("r.texts", F.array_position("r.names", name).cast("int") - 1)


def _given(asked: Column) -> Column:
    """Return whether a row has what is asked of one header; null where that is not known."""
    from pyspark.sql import functions as F

    text, segments = _text(asked["header"]), asked["segments"]
    parts = F.when(F.size(segments) > 1, F.split(text, "/")).otherwise(F.array(text))
    fits = F.zip_with(parts, segments, _fits)
    templated = (F.size(parts) == F.size(segments)) & F.forall(fits, lambda fit: fit)
    value = F.when(asked["text"].isNotNull(), text == asked["text"]).when(F.size(segments) > 0, templated)
    value = value.when(asked["form"].isNotNull(), _is_formed(text, asked["form"])).otherwise(text.isNotNull())
    # A header without a text may count as absent or be no UTF-8; that is not decided here.
    return F.when(F.array_position("r.names", asked["header"]) == 0, asked["optional"]).otherwise(value)


def _fits(part: Column, wanted: Column) -> Column:
    from pyspark.sql import functions as F

    return F.when(wanted.isNull(), part != "").otherwise(part == wanted)


def _is_formed(text: Column, form: Column) -> Column:
    """Return whether a text is plainly valid for a type. Other texts may be valid too."""
    tests = ((form == name) & text.rlike(f"^(?:{pattern})\\z") for name, pattern in PLAIN_FORMS.items())
    return reduce(lambda one, other: one | other, tests)


def _value(taken: Column) -> Column:
    from pyspark.sql import functions as F

    text = _text(taken["header"])
    return F.when(taken["place"] == WHOLE, text).otherwise(F.get(F.split(text, "/"), taken["place"]))


def _readable(taken: Column) -> Column:
    """Tell whether a value stands in JSON, and in the context, as it is."""
    from pyspark.sql import functions as F

    value = _value(taken)
    return value.isNotNull() & ~value.rlike(_ESCAPED) & ~(taken["decodes"] & F.contains(value, F.lit("%")))


def _context() -> Column:
    """Return the context of a settled row as JSON, as :func:`router.writing.outgoing.context_json` writes it."""
    from pyspark.sql import functions as F

    def member(taken: Column) -> Column:
        return F.concat(F.lit('"'), taken["name"], F.lit('":"'), _value(taken), F.lit('"'))

    return F.concat(F.lit("{"), F.array_join(F.transform("t.context", member), ","), F.lit("}"))
