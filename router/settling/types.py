"""Which events expressions of the JVM may settle: a table of types, each with the one definition that it can be.

A type of a channel is *settled* by its definition when no other candidate of the channel takes an event of that type,
all that the definition asks besides can be decided without patterns that go back and forth (:class:`Asked`), and no
value of an event decides where it goes. What is not in the table is left to the matcher. So the table may lack a type
at no cost but time, and must have none for which the matcher might decide otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bindings.kafka.codec import PROTOCOL
from bindings.kafka.facts import ATTRIBUTE, CONTENT_TYPE, HEADER
from catalog.definitions.constraints import CONTENT, Constraint
from catalog.definitions.targets import Target
from catalog.schemas.ids.frames import first_byte
from router.judging.plan import TOPIC, Plan
from router.matching.context import slots_of
from router.matching.index.segments import segments_of, separator_of
from router.routing.limits import SizeLimits

TYPE: Final = "e.type"
WHOLE: Final = -1
FORMS: Final = ("uri", "urireference", "uritemplate", "timestamp", "integer")
"""Types whose values the JVM knows to be valid where they are written plainly."""


@dataclass(frozen=True, slots=True)
class Asked:
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
class Taken:
    """A context attribute: the segment ``place`` of a header's value, or with :data:`WHOLE` all of it."""

    name: str
    header: str
    place: int
    decodes: bool


@dataclass(frozen=True, slots=True)
class Way:
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
    way: Way
    asked: tuple[Asked, ...]
    context: tuple[Taken, ...]
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


def _type_of(target: Target) -> str | None:
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
    taken = tuple(Taken(name, header or "", place, decodes) for name, header, place, decodes in context)
    endpoint = matcher.channels[channel].endpoint_of(number)
    frame = first_byte(matcher.ids.framing(channel)) if matcher.ids.finds(channel) else None
    return SettledType(topic, text, target.xid, endpoint, way, tuple(each for each in asked if each), taken, frame)


def _way(plan: Plan, limits: SizeLimits, channel: int, number: int) -> Way | None:
    """Return where events go that this target wins; None where values decide, or where it is no one topic."""
    decision = plan.judge.outputs.destinations.pair(channel, number, event=True).decision
    if decision is None or decision.fault or plan.routes.always(decision.route):
        return None
    sinks = plan.settings.routes[decision.route].to
    topics = [topic for topic in decision.topics if topic is not None]
    sink = plan.settings.sinks[sinks[0]].topics
    if len(sinks) > 1 or len(topics) != 1 or sink is None or sink.key is not None or sink.mode != "binary":
        return None
    return Way(sinks[0], topics[0], sink.lineage, limits.of(decision.route))


def _asked(key: str, constraint: Constraint) -> Asked | None:
    """Return a constraint as the JVM decides it; None for one that it does not."""
    header = _header(key)
    if header is None:
        return None
    if constraint.kind == "media":
        # The very text alone: what is written otherwise may be equal, and is left to the matcher.
        return Asked(header, constraint.value, (), None, constraint.optional)
    if constraint.kind == "literal":
        return Asked(header, constraint.value, (), None, constraint.optional) if constraint.is_exact else None
    if constraint.kind == "template":
        template = constraint.template
        segments = [None] if template.is_bare else segments_of(template)
        if segments is None or constraint.type == "timestamp" or separator_of(template) != "/":
            return None
        return Asked(header, None, tuple(segments), None, constraint.optional)
    if constraint.takes_any_text:
        return Asked(header, None, (), None, constraint.optional)
    return Asked(header, None, (), constraint.type, constraint.optional) if constraint.type in FORMS else None


def _header(key: str) -> str | None:
    """Return the header that a property is; None for one that is no header of Kafka's binary mode."""
    if key in (CONTENT, "e.datacontenttype", f"{HEADER}{CONTENT_TYPE}"):
        return CONTENT_TYPE
    if key.startswith("e."):
        return f"{ATTRIBUTE}{key.removeprefix('e.')}"
    return key.removeprefix(HEADER) if key.startswith(HEADER) else None
