"""What an AMQP gateway refuses at its start, what it never shows, and how its waits grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bindings.amqp.binding import find_option
from bindings.gateways import Connection, EndpointSubscription, Gateway, GatewayError, Tls
from tests.support.gateways import Rows, make_gateway

GOOD = EndpointSubscription("/endpoints/e", "q.a")


def gateway(connection: Connection, *subscriptions: EndpointSubscription) -> Gateway:
    return make_gateway("AMQP/1.0", connection, subscriptions, Rows())


@pytest.mark.parametrize(
    ("connection", "says"),
    [
        (Connection(("localhost:5672",)), "write amqp://host"),
        (Connection(("amqps://h",), tls=Tls(certificate=Path("/nowhere/c.pem"))), "set both"),
        (
            Connection(("amqps://h",), tls=Tls(certificate=Path("/nowhere/c.pem"), key=Path("/nowhere/k.pem"))),
            "/nowhere/c.pem with the key /nowhere/k.pem cannot be used",
        ),
        (Connection(("amqp://h",), options={"connection-properties": {"a": 1}}), "connectionproperties"),
    ],
)
def test_what_no_waiting_mends_is_said_at_the_start(connection: Connection, says: str) -> None:
    with pytest.raises(GatewayError, match=says) as caught:
        gateway(connection, GOOD).start()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("subscription", "says"),
    [
        (EndpointSubscription("/endpoints/e", ""), "/endpoints/e has no AMQP node"),
        (EndpointSubscription("/endpoints/e", "q", {"distribution-mode": "share"}), "move or copy"),
        (EndpointSubscription("/endpoints/e", "q", {"link-properties": ["a"]}), "linkproperties"),
    ],
)
def test_subscriptions_are_checked_at_the_start_and_when_replaced(
    subscription: EndpointSubscription, says: str
) -> None:
    with pytest.raises(GatewayError, match=says):
        gateway(Connection(("amqp://h",)), subscription).start()
    with pytest.raises(GatewayError, match=says):
        gateway(Connection(("amqp://h",)), GOOD).replace_subscriptions([subscription])


def test_a_gateway_that_never_ran_stops_at_once() -> None:
    idle = gateway(Connection(("amqp://h",)), GOOD)
    idle.stop(5.0)
    assert (idle.alive, idle.connected, idle.trouble) == (False, False, "")


@pytest.mark.parametrize("name", ["distributionmode", "distribution-mode", "distribution_mode", "DistributionMode"])
def test_options_are_found_in_any_spelling(name: str) -> None:
    options: dict[str, Any] = {"node": "x", name: "copy"}
    assert find_option(options, "distributionmode") == "copy"
