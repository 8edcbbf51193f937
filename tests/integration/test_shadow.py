"""A shadow catalog beside a running router tells what a reload then does, and so does ``xrouter plan`` before it.

Records and definitions are those of our samples, and of the corpora where these are there (tests/support/corpora.py).
"""

from __future__ import annotations

import copy
import json
import re
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer as KafkaProducer

from bindings.kafka.binding import split
from catalog.load import load
from catalog.parsing.texts import parse_text
from catalog.record import parse_record
from catalog.templates import parse_template
from router.cli import run_command_line
from router.commands.emit.producer import MessageProducer, encode_record_line
from tests.conftest import Kafka, TopicFactory
from tests.support.cases import FOLDER
from tests.support.corpora import SHARED, shared_cases, shared_index
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
SECONDS: Final = 300.0
NOW: Final = 1_767_323_045_000
"""2026-01-02T03:04:05Z"""
Tree = dict[str, Any]
Outcome = tuple[str, str | None, str | None, Tree, Tree]
"""Sink, definition, reason, context, and attributes."""


@dataclass(frozen=True, slots=True)
class World:
    """Catalogs, records for Kafka that they know, and what changes: messages by group and id."""

    catalogs: list[Path]
    records: list[Tree]
    offered: tuple[str, ...]
    """Groups that come over Kafka beside those of the endpoints for it."""
    dead: tuple[str, str]
    """Only the old catalog has it."""
    matched: tuple[str, str]
    """Only the new catalog has it."""
    renamed: tuple[tuple[str, str, str], ...]
    """The same under another id: of these, one that another route takes."""
    subject: tuple[str, str, str, str]
    """One whose subject has another placeholder."""


def of_samples() -> World:
    """Return what is made for samples: each definition that can be one of Kafka's."""
    catalogs = [FOLDER / "market.xreg.json", FOLDER / "greenhouse.xreg.yaml"]
    known, made = load(catalogs), []
    for definition in known.definitions.values():
        if definition.protocol not in (None, "KAFKA"):
            continue
        properties = (*definition.protocoloptions, *definition.envelopemetadata)
        names = {name for prop in properties for name in parse_template(str(prop.value)).names}
        for seed in range(20):
            context = dict.fromkeys(names, f"v{seed}")
            producer = MessageProducer(known, definition.xid, protocol="KAFKA", context=context, seed=seed)
            made.append(json.loads(encode_record_line(producer.make_record())))
    return World(
        catalogs,
        made,
        ("/messagegroups/Market.Orders", "/messagegroups/Greenhouse"),
        dead=("Market.ColdChain", "Market.ColdChain.DoorOpened"),
        matched=("Market.Orders", "Market.Orders.Paid"),
        renamed=(
            ("Market.Orders", "Market.Orders.Collected", "Market.Orders.Fetched"),
            ("Greenhouse", "Greenhouse.WindowStuck", "Greenhouse.Siren"),
        ),
        subject=("Market.Orders", "Market.Orders.Event", "orders/{order}", "orders/{number}"),
    )


def of_feeders() -> World:
    """Return the feeders of the corpora, and the records of their cases that are one event each."""
    feeders = [(name, path) for name, path in shared_index().items() if "-feeders-" in name]
    cases = [case["record"] for name, _ in feeders for case in shared_cases(name)]
    kafka = (each for each in cases if each["protocol"].upper().startswith("KAFKA"))
    flood = "UK.Gov.Environment.EA.FloodMonitoring"
    return World(
        [path for _, path in feeders],
        [each for each in kafka if "cloudevents-batch" not in json.dumps(each["native"]).lower()],
        (),
        dead=("gov.ca.water.cdec", "gov.ca.water.cdec.ReservoirReading"),
        matched=("be.issep.airquality.Sensors", "be.issep.airquality.Observation"),
        renamed=(
            ("Billetto.Events", "Billetto.Events.Event", "Billetto.Events.Listing"),
            ("ie.gov.opw.waterlevel", "ie.gov.opw.waterlevel.Station", "ie.gov.opw.waterlevel.Siren"),
        ),
        subject=(flood, f"{flood}.Station", "{station_reference}", "{gauge}"),
    )


def merged(world: World, bootstrap: str, topic: str) -> Tree:
    """Return one catalog of all, whose messages for Kafka come by one endpoint."""
    groups: Tree = {}
    schemas: Tree = {}
    offered = dict.fromkeys(world.offered)
    for path in world.catalogs:
        tree = parse_text(path.name, path.read_bytes()).tree
        groups.update(tree.get("messagegroups", {}))
        schemas.update(tree.get("schemagroups", {}))
        for endpoint in tree.get("endpoints", {}).values():
            if endpoint.get("protocol", "").upper().startswith("KAFKA"):
                offered.update(dict.fromkeys(endpoint.get("messagegroups", ())))
    endpoint = {
        "usage": ["consumer"],
        "protocol": "KAFKA",
        "protocoloptions": {"endpoints": [{"uri": bootstrap}], "options": {"topic": topic}},
        "messagegroups": list(offered),
    }
    return {"endpoints": {"feeders": endpoint}, "messagegroups": groups, "schemagroups": schemas}


def messages(tree: Tree, group: str) -> Tree:
    found: Tree = tree["messagegroups"][group]["messages"]
    return found


def changed(world: World, old: Tree) -> Tree:
    """Change both catalogs in five ways, of which each concerns some records."""
    new = copy.deepcopy(old)
    # Newly matched, and newly a dead letter.
    del messages(old, world.matched[0])[world.matched[1]]
    del messages(new, world.dead[0])[world.dead[1]]
    # Another definition; and one that another route takes.
    for group, before, after in world.renamed:
        known = messages(new, group)
        known[after] = known.pop(before)
        if "messageid" in known[after]:
            known[after]["messageid"] = after
    # Another context, and with it other events.
    group, message, before, after = world.subject
    subject = messages(new, group)[message]["envelopemetadata"]["subject"]
    assert subject["value"] == before
    subject["value"] = after
    return new


def produce(bootstrap: str, topic: str, sent: list[Tree]) -> None:
    """Send records in order, all of the same time."""
    producer = KafkaProducer({"bootstrap.servers": bootstrap, "acks": "all", "queue.buffering.max.messages": 1_000_000})
    faults: list[Any] = []
    for record in sent:
        taken, value = split(record["native"]), parse_record(json.dumps(record)).body
        headers: list[tuple[str, str | bytes | None]] = [
            (part.key.removeprefix("headers."), part.value) for part in taken if part.key.startswith("headers.")
        ]
        key = next((part.value for part in taken if part.key == "key"), None)
        producer.produce(topic, value, key, 0, lambda fault, _: faults.append(fault), timestamp=NOW, headers=headers)
    assert producer.flush(SECONDS) == 0
    assert not any(faults)


def status(router: RouterProcess) -> Tree:
    """Return the document of the status page; empty while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{router.port}/status.json", timeout=30) as answer:
            told: Tree = json.load(answer)
    except OSError:
        return {}
    return told


def shadow(router: RouterProcess) -> Tree:
    told: Tree = status(router).get("shadow") or {}
    return told


def outcomes(folder: Path, topic: str) -> dict[tuple[int, str], Outcome]:
    """Return what became of records, by offset and place in a batch, as the sinks have it."""
    found: dict[tuple[int, str], Outcome] = {}
    for sink in ("events", "sirens", "dead"):
        for file in (folder / sink).glob("*.jsonl"):
            for line in file.read_bytes().split(b"\n"):
                if not line:
                    continue
                told = json.loads(line)
                position = re.fullmatch(rf"{topic}-0-(\d+)(.*)", told["position"])
                assert position is not None
                event = {
                    name: value for name, value in told.get("cloudevent", {}).items() if not name.startswith("data_")
                }
                event.pop("data", None)
                if event.get("id") == told["position"]:
                    del event["id"]
                key = (int(position[1]), position[2])
                assert key not in found
                found[key] = (sink, told.get("message"), told.get("reason"), told.get("context") or {}, event)
    return found


def kinds(before: Outcome, after: Outcome) -> Iterator[str]:
    """Yield how two outcomes of a record differ, in the words of ``xrouter plan``."""
    was, now = before[2] is None, after[2] is None
    if was != now:
        yield "matched" if now else "dead-letter"
        return
    if before[0] != after[0]:
        yield "route"
    if before[1] != after[1]:
        yield "definition"
    if before[2] != after[2]:
        yield "reason"
    if before[3:] != after[3:]:
        yield "event"


@pytest.mark.parametrize(
    ("world_of", "number"),
    [
        pytest.param(of_samples, 1_500, id="samples"),
        *(
            [pytest.param(of_feeders, 20_000, id="feeders", marks=[pytest.mark.shared, pytest.mark.full])]
            if SHARED
            else []
        ),
    ],
)
def test_plan_and_shadow_tell_what_a_reload_then_does(
    kafka: Kafka,
    topic_factory: TopicFactory,
    router: RouterProcess,
    capsys: pytest.CaptureFixture[str],
    world_of: Callable[[], World],
    number: int,
) -> None:
    topic, folder = topic_factory(retention_ms=-1), router.folder
    world = world_of()
    old = merged(world, kafka.bootstrap, topic)
    new = changed(world, old)
    (folder / "catalog.json").write_text(json.dumps(old))
    (folder / "next.json").write_text("{")
    paths = {name: {"type": "jsonl", "path": str(folder / name)} for name in ("events", "sirens", "dead")}
    router.configure(
        {
            "catalog": {"source": "catalog.json", "shadow": "next.json", "shadow_share": 10, "poll": "500ms"},
            "sinks": paths,
            "routes": [{"when": {"message": "*.Siren"}, "to": ["sirens"]}, {"to": ["events"]}],
            "dead_letters": {"sinks": ["dead"]},
            "start": "earliest",
        }
    )
    sent = [world.records[place % len(world.records)] for place in range(number)]
    few = sent[:20]
    router.start()

    # A shadow that cannot be read stops nothing, and says so.
    wait_until(lambda: shadow(router).get("reason"), SECONDS, "word of the broken shadow")
    produce(kafka.bootstrap, topic, few)
    wait_until(lambda: left_out(router) >= len(few), SECONDS, "the records beside it")
    assert router.metrics()["xrouter_shadow_broken"] == 1
    assert left_out(router) == router.total("xrouter_records_total") == len(few)
    assert (shadow(router)["state"], shadow(router)["findings"][0]["rule"]) == ("loading", "unreadable-document")

    # It is mended, and judges beside the active one.
    (folder / "next.json").write_text(json.dumps(new))
    wait_until(
        lambda: shadow(router).get("state") == "judging", SECONDS, lambda: f"the shadow; log:\n{router.log[-3000:]}"
    )
    assert router.metrics()["xrouter_shadow_broken"] == 0
    before = router.total("xrouter_records_total")
    produce(kafka.bootstrap, topic, sent)
    wait_until(lambda: judged(router, number), SECONDS, lambda: f"all records; log:\n{router.log[-3000:]}")
    told = shadow(router)
    assert (told["left_out"], told["failed"]) == (0, 0)
    assert told["outcomes"] == router.total("xrouter_records_total") - before
    for kind, count in told["changed"].items():
        assert router.total("xrouter_shadow_records_total", difference=kind) == count

    # Plan tells the same of the same records.
    arguments = ["--new", str(folder / "next.json"), "--from", "topics", "--last", str(number), "--samples", "0"]
    run_command_line(["plan", str(router.config), *arguments, "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    assert {name: report[name] for name in ("outcomes", "unchanged", "changed")} == {
        name: told[name] for name in ("outcomes", "unchanged", "changed")
    }
    assert sorted(map(str, report["groups"])) == sorted(map(str, told["groups"]))

    # A reload takes it, and the same records come again.
    (folder / "taken.json").write_text(json.dumps(new))
    (folder / "taken.json").replace(folder / "catalog.json")
    wait_until(lambda: shadow(router)["state"] == "active", SECONDS, lambda: f"the reload; log:\n{router.log[-3000:]}")
    produce(kafka.bootstrap, topic, sent)
    whole = before + 2 * told["outcomes"]
    wait_until(lambda: router.total("xrouter_records_total") >= whole, SECONDS, "the records under the new catalog")
    assert router.total("xrouter_shadow_outcomes_total") == before + told["outcomes"]
    assert router.stop() == 0

    found = outcomes(folder, topic)
    first, second = len(few), len(few) + number
    pairs = [
        (outcome, found[offset + number, place])
        for (offset, place), outcome in found.items()
        if first <= offset < second
    ]
    expected = Counter(kind for one, other in pairs for kind in kinds(one, other))
    assert {"matched", "dead-letter", "definition", "route", "event"} <= set(expected)
    assert {kind: count for kind, count in told["changed"].items() if count} == dict(expected)
    assert (told["outcomes"], told["unchanged"]) == (len(pairs), sum(not list(kinds(*pair)) for pair in pairs))


def left_out(router: RouterProcess) -> float:
    return router.total("xrouter_shadow_outcomes_total", result="left-out")


def judged(router: RouterProcess, number: int) -> bool:
    """Whether the shadow has seen as many records, or they are told as left out."""
    told = shadow(router)
    return bool(told) and told["outcomes"] + told["left_out"] + told["failed"] >= number
