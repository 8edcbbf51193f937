"""The record flow between endpoints, definitions and sinks: nodes and links with rates, drawn by the status page.

There may be thousands of definitions: the busiest are shown, and the rest is summed.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry

from catalog.linting.events import iter_placeholder_names
from catalog.model import Finding
from router.evaluation.outputs import DEAD_LETTER, EMPTY, ROUTED
from router.evaluation.plan import Plan
from router.matching.schema_validation import is_decided_by_schema
from router.routing import DEFAULT_DEAD_LETTER_ROUTE, FixedValue, FixedValues, to_dead_letter_route
from router.settings import REASONS, Settings, event_routes
from router.settings.checks import dead_letter_sinks, event_sinks
from router.settings.routes import (
    CONTEXT_PREFIX,
    DestinationTemplate,
    NameTemplate,
    full_variable_name,
    make_event_values,
)
from router.watching.coverage import CoverageView
from router.watching.metrics import SinkProblem

# Metrics as numbers, with their rates over the last minute.

WINDOW_SECONDS: Final = 60.0
EVERY_SECONDS: Final = 5.0
"""Time between two samples that rates are taken from."""
POINT_SECONDS: Final = 30.0
"""Time between two points of the last hour."""
HOUR_POINTS: Final = 120
HISTORIES: Final = 100
"""Endpoints whose last hour is kept."""
RECORDS: Final = "xrouter_records_total"
DEFINITIONS: Final = "xrouter_definition_records_total"
WRITES: Final = "xrouter_sink_writes_total"
RECEIVED: Final = "xrouter_gateway_received_total"
ACKNOWLEDGED: Final = "xrouter_gateway_acknowledged_total"
LAG: Final = "xrouter_source_lag_records"
OLDEST: Final = "xrouter_source_oldest_seconds"
INBOX_OLDEST: Final = "xrouter_inbox_oldest_seconds"
HELD: Final = "xrouter_query_held"
INBOX_RECORDS: Final = "xrouter_inbox_records"
INBOX_BYTES: Final = "xrouter_inbox_bytes"
REST: Final = "xrouter_rest_records"
PUSHED: Final = "xrouter_inbox_endpoint_records"
PUSHED_OLDEST: Final = "xrouter_inbox_endpoint_oldest_seconds"
ARRIVED: Final = "xrouter_arrived_records_total"
LATENCY: Final = "xrouter_record_latency_seconds_bucket"
_COUNTED: Final = (RECORDS, DEFINITIONS, WRITES, ARRIVED, LATENCY)
"""The metrics that rates are taken of."""
_READ: Final = (
    *(*_COUNTED, RECEIVED, ACKNOWLEDGED, LAG, OLDEST, HELD, PUSHED, PUSHED_OLDEST),
    *(INBOX_OLDEST, INBOX_RECORDS, INBOX_BYTES, REST),
)
Key = tuple[str, ...]
Samples = dict[Key, float]
"""Values by the name of a metric and the values of its labels."""


Figure = dict[str, Any]
"""A count (``records``), and its ``rate`` per second; the rate is None until there are two samples."""
_NOTHING: Final[Figure] = {"records": 0, "rate": None}
UNKNOWN: Final = ""
"""The endpoint of a letter that came from none."""
_OUTCOMES: Final = {"routed": ROUTED, "dead_letters": DEAD_LETTER, "empty": EMPTY}
"""Outcomes of records, as the page calls them and as metrics do."""


class FigureReading:
    """All figures at one time. ``window`` is the period of rates in seconds."""

    def __init__(self, samples: Samples, before: Samples | None, window: float) -> None:
        self._samples = samples
        self._before = before
        self.window = window

    def get_value(self, metric: str, *labels: str) -> float | None:
        """Return the value of one series; None if there is none."""
        return self._samples.get((metric, *labels))

    def get_figure(self, metric: str, *labels: str) -> Figure:
        """Return the figure of one series."""
        return self._sum([(metric, *labels)])

    def sum_by(self, metric: str) -> dict[str, Figure]:
        """Return the figures of a metric by the value of its first label."""
        grouped: dict[str, list[Key]] = {}
        for key in self._samples:
            if key[0] == metric:
                grouped.setdefault(key[1], []).append(key)
        return {name: self._sum(keys) for name, keys in grouped.items()}

    def outcomes(self) -> dict[str, dict[str, Figure]]:
        """Return for each endpoint its routed records, its dead letters, and its empty batches of events."""
        keys: dict[str, dict[str, list[Key]]] = {}
        for key in self._samples:
            if key[0] == RECORDS:
                keys.setdefault(key[1], {}).setdefault(key[2], []).append(key)
        return {
            name: {shown: self._sum(each.get(outcome, [])) for shown, outcome in _OUTCOMES.items()}
            for name, each in keys.items()
        }

    def list_blocked(self) -> list[tuple[str, str]]:
        """Return the queries with a blocked batch, each with the blocking sink."""
        return sorted((key[1], key[2]) for key, value in self._samples.items() if key[0] == HELD and value)

    def get_lag(self, endpoint: str | None = None) -> float | None:
        """Return the unprocessed records of an endpoint, at its broker or in the inbox, or of all; None if unknown."""
        known = self._list_values((LAG, INBOX_RECORDS, REST) if endpoint is None else (LAG, PUSHED), endpoint)
        return sum(known) if known else None

    def get_oldest_age(self, endpoint: str | None = None) -> float | None:
        """Return the age of the oldest unprocessed record of an endpoint, or of all; None if unknown."""
        metrics = (OLDEST, INBOX_OLDEST if endpoint is None else PUSHED_OLDEST)
        return max(self._list_values(metrics, endpoint), default=None)

    def latency(self, share: float) -> float | None:
        """Return the latency in seconds at this quantile (*share*) of the window's records; None without records."""
        before = self._before or {}
        counts = sorted(
            (float(key[1]), value - before.get(key, 0.0)) for key, value in self._samples.items() if key[0] == LATENCY
        )
        if self._before is None or not counts or counts[-1][1] <= 0:
            return None
        wanted, below, lower = share * counts[-1][1], 0.0, 0.0
        for bound, count in counts:
            if count >= wanted:
                if bound == math.inf:
                    return lower
                return round(lower + (bound - lower) * (wanted - below) / max(count - below, 1e-9), 3)
            below, lower = count, bound
        return lower

    def _list_values(self, metrics: Sequence[str], endpoint: str | None) -> list[float]:
        if endpoint is None:
            return [value for key, value in self._samples.items() if key[0] in metrics]
        return [self._samples[metric, endpoint] for metric in metrics if (metric, endpoint) in self._samples]

    def _sum(self, keys: list[Key]) -> Figure:
        count = sum(self._samples.get(key, 0.0) for key in keys)
        if self._before is None or self.window <= 0:
            return {"records": int(count), "rate": None}
        grown = count - sum(self._before.get(key, 0.0) for key in keys)
        return {"records": int(count), "rate": round(max(0.0, grown) / self.window, 3)}


class Point(NamedTuple):
    """Figures at one time: records per second, unprocessed records, and seconds."""

    arriving: float | None
    finished: float | None
    lag: float | None
    oldest: float | None
    latency: float | None
    """The 95th percentile; only known of all endpoints together."""


class Figures:
    """Reads metrics, stores samples of one minute to compute rates, and points of the last hour. Thread-safe.

    There are points of all endpoints together ('') and of the busiest ones. Memory is bounded: :data:`HOUR_POINTS` of
    :data:`HISTORIES` endpoints at most.
    """

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, Samples]] = deque(maxlen=int(WINDOW_SECONDS / EVERY_SECONDS) + 1)
        self._pointed: float | None = None
        self._points: dict[str, deque[Point]] = {"": deque(maxlen=HOUR_POINTS)}

    def take_sample(self) -> None:
        """Take a sample if it is time for one; call it every second or so."""
        now = self._clock()
        with self._lock:
            due = not self._kept or now - self._kept[-1][0] >= EVERY_SECONDS
        if due:
            counted = self._read_metrics(_COUNTED)
            with self._lock:
                self._kept.append((now, counted))
        if self._pointed is None or now - self._pointed >= POINT_SECONDS:
            self._pointed = now
            self._add_point(self.get_reading())

    def get_reading(self) -> FigureReading:
        """Return the current figures."""
        samples, now = self._read_metrics(_READ), self._clock()
        with self._lock:
            kept = [each for each in self._kept if now - each[0] <= WINDOW_SECONDS + EVERY_SECONDS] or self._kept
            before = kept[0] if kept else None
        if before is None or now - before[0] < 1.0:
            return FigureReading(samples, None, 0.0)
        return FigureReading(samples, before[1], now - before[0])

    def list_points(self, endpoint: str = "") -> list[Point]:
        """Return the figures of an endpoint, or the sums of all endpoints, oldest first; empty if it is unknown."""
        with self._lock:
            return list(self._points.get(endpoint, ()))

    def _add_point(self, reading: FigureReading) -> None:
        arrived = reading.sum_by(ARRIVED)
        finished = {name: _total(figures.values()) for name, figures in reading.outcomes().items()}
        known = {*finished, *arrived} - {UNKNOWN}  # whose name is that of all together
        names = sorted(known, key=lambda name: (-(finished.get(name, _NOTHING)["rate"] or 0.0), name))
        kept = [*dict.fromkeys((*(name for name in self._points if name in names), *names))][:HISTORIES]
        whole = (_total(arrived.values())["rate"], _total(finished.values())["rate"])
        fresh = {"": Point(*whole, reading.get_lag(), reading.get_oldest_age(), reading.latency(0.95))}
        for name in kept:
            arriving, done = (each.get(name, _NOTHING)["rate"] for each in (arrived, finished))
            fresh[name] = Point(arriving, done, reading.get_lag(name), reading.get_oldest_age(name), None)
        with self._lock:
            self._points = {name: self._points.get(name) or deque(maxlen=HOUR_POINTS) for name in fresh}
            for name, point in fresh.items():
                self._points[name].append(point)

    def _read_metrics(self, metrics: tuple[str, ...]) -> Samples:
        """Return the current values of these metrics."""
        families = self._registry.restricted_registry(metrics).collect()
        return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


# Routes and destinations of a plan, as far as they are known without a record (`xrouter routes`).
#
# It follows what :mod:`router.routing` decides by: records of a definition with one way take it always,
# those of one with several the first whose conditions their values meet.

ALL: Final = "*"
_REFERENCES: Final = ("${", "file:")


Form = dict[str, Any]
"""An object of the output of ``xrouter routes --format json``, by its ``kind``."""


def sink_topics(plan: Plan) -> dict[str, list[str]]:
    """Return the topics that Kafka sinks write to whatever a record has, by sink."""
    targets = [
        target for form in survey_routes(plan) for each in form.get("ways", [form]) for target in each.get("sinks", ())
    ]
    if plan.settings.relations is not None:
        pairs = plan.settings.relations.to
        topics = plan.settings.sinks[pairs].topics
        targets += [] if topics is None else [{"sink": pairs, "destination": topics.topic}]
    found: dict[str, set[str]] = {}
    for target in targets:
        if plan.settings.sinks[target["sink"]].topics is not None and "{" not in target["destination"]:
            found.setdefault(target["sink"], set()).add(target["destination"])
    return {name: sorted(found[name]) for name in plan.settings.sinks if name in found}


def survey_routes(plan: Plan) -> list[Form]:
    """Return the possible routes of all definitions and dead letters of a plan, and what is left out.

    The kind ``definition`` has the records of a definition at one source, and its possible routes in order, each with
    its remaining conditions on ``values`` (globs by ``context.NAME`` and so on) and its destinations, with variables
    that depend on the record in braces. ``dead-letters`` are those of some reasons; ``route`` None is
    ``dead_letters.sinks``; ``endpoints`` are xids of sources, empty for a record of none of them, or ``*`` alone.

    ``unreached-route`` is one that nothing takes, ``unrouted-definition`` one that no source has.
    ``left-over-definition`` is one that only the last route of events takes, where there are others;
    ``unsettled-definition`` one with records that go by the fallback topic, in real-time mode. ``unheld-schema`` is a
    definition with a schema that bodies need not keep to, on one of its routes at least.
    """
    flows, letters = list(_iter_flows(plan)), list(_iter_letter_flows(plan))
    events = [number for number, _ in event_routes(plan.settings.routes)]
    used = {way["route"] for flow in flows for way in flow["ways"]} | {events[-1]} | {each["route"] for each in letters}
    matcher = plan.evaluator.matcher
    reached = {matcher.targets[target].xid for channel in matcher.channels for target in channel.candidates}
    others = {flow["message"] for flow in flows for way in flow["ways"] if way["route"] != events[-1]}
    by_kind: dict[str, Iterable[str]] = {
        "unrouted-definition": (xid for xid in plan.catalog.definitions if xid not in reached),
        "left-over-definition": sorted({flow["message"] for flow in flows} - others) if len(events) > 1 else (),
        "unsettled-definition": _find_batch_only(plan, flows) if plan.settings.is_real_time else (),
        "unheld-schema": _find_unvalidated(plan, flows),
    }
    unreached = (number for number in range(len(plan.settings.routes)) if number not in used)
    return [
        *flows,
        *letters,
        *({"kind": "unreached-route", "route": number} for number in unreached),
        *({"kind": kind, "message": xid} for kind, xids in by_kind.items() for xid in xids),
    ]


def _find_unvalidated(plan: Plan, flows: Iterable[Form]) -> list[str]:
    matcher = plan.evaluator.matcher
    # Where there is neither envelope nor protocol, the schema decides whatever the settings say.
    free = {each.xid for each in matcher.targets if matcher.checks.has_schema(each) and not is_decided_by_schema(each)}
    validates = plan.routes.always_validates
    loose = {flow["message"] for flow in flows if not all(validates(way["route"]) for way in flow["ways"])}
    return sorted(free & loose)


def _find_batch_only(plan: Plan, flows: Iterable[Form]) -> Iterable[str]:
    from router.realtime import find_fast_types  # loads Kafka's client

    settled = {each.message for each in find_fast_types(plan)}
    # Records that are no events are mapped, which takes the matcher.
    slow = (flow for flow in flows if flow["records"] != "events" or flow["message"] not in settled)
    return dict.fromkeys(flow["message"] for flow in slow)


_FINDINGS: Final = {
    "unrouted-definition": (
        "/sources",
        "no source expects {}",
        "name an endpoint that expects it under sources, or leave it",
    ),
    "unsettled-definition": (
        "/realtime/rest",
        "records of {}, or some, go by the rest topic, in batches",
        "see the operations notes on real-time mode for what makes a definition quick, or leave it",
    ),
    "unheld-schema": (
        "/match/validate",
        "records of {} may be routed with bodies that its schema rejects",
        "set match.validate, or validate of its route, to always, or leave it",
    ),
}
"""Pointer, message and hint of a finding about a definition, by kind."""


def iter_route_findings(file: str, plan: Plan) -> Iterator[Finding]:
    """Yield lint findings about the routes of the settings in *file* with the plan's catalog."""
    surveyed = survey_routes(plan)
    for form in surveyed:
        if form["kind"] == "unreached-route":
            letters = plan.settings.routes[form["route"]].when.letters
            what = "no dead letter of a source" if letters else "no definition at a source"
            hint = "correct its conditions, or move it before the route that takes everything it would"
            place, message = f"/routes/{form['route']}", f"{what} reaches route {form['route']}"
            yield Finding(file, place, "warning", "unreached-route", message, hint)
        elif form["kind"] in _FINDINGS:
            place, text, hint = _FINDINGS[form["kind"]]
            yield Finding(file, place, "info", form["kind"], text.format(form["message"]), hint)
    yield from _iter_keyless_sinks(file, plan, [form for form in surveyed if form["kind"] == "definition"])


def _iter_keyless_sinks(file: str, plan: Plan, flows: Iterable[Form]) -> Iterator[Finding]:
    """Yield findings about Kafka sinks whose events have no key although their definitions have placeholders.

    Only Kafka's own key and the attribute ``partitionkey`` are one by themselves (MATCHING.md#what-comes-out): a key of
    the router's choice would give events that are read again an attribute which they never had.
    """
    kinds = {source.endpoint: source.protocol or source.kind.upper() for source in plan.sources}
    by_sink: dict[str, dict[str, tuple[str, str]]] = {}
    for flow in flows:
        protocol, definition = kinds.get(flow["endpoint"], "KAFKA"), plan.catalog.definitions[flow["message"]]
        names = tuple(iter_placeholder_names(definition.protocoloptions)) or tuple(
            iter_placeholder_names(definition.envelopemetadata)
        )
        keyed = any(each.name == "partitionkey" for each in definition.envelopemetadata)
        if protocol == "KAFKA" or keyed or not names:
            continue
        for name in {target["sink"] for way in flow["ways"] for target in way["sinks"]}:
            topics = plan.settings.sinks[name].topics
            if topics is not None and topics.key is None:
                by_sink.setdefault(name, {}).setdefault(flow["message"], (protocol, names[0]))
    for name, messages in sorted(by_sink.items()):
        message, (protocol, placeholder) = next(iter(messages.items()))
        more = f", and of {len(messages) - 1} other definitions" if len(messages) > 1 else ""
        text = f"events of {message} arrive by {protocol} and get no key in sink {name}{more}: Kafka keeps their order"
        text += " in one partition, not over several"
        key = f"{{{CONTEXT_PREFIX}{placeholder}}}"
        hint = f'set sinks.{name}.key, such as "{key}", or leave it if order does not matter'
        yield Finding(file, f"/sinks/{name}", "info", "unkeyed-events", text, hint)


def _iter_flows(plan: Plan) -> Iterator[Form]:
    judge = plan.evaluator
    for number, channel in enumerate(judge.matcher.channels):
        for target in channel.candidates:
            by_records: dict[str, list[Form]] = {}
            for records, event in (("events", True), ("native", False)):
                if judge.matcher.targets[target].constraints(event=event) is None:
                    continue
                settled = FixedValues(judge.matcher, number, target, event=event)
                if settled.unmappable:
                    continue
                pair = judge.outputs.destinations.routes_of_target(number, target, event=event)
                known = _make_lookup(judge.matcher.targets[target].xid, pair.endpoint or "", settled)
                by_records[records] = [
                    {
                        "route": rule.route,
                        "values": {each.name: each.globs for each in rule.conditions},
                        "sinks": _list_targets(plan.settings, plan.settings.routes[rule.route].to, known),
                    }
                    for rule in pair.rules
                ]
            if len(by_records) == 2 and by_records["events"] == by_records["native"]:
                by_records = {"all": by_records["events"]}
            endpoint = channel.endpoint_of(target) or ""
            for records, ways in by_records.items():
                place = {"endpoint": endpoint, "message": judge.matcher.targets[target].xid}
                yield {"kind": "definition", **place, "records": records, "ways": ways}


def _iter_letter_flows(plan: Plan) -> Iterator[Form]:
    endpoints = (*sorted({source.endpoint for source in plan.sources}), UNKNOWN)
    groups: dict[tuple[int, ...], list[str]] = {}
    for endpoint in endpoints:
        routes = tuple(plan.routes.dead_letter_route(endpoint, reason) for reason in REASONS)
        groups.setdefault(routes, []).append(endpoint)
    for routes, members in groups.items():
        for route in dict.fromkeys(routes):
            reasons = tuple(reason for reason, taken in zip(REASONS, routes, strict=True) if taken == route)
            number = None if route == DEFAULT_DEAD_LETTER_ROUTE else to_dead_letter_route(route)
            names = plan.settings.dead_letters.sinks if number is None else plan.settings.routes[number].to
            yield {
                "kind": "dead-letters",
                "endpoints": [ALL] if len(groups) == 1 else members,
                "reasons": reasons,
                "route": number,
                "sinks": _list_targets(plan.settings, names, lambda name: None, letters=True),
            }


def _list_targets(
    settings: Settings, names: Iterable[str], known: FixedValue, *, letters: bool = False
) -> list[dict[str, str]]:
    return [
        {"sink": name, "destination": _locate(settings, name, known, letters=letters)} for name in dict.fromkeys(names)
    ]


def _make_lookup(message: str, endpoint: str, settled: FixedValues) -> FixedValue:
    fixed = make_event_values(message, endpoint, "", {})
    return lambda name: fixed[name] if full_variable_name(name) in fixed else settled(full_variable_name(name))


def _locate(settings: Settings, name: str, known: FixedValue, *, letters: bool = False) -> str:
    """Return the destination at a sink, as far as it is known; references in settings are not resolved."""
    sink = settings.sinks[name]
    if sink.remote is not None:
        if sink.remote.endpoint is not None:
            return sink.remote.endpoint
        written = str(settings.unresolved.get("sinks", {}).get(name, {}).get(sink.remote.template_field, ""))
        if any(sign in written for sign in _REFERENCES):
            return written
    return sink.destination(lambda template, escape: _fill_template(template, known, escape), letters=letters)


def _fill_template(template: DestinationTemplate, known: FixedValue, escape: Callable[[str], str]) -> str:
    values = {name: text for name in template.variables if (text := known(name)) is not None}
    if isinstance(template, NameTemplate) and len(values) == len(template.variables):
        return template.expand(values)
    return template.fill_known(values, escape)


SHOWN: Final = 40
"""Endpoints, and definitions, that are shown by themselves."""
Problems = Callable[[str], SinkProblem | None]


class RoutesByEndpoint(NamedTuple):
    """Who goes where under one plan: for each endpoint the ``definitions`` that it may have records of, and for each
    definition the ``sinks`` that these may go to; for each endpoint the sinks of its dead ``letters``.
    """

    definitions: Mapping[str, Collection[str]]
    sinks: Mapping[str, Collection[str]]
    letters: Mapping[str, Collection[str]]

    @classmethod
    def from_plan(cls, plan: Plan) -> RoutesByEndpoint:
        """Survey the routes of a plan; it takes seconds for thousands of definitions."""
        definitions: dict[str, dict[str, None]] = {}
        sinks: dict[str, dict[str, None]] = {}
        letters: dict[str, dict[str, None]] = {}
        endpoints = [source.endpoint for source in plan.sources]
        for form in survey_routes(plan):
            if form["kind"] == "definition":
                definitions.setdefault(form["endpoint"], {})[form["message"]] = None
                taken = sinks.setdefault(form["message"], {})
                taken.update((target["sink"], None) for way in form["ways"] for target in way["sinks"])
            elif form["kind"] == "dead-letters":
                for endpoint in endpoints if form["endpoints"] == [ALL] else form["endpoints"]:
                    letters.setdefault(endpoint, {}).update((target["sink"], None) for target in form["sinks"])
        return cls(definitions, sinks, letters)


def make_picture(
    plan: Plan, ways: RoutesByEndpoint, reading: FigureReading, occurred: CoverageView, problems: Problems
) -> dict[str, Any]:
    """Return endpoints, definitions, sinks and the links between them with figures, as JSON.

    *problems* gives the last error of a sink.
    """
    outcomes, definitions, arrived = reading.outcomes(), reading.sum_by(DEFINITIONS), reading.sum_by(ARRIVED)
    sources = {source.endpoint: source for source in plan.sources}
    routed = {xid: outcomes.get(xid, dict.fromkeys(_OUTCOMES, _NOTHING)) for xid in (*sources, *outcomes)}
    shown = _busy_names((xid, _total(figures.values())) for xid, figures in routed.items())
    messages = _busy_names((xid, definitions.get(xid, _NOTHING)) for xid in dict.fromkeys((*ways.sinks, *definitions)))
    lacking = set(ways.sinks) - set(messages)
    links = [
        {"from": endpoint, "to": xid, "kind": "definition"}
        for endpoint in shown
        for xid in ways.definitions.get(endpoint, ())
        if xid in messages
    ]
    links += [
        {"from": xid, "to": sink, "kind": "sink", **_share(definitions.get(xid, _NOTHING), ways.sinks[xid])}
        for xid in messages
        for sink in ways.sinks.get(xid, ())
    ]
    links += [
        {
            "from": endpoint,
            "to": sink,
            "kind": "letters",
            **_share(routed[endpoint]["dead_letters"], ways.letters[endpoint]),
        }
        for endpoint in shown
        for sink in ways.letters.get(endpoint, ())
    ]
    return {
        "window_seconds": round(reading.window, 1),
        "totals": {
            **{name: _total(each[name] for each in routed.values()) for name in _OUTCOMES},
            "arriving": _total(arrived.values()),
        },
        "endpoints": [
            {
                "endpoint": xid,
                "protocol": sources[xid].protocol or sources[xid].kind.upper() if xid in sources else None,
                "query": sources[xid].query if xid in sources else None,
                "topic": sources[xid].topic or None if xid in sources else None,
                "pushed": xid in sources and sources[xid].pushed,
                **routed[xid],
                "arriving": arrived.get(xid, _NOTHING),
                "lag": to_int(reading.get_lag(xid)),
                "oldest_seconds": reading.get_oldest_age(xid),
                "received": to_int(reading.get_value(RECEIVED, xid)),
                "acknowledged": to_int(reading.get_value(ACKNOWLEDGED, xid)),
                **occurred.source_to_json(xid),
            }
            for xid in shown
        ],
        "definitions": [
            {
                "definition": xid,
                **definitions.get(xid, _NOTHING),
                **occurred.definition_to_json(xid),
                "gone": xid not in ways.sinks,
            }
            for xid in messages
        ],
        "sinks": list(_iter_sinks(plan, reading, problems)),
        "links": links,
        "left_out": {"endpoints": len(routed) - len(shown), "definitions": len(lacking)},
    }


def _iter_sinks(plan: Plan, reading: FigureReading, problems: Problems) -> Iterable[dict[str, Any]]:
    events, letters = set(event_sinks(plan.settings)), set(dead_letter_sinks(plan.settings))
    held: dict[str, list[str]] = {}
    for query, sink in reading.list_blocked():
        held.setdefault(sink, []).append(query)
    for name, chosen in plan.settings.sinks.items():
        if name in events | letters:
            problem = problems(name)
            writes = {result: reading.get_figure(WRITES, name, result) for result in ("ok", "error", "rejected")}
            yield {
                "sink": name,
                "type": chosen.model_dump(include={"type"})["type"],
                "events": name in events,
                "letters": name in letters,
                "writes": {result: figure["records"] for result, figure in writes.items()},
                "error_rate": writes["error"]["rate"],
                "holds": held.get(name, []),
                "last_error": problem and {"at": _format_instant(problem.at), "text": problem.text},
            }


def _busy_names(figures: Iterable[tuple[str, Figure]]) -> list[str]:
    """Return the names of the busiest: by rate, then by count, else in their order."""
    ranked = sorted(figures, key=lambda each: (-(each[1]["rate"] or 0.0), -each[1]["records"]))
    return [name for name, _ in ranked[:SHOWN]]


def _total(figures: Iterable[Figure]) -> Figure:
    several = list(figures)
    rates = [each["rate"] for each in several if each["rate"] is not None]
    return {"records": sum(each["records"] for each in several), "rate": round(sum(rates), 3) if rates else None}


def _share(figure: Figure, ways: Collection[str]) -> Figure:
    """Return the figures of a link; None if records may take several links, which are not counted separately."""
    return figure if len(ways) == 1 or not figure["records"] else {"records": None, "rate": None}


def _format_instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def to_int(value: float | None) -> int | None:
    """Return a figure as a whole number; None stays None."""
    return None if value is None else int(value)
