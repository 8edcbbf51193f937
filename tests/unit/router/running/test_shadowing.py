"""A shadow catalog is read as the active one is; what is wrong with it is told, and nothing waits for it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from catalog.load import load
from router.batches.plans import PlanCache
from router.evaluation.outputs import ROUTED, Tally
from router.evaluation.plan import Plan
from router.logs import configure_logs
from router.running.reload import ShadowReloader
from router.settings import LogSettings, settings_from_dict
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from tests.support.ports import free_ports
from tests.support.spark_cluster import catalog, message
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
SECONDS: Final = 120.0
PLANT: Final = "/endpoints/plant"
Tree = dict[str, Any]


class Sent:
    """What a session sends to its workers, of whom there are none here."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.judges: list[Any] = []

    def broadcast(self, value: Any) -> SimpleNamespace:
        """Keep it."""
        self.judges.append(value)
        return SimpleNamespace(value=value)


class Running:
    """The plans of a router whose shadow catalog is ``next.json``."""

    def __init__(self, folder: Path, state: StateFolder, active: Tree) -> None:
        self.folder, self.metrics, self.sent = folder, Metrics(), Sent()
        self.write("catalog.json", active)
        told = {
            "catalog": {
                "shadow": str(folder / "next.json"),
                "poll": "10ms",
                "network": True,
                "allow_addresses": ["127.0.0.1"],
            },
            "sinks": {"out": {"type": "jsonl", "path": "out"}},
            "routes": [{"to": ["out"]}],
            "dead_letters": {"sinks": ["out"]},
        }
        self.settings = settings_from_dict(told, {}, folder)
        self.plans = PlanCache(cast(Any, self.sent), state.batches, self.plan("catalog.json"), self.metrics)
        self.plans.activate(self.plans.active)

    def write(self, name: str, tree: Tree | str) -> None:
        """Replace a document."""
        beside = self.folder / f"{name}.new"
        beside.write_text(tree if isinstance(tree, str) else json.dumps(tree))
        beside.replace(self.folder / name)

    def plan(self, name: str) -> Plan:
        """Return the plan of a document."""
        return Plan(load([self.folder / name]), self.settings)

    def begin(self) -> ShadowReloader:
        """Begin to look after the shadow."""
        return ShadowReloader(self.plans, self.metrics.shadow)

    def until(self, shadowing: ShadowReloader, state: str, *, broken: bool = False) -> Tree:
        """Check until the shadow is told to be so."""

        def so() -> bool:
            shadowing.judge_if_found()
            told = self.told()
            return told["state"] == state and bool(told["reason"]) is broken

        wait_until(so, SECONDS, lambda: f"the shadow to be {state}: {self.told()}")
        return self.told()

    def told(self) -> Tree:
        """Return what is told of it."""
        told = self.metrics.shadow.to_json()
        assert told is not None
        return told


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with StateFolder.open(tmp_path / "state") as state:
        yield Running(tmp_path, state, catalog())


def more(*names: str) -> Tree:
    tree = copy.deepcopy(catalog())
    tree["messagegroups"]["Plant"]["messages"].update({name: message(name.lower()) for name in names})
    return tree


def test_it_judges_beside_the_active_one_from_its_first_look_to_its_reload(running: Running) -> None:
    running.write("next.json", more("Door"))
    told = running.until(running.begin(), "judging")
    active, shadow = running.plans.active, running.plan("next.json")
    assert (told["before"], told["after"], told["definitions"]) == (active.epoch, shadow.epoch, 4)
    current = running.plans.current()
    beside = current.judge.value.shadow
    assert beside is not None and (beside.active_epoch, beside.shadow_epoch) == (active.epoch, shadow.epoch)
    alone = current.without_shadow
    assert alone is not None and alone.judge.value.shadow is None and alone.writer is current.writer
    assert running.plans.pinned(active.id) is current

    running.plans.activate(shadow)
    assert running.told()["state"] == "active"
    assert running.plans.current().without_shadow is None
    # A batch that was begun before goes on by its plan.
    assert running.plans.pinned(active.id).plan is active


def test_a_broken_one_is_told_and_the_last_good_one_goes_on(running: Running) -> None:
    running.write("next.json", "{")
    shadowing = running.begin()
    told = running.until(shadowing, "loading", broken=True)
    assert told["findings"][0]["rule"] == "unreadable-document"
    assert running.plans.current().without_shadow is None
    running.write("next.json", more("Door"))
    good = running.until(shadowing, "judging")["after"]
    (running.folder / "next.json").unlink()
    assert running.until(shadowing, "judging", broken=True)["after"] == good
    running.write("next.json", more("Door", "Window"))
    assert running.until(shadowing, "judging")["definitions"] == 5


def test_it_is_refused_for_what_a_reload_would_refuse_and_for_no_more(tmp_path: Path) -> None:
    wrong = {"Wrong": {"basemessage": "/messagegroups/Plant/messages/Wrong"}}
    active = catalog()
    active["messagegroups"]["Plant"]["messages"] |= wrong
    with StateFolder.open(tmp_path / "state") as state:
        running = Running(tmp_path, state, active)
        assert [each.severity for each in running.plans.active.catalog.findings].count("error")
        new = more("Door")
        new["messagegroups"]["Plant"]["messages"] |= wrong
        running.write("next.json", new)
        shadowing = running.begin()
        (note,) = running.until(shadowing, "judging")["notes"]
        assert note.startswith("the new catalog has 1 error")
        new["messagegroups"]["Plant"]["messages"]["Worse"] = {"basemessage": "/messagegroups/Plant/messages/Worse"}
        running.write("next.json", new)
        told = running.until(shadowing, "judging", broken=True)
        assert told["reason"].startswith("1 error: ") and told["definitions"] == 4


def test_one_that_was_set_aside_comes_back_when_it_changes(running: Running) -> None:
    running.write("next.json", more("Door"))
    shadowing = running.begin()
    running.until(shadowing, "judging")
    running.plans.set_aside_shadow("batch 3 failed with it")
    assert running.told()["state"] == "set-aside" and running.plans.current().without_shadow is None
    running.write("next.json", more("Window"))
    running.until(shadowing, "judging")
    assert running.plans.current().without_shadow is not None


def test_one_that_waits_is_told_until_it_is_what_it_was_again(running: Running) -> None:
    running.write("next.json", more("Door"))
    shadowing = running.begin()
    good = running.until(shadowing, "judging")["after"]
    waits = more("Door")
    (port,) = free_ports(1)
    schema = {"dataschemaformat": "JsonSchema/draft-07", "dataschemauri": f"http://127.0.0.1:{port}/s"}
    waits["messagegroups"]["Plant"]["messages"]["Door"] |= schema
    running.write("next.json", waits)
    told = running.until(shadowing, "judging", broken=True)
    assert "unreachable references" in told["reason"] and told["after"] == good
    running.write("next.json", more("Door"))
    assert running.until(shadowing, "judging")["after"] == good


def test_what_is_active_already_has_no_shadow(running: Running) -> None:
    running.write("next.json", catalog())
    running.until(running.begin(), "active")
    assert running.plans.current().without_shadow is None and len(running.sent.judges) == 1


def test_a_router_that_ends_when_it_is_done_waits_for_it_and_logs_the_sums(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logs(LogSettings())  # An earlier test may have left a log that goes elsewhere.
    running.write("next.json", more("Door"))
    shadowing = running.begin()
    shadowing.wait_for_first()
    told = running.told()
    assert told["state"] == "judging"
    tally = Tally()
    tally.records[PLANT, ROUTED, ""] = 5
    pair = (told["before"], told["after"], PLANT)
    tally.shadow.update({(*pair, "changed", "", ""): 3, (*pair, "event", "a", "a"): 3})
    running.metrics.outcomes(tally)
    shadowing.log_summary()
    out, err = capsys.readouterr()
    assert "shadow catalog compared" in out + err and "left_out=2" in out + err and "{'event': 3}" in out + err
