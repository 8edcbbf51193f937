"""What a failure holds up: later events of its entity, or all of its subscriber, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.delivery.subscriptions import DELIVERED, DeliveryLimits, DeliveryResult, EventFilter
from tests.support.senders import ScriptedSender
from tests.support.subscriptions import LIMIT, registry
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

CREATED = EventFilter(types=frozenset(("io.xregistry.group.created",)))
LONG = DeliveryLimits(max_pause=3600.0)
REFUSED = {f"/messagegroups/a{number}" for number in range(8)}


def picky(subject: str) -> DeliveryResult:
    return DeliveryResult("held", "no") if subject in REFUSED else DELIVERED


def test_a_few_refused_entities_hold_up_nobody_else(tmp_path: Path) -> None:
    target = ScriptedSender(picky)
    delivery = {"subscribers": {"audit": target.delivery(CREATED)}}
    with registry(tmp_path, LONG, delivery=delivery) as client:
        for names in (sorted(each.rpartition("/")[2] for each in REFUSED), [f"g{n}" for n in range(200)]):
            assert client.post("/", json={"messagegroups": {name: {} for name in names}}).is_success
        wait_until(lambda: len(target.taken) >= 200, LIMIT, lambda: f"200 events; there are {len(target.taken)}")
        tried = len(target.waves)
        wait_until(lambda: len(target.waves) > tried + 8, LIMIT, "refused events that come again and again")
        assert client.put("/messagegroups/last", json={}).is_success
        wait_until(lambda: "/messagegroups/last" in target.taken, LIMIT / 4, "an event behind refused ones")


def test_a_target_that_refuses_everything_is_left_alone(tmp_path: Path) -> None:
    target = ScriptedSender(lambda _: DeliveryResult("held", "no"))
    delivery = {"subscribers": {"audit": target.delivery(CREATED)}}
    with registry(tmp_path, LONG, delivery=delivery) as client:
        assert client.post("/", json={"messagegroups": {f"g{n}": {} for n in range(300)}}).is_success
        wait_until(lambda: len(target.waves) >= 3, LIMIT, "three tries")
        assert len({subject for wave in target.waves for subject in wave}) < 300
