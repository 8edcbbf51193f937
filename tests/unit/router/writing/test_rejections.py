"""Where records go: routes against a plain reading of the settings, and what becomes of those that sinks reject."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.protocols import BINDINGS
from catalog.findings import RecordError
from catalog.load import load
from catalog.model import Catalog, Definition, Endpoint, Property
from catalog.record import parse_record
from router.errors import ConfigError
from router.evaluation.outputs import DEAD_LETTER, ROUTED, Tally
from router.matching.records import RecordMatcher
from router.routing import HEADER_RESERVE, Routes, SizeLimits
from router.settings import REASONS, KafkaSink, settings_from_dict
from router.settings.routes import make_event_values, parse_name
from router.sinks import RejectedRow
from router.writing.kafka_records import MAX_HEADER_CHARS
from router.writing.outcomes import SINK_REJECTED, Rejections, format_detail, parse_sinks
from router.writing.writer import may_exceed_cap
from tests.support import plain
from tests.support.cases import judged, kafka_rows, plan_of, read_cases
from tests.support.generation import ENDPOINT, GROUP, random_catalog, random_record

CASES: Final[Mapping[str, Any]] = read_cases(Path(__file__).parents[3] / "cases" / "values" / "templates.yaml")

M, E = "/messagegroups/G/messages/M", "/endpoints/E"


def test_a_record_rejected_by_two_sinks_counts_once_and_names_both(tmp_path: Path) -> None:
    bus = {"type": "kafka", "bootstrap_servers": "broker:9092"}
    told = {
        "sinks": {
            "out": {**bus, "topic": "out"},
            "dead": {**bus, "topic": "d.{endpointid}.{reason}", "max_message_bytes": 70_000},
        },
        "routes": [
            {"when": {"outcome": "dead-letter", "endpoint": "/endpoints/F"}, "to": "out"},
            {"when": {"outcome": "dead-letter", "reason": SINK_REJECTED}, "to": "dead"},
            {"to": ["out"]},
        ],
        "dead_letters": {"sinks": ["out"]},
    }
    settings = settings_from_dict(told, {}, tmp_path)
    rejected = Rejections(Routes(settings), SizeLimits(settings))
    assert not rejected
    rejected.add("a", [RejectedRow("t-0-1", "too odd", E, M), RejectedRow("t-0-2", "too large", E, M)])
    rejected.add("b", [RejectedRow("t-0-1", "no", E, M)])
    rejected.add("c", [])
    assert rejected
    assert rejected.counts == Counter({(E, M): 2})
    assert rejected.to_table().to_pydict() == {
        "at": ["t-0-1", "t-0-2"],
        "detail": ["sink a: too odd; sink b: no", "sink a: too large"],
        "letters_dead": ["d.E.sink-rejected"] * 2,
        "letters_out": ["out"] * 2,
        "route": [-3] * 2,
        "limit": [70_000 - HEADER_RESERVE] * 2,
    }


def test_a_tally_keeps_its_sum() -> None:
    tally = Tally(Counter({(E, ROUTED, ""): 5, (E, DEAD_LETTER, "no-match"): 1}), Counter({(E, M): 5}))
    tally.reject(Counter({(E, M): 2}), SINK_REJECTED)
    assert (tally.total, tally.dead_letters) == (6, 3)
    assert tally.records[(E, ROUTED, "")] == 3
    assert tally.records[(E, DEAD_LETTER, "sink-rejected")] == 2
    assert tally.definitions[E, M] == 3


# The detail of a refused record names the sinks that lack it, whatever they are called and whatever they said.


NAMES = st.text(alphabet="ab-_.:;% ", min_size=1, max_size=12)
WHYS = st.one_of(st.text(max_size=40), st.just("no; sink other: never"), st.just("x" * 6_000))


@given(st.dictionaries(NAMES, WHYS, min_size=1, max_size=12))
def test_names_are_read_back_and_fit_into_a_header(reasons: dict[str, str]) -> None:
    detail = format_detail(reasons)
    assert parse_sinks(detail) == tuple(reasons)
    assert len(detail) <= MAX_HEADER_CHARS


def test_other_details_name_no_sink() -> None:
    assert parse_sinks("70000 bytes of key and data; a sink of its route accepts 67232") == ()
    assert parse_sinks("") == ()


# Which templates of Kafka topics have to be counted, as far as the catalog tells.


TYPED = Property("type", "string", "t")


def catalog(*attributes: Property) -> Catalog:
    definitions = {f"/m/{n}": Definition(f"/m/{n}", "/m", envelopemetadata=attributes) for n in range(3)}
    return Catalog(definitions, endpoints={f"/endpoints/{n}": Endpoint(f"/endpoints/{n}") for n in range(2)})


@pytest.mark.parametrize(("template", "most", "counted"), CASES["counted"])
def test_only_what_the_catalog_does_not_bound_is_counted(template: str, most: int, counted: bool) -> None:
    sink = KafkaSink(type="kafka", bootstrap_servers="b", topic=template, max_destinations=most)
    assert may_exceed_cap(sink, parse_name(template), catalog(TYPED)) is counted


@pytest.mark.parametrize("prop", [Property("type", "string", "t.{x}"), Property("type", "string")])
def test_an_attribute_that_one_definition_leaves_open_is_counted(prop: Property) -> None:
    sink = KafkaSink(type="kafka", bootstrap_servers="b", topic="{type}")
    assert may_exceed_cap(sink, parse_name("{type}"), catalog(prop))


# Where records go: conditions, topics and dead letters of random routes against a plain reading of the settings.


VALIDATED: Final[Mapping[str, Any]] = read_cases(Path(__file__).parents[3] / "cases" / "routes" / "validation.yaml")

GLOBS = ("a", "a*", "*", "?*", "b", "7", "t", "m0*", "[a-b]", "*/*", "*b", "")
ATTRIBUTES = ("type", "source", "subject", "ext", "time", "datacontenttype", "id", "none")
CONTEXT = ("x", "y", "none")
TOPICS = (
    *("{type}", "{source}.{subject}", "e.{context.x}", "{context.y|none}-{messageid}", "{attributes.ext|a/b}"),
    *("{messagegroup}.{endpointid}", "{attributes.id}{subject|.}"),
)


def some_globs(rng: Random) -> list[str]:
    return rng.choices(GLOBS, k=rng.choice((1, 1, 2)))


def random_when(rng: Random, catalog: Catalog) -> dict[str, Any]:
    """Conditions of some kinds, mostly loose."""
    when: dict[str, Any] = {}
    if rng.random() < 0.3:
        when["message"] = [rng.choice([*catalog.definitions, "*1", "*2*"])]
    if rng.random() < 0.2:
        when["messagegroup"] = rng.choice(("g", GROUP, "h"))
    if rng.random() < 0.2:
        when["endpoint"] = rng.choice((ENDPOINT, "*", "/endpoints/f"))
    if rng.random() < 0.5:
        when["attributes"] = {name: some_globs(rng) for name in rng.sample(ATTRIBUTES, rng.choice((1, 1, 2)))}
    if rng.random() < 0.4:
        when["context"] = {name: some_globs(rng) for name in rng.sample(CONTEXT, rng.choice((1, 1, 2)))}
    return when


def random_settings(rng: Random, catalog: Catalog) -> dict[str, Any]:
    sinks = {name: {"topic": rng.choice(TOPICS)} for name in "pqr"}
    for sink in sinks.values():
        sink["missing"] = rng.choice(("placeholder", "placeholder", "reject"))
    routes = [{"when": random_when(rng, catalog), "to": rng.sample("pqr", rng.choice((1, 2)))} for _ in range(5)]
    routes = [route for route in routes if route["when"]]
    for _ in range(rng.choice((0, 1, 2))):
        when = {"outcome": "dead-letter", "reason": rng.sample((*REASONS, "no-*", "?n*"), 2)}
        if rng.random() < 0.4:
            when["endpoint"] = rng.choice((ENDPOINT, "/endpoints/f"))
        routes.insert(rng.randrange(len(routes) + 1), {"when": when, "to": [rng.choice(("late", "odd"))]})
    used = {"dead", *(name for route in routes for name in route["to"])} - set(sinks)
    letters = {name: {"topic": f"{name}.{{endpointid}}.{{reason}}"} for name in sorted(used)}
    return {"sources": [{"endpoint": ENDPOINT}], "sinks": {**sinks, **letters}, "routes": [*routes, {"to": ["p"]}]}


def takes(when: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    """Whether a condition holds for an outcome of ``match``, as the page of the settings says."""

    def any_of(globs: Any, value: str) -> bool:
        return any(fnmatchcase(value, glob) for glob in ([globs] if isinstance(globs, str) else globs))

    if ("reason" in told) is (when.get("outcome", "routed") == "routed"):
        return False
    held = [any_of(when.get("endpoint", "*"), ENDPOINT)]
    if "reason" in told:
        return all(held) and any_of(when.get("reason", "*"), told["reason"])
    group = told["message"].rpartition("/messages/")[0]
    held += [any_of(when.get("message", "*"), told["message"])]
    held += [any(any_of(when.get("messagegroup", "*"), name) for name in (group, group.rpartition("/")[2]))]
    held += [any_of(globs, told["context"].get(name, "")) for name, globs in when.get("context", {}).items()]
    held += [any_of(globs, told["cloudevent"].get(name, "")) for name, globs in when.get("attributes", {}).items()]
    return all(held)


def expected(settings: Mapping[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """What becomes of an outcome of ``match`` by these settings."""
    number, route = next(
        ((n, r) for n, r in enumerate(settings["routes"]) if takes(r.get("when", {}), told)), (-1, {"to": ["dead"]})
    )
    if "reason" in told:
        topic = {"endpointid": ENDPOINT.rpartition("/")[2], "reason": told["reason"]}
        topics = {f"letters_{name}": f"{name}.{topic['endpointid']}.{topic['reason']}" for name in route["to"]}
        return {"route": -1 if number < 0 else -2 - number, "reason": told["reason"], **topics}
    values = make_event_values(told["message"], ENDPOINT, "", told["context"], told["cloudevent"])
    missed = []
    for name in route["to"]:
        sink = settings["sinks"][name]
        used = [part.partition("|") for part in sink["topic"].replace("}", "{").split("{")[1::2]]
        missed += [v for v, bar, _ in used if sink["missing"] == "reject" and not bar and not values.get(v)]
    if missed:
        again = expected(settings, {"reason": "sink-rejected"})
        return {**again, "missed": missed}
    topics = {f"topic_{name}": parse_name(settings["sinks"][name]["topic"]).expand(values) for name in route["to"]}
    return {"route": number, "reason": None, **topics}


def catalog_of(rng: Random) -> Catalog:
    """A random catalog on one topic, whose definitions mostly fit."""
    catalog = random_catalog(rng, 12)
    fitted = {
        xid: replace(each, protocol=None, protocoloptions=()) if each.protocol not in (None, "KAFKA") else each
        for xid, each in catalog.definitions.items()
    }
    endpoint = Endpoint(
        xid=ENDPOINT,
        usage=("consumer",),
        protocol="KAFKA",
        uris=("kafka://broker:9092",),
        envelopeoptions={"mode": "structured"},
        options={"topic": "in"},
        candidates=tuple(fitted),
    )
    return replace(catalog, definitions=fitted, endpoints={ENDPOINT: endpoint})


def lines_of(rng: Random, catalog: Catalog, number: int) -> list[str]:
    lines: list[str] = []
    while len(lines) < number:
        record = random_record(rng, catalog, ("KAFKA",))
        native = {name: value for name, value in record["native"].items() if name in ("key", "key_base64", "headers")}
        if not isinstance(native.get("headers", []), list) or len(native) > 2:
            continue
        native |= {"topic": "in", "partition": 0, "offset": len(lines), "timestamp": 1_700_000_000_123}
        line = json.dumps({**record, "protocol": "KAFKA", "native": native})
        try:
            BINDINGS["KAFKA"].split(parse_record(line).native)
        except RecordError:
            continue
        lines.append(line)
    return lines


@pytest.mark.slow
def test_random_routes_take_what_the_settings_say(tmp_path: Path) -> None:
    met: Counter[str] = Counter()
    for seed in range(60):
        rng = Random(seed)
        catalog = catalog_of(rng)
        settings = random_settings(rng, catalog)
        lines = lines_of(rng, catalog, 60)
        try:
            plan = plan_of(catalog, settings, tmp_path)
        except ConfigError as error:
            assert all("takes every" in problem for problem in error.problems), error.problems
            continue
        matched = RecordMatcher(catalog, endpoint=ENDPOINT).decide([*lines])
        for line, told, found in zip(lines, matched, judged(plan.evaluator, kafka_rows(lines)), strict=True):
            for event, row in zip(told["events"] if told["outcome"] == "batch" else [told], found, strict=True):
                wanted = expected(settings, event)
                missed = wanted.pop("missed", [])
                assert {name: row[name] for name in wanted} == wanted, (seed, line, settings["routes"], row, event)
                assert all("{" + name + "}" in row["detail"] for name in missed)
                met["missed" if missed else "event" if row["reason"] is None else "letter"] += 1
                met["letter by route"] += row["route"] < -1
                met["event by route"] += 0 <= row["route"] < len(settings["routes"]) - 1
    assert min(met.values()) > 50 and len(met) == 5, met


ENVELOPE = {"envelope": "CloudEvents/1.0", "protocol": "KAFKA"}
NUMBER = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


def fixed_catalog(folder: Path) -> Catalog:
    """Four definitions on one topic; two share a type and are told apart by their schemas alone."""

    def message(type_: str, **schema: Any) -> dict[str, Any]:
        given = {"dataschemaformat": "JsonSchema/draft-07", "dataschema": schema} if schema else {}
        return {**ENVELOPE, "envelopemetadata": {"type": {"value": type_}}, **given}

    messages = {
        "number": message("number", **NUMBER),
        "free": message("free"),
        "metres": message("length", **{**NUMBER, "required": ["n", "m"]}),
        "feet": message("length", **{**NUMBER, "required": ["n", "f"]}),
        "native": {"protocol": "KAFKA", "protocoloptions": {"headers": [{"name": "kind", "value": "{kind}"}]}},
    }
    endpoint = plain.endpoint("KAFKA", {"topic": "in"}, "g", uri="kafka://broker:9092")
    return load([plain.write(folder, plain.catalog({"e": endpoint}, g=messages))])


def event(type_: str, body: Any, **attributes: str) -> str:
    """A binary event on the topic."""
    told = {"specversion": "1.0", "id": "1", "source": "/s", "type": type_, **attributes}
    headers = [{"name": f"ce_{name}", "value": value} for name, value in told.items()]
    headers.append({"name": "content-type", "value": "application/json"})
    native = {"topic": "in", "partition": 0, "offset": 1, "timestamp": 1_700_000_000_123, "headers": headers}
    return json.dumps({"protocol": "KAFKA", "native": native, "body": json.dumps(body)})


GOOD, BAD = {"n": 1, "m": 1}, {"n": "one"}


@pytest.mark.parametrize(("mode", "route", "type_", "body", "became"), VALIDATED["validation"])
def test_a_route_asks_for_more_or_less_of_a_body(
    mode: str, route: str | None, type_: str, body: Any, became: Any, tmp_path: Path
) -> None:
    asked = {"validate": route} if route else {}
    settings = {
        "sinks": {"out": {"topic": "out"}, "dead": {"topic": "dead"}},
        "routes": [{"when": {"attributes": {"subject": "here"}}, "to": ["out"], **asked}, {"to": ["out"]}],
        "match": {"validate": mode},
    }
    judge = plan_of(fixed_catalog(tmp_path), settings, tmp_path).evaluator
    lines = [event(type_, body, subject="here"), event(type_, body, subject="there")]
    (here,), (there,) = judged(judge, kafka_rows(lines))
    assert (here["reason"] or here["route"]) == became
    by_the_mode = there["reason"] or there["route"]
    plain = RecordMatcher(fixed_catalog(tmp_path), endpoint=ENDPOINT, validation=mode).decide(lines[1:])  # type: ignore[arg-type]
    assert by_the_mode == plain[0].get("reason", 1)
    if here["reason"] == "schema-violation":
        assert f"{GROUP}/messages/" in here["detail"] and json.loads(here["nearest"])[0]["mismatches"]
        assert here["message"] is None and here["route"] == -1 and here["letters_dead"] == "dead"


def test_a_letter_is_spilled_by_the_limit_of_its_own_route(tmp_path: Path) -> None:
    settings = {
        "sinks": {
            "out": {"topic": "out"},
            "small": {"topic": "small", "max_message_bytes": 65_536},
            "dead": {"topic": "dead"},
        },
        "routes": [{"when": {"outcome": "dead-letter", "reason": "no-match"}, "to": "small"}, {"to": ["out"]}],
    }
    judge = plan_of(fixed_catalog(tmp_path), settings, tmp_path).evaluator
    lines = [event("unknown", "x" * 50_000), event("unknown", "x"), event("", "x" * 50_000)]
    found = [row for (row,) in judged(judge, kafka_rows(lines))]
    assert [(row["reason"], row["route"], row["spilled"]) for row in found] == [
        ("no-match", -2, True),
        ("no-match", -2, None),
        ("invalid-cloudevent", -1, None),
    ]
    assert [(row["letters_small"], row["letters_dead"]) for row in found[::2]] == [("small", None), (None, "dead")]


def test_the_last_route_of_events_takes_everything_whatever_letters_follow(tmp_path: Path) -> None:
    letters = {"when": {"outcome": "dead-letter", "endpoint": "/endpoints/x"}, "to": ["dead"]}
    told = {"sinks": {"out": {"topic": "out"}, "dead": {"topic": "dead"}}, "routes": [{"to": ["out"]}, letters]}
    assert plan_of(Catalog(), told, tmp_path).routes.dead_letter_route("", "x") == -1
