"""``xrouter test``: cases held against a catalog or a router, what they exercise, and cases made of records."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from xml.etree import ElementTree

import jsonschema_rs
import pytest
import yaml

from catalog.load import load
from router.commands.emit.producer import MessageProducer, encode_record_line
from router.commands.test.cases import read_cases
from router.commands.test.runner import CatalogEvaluator, RouterEvaluator, run_cases
from router.settings import load_settings
from tests.support.cases import GREENHOUSE, VALVE, XRouter, reported, runner, valve, written
from tests.support.commands import write_set

SAMPLES = Path(__file__).resolve().parents[4] / "catalog" / "samples"
MARKET = SAMPLES / "market.xreg.json"
PLACED = "/messagegroups/Market.Orders/messages/Market.Orders.Placed"
SALE = "/messagegroups/Market.Tills/messages/Market.Tills.Sale"
READING = "/messagegroups/Market.ColdChain/messages/Market.ColdChain.Reading"


@pytest.fixture
def xrouter(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> XRouter:
    """``xrouter(*arguments)`` runs ``test`` and gives exit code, standard output and standard error."""
    return runner(capsys, monkeypatch)


def produced(message: str, endpoint: str, count: int = 1, **context: str) -> list[bytes]:
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
    cases = [
        {"record": valve(subject), "expect": {"message": VALVE} if "valves" in subject else {"reason": "no-match"}}
        for subject in subjects
    ]
    files = read_cases([written(tmp_path / "many.cases.jsonl", cases)])
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
        *produced(PLACED, "webshop", 3, store="7", order="{n}"),
        *produced(SALE, "tills", 3, store="7", till="1", receipt="{n}"),
        *produced(READING, "cold-chain", 3, store="1", fridge="{n}"),
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
