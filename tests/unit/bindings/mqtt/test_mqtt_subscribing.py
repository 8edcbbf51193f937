"""Whose a message is, and which deliveries are copies of one."""

from __future__ import annotations

import pytest

from bindings.gateways import EndpointSubscription, GatewayError
from bindings.mqtt.gateway import CopyDetector, SubscriptionTable, find_route
from bindings.mqtt.messages import MqttDelivery


def table(*pairs: tuple[str, str]) -> SubscriptionTable:
    return SubscriptionTable([EndpointSubscription(endpoint, address) for endpoint, address in pairs])


def delivery(payload: str, *subscriptions: int) -> MqttDelivery:
    return MqttDelivery("a/b", payload.encode(), 1, False, 1, (), subscriptions)


def stored(*deliveries: MqttDelivery, overlapping: int = 2) -> list[str]:
    copies = CopyDetector()
    return [each.payload.decode() for each in deliveries if not copies.is_repeat(each, overlapping)]


def test_a_message_is_the_first_endpoints_whose_filter_takes_it() -> None:
    both = table(("one", "a/+"), ("two", "+/b"), ("three", "a/b"))
    assert both.filters == ("a/+", "+/b")
    for topic, endpoint, filters in (("a/b", "one", 2), ("x/b", "two", 1), ("a/c", "one", 1)):
        found = both.find_route(topic)
        assert found is not None
        assert (found.endpoint, len(found.filters)) == (endpoint, filters)
    assert both.find_route("x/y") is None


def test_a_shared_channel_is_subscribed_to_once() -> None:
    assert table(("one", "a"), ("two", "a")).filters == ("a",)
    assert SubscriptionTable([EndpointSubscription("one", "a", {"group": "g"})]).filters == ("$share/g/a",)


def test_what_was_replaced_still_has_an_endpoint() -> None:
    tables = [table(("two", "b")), table(("one", "a"))]
    found = [find_route(tables, topic) for topic in ("a", "b", "c")]
    assert [each and each.endpoint for each in found] == ["one", "two", None]


def test_no_filters() -> None:
    with pytest.raises(GatewayError):
        table(("one", "a/#/b"))


def test_copies_are_stored_once_and_repeated_messages_each() -> None:
    assert stored(delivery("x", 1), delivery("x", 2)) == ["x"]
    assert stored(delivery("x", 1, 2)) == ["x"]
    assert stored(delivery("x", 1, 2), delivery("x", 1, 2)) == ["x", "x"]
    assert stored(delivery("x", 1), delivery("x", 2), delivery("x", 1), delivery("x", 2)) == ["x", "x"]
    assert stored(delivery("x", 1), delivery("x", 1), delivery("x", 2), delivery("x", 2)) == ["x", "x"]
    assert stored(delivery("x", 2), delivery("y", 1), delivery("x", 1), delivery("y", 2)) == ["x", "y"]


def test_a_message_that_only_one_subscription_brought_is_stored() -> None:
    assert stored(delivery("x", 2), delivery("y", 2)) == ["x", "y"]
    assert stored(delivery("x", 2), delivery("x", 2), delivery("x", 1)) == ["x", "x"]
    assert stored(delivery("x", 1), delivery("x", 1), overlapping=1) == ["x", "x"]
    assert stored(delivery("x"), delivery("x")) == ["x", "x"]
