"""The Subscriptions API: who may do what, what is refused, and where sinks may not be."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from bindings.http.client import SubscriptionManager
from bindings.http.request import Access
from registry.delivery.subscriptions import DeliveryLimits, DeliverySettings, SubscriptionFilterError, parse_filter
from registry.http.access import Roles
from tests.support.cases import read_cases
from tests.support.registry import Case, run, served
from tests.support.subscriptions import LIMIT, agreeable, change, registry, subscribe, until_taken
from tests.support.waiting import wait_until
from tests.support.web import Webhook

pytestmark = pytest.mark.slow

HOOK = {"protocol": "HTTP", "sink": "https://example.com/hook"}
ACCESS = Access(bearer={"admin": "a", "one": "1", "two": "2", "reader": "r"})
ROLES = Roles(frozenset(("admin",)), {"one": ("/messagegroups/*",), "two": ("/endpoints/*",)})


def of(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    delivery = DeliverySettings(
        allowed=("broker.internal", "10.1.0.0/16"),
        limits=DeliveryLimits(max_subscriptions=5),
        catalog="/messagecatalog",
    )
    folder = tmp_path_factory.mktemp("registry")
    given: dict[str, Any] = {"access": ACCESS, "roles": ROLES, "base": "https://reg.example", "delivery": delivery}
    with served(folder, **given) as found:
        yield found


@pytest.fixture(autouse=True)
def clean(client: httpx.Client) -> Iterator[None]:
    yield
    for each in client.get("/subscriptions", headers=of("a")).json():
        client.delete(f"/subscriptions/{each['id']}", headers=of("a"))


CASES = read_cases(Path(__file__).parents[2] / "cases" / "subscriptions.yaml")


@pytest.mark.parametrize("case", CASES["steps"], ids=lambda case: case["name"])
def test_steps(case: dict[str, Any], client: httpx.Client) -> None:
    run(Case(case["name"], "", case["steps"]), client)


def test_a_large_subscription_is_refused(client: httpx.Client) -> None:
    large = {**HOOK, "types": ["x" * 70_000]}
    assert client.post("/subscriptions", json=large, headers=of("1")).status_code == 413


REFUSED: dict[str, Any] = {**CASES["refused"], "too many types": {**HOOK, "types": ["t"] * 65}}


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused(client: httpx.Client, given: Any) -> None:
    answer = client.post("/subscriptions", json=given, headers=of("a"))
    assert answer.status_code == 400, answer.text
    assert answer.json()["title"]


@pytest.mark.parametrize("given", CASES["taken"].values(), ids=CASES["taken"])
def test_what_can_be_is_taken(client: httpx.Client, given: Any) -> None:
    answer = client.post("/subscriptions", json=given, headers=of("a"))
    assert answer.status_code == 201, answer.text


def test_a_name_that_leads_to_this_machine_is_not_connected_to(tmp_path: Path) -> None:
    with Webhook(agreeable) as hook, registry(tmp_path, delivery={"allowed": ()}) as client:
        numeric = f"https://2130706433:{hook.port}/hook"  # 127.0.0.1 for whoever looks it up
        assert client.post("/subscriptions", json={"protocol": "HTTP", "sink": numeric}).status_code == 201
        change(client, "m", "n")
        with Webhook(agreeable) as other:
            assert client.post("/subscriptions", json={"protocol": "HTTP", "sink": other.url}).status_code == 400
        assert not hook.seen


def test_a_replaced_subscription_goes_on_where_it_was(tmp_path: Path) -> None:
    with Webhook(agreeable) as hook, registry(tmp_path) as client:
        identifier = subscribe(client, hook, types=["io.xregistry.group.created"])
        change(client, "m", "n")
        until_taken(hook, 1)
        given = {"protocol": "HTTP", "sink": f"{hook.url}/other", "types": ["io.xregistry.group.deleted"]}
        assert client.put(f"/subscriptions/{identifier}", json=given).status_code == 200
        client.delete("/messagegroups/g")
        found = until_taken(hook, 2)
    assert [each["type"].rpartition(".")[2] for each in found] == ["created", "deleted"]
    assert hook.taken[1].target == "/other"


def test_an_expired_subscription_ends(tmp_path: Path) -> None:
    with Webhook(agreeable) as hook, registry(tmp_path) as client:
        soon = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()
        path = f"/subscriptions/{subscribe(client, hook, expiration=soon)}"
        wait_until(lambda: client.get(path).status_code == 404, LIMIT, "the end of the subscription")


def test_the_client_of_routers_and_this_api_understand_each_other(tmp_path: Path) -> None:
    with Webhook(agreeable) as hook, registry(tmp_path) as client:
        url = f"{client.base_url}/subscriptions".replace("//subscriptions", "/subscriptions")
        manager = SubscriptionManager(url, lambda: "", ssl.create_default_context, seconds=30.0)
        soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds").replace("+00:00", "Z")
        wanted = {"exact": {"subject": "/messagegroups/g"}, "suffix": {"type": ".created"}}
        sink = f"{hook.url}/hook"
        asked = {"protocol": "HTTP", "sink": sink, "filter": wanted, "expiration": soon}
        made = manager.create(asked)
        assert made.document["expiration"] == soon
        assert manager.renew(made.url, asked).document == made.document
        assert manager.list_delivering_to(sink) == [made]
        change(client, "m", "n")
        (event,) = until_taken(hook, 1)
        assert event["type"] == "io.xregistry.group.created"
        manager.delete(made.url)
        manager.delete(made.url)
        assert manager.list_delivering_to(sink) == []


@pytest.mark.parametrize(("given", "holds"), CASES["filters"])
def test_filters_hold_as_their_dialects_say(given: Any, holds: bool) -> None:
    assert parse_filter(given)({"type": "a.b", "subject": "/x/y", "source": "s"}) is holds


LONG = [{"prefix": {"type": "x" * 1025}}]
MANY = [{"exact": {f"a{number}": "x" for number in range(65)}}] * 2


@pytest.mark.parametrize("given", [*CASES["no filters"], LONG, MANY])
def test_filters_that_cannot_be_are_refused(given: Any) -> None:
    with pytest.raises(SubscriptionFilterError):
        parse_filter(given)
