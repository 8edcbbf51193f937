"""Producing: what `emit` makes must match its own definition (MATCHING.md#sending)."""

from __future__ import annotations

import io
import itertools
import json
import time
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import jsonschema_rs
import msgspec
import pytest
import yaml

from catalog.load import load
from catalog.model import Catalog
from catalog.record import Record
from router.commands.emit.producer import MessageProducer, encode_record_line, join_as_batch, require_match
from router.commands.test import cases
from router.commands.test.runner import CatalogEvaluator, RouterEvaluator, run_cases
from router.matching.records import RecordMatcher
from router.settings import load_settings
from tests.support.cases import GREENHOUSE, VALVE, XRouter, read_cases, reported, runner, valve, written
from tests.support.commands import write_set

ROOT = Path(__file__).resolve().parents[4]
NOW = "2026-03-04T05:06:07.008Z"
PLACED = "/messagegroups/Market.Orders/messages/Market.Orders.Placed"
MESSAGE = "/messagegroups/G/messages/M"


@pytest.fixture(scope="module")
def market() -> Catalog:
    return load([ROOT / "catalog" / "samples"])


def produced(catalog: Catalog, xid: str, **options: Any) -> MessageProducer:
    return MessageProducer(
        catalog, xid, context={"store": "v{n}", "order": "v{n}"}, seed=7, clock=lambda: NOW, **options
    )


SCHEMAS: Final = read_cases(ROOT / "tests" / "cases" / "schemas" / "samples.yaml")["of each family"]


def with_schema(tmp_path: Path, form: str, schema: Any, **attributes: Any) -> Catalog:
    message = {"envelope": "CloudEvents/1.0", "dataschemaformat": form, "dataschema": schema, **attributes}
    path = tmp_path / "schema.xreg.json"
    path.write_text(json.dumps({"messagegroups": {"G": {"messages": {"M": message}}}}))
    return load([path])


@pytest.mark.parametrize("mode", ["binary", "structured"])
@pytest.mark.parametrize("family", SCHEMAS)
def test_data_is_what_the_schema_asks_in_every_family(tmp_path: Path, family: str, mode: str) -> None:
    form, schema, content_type = SCHEMAS[family]
    declared = {"datacontenttype": content_type} if content_type else {}
    catalog = with_schema(tmp_path, form, schema, **declared)

    def records() -> list[Record]:
        producer = MessageProducer(catalog, MESSAGE, protocol="KAFKA", mode=mode, seed=5, clock=lambda: NOW)
        made = [(producer.make_record(), producer.payload_doubt) for _ in range(5)]
        assert not [doubt for _, doubt in made if doubt]
        return [record for record, _ in made]

    made = records()
    assert made == records()
    assert len({record.body for record in made}) > 1
    matcher = RecordMatcher(catalog, group="/messagegroups/G", validation="always")
    for outcome in matcher.outcomes(encode_record_line(record) for record in made):
        assert (outcome["outcome"], outcome.get("message")) == ("routed", MESSAGE), outcome


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"$ref": "#"}, "a reference leads to itself"),
        ({"type": "array", "minItems": 200, "items": {"type": "string", "not": {"pattern": "^(?=z)"}}}, ""),
        ({"type": "array", "minItems": 200, "items": {"type": "string", "not": {"pattern": "^(?=[a-y])"}}}, "/0: "),
    ],
)
def test_data_that_is_costly_to_check_is_checked_within_limits(tmp_path: Path, schema: Any, told: str) -> None:
    """The validator refuses to judge such bodies in its own process, which once ended the command in a traceback."""
    producer = MessageProducer(with_schema(tmp_path, "JsonSchema", schema), MESSAGE, protocol="KAFKA")
    assert producer.make_record().body
    assert told in producer.payload_doubt
    assert bool(producer.payload_doubt) is bool(told)


def test_equal_seeds_give_equal_records(market: Catalog) -> None:
    def lines(seed: int) -> list[bytes]:
        producer = MessageProducer(
            market, PLACED, protocol="KAFKA", context={"store": "7", "order": "1"}, seed=seed, clock=lambda: NOW
        )
        return [encode_record_line(record) for record in producer.iter_records(5)]

    assert lines(1) == lines(1) != lines(2)
    assert len(set(lines(1))) == 5


def test_a_batch_holds_each_event(market: Catalog) -> None:
    producer = produced(market, PLACED, endpoint="/endpoints/webshop", mode="structured")
    batch = join_as_batch(list(itertools.islice(producer.iter_records(3), 3)))
    assert batch.native["headers"][-1] == {"name": "content-type", "value": "application/cloudevents-batch+json"}
    assert len(msgspec.json.decode(batch.body or b"")) == 3
    (outcome,) = RecordMatcher(market).outcomes([encode_record_line(batch)])
    assert [event["message"] for event in outcome["events"]] == [PLACED] * 3


@pytest.mark.parametrize("base_uri", ["", "https://set.example/api/"])
@pytest.mark.parametrize("protocol", ["HTTP", "AMQP/1.0", "MQTT/5.0", "MQTT/3.1.1", "KAFKA", "NATS"])
def test_dataschema_is_absolute_or_left_out(tmp_path: Path, protocol: str, base_uri: str) -> None:
    reference = "/schemagroups/S/schemas/s"
    message = {
        "envelope": "CloudEvents/1.0",
        "dataschemaformat": "JsonSchema/draft-07",
        "dataschemauri": f"#{reference}",
    }
    tree = {
        "messagegroups": {"G": {"messages": {"M": message}}},
        "schemagroups": {"S": {"schemas": {"s": {"format": "JsonSchema/draft-07", "schema": {"type": "object"}}}}},
    }
    (tmp_path / "catalog.json").write_text(json.dumps(tree))
    catalog = load([tmp_path / "catalog.json"], base_uri=base_uri)
    producer = produced(catalog, MESSAGE, protocol=protocol)
    record = producer.make_record()
    require_match(catalog, producer, record)
    (outcome,) = RecordMatcher(catalog).decide([encode_record_line(record)])
    assert outcome["cloudevent"].get("dataschema") == (f"{base_uri.rstrip('/')}{reference}" if base_uri else None)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, br", "identity"])
@pytest.mark.parametrize("mode", ["binary", "native"])
def test_data_are_in_the_content_coding_that_the_definition_names(tmp_path: Path, mode: str, coding: str) -> None:
    headers = [{"name": "Content-Encoding", "value": coding}]
    options = {"protocol": "HTTP", "protocoloptions": {"method": "POST", "headers": headers}}
    catalog = with_schema(tmp_path, "JsonSchema/draft-07", {"type": "object", "required": ["x"]}, **options)
    producer = MessageProducer(catalog, MESSAGE, mode=mode, seed=7)
    record = producer.make_record()
    assert not producer.payload_doubt
    assert (record.body or b"").startswith(b"{") is (coding == "identity")
    require_match(catalog, producer, record)
    matcher = RecordMatcher(catalog, group="/messagegroups/G", validation="always")
    (outcome,) = matcher.decide([encode_record_line(record)])
    assert outcome["outcome"] == "routed", outcome
    broken = json.loads(encode_record_line(record)) | {"body": "{}", "body_base64": None}
    (outcome,) = matcher.decide([json.dumps(broken)])
    assert outcome["reason"] == "schema-violation", outcome


# ``xrouter test``: cases held against a catalog or a router, what they exercise, and cases made of records.


SAMPLES = Path(__file__).resolve().parents[4] / "catalog" / "samples"
MARKET = SAMPLES / "market.xreg.json"
SALE = "/messagegroups/Market.Tills/messages/Market.Tills.Sale"
READING = "/messagegroups/Market.ColdChain/messages/Market.ColdChain.Reading"


@pytest.fixture
def xrouter(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> XRouter:
    """``xrouter(*arguments)`` runs ``test`` and gives exit code, standard output and standard error."""
    return runner(capsys, monkeypatch)


def lines_of(message: str, endpoint: str, count: int = 1, **context: str) -> list[bytes]:
    producer = MessageProducer(load([MARKET]), message, endpoint=f"/endpoints/{endpoint}", context=context, seed=3)
    return [encode_record_line(record) for record in producer.iter_records(count)]


def test_cases_beside_a_catalog_are_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / GREENHOUSE.name).write_bytes(GREENHOUSE.read_bytes())
    alone = load([tmp_path])
    for name in ("a.cases.yaml", "b.cases.json", "c.cases.jsonl"):
        (tmp_path / name).write_text("{no catalog")
    assert load([tmp_path]).findings == alone.findings


def test_a_thousand_cases_take_less_than_a_second(tmp_path: Path) -> None:
    subjects = [f"valves.{number}.roof" if number % 4 else f"valve.{number}" for number in range(1000)]
    many = [
        {"record": valve(subject), "expect": {"message": VALVE} if "valves" in subject else {"reason": "no-match"}}
        for subject in subjects
    ]
    files = cases.read_cases([written(tmp_path / "many.cases.jsonl", many)])
    judging = CatalogEvaluator(load([GREENHOUSE]))
    started = time.process_time()
    results, _, _ = run_cases(files, judging)
    taken = time.process_time() - started
    assert len(results) == 1000
    assert not any(result["differences"] for result in results)
    assert taken < 1


def test_reports_for_machines_that_build(xrouter: XRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"name": "100%, of\x07 <a>", "record": valve("\x1bx"), "expect": {"message": VALVE}}
    path = written(tmp_path / "a.cases.yaml", [{"record": valve(), "expect": {"message": VALVE}}, wrong])
    report = tmp_path / "report.xml"
    monkeypatch.setenv("GITHUB_ACTIONS", "false")
    assert "::error " not in xrouter(path)[1]
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    status, out, _ = xrouter(path, "--junit", report)
    assert status == 1
    top = ElementTree.parse(report).getroot()
    assert top.attrib == {"tests": "2", "failures": "1", "errors": "0", "skipped": "0"}
    cases = top.findall("testsuite/testcase")
    assert [each.find("failure") is None for each in cases] == [True, False]
    assert "requires protocoloptions.subject" in str(cases[1].findtext("failure"))
    commands = [line for line in out.split("\n") if line.startswith("::")]
    assert len(commands) == 1
    line = path.read_text().split("\n").index(f"    message: {VALVE}", 15) + 1
    assert commands[0].startswith(f"::error file={path},line={line},title=100%25%2C of\\x07 <a>::")
    assert "\x1b" not in out
    _, out, err = xrouter(path, "--format", "json")
    assert json.loads(out)["failed"] == 1
    assert err.startswith("::error ")


def test_a_catalog_alone_and_a_router_say_the_same_of_records(tmp_path: Path) -> None:
    lines = [
        *lines_of(PLACED, "webshop", 3, store="7", order="{n}"),
        *lines_of(SALE, "tills", 3, store="7", till="1", receipt="{n}"),
        *lines_of(READING, "cold-chain", 3, store="1", fridge="{n}"),
    ]
    lines += [line.replace(b"/stores/", b"/shops/") for line in lines]
    catalog = load([MARKET])
    write_set("test", "market", tmp_path, {"$SAMPLES": str(SAMPLES)})
    alone = CatalogEvaluator(catalog).evaluate(lines).outcomes
    routed = RouterEvaluator(catalog, load_settings(tmp_path / "router.yaml")).evaluate(lines).outcomes
    assert {each["outcome"] for each in alone} == {"routed", "dead-letter"}
    for one, other in zip(alone, routed, strict=True):
        if "cloudevent" in one:
            one["cloudevent"].pop("id"), other["cloudevent"].pop("id")
        assert {name: other.get(name) for name in one} == one


# ``xrouter test --record``: cases made of records and dead letters.


@pytest.mark.parametrize("suffix", ["yaml", "json", "jsonl"])
def test_a_recorded_case_fails_after_the_catalog_changed(
    xrouter: XRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    catalog, output = tmp_path / "greenhouse.xreg.yaml", tmp_path / "sub" / f"a.cases.{suffix}"
    catalog.write_text(GREENHOUSE.read_text())
    output.parent.mkdir()
    records = [valve(f"valves.{number}.roof") for number in range(3)] + [valve("valve.1")]
    lines = "\n\n".join(map(json.dumps, records)).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
    status, out, _ = xrouter(output, "--catalog", catalog, "--record", "-")
    assert (status, out) == (0, f"{output}: 4 cases recorded\n")
    report = reported(xrouter, output)
    assert (report["passed"], report["failed"]) == (4, 0)
    if suffix == "yaml":
        assert output.read_text().startswith("# yaml-language-server: $schema=./.cases.schema.json\n")
        head = yaml.safe_load(output.read_text())
        assert head["catalog"] == ["../greenhouse.xreg.yaml"]
        assert head["cases"][1]["name"] == "Greenhouse.Plain.Valve 2"
        assert head["cases"][1]["expect"]["context"] == {"house": "1", "valve": "roof"}
        assert head["cases"][3]["expect"] == {"outcome": "dead-letter", "reason": "no-match"}
        # The id of a mapped event depends on where its record lies.
        assert "id" not in head["cases"][1]["expect"]["cloudevent"]
    beside = output.parent / ".cases.schema.json"
    if suffix == "jsonl":
        assert not beside.exists(), "a schema is of a document, and no line names one"
    else:
        schema = jsonschema_rs.validator_for(json.loads(beside.read_bytes()))
        schema.validate(yaml.safe_load(output.read_text()))
    assert reported(xrouter, output.parent)["passed"] == 4, "the schema is no file of cases"
    catalog.write_text(GREENHOUSE.read_text().replace("valves.{house}.{valve}", "valve.{house}"))
    status, out, _ = xrouter(output)
    assert status == 1
    assert "0 of 4 cases passed" in out
    head, outcome, more, why = out.splitlines()[:4]
    assert head.startswith(f"FAILED {output}:") and outcome.endswith("expected 'routed', found 'dead-letter'")
    assert more.endswith("differences as a consequence") and why.startswith("  why: ")
    assert "requires protocoloptions.subject 'valve.{house}', and the record has 'valves.0.roof'" in out
