"""A shadow catalog beside a running router tells what a reload then does, and so does ``xrouter plan`` before it.

Records and definitions are those of our samples.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from catalog.load import load
from catalog.parsing.texts import parse_text
from catalog.record import Record
from catalog.templates import parse_template
from router.cli import run_command_line
from router.commands.emit.producer import MessageProducer
from tests.conftest import Kafka, TopicFactory
from tests.support import plain
from tests.support.cases import FOLDER
from tests.support.evaluating import kafka_row
from tests.support.kafka import produce
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
SECONDS: Final = 300.0
NOW: Final = 1_767_323_045_000
"""2026-01-02T03:04:05Z"""
Tree = dict[str, Any]
Outcome = tuple[str, str | None, str | None, Tree, Tree]
"""Sink, definition, reason, context, and attributes."""


DEAD: Final = ("Market.ColdChain", "Market.ColdChain.DoorOpened")
"""Only the old catalog has it."""
MATCHED: Final = ("Market.Orders", "Market.Orders.Paid")
"""Only the new catalog has it."""
RENAMED: Final = (
    ("Market.Orders", "Market.Orders.Collected", "Market.Orders.Fetched"),
    ("Greenhouse", "Greenhouse.WindowStuck", "Greenhouse.Siren"),
)
"""The same under another id: of these, one that another route takes."""


def made() -> list[Record]:
    """Return records of each definition of the samples that can be one of Kafka's."""
    known, records = load([FOLDER / "market.xreg.json", FOLDER / "greenhouse.xreg.yaml"]), []
    for definition in known.definitions.values():
        if definition.protocol not in (None, "KAFKA"):
            continue
        properties = (*definition.protocoloptions, *definition.envelopemetadata)
        names = {name for prop in properties for name in parse_template(str(prop.value)).names}
        for seed in range(20):
            context = dict.fromkeys(names, f"v{seed}")
            records.append(
                MessageProducer(known, definition.xid, protocol="KAFKA", context=context, seed=seed).make_record()
            )
    return records


def catalogs(bootstrap: str, topic: str) -> tuple[Tree, Tree]:
    """Return one catalog of both samples, whose messages come by one topic, and the same after changes of five kinds.

    Each change concerns some records.
    """
    old: Tree = {"messagegroups": {}, "schemagroups": {}}
    groups = ["Market.Orders", "Greenhouse"]
    for path in (FOLDER / "market.xreg.json", FOLDER / "greenhouse.xreg.yaml"):
        tree = parse_text(path.name, path.read_bytes()).tree
        for name in old:
            old[name] |= tree.get(name, {})
        kafka = (
            each for each in tree.get("endpoints", {}).values() if each.get("protocol", "").upper().startswith("KAFKA")
        )
        groups += [group.rpartition("/")[2] for each in kafka for group in each.get("messagegroups", ())]
    old["endpoints"] = {"all": plain.endpoint("KAFKA", {"topic": topic}, *dict.fromkeys(groups), uri=bootstrap)}
    new = copy.deepcopy(old)
    # Newly matched, and newly a dead letter.
    del old["messagegroups"][MATCHED[0]]["messages"][MATCHED[1]]
    del new["messagegroups"][DEAD[0]]["messages"][DEAD[1]]
    # Another definition; and one that another route takes.
    for group, before, after in RENAMED:
        known = new["messagegroups"][group]["messages"]
        known[after] = known.pop(before)
        if "messageid" in known[after]:
            known[after]["messageid"] = after
    # Another context, and with it other events.
    subject = new["messagegroups"]["Market.Orders"]["messages"]["Market.Orders.Event"]["envelopemetadata"]["subject"]
    assert subject["value"] == "orders/{order}"
    subject["value"] = "orders/{number}"
    return old, new


def send(bootstrap: str, topic: str, records: Sequence[Record]) -> None:
    """Send records in order, all of the same time."""
    rows = [kafka_row(each) for each in records]
    produce(bootstrap, topic, [(row[0], row[1], row[6]) for row in rows], [NOW] * len(rows))


def shadow(router: RouterProcess) -> Tree:
    """Return what the status page says of the shadow; empty while it does not answer."""
    try:
        told = httpx.get(f"http://127.0.0.1:{router.port}/status.json", timeout=30).json()
    except httpx.TransportError:
        return {}
    return told.get("shadow") or {}


def outcomes(folder: Path, topic: str) -> dict[tuple[int, str], Outcome]:
    """Return what became of records, by offset and place in a batch, as the sinks have it."""
    found: dict[tuple[int, str], Outcome] = {}
    for sink in ("events", "sirens", "dead"):
        for told in plain.lines_of(folder / sink):
            position = re.fullmatch(rf"{topic}-0-(\d+)(.*)", told["position"])
            assert position is not None
            event = {name: value for name, value in told.get("cloudevent", {}).items() if name[:4] != "data"}
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


def test_plan_and_shadow_tell_what_a_reload_then_does(
    kafka: Kafka,
    topic_factory: TopicFactory,
    router: RouterProcess,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic, folder, number = topic_factory(retention_ms=-1), router.folder, 1_500
    old, new = catalogs(kafka.bootstrap, topic)
    told_of = plain.routed(plain.write(folder, old), plain.lines(folder, "events", "sirens", "dead"), start="earliest")
    (folder / "next.json").write_text("{")
    told_of["catalog"] |= {"shadow": "next.json", "shadow_share": 10, "poll": "500ms"}
    told_of["routes"] = [{"when": {"message": "*.Siren"}, "to": ["sirens"]}, {"to": ["events"]}]
    router.configure(told_of)
    records = made()
    sent = [records[place % len(records)] for place in range(number)]
    few = sent[:20]
    router.start()

    # A shadow that cannot be read stops nothing, and says so.
    wait_until(lambda: shadow(router).get("reason"), SECONDS, "word of the broken shadow")
    send(kafka.bootstrap, topic, few)
    wait_until(lambda: left_out(router) >= len(few), SECONDS, "the records beside it")
    assert router.metrics()["xrouter_shadow_broken"] == 1
    assert left_out(router) == router.total("xrouter_records_total") == len(few)
    assert (shadow(router)["state"], shadow(router)["findings"][0]["rule"]) == ("loading", "unreadable-document")

    # It is fixed, and judges beside the active one.
    plain.write(folder, new, "next.json")
    wait_until(
        lambda: shadow(router).get("state") == "judging", SECONDS, lambda: f"the shadow; log:\n{router.log[-3000:]}"
    )
    assert router.metrics()["xrouter_shadow_broken"] == 0
    before = router.total("xrouter_records_total")
    send(kafka.bootstrap, topic, sent)
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
    plain.write(folder, new)
    wait_until(lambda: shadow(router)["state"] == "active", SECONDS, lambda: f"the reload; log:\n{router.log[-3000:]}")
    send(kafka.bootstrap, topic, sent)
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
