"""Events to webhooks: the handshake, what is sent, and what answers mean (CloudEvents webhook specification)."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.subscriptions import ALLOWS, LIMIT, agreeable, change, events, registry, subscribe, until_taken
from tests.support.waiting import wait_until
from tests.support.web import Answer, Taken, Webhook

pytestmark = pytest.mark.slow

ONE = {"filters": [{"exact": {"type": "io.xregistry.resource.updated"}}]}


def test_events_are_as_the_specification_has_them(tmp_path: Path) -> None:
    with Webhook(agreeable) as hook, registry(tmp_path, base="https://reg.example") as client:
        subscribe(client, hook)
        answer = client.put("/messagegroups/g/messages/m", json={"name": "n"})
        found = {each["type"]: each for each in until_taken(hook, 4)}
        interaction = answer.headers["xRegistry-xregcorrelationid"]
        at = answer.json()["modifiedat"]
    shared = {"specversion": "1.0", "source": "https://reg.example", "time": at, "xregcorrelationid": interaction}
    assert all(shared.items() <= each.items() for each in found.values())
    assert len({each["id"] for each in found.values()}) == 4
    assert found["io.xregistry.group.created"]["subject"] == "/messagegroups/g"
    assert "data" not in found["io.xregistry.group.created"]
    assert set(found["io.xregistry.registry.updated"]["data"]["changed"]) >= {"messagegroups", "messagegroupscount"}
    asked, first = hook.seen[0], hook.taken[0]
    assert (asked.method, asked.header("WebHook-Request-Origin")) == ("OPTIONS", "reg.example")
    assert first.header("WebHook-Request-Origin") == "reg.example"
    assert first.header("Content-Type") == "application/cloudevents+json"


def test_events_come_in_binary_mode_when_that_is_asked_for(tmp_path: Path) -> None:
    with Webhook(agreeable) as hook, registry(tmp_path) as client:
        subscribe(client, hook, protocolsettings={"mode": "binary", "headers": {"X-Own": "yes"}})
        change(client, "m", "n")
        until_taken(hook, 4)
        found = next(each for each in hook.taken if each.header("ce-type") == "io.xregistry.registry.updated")
    assert found.header("content-type") == "application/json" and found.body.startswith(b'{"changed":')
    assert found.header("x-own") == "yes" and found.header("ce-subject") == "/"


def test_events_of_the_message_catalog_come_to_those_who_ask(tmp_path: Path) -> None:
    wanted = {"filter": {"prefix": {"subject": "/messagecatalog/g"}}}
    with Webhook(agreeable) as hook, registry(tmp_path, base="https://reg.example") as client:
        subscribe(client, hook, source="https://reg.example/", **wanted)
        change(client, "m", "n")
        until_taken(hook, 3)
        client.delete("/messagegroups/g/messages/m")
        found = until_taken(hook, 6)
    path = "/messagecatalog/g/messagedefinitions/m"
    made = {(each["type"].removeprefix("io.cloudevents.messagecatalog."), each["subject"]) for each in found}
    assert {("updated.v1", f"{path}/versions/1"), ("updated.v1", path), ("updated.v1", "/messagecatalog/g")} <= made
    assert {("deleted.v1", f"{path}/versions/1"), ("deleted.v1", path)} <= made
    assert all(each["source"] == "https://reg.example" and "data" not in each for each in found)


def test_both_events_of_one_change_have_ids_of_their_own(tmp_path: Path) -> None:
    types = ["io.xregistry.group.created", "io.cloudevents.messagecatalog.updated.v1"]
    with Webhook(agreeable) as hook, registry(tmp_path, delivery={"catalog": "/messagecatalog"}) as client:
        subscribe(client, hook, types=types)
        assert client.put("/messagegroups/g", json={}).is_success
        found = until_taken(hook, 2)
    assert {each["type"] for each in found} == set(types)
    assert len({(each["source"], each["id"]) for each in found}) == 2


def test_a_target_that_allows_nothing_gets_nothing(tmp_path: Path) -> None:
    with Webhook(lambda _: Answer(200)) as hook, registry(tmp_path) as client:
        subscribe(client, hook)
        change(client, "m", "n")
        wait_until(lambda: len(hook.seen) > 2, LIMIT, "being asked again")
        assert {each.method for each in hook.seen} == {"OPTIONS"}
        hook.answer = agreeable
        until_taken(hook, 4)


def test_a_target_may_allow_later_by_the_callback(tmp_path: Path) -> None:
    def silent(request: Taken) -> Answer:
        return Answer(200 if request.method == "OPTIONS" else 204)

    with Webhook(silent) as hook, registry(tmp_path) as client:
        subscribe(client, hook)
        change(client, "m", "n")
        wait_until(lambda: bool(hook.seen), LIMIT, "the handshake")
        parts = urlsplit(hook.seen[0].header("WebHook-Request-Callback"))
        path = f"{parts.path!s}?{parts.query!s}"
        assert client.get(f"{path}x").status_code == 404
        assert client.get(path, headers={"WebHook-Allowed-Rate": "many"}).status_code == 400
        assert not hook.taken
        assert client.get(path, headers={"WebHook-Allowed-Rate": "600"}).status_code == 204
        until_taken(hook, 4)


def test_the_rate_that_a_target_allows_is_kept(tmp_path: Path) -> None:
    def slow(request: Taken) -> Answer:
        return Answer(200, {**ALLOWS, "WebHook-Allowed-Rate": "2"}) if request.method == "OPTIONS" else Answer(204)

    with Webhook(slow) as hook, registry(tmp_path) as client:
        subscribe(client, hook)
        change(client, "m", "n")
        until_taken(hook, 2)
        other = Webhook(agreeable)
        with other:
            subscribe(client, other)
            change(client, "o", "n")
            until_taken(other, 3)
        assert len(hook.taken) == 2


def test_gone_ends_a_subscription(tmp_path: Path) -> None:
    def gone(request: Taken) -> Answer:
        return agreeable(request) if request.method == "OPTIONS" else Answer(410)

    with Webhook(gone) as hook, registry(tmp_path) as client:
        identifier = subscribe(client, hook)
        change(client, "m", "n")
        path = f"/subscriptions/{identifier}"
        wait_until(lambda: client.get(path).status_code == 404, LIMIT, "the end of the subscription")


def test_gone_does_not_end_a_subscription_that_was_replaced_meanwhile(tmp_path: Path) -> None:
    replaced = False

    def gone_once(request: Taken) -> Answer:
        nonlocal replaced
        if request.method == "OPTIONS" or replaced:
            return agreeable(request)
        assert client.put(
            f"/subscriptions/{identifier}", json={"protocol": "HTTP", "sink": f"{hook.url}/hook"}
        ).is_success
        replaced = True
        return Answer(410)

    with Webhook(agreeable) as hook, registry(tmp_path) as client:
        identifier = subscribe(client, hook)
        hook.answer = gone_once
        change(client, "m", "n")
        until_taken(hook, 4)
        assert client.get(f"/subscriptions/{identifier}").is_success


@pytest.mark.parametrize("status", [400, 404, 503])
def test_what_is_not_taken_comes_again_with_the_same_id(tmp_path: Path, status: int) -> None:
    answers = [Answer(status), Answer(status)]

    def failing(request: Taken) -> Answer:
        return agreeable(request) if request.method == "OPTIONS" or not answers else answers.pop()

    with Webhook(failing) as hook, registry(tmp_path) as client:
        subscribe(client, hook, types=["io.xregistry.group.created"])
        change(client, "m", "n")
        (taken,) = until_taken(hook, 1)
    posts = [each.body for each in hook.seen if each.method == "POST"]
    assert len(posts) == 3 and len(set(posts)) == 1
    assert taken["type"] == "io.xregistry.group.created"


def test_retry_after_is_waited_for(tmp_path: Path) -> None:
    times: list[float] = []

    def busy(request: Taken) -> Answer:
        if request.method == "OPTIONS":
            return agreeable(request)
        times.append(time.monotonic())
        return Answer(429, {"Retry-After": "2"}) if len(times) == 1 else Answer(204)

    with Webhook(busy) as hook, registry(tmp_path) as client:
        subscribe(client, hook, types=["io.xregistry.group.created"])
        change(client, "m", "n")
        until_taken(hook, 1)
    assert times[1] - times[0] >= 2


def test_an_event_that_is_refused_holds_its_entity_alone(tmp_path: Path) -> None:
    stuck = True

    def picky(request: Taken) -> Answer:
        return Answer(500) if stuck and b'"/messagegroups/g/messages/m"' in request.body else agreeable(request)

    with Webhook(picky) as hook, registry(tmp_path) as client, Webhook(agreeable) as other:
        change(client, "m", "0")
        change(client, "o", "0")
        subscribe(client, hook, **ONE)
        subscribe(client, other, **ONE)
        for name in "123":
            change(client, "m", name)
            change(client, "o", name)
        until_taken(hook, 3)
        until_taken(other, 6)
        assert {each["subject"] for each in events(hook)} == {"/messagegroups/g/messages/o"}
        stuck = False
        found = until_taken(hook, 6)
    held = [each["time"] for each in found if each["subject"] == "/messagegroups/g/messages/m"]
    assert len(held) == 3 and held == sorted(held)


def test_a_target_that_was_away_gets_all_in_order(tmp_path: Path) -> None:
    hook = Webhook(agreeable)
    with hook, registry(tmp_path) as client:
        change(client, "m", "0")
        subscribe(client, hook, **ONE)
        hook.close()
        for number in range(20):
            change(client, "m", f"n{number}")
        hook.open()
        times = [each["time"] for each in until_taken(hook, 20)]
    assert times == sorted(times) and len(set(times)) == 20


def test_an_answer_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    def talkative(request: Taken) -> Answer:
        return Answer(200, ALLOWS, b"x" * 2**20)

    with Webhook(talkative) as hook, registry(tmp_path) as client:
        subscribe(client, hook)
        change(client, "m", "n")
        until_taken(hook, 4)
