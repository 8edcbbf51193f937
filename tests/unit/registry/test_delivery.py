"""Delivery as a whole: what survives an end, who delivers, what a failure holds up, what is dropped and counted."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from bindings.protocols import BINDINGS
from registry.delivery.subscriptions import (
    DELIVERED,
    DeliveryLimits,
    DeliveryResult,
    EventFilter,
    EventMessages,
    SubscriberDelivery,
)
from registry.delivery.targets import Webhook as Target
from registry.delivery.targets import WebhookSender
from registry.store.engine import Database, ProcessLock
from tests.support.ports import free_ports
from tests.support.senders import ScriptedSender
from tests.support.subscriptions import LIMIT, agreeable, change, outbox, registry, subscribe, until_taken
from tests.support.waiting import wait_until
from tests.support.web import Answer, Webhook

pytestmark = pytest.mark.slow

GROUPS = EventFilter(types=frozenset(("io.xregistry.group.created", "io.xregistry.group.deleted")))


def configured(hook: Webhook, wants: EventFilter = GROUPS) -> dict[str, SubscriberDelivery]:
    composer = EventMessages(BINDINGS["HTTP"], lambda _: f"{hook.url}/hook", "structured")
    return {"audit": SubscriberDelivery(wants, composer, lambda: WebhookSender(Target()))}


def test_subscribers_of_the_settings_need_no_handshake_and_lose_nothing_while_nobody_serves(tmp_path: Path) -> None:
    hook = Webhook(agreeable)
    with hook:
        with registry(tmp_path, delivery={"subscribers": configured(hook)}) as client:
            assert client.put("/messagegroups/a", json={}).is_success
            until_taken(hook, 1)
            assert {each.method for each in hook.seen} == {"POST"}
            hook.close()
            assert client.put("/messagegroups/b", json={}).is_success
        hook.open()
        with registry(tmp_path, delivery={"subscribers": configured(hook)}) as client:
            assert client.put("/messagegroups/c", json={}).is_success
            wait_until(lambda: "/messagegroups/c" in str(hook.taken[-1].body), LIMIT, "the last event")


def test_what_is_held_survives_and_keeps_its_order(tmp_path: Path) -> None:
    stuck = b'"/messagegroups/held"'
    with Webhook(lambda request: Answer(500 if stuck and stuck in request.body else 204)) as hook:
        with registry(tmp_path, delivery={"subscribers": configured(hook)}) as client:
            client.put("/messagegroups/held", json={})
            client.delete("/messagegroups/held")
            for number in range(10):
                client.put(f"/messagegroups/g{number}", json={})
            until_taken(hook, 10)
        stuck = b""
        with registry(tmp_path, delivery={"subscribers": configured(hook)}):
            found = until_taken(hook, 12)
    kinds = [each["type"].rpartition(".")[2] for each in found[10:] if each["subject"] == "/messagegroups/held"]
    assert kinds == ["created", "deleted"]
    assert len(hook.taken) == 12


def test_an_orderly_end_leaves_nothing_that_could_be_delivered(tmp_path: Path) -> None:
    with Webhook(agreeable) as hook:
        with registry(tmp_path) as client:
            subscribe(client, hook)
            for number in range(20):
                change(client, "m", str(number))
        assert len(hook.taken) == 2 + 2 * 20


def test_a_registry_that_ends_before_it_took_delivery_up_delivers_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, asked = Database.try_lock, []

    def busy_at_first(database: Database) -> ProcessLock | None:
        asked.append(database)
        return None if len(asked) == 1 else claim(database)

    monkeypatch.setattr(Database, "try_lock", busy_at_first)
    monkeypatch.setattr("registry.delivery.subscriber_worker._LOCK_SECONDS", LIMIT)
    with Webhook(agreeable) as hook:
        with registry(tmp_path, delivery={"subscribers": configured(hook)}) as client:
            wait_until(lambda: asked, LIMIT, "the first claim")
            assert client.put("/messagegroups/g", json={}).is_success
            assert not hook.taken
        assert len(hook.taken) == 1


def test_one_of_two_registries_delivers_and_the_other_takes_over(tmp_path: Path) -> None:
    with Webhook(agreeable) as hook:
        one, other = (registry(tmp_path, delivery={"subscribers": configured(hook)}) for _ in "ab")
        with ExitStack() as first, other as second:
            clients = first.enter_context(one), second
            for number in range(10):
                assert clients[number % 2].put(f"/messagegroups/g{number}", json={}).is_success
            until_taken(hook, 10)
            first.close()
            assert second.put("/messagegroups/last", json={}).is_success
            found = until_taken(hook, 11)
    assert len(found) == len({each["id"] for each in found}) == 11


def test_delivered_events_are_removed_but_for_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.delivery.subscriber_worker._PRUNE_SECONDS", 0.05)
    with Webhook(agreeable) as hook, registry(tmp_path) as client:
        subscribe(client, hook)
        for number in range(5):
            change(client, "m", str(number))
        until_taken(hook, 12)
        wait_until(lambda: outbox(tmp_path) == 1, LIMIT, "an outbox of one event")
        change(client, "m", "last")
        assert len(until_taken(hook, 14)) == 14


def test_events_that_are_too_old_are_dropped_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = DeliveryLimits(max_pause=0.05, keep=0.5)
    with Webhook(lambda request: agreeable(request) if request.method == "OPTIONS" else Answer(500)) as hook:
        with registry(tmp_path, limits) as client:
            subscribe(client, hook)
            change(client, "m", "n")
            wait_until(lambda: "they are too old" in caplog.text, LIMIT, "dropped events")


def test_metrics_tell_what_each_subscriber_waits_for(tmp_path: Path) -> None:
    (port,) = free_ports(1)

    def told(line: str) -> bool:
        return f"xrouter_registry_{line}\n" in httpx.get(f"http://127.0.0.1:{port}/metrics").text

    with Webhook(agreeable) as hook:
        delivery = {"subscribers": configured(hook)}
        with registry(tmp_path, delivery=delivery, metrics=("127.0.0.1", port)) as client:
            wait_until(lambda: told("delivers 1.0"), LIMIT, "delivery")
            client.put("/messagegroups/a", json={})
            wait_until(lambda: told('events_delivered_total{subscriber="audit"} 1.0'), LIMIT, "one delivered")
            wait_until(lambda: told('events_pending{subscriber="audit"} 0.0'), LIMIT, "none pending")
            hook.close()
            client.put("/messagegroups/b", json={})
            wait_until(lambda: told('events_held{subscriber="audit"} 1.0'), LIMIT, "one held")
            assert not told('events_oldest_seconds{subscriber="audit"} 0.0')
            assert not told('events_failed_total{subscriber="audit"} 0.0')


# What a failure holds up: later events of its entity, or all of its subscriber, and for how long.

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
