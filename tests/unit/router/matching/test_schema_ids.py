"""Ids of schemas: explained, counted, the same in any company, in tables, and with a registry that is away."""

from __future__ import annotations

import base64
import json
import multiprocessing
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from bindings.kafka.record_columns import SOURCE_SCHEMA
from bindings.parts import Part
from bindings.protocols import BINDINGS
from catalog.findings import DocumentError
from catalog.load import load
from catalog.model import Catalog, Definition, Endpoint, Property
from catalog.schemas.ids.client import RegistryUnavailableError, SchemaIdRegistry, WrittenSchema
from catalog.schemas.ids.deciding import FrameSettings
from catalog.schemas.validation import PayloadValidation
from router.evaluation.outputs import OutputBuilder, Tally, sum_tallies
from router.evaluation.plan import TOPIC_PREFIX, Evaluator
from router.matching import record_columns as facts
from router.matching.channels import ChannelBuilder
from router.matching.explanation import Explainer
from router.matching.matcher import Matcher
from router.matching.record_columns import RawRow, RecordColumns, RecordColumnsBuilder
from router.matching.records import RecordMatcher
from router.matching.schema_validation import Validation
from router.routing import Routes, SizeLimits
from router.schemaids.cache import (
    DamagedFile,
    MirrorProgress,
    RegistryAddress,
    SchemaIdCache,
    mirror_registry,
)
from router.settings import settings_from_dict
from router.watching.metrics import SchemaIdMetrics
from tests.support.cases import judged, kafka_rows, plan_of, read_cases
from tests.support.evaluating import outcome_lists
from tests.support.generation import ENDPOINT, GROUP
from tests.support.reference import Reference
from tests.support.rule_ways import decide_both
from tests.support.schemas import KnownIds, confluent, known_ids
from tests.unit.catalog.schemas.test_resolving import encoded, f, record

RIDE: Final = "/messagegroups/G/messages/ride"
V1: Final = record(f("id", "string"), f("n", "int"), name="t.Ride")
V2: Final = record(f("id", "string"), f("n", "int"), f("note", "string", default=""), name="t.Ride")
OLD: Final = record(f("id", "string"), name="t.Ride")
CUSTOMER: Final = record(f("id", "string"), f("n", "int"), name="t.Customer")
READER: Final = record(f("n", "long", default=-1), f("id", "string"), name="t.Ride")
KNOWN: Final = {
    1: {"schema": V1, "subjects": {"rides": 1}},
    2: {"schema": V2, "subjects": {"rides": 2}},
    3: {"schema": CUSTOMER, "subjects": {"customers": 1}},
    4: {"schema": OLD, "subjects": {"rides": 3}},
}
BODIES: Final = [
    confluent(1, encoded(V1, {"id": "a", "n": 1})),
    confluent(2, encoded(V2, {"id": "b", "n": 2, "note": "x"})),
    confluent(3, encoded(CUSTOMER, {"id": "c", "n": 3})),
    confluent(4, encoded(OLD, {"id": "d"})),
    confluent(9, encoded(V1, {"id": "e", "n": 5})),
    encoded(READER, {"id": "f", "n": 6}),
    confluent(1, b"\2"),
]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    ride = {
        "protocol": "KAFKA",
        "protocoloptions": {"topic": "t"},
        "dataschemaformat": "Avro/1.11",
        "dataschema": READER,
    }
    document = {"specversion": "1.0-rc4", "messagegroups": {"G": {"messages": {"ride": ride}}}}
    (tmp_path / "catalog.json").write_text(json.dumps(document))
    return load([str(tmp_path / "catalog.json")])


def line_of(body: bytes) -> str:
    native = {"topic": "t"}
    return json.dumps({"protocol": "KAFKA", "native": native, "body_base64": base64.b64encode(body).decode()})


def judge_of(catalog: Catalog, frames: FrameSettings, validation: str = "always") -> Evaluator:
    builder = ChannelBuilder(catalog)
    builder.add_definitions(f"{TOPIC_PREFIX}t", catalog.definitions, frames)
    matcher = Matcher(builder.targets, builder.channels, PayloadValidation(catalog), validation, builder.tie_breaker())  # type: ignore[arg-type]
    sink = {"type": "kafka", "bootstrap_servers": "localhost:9092", "topic": "out"}
    routed = {"sinks": {"bus": sink}, "routes": [{"to": ["bus"]}], "dead_letters": {"sinks": ["bus"]}}
    settings = settings_from_dict(routed, {}, Path())
    return Evaluator(
        matcher, OutputBuilder(matcher, Routes(settings), SizeLimits(settings)), {f"{TOPIC_PREFIX}t": 0}, 2**30
    )


def rows_of(bodies: list[bytes]) -> pa.RecordBatch:
    rows = [
        {"value": body, "topic": "t", "partition": 0, "offset": at, "timestamp": 0, "headers": []}
        for at, body in enumerate(bodies)
    ]
    return pa.RecordBatch.from_pylist(rows, SOURCE_SCHEMA)


def outcomes_of(judge: Evaluator, bodies: list[bytes]) -> tuple[list[dict[str, Any]], Tally]:
    lists, counts = outcome_lists("kafka", judge, rows_of(bodies))
    return [each[0] for each in lists.to_pylist()], sum_tallies([counts or "{}"], judge.matcher.targets)


def test_a_story_tells_id_subject_and_version_and_how_each_candidate_was_decided(catalog: Catalog) -> None:
    explainer = Explainer(RecordMatcher(catalog, validation="always", frames=FrameSettings("auto", known_ids(KNOWN))))
    (taken,) = explainer.explain(1, line_of(BODIES[1])).events
    (check,) = [each for each in taken.candidates[0].checks if each.property == "protocoloptions.schemaid"]
    assert (check.expected, check.actual, check.holds) == ("an id of t.Ride", "2 (rides version 2) of t.Ride", True)
    assert taken.candidates[0].schema == ("fits",)
    (refused,) = explainer.explain(2, line_of(BODIES[2])).events
    (check,) = [each for each in refused.candidates[0].checks if not each.holds]
    assert (check.property, check.actual) == ("protocoloptions.schemaid", "3 (customers version 1) of t.Customer")
    assert refused.winner is None and refused.why.startswith("no candidate matches")


def test_records_are_judged_alike_in_any_company(catalog: Catalog) -> None:
    judge, chosen = judge_of(catalog, FrameSettings("auto", known_ids(KNOWN))), random.Random(5)
    many = [chosen.choice(BODIES) for _ in range(300)]
    together, tally = outcomes_of(judge, many)
    again, _ = outcomes_of(judge_of(catalog, FrameSettings("auto", known_ids(KNOWN))), many[::-1])
    told = ("message", "reason", "detail", "nearest", "schemaid")
    assert [[each[name] for name in told] for each in together] == [
        [each[name] for name in told] for each in again[::-1]
    ]
    alone = {body: outcomes_of(judge, [body])[0][0] for body in BODIES}
    for body, outcome in zip(many, together, strict=True):
        assert [outcome[name] for name in told] == [alone[body][name] for name in told]
    counts = {name: sum(body.startswith(confluent(name, b"")) for body in many) for name in (1, 2, 4)}
    counts[1] -= many.count(BODIES[6])
    assert tally.ids == {(RIDE, str(name), "name"): count for name, count in counts.items()}
    assert Tally.from_json(json.loads(json.dumps(tally.to_json()))).ids == tally.ids


def test_the_id_is_in_the_lineage_of_framed_records_alone(catalog: Catalog) -> None:
    outcomes, _ = outcomes_of(judge_of(catalog, FrameSettings("auto", known_ids(KNOWN))), BODIES)
    assert [each["reason"] for each in outcomes] == [
        None,
        None,
        "no-match",
        None,
        "undecodable",
        None,
        "schema-violation",
    ]
    assert [outcomes[at]["schemaid"] for at in (0, 1, 3, 5)] == ["1", "2", "4", None]
    assert "schema id 1 (rides version 1)" in outcomes[6]["detail"]


def test_without_a_registry_bodies_are_read_as_ever_and_their_ids_counted(catalog: Catalog) -> None:
    bodies = [confluent(number, encoded(READER, {"id": "a", "n": 1})) for number in (7, 7, 8)]
    for validation in ("always", "never"):
        outcomes, tally = outcomes_of(judge_of(catalog, FrameSettings("auto"), validation), bodies)
        assert [each["message"] for each in outcomes] == [RIDE] * 3
        assert tally.ids == {(RIDE, "7", "nothing"): 2, (RIDE, "8", "nothing"): 1}
    outcomes, tally = outcomes_of(judge_of(catalog, FrameSettings("none"), "never"), bodies)
    assert not tally.ids and "schemaid" not in outcomes[0]
    outcomes, _ = outcomes_of(judge_of(catalog, FrameSettings("auto", required=True), "never"), bodies)
    assert {each["reason"] for each in outcomes} == {"undecodable"}


def test_a_registry_that_is_away_is_no_verdict(catalog: Catalog) -> None:
    judge = judge_of(catalog, FrameSettings("auto", replace(known_ids(KNOWN), away=True)))
    with pytest.raises(RegistryUnavailableError):
        outcomes_of(judge, BODIES)
    outcomes, _ = outcomes_of(judge, [BODIES[5]])
    assert outcomes[0]["message"] == RIDE


def test_a_schema_that_nobody_can_use_is_a_violation_that_says_why(catalog: Catalog) -> None:
    class Broken(KnownIds):
        def get_schema(self, schema_id: str) -> WrittenSchema | None:
            return WrittenSchema(schema_id, "", "", {}, (("rides", 4),), fault="its reference t.Gone leads nowhere")

    outcomes, _ = outcomes_of(judge_of(catalog, FrameSettings("auto", Broken("{}"))), BODIES[:1])
    assert outcomes[0]["reason"] == "schema-violation"
    assert "its reference t.Gone leads nowhere; written with schema id 1 (rides version 4)" in outcomes[0]["detail"]


def test_few_ids_are_decided_once_for_any_number_of_rows(catalog: Catalog) -> None:
    asked: list[str] = []

    class Counting(KnownIds):
        def get_schema(self, schema_id: str) -> WrittenSchema | None:
            asked.append(schema_id)
            return super().get_schema(schema_id)

    judge = judge_of(catalog, FrameSettings("confluent", Counting(known_ids(KNOWN).text)))
    outcomes_of(judge, [BODIES[0], BODIES[1]] * 2_000)
    assert sorted(asked) == ["1", "2"]


def test_a_second_id_by_which_nothing_decides_is_one_line_in_the_log() -> None:
    registry = CollectorRegistry()
    figures = SchemaIdMetrics(registry, cap=3)
    with capture_logs() as lines:
        figures.add({("/m/a", "1", "name"): 2, ("/m/a", "2", "name"): 1})
        figures.add({("/m/b", "1", "nothing"): 2})
        figures.add({("/m/b", "1", "nothing"): 1})
        assert not lines
        more = SchemaIdMetrics(CollectorRegistry(), cap=3)
        for name in ("1", "2", "3"):
            more.add({("/m/b", name, "nothing"): 1})
    (line,) = lines
    assert (line["message"], line["ids"]) == ("/m/b", "1, 2")
    figures.add({("/m/b", "9", "nothing"): 4})
    text = generate_latest(registry).decode()
    assert 'xrouter_schema_ids_total{by="nothing",message="/m/b",schemaid="1"} 3.0' in text
    assert 'xrouter_schema_ids_total{by="nothing",message="other",schemaid="other"} 4.0' in text


# The files of ids: read for ever, written by many at once, and one answer for all that ask.


URL = "https://registry.example/apis"
KEPT_RIDE = WrittenSchema("12", "Avro", '{"type": "int"}', {"a.B": '"string"'}, (("rides-value", 2),))


def kept(folder: Path, now: list[float] | None = None, url: str = URL) -> SchemaIdCache:
    return SchemaIdCache(folder / "lake", url, clock=lambda: (now or [1000.0])[0])


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 1}', b'{"format": 2, "url": "", "id": "12"}'])
def test_a_damaged_file_is_named_and_written_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "12.json").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"12\.json"):
        kept(tmp_path).schema("12")
    kept(tmp_path).store("12", KEPT_RIDE)
    assert kept(tmp_path).schema("12") == KEPT_RIDE


def test_why_nothing_can_be_mirrored_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: RegistryAddress) -> SchemaIdRegistry:
        raise DocumentError("the token cannot be read", file="token")

    monkeypatch.setattr(RegistryAddress, "client", fail)
    with pytest.raises(DocumentError, match="the token cannot be read"):
        mirror_registry(RegistryAddress("lake", URL), tmp_path, ["rides"], MirrorProgress(), lambda: None)


def test_noise_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.schemaids.cache.MAX_UNKNOWN_IDS", 20)
    now = [1000.0]
    ids = kept(tmp_path, now)
    for number in range(100):
        now[0] += 1
        ids.store(str(number), None)
    assert sum(map(kept(tmp_path, now).is_unknown, map(str, range(100)))) <= 21
    assert ids.is_unknown("99")


def _write(folder: str, start: int) -> int:
    ids = SchemaIdCache(Path(folder), URL)
    for number in range(40):
        ids.store(str(number), WrittenSchema(str(number), "Avro", '"int"'))
        ids.store(str(1000 + number), None)
        assert ids.schema(str((number + start) % (number + 1))) is not None
    return sum(map(ids.is_unknown, map(str, range(2000))))


@pytest.mark.slow
def test_many_processes_read_and_write_one_folder(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        counts = list(pool.map(_write, [str(tmp_path / "lake")] * 4, range(4)))
    ids = kept(tmp_path)
    assert sorted(map(int, ids.ids())) == list(range(40))
    assert [number for number in range(2000) if ids.is_unknown(str(number))] == [1000 + number for number in range(40)]
    assert counts == [40] * 4
    assert not list((tmp_path / "lake").glob("*.new"))


# Hand-made catalogs, and data schemas with each setting of ``validate``: held against the plain matcher as well.


Defined = tuple[Definition, ...]


def define(name: str, *options: Property, **rest: Any) -> Definition:
    return Definition(f"{GROUP}/messages/{name}", GROUP, protocoloptions=options, **rest)


def judge(definitions: Defined, record: dict[str, Any], **endpoint: Any) -> dict[str, Any]:
    """Judge a record by both matchers, which must agree; messages by their short names."""
    xids = tuple(each.xid for each in definitions)
    channel = Endpoint(ENDPOINT, candidates=xids, **endpoint)
    catalog = Catalog({each.xid: each for each in definitions}, {GROUP: xids}, {ENDPOINT: channel})
    line = json.dumps({"endpoint": ENDPOINT, **record})
    found = decide_both(RecordMatcher(catalog), line)
    expected = Reference(catalog).outcome(line)
    for name in ("outcome", "reason", "message", "context"):
        assert expected.get(name) == found.get(name), (expected, found)
    return found


def outcome(found: dict[str, Any]) -> str:
    return str(found.get("reason") or found["message"].rsplit("/", 1)[-1])


def headers(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"headers": [{"name": name, "value": value} for name, value in pairs]}


SIBLINGS = tuple(
    define(name, Property("headers.a", "string", "1"), protocol=protocol)
    for name, protocol in (("kafka", "KAFKA"), ("http", "HTTP"), ("nats", "NATS"))
)


def test_one_line_that_is_no_record_does_not_disturb_the_next() -> None:
    catalog = Catalog({SIBLINGS[0].xid: SIBLINGS[0]})
    good = json.dumps({"protocol": "KAFKA", "native": headers(("a", "1"))})
    bad = ['{"protocol":"KAFKA","native":{"topic":5}}', '{"protocol":"KAFKA","native":{"partition":1e3}}', "[" * 9999]
    bad += ['{"protocol":"KAFKA","native":{"offset":99999999999999999999}}', '{"protocol":"X"}', "\x00", '"\\ud800"']
    told = RecordMatcher(catalog).decide([line for each in bad for line in (each, good)])
    assert {found["reason"] for found in told[::2]} == {"undecodable"}
    assert {found["outcome"] for found in told[1::2]} == {"routed"}


# Facts of records that are made to be costly: what comes of them stays in proportion to their size.


BATCH = Part("headers.content-type", b"application/cloudevents-batch+json")


def read(headers: int, events: int, protocol: str = "KAFKA") -> RecordColumns:
    body = json.dumps([{"specversion": "1.0", "id": str(n), "source": "s", "type": "t"} for n in range(events)])
    parts = [*(Part(f"headers.h{count}", b"value") for count in range(headers)), BATCH]
    raw = RecordColumnsBuilder(())
    raw.add(RawRow(0, BINDINGS[protocol], parts, body.encode(), 0, lambda: False, "t-0-0", None))
    return raw.build()


def test_a_batch_whose_headers_would_multiply_is_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of thousands of events and headers would be gigabytes, for each event has every header."""
    monkeypatch.setattr(facts, "MAX_COPIED_BYTES", 100_000)
    assert len(read(50, 50).sources) == 50
    refused = read(400, 50)
    assert (refused.sources.tolist(), refused.batches) == ([0], frozenset())
    reason, detail = refused.faults[0]
    assert reason == "undecodable"
    assert "the 50 events of the batch" in detail
    assert len(read(400, 1).sources) == 1
    assert not read(400, 1).faults


def test_an_event_of_a_batch_brings_its_own_text_for_a_letter_that_it_may_become(tmp_path: Path) -> None:
    """A sink's refusal once cut it from the batch, which was read anew, and held in memory, for each event of it."""
    path = tmp_path / "catalog.xreg.json"
    message = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "t"}}}
    endpoint = {"usage": ["consumer"], "protocol": "KAFKA", "protocoloptions": {"options": {"topic": "t"}}}
    groups = {"g": {"messages": {"m": message}}}
    catalog = {"endpoints": {"e": {**endpoint, "messagegroups": ["/messagegroups/g"]}}, "messagegroups": groups}
    path.write_text(json.dumps(catalog))
    settings = {
        "sources": [{"endpoint": "/endpoints/e", "bootstrap_servers": "b:9092"}],
        "sinks": {"out": {"topic": "o"}, "dead": {"topic": "d"}},
        "routes": [{"to": ["out"]}],
    }
    events = [{"specversion": "1.0", "id": str(n), "source": "s", "type": "t", "data": [n]} for n in range(2)]
    native = {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp": 1,
        "headers": [{"name": "content-type", "value": BATCH.text}],
    }
    line = json.dumps({"protocol": "KAFKA", "native": native, "body": json.dumps(events)})
    (outcomes,) = judged(plan_of(load([path]), settings, tmp_path).evaluator, kafka_rows([line]))
    assert [(each["reason"], json.loads(each["data"])) for each in outcomes] == [(None, [0]), (None, [1])]
    assert [json.loads(each["batch_event"]) for each in outcomes] == events


# Messages that are no events and say what trace they are part of, as deploy/docs/howto/telemetry.md says.


GUIDE: Final = Path(__file__).resolve().parents[4] / "deploy" / "docs" / "howto" / "telemetry.md"
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ORDER: Final = {
    "protocol": "HTTP",
    "envelope": "CloudEvents/1.0",
    "envelopemetadata": {"type": {"value": "order"}, "source": {"value": "/shop"}},
}


def traced() -> dict[str, Any]:
    """Return the definition of the guide."""
    (block,) = (each for each in GUIDE.read_text().split("```json\n") if each.startswith('{"basemessage"'))
    definition: dict[str, Any] = json.loads(block.partition("```")[0])
    return definition


@pytest.fixture
def matcher(tmp_path: Path) -> RecordMatcher:
    messages = {"Order": ORDER, "TracedOrder": traced()}
    endpoint = {"usage": ["consumer"], "protocol": "HTTP", "messagegroups": ["/messagegroups/Shop"]}
    path = tmp_path / "shop.json"
    path.write_text(json.dumps({"endpoints": {"e": endpoint}, "messagegroups": {"Shop": {"messages": messages}}}))
    catalog = load([path])
    assert not catalog.findings
    return RecordMatcher(catalog)


@pytest.mark.parametrize(
    ("headers", "message", "trace"),
    [({"traceparent": TRACE}, "TracedOrder", TRACE), ({"other": TRACE}, "Order", None)],
    ids=["traced", "not traced"],
)
def test_an_event_has_the_trace_of_its_message(
    matcher: RecordMatcher, headers: dict[str, str], message: str, trace: str | None
) -> None:
    native = {"method": "POST", "headers": [{"name": name, "value": value} for name, value in headers.items()]}
    record = {"endpoint": "/endpoints/e", "protocol": "HTTP", "native": native, "body": "{}"}
    (found,) = matcher.decide([json.dumps(record)])
    assert found["message"].endswith(f"/{message}")
    assert found["cloudevent"].get("traceparent") == trace


# Data schemas in matching, from data files: with each setting of ``validate``, by the matcher and the reference.

CASES = Path(__file__).resolve().parents[3] / "cases" / "matching" / "schemas.yaml"


def cases() -> Iterator[Any]:
    for case in read_cases(CASES):
        for number, given in enumerate(case["records"]):
            for validation in get_args(Validation):
                yield pytest.param(case, given, validation, id=f"{case['title']}-{number}-{validation}")


def catalog_in(case: dict[str, Any], folder: Path) -> tuple[Catalog, str]:
    path = folder / "catalog.json"
    path.write_text(json.dumps(case["catalog"]), encoding="utf-8")
    catalog = load([path])
    (endpoint,) = catalog.endpoints
    if "group" in case:
        known = catalog.endpoints[endpoint]
        chosen = tuple(xid for xid in known.candidates if xid.rsplit("/", 1)[-1] in case["group"])
        catalog = replace(catalog, endpoints={endpoint: replace(known, candidates=chosen)})
    return catalog, endpoint


@pytest.mark.parametrize(("case", "record", "validation"), list(cases()))
def test_a_schema_decides_where_it_should(
    case: dict[str, Any], record: dict[str, Any], validation: Validation, tmp_path: Path
) -> None:
    catalog, endpoint = catalog_in(case, tmp_path)
    line = {"endpoint": endpoint, "protocol": "KAFKA", "native": record.get("native", case["native"])}
    line |= {"body": record["body"]} if "body" in record else {}
    found = decide_both(RecordMatcher(catalog, validation=validation), json.dumps(line))
    expected = Reference(catalog, validation=validation).outcome(json.dumps(line))
    assert found.get("reason") == expected.get("reason") and found.get("message") == expected.get("message")
    assert record[validation] == (found.get("reason") or found["message"].rsplit("/", 1)[-1]), found
    if found.get("reason") == "schema-violation":
        assert all(xid in found["detail"] for xid in (each["message"] for each in found["nearest"]))
        assert {each["property"] for near in found["nearest"] for each in near["mismatches"]} == {"data"}
