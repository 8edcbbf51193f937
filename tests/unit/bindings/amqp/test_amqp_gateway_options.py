"""What an AMQP gateway refuses at its start, what it never shows, and how its waits grow."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import proton
import pytest

from bindings.amqp.binding import find_option, node_of
from bindings.amqp.client import LONGEST_WAIT_SECONDS, Dialer, create_backoff
from bindings.amqp.gateway import AmqpGateway
from bindings.amqp.publisher import AmqpSender, _LinkModes
from bindings.gateways import (
    BrokerLogin,
    Connection,
    EndpointSubscription,
    GatewayConfig,
    GatewayError,
    GatewayLimits,
    Tls,
)
from bindings.parts import InboxRow

GOOD = EndpointSubscription("/endpoints/e", "q.a")


class Store:
    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        raise AssertionError("nothing arrives here")


class NoCounters:
    def received(self, endpoint: str) -> None: ...

    def acknowledged(self, endpoint: str) -> None: ...


def gateway(connection: Connection, *subscriptions: EndpointSubscription) -> AmqpGateway:
    return AmqpGateway(GatewayConfig(connection, subscriptions, Store(), "c", GatewayLimits(), NoCounters()))


@pytest.mark.parametrize(
    ("connection", "says"),
    [
        (Connection(()), "needs a URI"),
        (Connection(("localhost:5672",)), "write amqp://host"),
        (Connection(("http://localhost",)), "write amqp://host"),
        (Connection(("amqp://u:secret@:99999",)), "write amqp://host"),
        (Connection(("amqps://h",), tls=Tls(ca=Path("/nowhere/ca.pem"))), "/nowhere/ca.pem cannot be read"),
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


def test_credentials_come_from_the_login_else_from_the_uri_and_are_not_shown() -> None:
    uris = ("amqp://uri%40user:s%3Acret@one:1234", "amqps://two", "amqp://[::1]")
    by_uri, second, third = Dialer(Connection(uris), "c").addresses
    assert (by_uri.username, by_uri.password, by_uri.url) == ("uri@user", "s:cret", "amqp://one:1234")
    assert (second.username, second.url, third.url) == (None, "amqps://two:5671", "amqp://[::1]:5672")
    by_login = Dialer(Connection(uris, BrokerLogin("me", "hidden")), "c").addresses
    assert {(each.username, each.password) for each in by_login} == {("me", "hidden")}
    assert "cret" not in repr(by_uri) and "hidden" not in repr(by_login)


def test_a_password_does_not_go_without_tls_where_tls_is_asked_for() -> None:
    connection = Connection(("amqps://one", "amqp://two"), BrokerLogin("me", "hidden"), Tls())
    with pytest.raises(GatewayError, match=r"amqp://two:5672 does not use TLS; write amqps"):
        Dialer(connection, "c")


@pytest.mark.parametrize("name", ["distributionmode", "distribution-mode", "distribution_mode", "DistributionMode"])
def test_options_are_found_in_any_spelling(name: str) -> None:
    options: dict[str, Any] = {"node": "x", name: "copy"}
    assert find_option(options, "distributionmode") == "copy"


@pytest.mark.parametrize(
    ("options", "node"),
    [({"address": "a", "node": "n"}, "n"), ({"Address": "a"}, "a"), ({"node": ""}, None), ({}, None)],
)
def test_a_node_goes_by_two_names(options: dict[str, Any], node: str | None) -> None:
    assert node_of(options) == node


def test_waits_grow_to_a_limit_and_begin_anew() -> None:
    backoff = create_backoff()
    waits = [backoff.next_pause() for _ in range(40)]
    assert waits[0] < 0.3
    assert LONGEST_WAIT_SECONDS / 2 <= min(waits[20:]) <= max(waits) <= LONGEST_WAIT_SECONDS
    backoff.reset()
    assert backoff.next_pause() < 0.3


def test_a_gateway_that_never_ran_stops_at_once() -> None:
    idle = gateway(Connection(("amqp://h",)), GOOD)
    idle.stop(5.0)
    assert (idle.alive, idle.connected, idle.trouble) == (False, False, "")


def test_a_sending_link_tells_the_broker_its_properties() -> None:
    link = proton.Connection().session().sender("s")
    _LinkModes({"tenant": "a"}).apply(link)
    assert link.properties == {proton.symbol("tenant"): "a"}
    with pytest.raises(GatewayError, match="linkproperties"):
        AmqpSender(Connection(("amqp://h",), options={"link-properties": {"tenant": 7}}), container_id="c")
