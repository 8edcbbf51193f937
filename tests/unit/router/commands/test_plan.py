"""``xrouter plan``: what a new catalog would do to the last records, told before a reload does it."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import yaml

from bindings.inbox.log import Inbox
from bindings.inbox.space import InboxLimits
from bindings.parts import InboxRow, Part
from catalog.documents.documents import Document
from catalog.findings import Findings
from catalog.linting.overlaps import MAX_OVERLAPS, find_overlaps
from catalog.load import build_catalog, load
from catalog.model import Catalog
from router.cli import run_command_line
from router.commands.check.command import collect_findings, iter_proven_overlaps
from router.commands.emit.producer import MessageProducer, encode_record_line
from router.commands.test.runner import RouterEvaluator
from router.dead_letters.redaction import HIDDEN
from router.matching.records import RecordMatcher
from router.settings import load_settings
from tests.support import load as heavy
from tests.support import plain
from tests.support.cases import FOLDER, read_cases
from tests.support.generation import ENDPOINT, random_catalog
from tests.support.letters import row, write_letters
from tests.support.reference import Reference
from tests.support.spark_cluster import RECORDS, catalog, lines, message, messages, settings

Planned = Callable[..., tuple[int, dict[str, Any]]]
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Planned:
    """``plan(change, *arguments)`` judges :data:`RECORDS` by the catalog and a changed one: exit code and report."""
    (tmp_path / "catalog.json").write_text(json.dumps(catalog()))
    config, records = settings(tmp_path), lines(tmp_path / "records.jsonl", RECORDS)

    def run(change: Change | None, *arguments: object) -> tuple[int, dict[str, Any]]:
        new = copy.deepcopy(catalog())
        if change is not None:
            change(new)
        (tmp_path / "new.json").write_text(json.dumps(new))
        given = arguments or ("--records", records)
        status = run_command_line(
            ["plan", str(config), "--new", str(tmp_path / "new.json"), "--format", "json", *map(str, given)]
        )
        out, err = capsys.readouterr()
        assert not err
        return status, json.loads(out)

    return run


def differences(report: dict[str, Any]) -> dict[str, int]:
    return {kind: number for kind, number in report["changed"].items() if number}


def with_gate(tree: dict[str, Any]) -> None:
    """Add an endpoint of HTTP with one definition, whose subject is a secret."""
    tree["endpoints"]["gate"] = plain.endpoint("HTTP", {}, "Gate", uri="http://127.0.0.1/gate")
    subject = {"value": "card/{card}", "type": "uritemplate", "sensitive": True}
    entry = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "entry"}, "subject": subject}}
    tree["messagegroups"]["Gate"] = {"messages": {"Entry": entry}}


def without_entry(tree: dict[str, Any]) -> None:
    tree["messagegroups"]["Gate"]["messages"]["Entry"]["envelopemetadata"]["subject"]["value"] = "pass/{card}"


def entry(number: int, type_: str = "entry") -> InboxRow:
    headers = {
        "specversion": "1.0",
        "id": str(number),
        "source": "/gate",
        "type": type_,
        "subject": f"card/443355{number}",
    }
    parts = [Part("method", b"POST"), Part("path", b"/gate")]
    parts += [Part(f"headers.ce-{name}", value.encode()) for name, value in headers.items()]
    received = int(datetime(2026, 1, 2, tzinfo=UTC).timestamp()) * 1_000_000 + number
    return InboxRow("/endpoints/gate", "HTTP", received, parts, b"{}")


@pytest.fixture
def gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """``gate(*arguments)`` plans a catalog in which an endpoint's records would miss their definition."""
    tree = catalog()
    with_gate(tree)
    (tmp_path / "catalog.json").write_text(json.dumps(tree))
    without_entry(tree)
    (tmp_path / "new.json").write_text(json.dumps(tree))
    config = settings(tmp_path)

    def run(*arguments: object) -> tuple[int, str]:
        status = run_command_line(["plan", str(config), "--new", str(tmp_path / "new.json"), *map(str, arguments)])
        out, err = capsys.readouterr()
        assert not err, err
        return status, out

    return run


def test_the_inbox_gives_its_last_records(gate: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "state" / "inbox", partitions=2, limits=InboxLimits(min_free_bytes=0))
    try:
        inbox.append_many([entry(number) for number in range(20)]).result(60)
        status, out = gate("--from", "inbox", "--format", "json", "--last", 15)
        report = json.loads(out)
        assert (status, report["outcomes"], differences(report)) == (1, 15, {"dead-letter": 15})
        assert report["places"] == [{"place": "inbox", "records": 15, "notes": []}]
        report = json.loads(gate("--from", "inbox", "--format", "json")[1])
        assert (report["outcomes"], report["places"][0]["notes"]) == (20, ["it has no more than 20"])
        report = json.loads(gate("--from", "inbox", "--format", "json", "--since", "2026-01-03")[1])
        assert (report["outcomes"], report["samples"]) == (0, [])
    finally:
        inbox.close()


def test_what_is_marked_as_sensitive_is_hidden(gate: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "state" / "inbox", partitions=1, limits=InboxLimits(min_free_bytes=0))
    try:
        inbox.append_many([entry(1), entry(2, "exit")]).result(60)
        for form in ("text", "json"):
            status, out = gate("--from", "inbox", "--format", form)
            assert status == 1
            assert HIDDEN in out
            assert "443355" not in out
        assert "card/4433551" in gate("--from", "inbox", "--reveal")[1]
    finally:
        inbox.close()


def test_dead_letters_that_would_match_are_told(tmp_path: Path, plan: Planned) -> None:
    native = {
        "topic": "plant",
        "partition": 0,
        "offset": 4,
        "key": "lines/7",
        "headers": [{"name": "kind", "value": "door"}],
    }
    letters = [
        row(
            number,
            protocol="KAFKA",
            native=json.dumps(native),
            endpoint="/endpoints/plant",
            position=f"plant-0-{number}",
        )
        for number in range(3)
    ]
    write_letters(tmp_path / "router.yaml", letters)
    status, report = plan(lambda new: messages(new).update(Door=message("door")), "--from", "dead-letters")
    assert (status, differences(report)) == (0, {"matched": 3})
    assert report["places"][0]["notes"] == ["3 letters found among the newest"]
    _, report = plan(None, "--from", "dead-letters", "--since", "2026-02-01")
    assert report["outcomes"] == 0


# ``xrouter plan`` compares columns; that must be what comparing the outcomes of ``xrouter test`` one by one gives.


MARKET: Final = FOLDER / "market.xreg.json"
WORDS: Final = ("store", "till", "record", "receipt", "order", "fridge")
NOW: Final = "2026-03-04T05:06:07.008Z"
Tree = dict[str, Any]


def group_of(tree: Tree, group: str) -> Tree:
    found: Tree = tree["messagegroups"][group]["messages"]
    return found


def add(old: Tree, new: Tree) -> None:
    del group_of(old, "Market.Tills")["Market.Tills.DrawerOpened"]


def remove(old: Tree, new: Tree) -> None:
    del group_of(new, "Market.Orders")["Market.Orders.Paid"]


def narrow(old: Tree, new: Tree) -> None:
    kind = group_of(new, "Market.Orders")["Market.Orders.Collected"]
    kind["envelopemetadata"]["source"] = {"value": "/stores/store-1/webshop"}


def change_template(old: Tree, new: Tree) -> None:
    order = group_of(new, "Market.Orders")["Market.Orders.Event"]["envelopemetadata"]
    order["subject"]["value"] = "orders/{number}"


def move(old: Tree, new: Tree) -> None:
    group = group_of(new, "Market.ColdChain")
    group["Market.ColdChain.Siren"] = group.pop("Market.ColdChain.TooWarm")
    group["Market.ColdChain.Siren"]["messageid"] = "Market.ColdChain.Siren"


CHANGES: Final[dict[str, Callable[[Tree, Tree], None]]] = {
    "matched": add,
    "dead-letter": remove,
    "narrow": narrow,
    "event": change_template,
    "route": move,
}


def records(catalog: Catalog, seeds: int) -> Iterator[bytes]:
    """Yield records of each definition at each endpoint that expects it, and some that nothing takes."""
    for endpoint in catalog.endpoints.values():
        for xid in endpoint.candidates:
            for seed in range(seeds):
                context = {word: f"{word}-{seed % 3}" for word in WORDS}
                mode = "structured" if seed % 4 == 3 else None
                made = MessageProducer(
                    catalog, xid, endpoint=endpoint.xid, mode=mode, context=context, seed=seed, clock=lambda: NOW
                )
                yield encode_record_line(made.make_record())
    yield json.dumps({"protocol": "HTTP", "native": {"path": "/nowhere"}, "endpoint": "/endpoints/tills"}).encode()
    yield json.dumps({"protocol": "HTTP", "native": {"path": "/"}, "endpoint": "/endpoints/none"}).encode()


def kinds_of(before: Tree, after: Tree) -> Iterator[str]:
    """Yield the differences of two outcomes of ``xrouter test --config``."""
    was, now = before["outcome"] == "routed", after["outcome"] == "routed"
    if was != now:
        yield "matched" if now else "dead-letter"
        return
    if (before["sinks"], before.get("topics")) != (after["sinks"], after.get("topics")):
        yield "route"
    if not now:
        if before["reason"] != after["reason"]:
            yield "reason"
        return
    if before["message"] != after["message"]:
        yield "definition"
    if (before["context"], before["cloudevent"]) != (after["context"], after["cloudevent"]):
        yield "event"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    told = {
        "catalog": {"source": "old.json"},
        "sinks": {
            "bus": {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "e.{type}.{subject|none}"},
            "sirens": {"type": "jsonl"},
            "dead": {"type": "jsonl"},
        },
        "routes": [{"when": {"message": "*.Siren"}, "to": ["sirens"]}, {"to": ["bus"]}],
        "dead_letters": {"sinks": ["dead"]},
    }
    file = tmp_path / "router.yaml"
    file.write_text(yaml.safe_dump(told))
    return file


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_one_change_gives_what_outcomes_say(config: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = config.parent
    old, new = (copy.deepcopy(json.loads(MARKET.read_text())) for _ in range(2))
    CHANGES[name](old, new)
    for side, tree in (("old", old), ("new", new)):
        (folder / f"{side}.json").write_text(json.dumps(tree))
    lines = list(records(load([MARKET]), 4))
    (folder / "records.jsonl").write_bytes(b"\n".join(lines))
    arguments = ["--new", str(folder / "new.json"), "--records", str(folder / "records.jsonl"), "--last", "100000"]
    run_command_line(["plan", str(config), *arguments, "--format", "json"])
    out, err = capsys.readouterr()
    assert not err
    settings = load_settings(config)
    judged = [RouterEvaluator(load([folder / f"{side}.json"]), settings).evaluate(lines) for side in ("old", "new")]
    pairs = zip(judged[0].outcomes, judged[1].outcomes, strict=True)
    expected = Counter(kind for before, after in pairs for kind in kinds_of(before, after))
    assert expected, "the change must change something"
    assert expected[name] or name == "narrow"
    report: Tree = json.loads(out)
    assert report["outcomes"] == len(lines)
    assert {kind: number for kind, number in report["changed"].items() if number} == dict(expected)


# Overlapping definitions: `check` tells of them with a record that both match, and the plain matcher agrees.


A, B = "/messagegroups/g/messages/a", "/messagegroups/g/messages/b"
EVENTS = {"envelope": "CloudEvents/1.0"}


def options(protocol: str, **written: Any) -> dict[str, Any]:
    return {"protocol": protocol, "protocoloptions": written}


def attributes(**written: Any) -> dict[str, Any]:
    return {**EVENTS, "envelopemetadata": written}


def pair_of(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return {"messagegroups": {"g": {"messages": {"a": a, "b": b}}}}


def told(document: dict[str, Any], tmp_path: Path) -> list[tuple[str, str, str]]:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document))
    found, _ = collect_findings([str(path)])
    return [(each.severity, each.pointer, each.message) for each in found if each.rule == "overlap"]


def witnessed(message: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(message.partition("both match ")[2])
    return record


def outcomes(document: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """Return what becomes of a record with each definition alone, and with all of them."""
    catalog = build_catalog([Document("c.json", document)], Findings())
    found = []
    for xids in ((A,), (B,), (A, B)):
        only = Catalog({xid: catalog.definitions[xid] for xid in xids}, {}, {})
        (outcome,) = RecordMatcher(only, validation="never").decide([json.dumps(record)])
        found.append(outcome.get("message") or outcome["reason"])
    return found


PAIRS: Final = read_cases(Path(__file__).resolve().parents[3] / "cases" / "overlaps.yaml")


@pytest.mark.parametrize("name", PAIRS["ambiguous"])
def test_what_overlaps_and_is_as_specific_is_a_warning_with_a_witness(name: str, tmp_path: Path) -> None:
    document = pair_of(*PAIRS["ambiguous"][name])
    found = told(document, tmp_path)
    assert [each[:2] for each in found] == [("warning", A), ("warning", B)]
    assert outcomes(document, witnessed(found[0][2])) == [A, B, "ambiguous"]


def test_the_more_specific_of_the_two_is_named(tmp_path: Path) -> None:
    document = pair_of(attributes(type="t", source="/x"), attributes(subject="s"))
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document))
    found = [each for each in collect_findings([str(path)])[0] if each.rule == "overlap"]
    assert [(each.severity, each.pointer) for each in found] == [("info", A), ("info", B)]
    assert all(A in each.hint for each in found)
    assert outcomes(document, witnessed(found[0].message)) == [A, B, A]


@pytest.mark.parametrize(("a", "b"), PAIRS["apart"])
def test_what_is_apart_or_covered_is_no_overlap(a: dict[str, Any], b: dict[str, Any], tmp_path: Path) -> None:
    assert told(pair_of(a, b), tmp_path) == []


def test_witnesses_of_generated_catalogs_hold_by_the_plain_matcher() -> None:
    made = held = 0
    for seed in range(60):
        catalog = random_catalog(Random(seed), 8)
        found = tuple(find_overlaps(catalog))
        made += len(found)
        for overlap, record, _ in iter_proven_overlaps(found, catalog):
            held += 1
            line = json.dumps({**record, "endpoint": ENDPOINT})
            for xid in (overlap.one.xid, overlap.other.xid):
                channel = replace(catalog.endpoints[ENDPOINT], candidates=(xid,))
                alone = Reference(replace(catalog, endpoints={ENDPOINT: channel}), validation="never")
                outcome = alone.outcome(line)
                assert outcome.get("message") == xid or outcome["reason"] == "unmappable", (seed, record)
    assert held > 0.9 * made > 0


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.full)])
def test_many_definitions_give_no_flood(count: int) -> None:
    crowded = {f"m{n}": options("MQTT/5.0", topic_name=f"{{a}}{n}/{{b}}") for n in range(count)}
    for document in (heavy.catalog(count, topic="load"), {"messagegroups": {"g": {"messages": crowded}}}):
        catalog = build_catalog([Document("c.json", document)], Findings())
        assert len(tuple(find_overlaps(catalog))) <= MAX_OVERLAPS
