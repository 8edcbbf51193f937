"""``xrouter plan`` compares columns; that must be what comparing the outcomes of ``xrouter test`` one by one gives."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from catalog.load import load
from catalog.model import Catalog
from router.cli import run_command_line
from router.commands.emit.producer import MessageProducer, encode_record_line
from router.commands.test.runner import RouterEvaluator
from router.settings import load_settings
from tests.support.cases import FOLDER

MARKET: Final = FOLDER / "market.xreg.json"
WORDS: Final = ("store", "till", "record", "receipt", "order", "fridge")
NOW: Final = "2026-03-04T05:06:07.008Z"
Tree = dict[str, Any]


def messages(tree: Tree, group: str) -> Tree:
    found: Tree = tree["messagegroups"][group]["messages"]
    return found


def add(old: Tree, new: Tree) -> None:
    del messages(old, "Market.Tills")["Market.Tills.DrawerOpened"]


def remove(old: Tree, new: Tree) -> None:
    del messages(new, "Market.Orders")["Market.Orders.Paid"]


def narrow(old: Tree, new: Tree) -> None:
    kind = messages(new, "Market.Orders")["Market.Orders.Collected"]
    kind["envelopemetadata"]["source"] = {"value": "/stores/store-1/webshop"}


def change_template(old: Tree, new: Tree) -> None:
    order = messages(new, "Market.Orders")["Market.Orders.Event"]["envelopemetadata"]
    order["subject"]["value"] = "orders/{number}"


def move(old: Tree, new: Tree) -> None:
    group = messages(new, "Market.ColdChain")
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
