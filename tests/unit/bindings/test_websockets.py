"""Addresses over WebSockets: passed over where there are others, and an error that says so where there are none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bindings.amqp.dialing import Dialer
from bindings.gateways import Connection, GatewayError
from bindings.mqtt.addresses import addresses_of
from bindings.nats.connection import dialling_of

Read = Callable[[tuple[str, ...]], list[str]]
READERS: dict[str, Read] = {
    "mqtt": lambda uris: [str(each) for each in addresses_of(Connection(uris))],
    "nats": lambda uris: [f"{each.host}:{each.port}" for each in dialling_of(Connection(uris), "n").places],
    "amqp": lambda uris: [f"{each.host}:{each.port}" for each in Dialer(Connection(uris), "c").addresses],
}


@pytest.mark.parametrize("scheme", READERS)
def test_others_are_taken(scheme: str) -> None:
    assert READERS[scheme](("wss://a.example/x", f"{scheme}://b.example:99", "WS://c.example")) == ["b.example:99"]


@pytest.mark.parametrize("scheme", READERS)
def test_none_but_websockets_is_an_error(scheme: str) -> None:
    with pytest.raises(GatewayError, match=rf"{scheme.upper()} over WebSockets .* is not spoken; give an address such"):
        READERS[scheme](("wss://a.example",))
