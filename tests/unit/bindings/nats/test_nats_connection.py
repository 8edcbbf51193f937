"""As whom to connect."""

from __future__ import annotations

from pathlib import Path

import pytest

from bindings.gateways import BrokerLogin, Connection, GatewayError
from bindings.nats.publisher import NatsDialer
from tests.support.nats import key


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.write_text("nothing of use")
    for login in (
        BrokerLogin(seed=odd),
        BrokerLogin(credentials=odd),
        BrokerLogin(seed=tmp_path / "away"),
        BrokerLogin(credentials=tmp_path),
    ):
        with pytest.raises(GatewayError, match=str(tmp_path)):
            NatsDialer(Connection(("host",), login), "n")


def test_a_seed_file_is_taken(tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    seed.write_text(f"{key().seed}\n")
    assert NatsDialer(Connection(("host",), BrokerLogin(seed=seed)), "n").login.seed == seed
