"""The outbox keeps nothing for ever, whoever does not take delivery of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from registry.delivery.subscriptions import (
    DELIVERED,
    DeliveryLimits,
    DeliveryResult,
    EventFilter,
    Sender,
    SubscriberDelivery,
)
from registry.store import history
from registry.store.history import SubscriberRow
from tests.support.senders import ScriptedSender
from tests.support.subscriptions import LIMIT, change, outbox, registry, subscribe
from tests.support.waiting import wait_until
from tests.support.web import Webhook

pytestmark = pytest.mark.slow

FEW = DeliveryLimits(max_pause=0.2, max_waiting=10, max_held=4)
SHORT = DeliveryLimits(max_pause=0.2, keep=0.5)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.delivery.subscriber_worker._PRUNE_SECONDS", 0.05)


def unopened() -> Sender:
    raise OSError("there is no such certificate")


@pytest.mark.parametrize(("limits", "most"), [(FEW, 11), (SHORT, 1)], ids=["many", "old"])
def test_a_subscription_that_settings_allow_no_more_pins_nothing(
    tmp_path: Path, limits: DeliveryLimits, most: int
) -> None:
    with registry(tmp_path) as client:
        hook = Webhook()
        with hook:
            subscribe(client, hook)
    with registry(tmp_path, limits, delivery={"allowed": ()}) as client:
        for number in range(20):
            change(client, "m", str(number))
        wait_until(lambda: outbox(tmp_path) <= most, LIMIT, lambda: f"few events; there are {outbox(tmp_path)}")
        assert len(client.get("/subscriptions").json()) == 1


@pytest.mark.parametrize(("limits", "most"), [(FEW, 11), (SHORT, 1)], ids=["many", "old"])
def test_a_target_without_a_client_pins_nothing(tmp_path: Path, limits: DeliveryLimits, most: int) -> None:
    composer = ScriptedSender().delivery(EventFilter()).composer
    delivery = {"subscribers": {"audit": SubscriberDelivery(EventFilter(), composer, unopened)}}
    with registry(tmp_path, limits, delivery=delivery) as client:
        for number in range(20):
            change(client, "m", str(number))
        wait_until(lambda: outbox(tmp_path) <= most, LIMIT, lambda: f"few events; there are {outbox(tmp_path)}")


def test_one_event_waits_behind_any_number_that_nobody_wants(tmp_path: Path) -> None:
    target = ScriptedSender(lambda _: DeliveryResult("away", "no"))
    wants = EventFilter(below=("/messagegroups/wanted",), types=frozenset(("io.xregistry.group.created",)))
    delivery = {"subscribers": {"audit": target.delivery(wants)}}
    with registry(tmp_path, FEW, delivery=delivery, metrics=("127.0.0.1", 0)) as client:
        assert client.put("/messagegroups/wanted", json={}).is_success
        wait_until(lambda: bool(target.waves), LIMIT, "a try")
        for number in range(40):
            change(client, "m", str(number))
        wait_until(lambda: outbox(tmp_path) <= 12, LIMIT, lambda: f"few events; there are {outbox(tmp_path)}")
        tried = len(target.waves)
        wait_until(lambda: len(target.waves) > tried + 1, LIMIT, "the event is tried again")
    assert not target.taken
    target.judge = lambda _: DELIVERED
    with registry(tmp_path, FEW, delivery=delivery):
        wait_until(lambda: bool(target.taken), LIMIT, "the event, after a restart")
    assert target.taken == ["/messagegroups/wanted"]


def test_of_too_many_the_oldest_that_are_wanted_are_dropped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = ScriptedSender(lambda _: DeliveryResult("away", "no"))
    wants = EventFilter(types=frozenset(("io.xregistry.group.created",)))
    names = [f"/messagegroups/g{number}" for number in range(24)]
    with registry(tmp_path, FEW, delivery={"subscribers": {"audit": target.delivery(wants)}}) as client:
        for name in names:  # each is three events, of which one is wanted
            assert client.put(f"{name}/messages/m", json={}).is_success
        wait_until(lambda: target.waves[-1:] == [names[14:]], LIMIT, lambda: f"the newest; there are {target.waves}")
        target.judge = lambda _: DELIVERED
        wait_until(lambda: len(target.taken) >= 10, LIMIT, lambda: f"ten events; there are {target.taken}")
    assert target.taken == names[14:]
    lost = [each.args[0] for each in caplog.records if each.msg.startswith("dropped") and isinstance(each.args, tuple)]
    assert sum(int(str(each)) for each in lost) == 14


def test_a_store_that_fails_as_delivery_begins_leaves_nothing_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = ScriptedSender(lambda _: DeliveryResult("away", "no"))
    with registry(tmp_path, delivery={"subscribers": {"audit": target.delivery(EventFilter())}}) as client:
        change(client, "m", "n")
    listed, failures = history.list_subscribers, [OperationalError("", {}, Exception())]

    def failing(connection: Connection) -> list[SubscriberRow]:
        if failures:
            raise failures.pop()
        return listed(connection)

    monkeypatch.setattr(history, "list_subscribers", failing)
    with registry(tmp_path) as client:
        change(client, "m", "o")
        wait_until(lambda: outbox(tmp_path) == 1, LIMIT, lambda: f"one event; there are {outbox(tmp_path)}")
