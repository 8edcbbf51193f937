"""Who goes where: routes and destinations of a plan, as far as they are known before any record (`xrouter routes`).

It follows what :mod:`router.routing.destinations` decides by: records of a definition with one way take it always,
those of one with several the first whose conditions their values meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from catalog.linting.placeholders import names_in
from catalog.model import Finding
from router.judging.plan import Plan
from router.matching.conformance import decides
from router.routing.routes import DEAD, Known, RouteRule, letter_number
from router.routing.settled import Settled
from router.settings import REASONS, Settings, event_routes
from router.settings.names import (
    CONTEXT_PREFIX,
    NameTemplate,
    Template,
    event_values,
    value_name,
)
from router.settling.types import settled_types

Records = Literal["all", "events", "native"]
"""Which records of a definition: all, those that arrive as CloudEvents, or those that become one by mapping."""
ALL: Final = "*"
UNKNOWN: Final = ""
"""The endpoint of a letter that came from none."""
KAFKA: Final = "KAFKA"
PARTITION_KEY: Final = "partitionkey"
_REFERENCES: Final = ("${", "file:")


@dataclass(frozen=True, slots=True)
class Aim:
    """A sink and the destination there; variables that only records decide stand in braces."""

    sink: str
    destination: str


@dataclass(frozen=True, slots=True)
class Way:
    """A route that may take records, and what it then asks of their values (globs by ``context.NAME`` and so on)."""

    route: int
    values: Mapping[str, tuple[str, ...]]
    aims: tuple[Aim, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """The records of one definition at one source, and the ways that they may take, in order."""

    endpoint: str
    message: str
    records: Records
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class LetterFlow:
    """Dead letters of some reasons; ``route`` None is ``dead_letters.sinks``.

    ``endpoints`` are xids of sources, empty for a record of none of them, or ``*`` alone for all.
    """

    endpoints: tuple[str, ...]
    reasons: tuple[str, ...]
    route: int | None
    aims: tuple[Aim, ...]


@dataclass(frozen=True, slots=True)
class RouteSurvey:
    """Everything of one plan. ``unreached`` are routes that nothing takes, ``unrouted`` definitions that no source has.

    ``left_over`` are definitions that only the last route of events takes, where there are others; ``unsettled`` are
    those of which records that keep to it go by the rest topic, in real-time mode. ``unheld`` are definitions with a
    schema that bodies need not keep to, on one of their ways at least.
    """

    flows: tuple[Flow, ...]
    letters: tuple[LetterFlow, ...]
    unreached: tuple[int, ...]
    unrouted: tuple[str, ...]
    left_over: tuple[str, ...]
    unsettled: tuple[str, ...]
    unheld: tuple[str, ...]


def sink_topics(plan: Plan) -> dict[str, list[str]]:
    """Return the topics that Kafka sinks write to whatever a record has, by sink."""
    surveyed = survey(plan)
    aims = [aim for flow in surveyed.flows for way in flow.ways for aim in way.aims]
    aims += [aim for letters in surveyed.letters for aim in letters.aims]
    if plan.settings.relations is not None:
        pairs = plan.settings.relations.to
        topics = plan.settings.sinks[pairs].topics
        aims += [] if topics is None else [Aim(pairs, topics.topic)]
    found: dict[str, set[str]] = {}
    for aim in aims:
        if plan.settings.sinks[aim.sink].topics is not None and "{" not in aim.destination:
            found.setdefault(aim.sink, set()).add(aim.destination)
    return {name: sorted(found[name]) for name in plan.settings.sinks if name in found}


def survey(plan: Plan) -> RouteSurvey:
    """Return who goes where."""
    flows = tuple(_flows(plan))
    letters = tuple(_letters(plan))
    events = [number for number, _ in event_routes(plan.settings.routes)]
    used = {way.route for flow in flows for way in flow.ways} | {events[-1]} | {each.route for each in letters}
    matcher = plan.judge.matcher
    reached = {matcher.targets[target].xid for channel in matcher.channels for target in channel.candidates}
    others = {flow.message for flow in flows for way in flow.ways if way.route != events[-1]}
    return RouteSurvey(
        flows,
        letters,
        tuple(number for number in range(len(plan.settings.routes)) if number not in used),
        tuple(xid for xid in plan.catalog.definitions if xid not in reached),
        tuple(sorted({flow.message for flow in flows} - others)) if len(events) > 1 else (),
        tuple(_unsettled(plan, flows)) if plan.settings.is_real_time else (),
        tuple(_unheld(plan, flows)),
    )


def _unheld(plan: Plan, flows: Iterable[Flow]) -> Iterator[str]:
    matcher = plan.judge.matcher
    # Where there is neither envelope nor protocol, the schema decides whatever the settings say.
    free = {each.xid for each in matcher.targets if matcher.checks.has_schema(each) and not decides(each)}
    loose = {flow.message for flow in flows if not all(plan.routes.always(way.route) for way in flow.ways)}
    return iter(sorted(free & loose))


def _unsettled(plan: Plan, flows: Iterable[Flow]) -> Iterator[str]:
    settled = {each.message for each in settled_types(plan)}
    # Records that are no events are mapped, which takes the matcher.
    return iter(
        dict.fromkeys(flow.message for flow in flows if flow.records != "events" or flow.message not in settled)
    )


def route_findings(file: str, plan: Plan) -> Iterator[Finding]:
    """Yield what lint says of the routes of settings in *file*, for the catalog that they are to work with."""
    surveyed = survey(plan)
    for number in surveyed.unreached:
        letters = plan.settings.routes[number].when.letters
        what = "no dead letter of a source" if letters else "no definition at a source"
        hint = "correct its conditions, or move it before the route that takes everything it would"
        message = f"{what} reaches route {number}"
        yield Finding(file, f"/routes/{number}", "warning", "unreached-route", message, hint)
    for xid in surveyed.unrouted:
        hint = "name an endpoint that expects it under sources, or leave it"
        yield Finding(file, "/sources", "info", "unrouted-definition", f"no source expects {xid}", hint)
    for xid in surveyed.unsettled:
        hint = "see the operations notes on real-time mode for what makes a definition quick, or leave it"
        message = f"records of {xid}, or some, go by the rest topic, in batches"
        yield Finding(file, "/realtime/rest", "info", "unsettled-definition", message, hint)
    for xid in surveyed.unheld:
        hint = "set match.validate, or validate of its route, to always, or leave it"
        message = f"records of {xid} may be routed with bodies that its schema rejects"
        yield Finding(file, "/match/validate", "info", "unheld-schema", message, hint)
    yield from _keyless(file, plan, surveyed.flows)


def _keyless(file: str, plan: Plan, flows: Iterable[Flow]) -> Iterator[Finding]:
    """Yield the Kafka sinks whose events have no key though their definitions say which device they are of.

    Only Kafka's own key and the attribute ``partitionkey`` are one by themselves (JUDGING.md#what-comes-out): a key of
    the router's choice would give events that are read again an attribute which they never had.
    """
    kinds = {source.endpoint: source.protocol or source.kind.upper() for source in plan.sources}
    by_sink: dict[str, dict[str, tuple[str, str]]] = {}
    for flow in flows:
        protocol, definition = kinds.get(flow.endpoint, KAFKA), plan.catalog.definitions[flow.message]
        names = tuple(names_in(definition.protocoloptions)) or tuple(names_in(definition.envelopemetadata))
        keyed = any(each.name == PARTITION_KEY for each in definition.envelopemetadata)
        if protocol == KAFKA or keyed or not names:
            continue
        for name in {aim.sink for way in flow.ways for aim in way.aims}:
            topics = plan.settings.sinks[name].topics
            if topics is not None and topics.key is None:
                by_sink.setdefault(name, {}).setdefault(flow.message, (protocol, names[0]))
    for name, messages in sorted(by_sink.items()):
        message, (protocol, placeholder) = next(iter(messages.items()))
        more = f", and of {len(messages) - 1} other definitions" if len(messages) > 1 else ""
        text = f"events of {message} arrive by {protocol} and get no key in sink {name}{more}: Kafka keeps their order"
        hint = (
            f'set sinks.{name}.key, such as "{{{CONTEXT_PREFIX}{placeholder}}}", or leave it if order does not matter'
        )
        yield Finding(
            file, f"/sinks/{name}", "info", "unkeyed-events", f"{text} in one partition, not over several", hint
        )


def _flows(plan: Plan) -> Iterator[Flow]:
    judge = plan.judge
    for number, channel in enumerate(judge.matcher.channels):
        for target in channel.candidates:
            by_records: dict[Records, tuple[Way, ...]] = {}
            kinds: tuple[tuple[Records, bool], ...] = (("events", True), ("native", False))
            for records, event in kinds:
                if judge.matcher.targets[target].constraints(event=event) is None:
                    continue
                settled = Settled(judge.matcher, number, target, event=event)
                if settled.unmappable:
                    continue
                pair = judge.outputs.destinations.pair(number, target, event=event)
                known = _known(judge.matcher.targets[target].xid, pair.endpoint or "", settled)
                by_records[records] = tuple(_way(plan.settings, rule, known) for rule in pair.rules)
            if len(by_records) == 2 and by_records["events"] == by_records["native"]:
                by_records = {"all": by_records["events"]}
            endpoint = channel.endpoint_of(target) or ""
            for records, ways in by_records.items():
                yield Flow(endpoint, judge.matcher.targets[target].xid, records, ways)


def _letters(plan: Plan) -> Iterator[LetterFlow]:
    endpoints = (*sorted({source.endpoint for source in plan.sources}), UNKNOWN)
    groups: dict[tuple[int, ...], list[str]] = {}
    for endpoint in endpoints:
        groups.setdefault(tuple(plan.routes.letters(endpoint, reason) for reason in REASONS), []).append(endpoint)
    for routes, members in groups.items():
        for route in dict.fromkeys(routes):
            reasons = tuple(reason for reason, taken in zip(REASONS, routes, strict=True) if taken == route)
            number = None if route == DEAD else letter_number(route)
            names = plan.settings.dead_letters.sinks if number is None else plan.settings.routes[number].to
            aims = tuple(
                Aim(name, _destination(plan.settings, name, lambda name: None, letters=True)) for name in names
            )
            yield LetterFlow((ALL,) if len(groups) == 1 else tuple(members), reasons, number, aims)


def _way(settings: Settings, rule: RouteRule, known: Known) -> Way:
    names = dict.fromkeys(settings.routes[rule.route].to)
    aims = tuple(Aim(name, _destination(settings, name, known)) for name in names)
    return Way(rule.route, {each.name: each.globs for each in rule.conditions}, aims)


def _known(message: str, endpoint: str, settled: Settled) -> Known:
    fixed = event_values(message, endpoint, "", {})
    return lambda name: fixed[name] if value_name(name) in fixed else settled(value_name(name))


def _destination(settings: Settings, name: str, known: Known, *, letters: bool = False) -> str:
    """Return the destination at a sink, as far as it is known; what the settings refer to is not looked up."""
    sink = settings.sinks[name]
    if sink.remote is not None:
        if sink.remote.endpoint is not None:
            return sink.remote.endpoint
        written = str(settings.unresolved.get("sinks", {}).get(name, {}).get(sink.remote.template_field, ""))
        if any(sign in written for sign in _REFERENCES):
            return written
    return sink.destination(lambda template, escape: _filled(template, known, escape), letters=letters)


def _filled(template: Template, known: Known, escape: Callable[[str], str]) -> str:
    values = {name: text for name in template.variables if (text := known(name)) is not None}
    if isinstance(template, NameTemplate) and len(values) == len(template.variables):
        return template.expand(values)
    return template.filled_in_part(values, escape)
