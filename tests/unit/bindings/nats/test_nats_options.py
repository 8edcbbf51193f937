"""What endpoint options make of a NATS subscription."""

from __future__ import annotations

from typing import Any

import pytest

from bindings.gateways import EndpointSubscription, GatewayError
from bindings.nats.binding import CorePlan, StreamPlan, is_subject, plan_subscriptions


def one(address: str = "a.>", **options: Any) -> EndpointSubscription:
    return EndpointSubscription("/endpoints/e", address, options)


def test_own_options_come_before_those_of_the_connection() -> None:
    assert plan_subscriptions([one(queue="mine")], {"queue": "all"}) == (CorePlan("/endpoints/e", "a.>", "mine"),)
    assert plan_subscriptions([one()], {"queue": "all"}) == (CorePlan("/endpoints/e", "a.>", "all"),)


def test_stream_makes_a_durable_consumer() -> None:
    options: dict[str, Any] = {"stream": "S", "durable": "d", "ack-wait": 5, "deliver": "new"}
    assert plan_subscriptions([one(**options)], {}) == (
        StreamPlan("/endpoints/e", "a.>", "S", "d", 5.0, from_first=False),
    )


def test_durable_has_a_name_that_stays_and_differs_by_subject() -> None:
    first, second = plan_subscriptions([one("a"), one("b")], {"stream": "S"})
    assert isinstance(first, StreamPlan)
    assert isinstance(second, StreamPlan)
    assert first.durable != second.durable
    assert plan_subscriptions([one("a")], {"stream": "S"}) == (first,)
    assert first.durable.startswith("xrouter-e-")


@pytest.mark.parametrize(
    "subscriptions",
    [
        [one("")],
        [one("a b")],
        [one("a..b")],
        [one("a.>.b")],
        [one("a\r\nPUB x 0")],
        [one(queue="a b")],
        [one(queue=1)],
        [one(stream="a.b")],
        [one(stream="S", durable="a*")],
        [one(stream="S", deliver="last")],
        [one(stream="S", ackwait=0)],
        [one(stream="S", ackwait="5")],
        [one("a", stream="S", durable="d"), one("b", stream="S", durable="d")],
    ],
    ids=str,
)
def test_what_no_server_takes_is_refused_with_the_endpoint(subscriptions: list[EndpointSubscription]) -> None:
    with pytest.raises(GatewayError, match="/endpoints/e"):
        plan_subscriptions(subscriptions, {})


@pytest.mark.parametrize(
    ("text", "filter_", "published"),
    [
        ("a.b", True, True),
        ("a.*", True, False),
        (">", True, False),
        ("a*", True, True),
        (".a", False, False),
        ("", False, False),
        ("\ud800", False, False),
        ("a" * 1025, False, False),
    ],
)
def test_subjects(text: str, filter_: bool, published: bool) -> None:
    assert is_subject(text, wildcards=True) is filter_
    assert is_subject(text, wildcards=False) is published
