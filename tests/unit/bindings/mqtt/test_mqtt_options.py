"""Where to connect and on what terms, and what is said of wrong ones."""

from __future__ import annotations

import pytest

from bindings.background import Backoff
from bindings.gateways import Connection
from bindings.mqtt.client import LinkConnector, LinkError, LinkOwner
from tests.support.ports import free_ports


def test_pauses_grow_to_a_bound() -> None:
    backoff = Backoff(1.0, 8.0)
    pauses = [backoff.next_pause() for _ in range(6)]
    assert all(each / 2 <= pause <= each for pause, each in zip(pauses, (1, 2, 4, 8, 8, 8), strict=True))
    backoff.reset()
    assert backoff.next_pause() <= 1.0


def test_after_an_address_that_refuses_comes_the_next() -> None:
    ports = free_ports(2)
    uris = tuple(f"mqtt://127.0.0.1:{port}" for port in ports)
    connector = LinkConnector(Connection(uris), "MQTT/5.0", "c", clean=True)
    for port in (*ports, *ports):
        with pytest.raises(LinkError, match=f"cannot connect to 127.0.0.1:{port}"):
            connector.open_link(LinkOwner())
