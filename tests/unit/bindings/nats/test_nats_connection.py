"""Where to connect and as whom, and the parts of nats-py that are not public but relied upon."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.protocol.parser import Parser

from bindings.gateways import BrokerLogin, Connection, GatewayError, Tls
from bindings.nats.publisher import create_dialer
from tests.support.nats import key


def test_nats_py_still_gives_raw_messages_to_the_method_that_is_overridden() -> None:
    """The parser hands subject, reply, data and the header block over as bytes, before anything is made of them."""
    assert list(inspect.signature(Client._process_msg).parameters) == [
        "self",
        "sid",
        "subject",
        "reply",
        "data",
        "headers",
    ]
    assert inspect.iscoroutinefunction(Client._process_msg)
    assert "await self.nc._process_msg(sid, subject, reply, payload, hdr)" in inspect.getsource(Parser.parse)


def test_nats_py_still_numbers_subscriptions_before_it_first_waits() -> None:
    source = inspect.getsource(Client.subscribe)
    assert "self._sid += 1" in source
    assert source.index("self._sid += 1") < source.index("await self._send_subscribe")


def test_nats_py_still_reads_in_one_task_and_reports_broken_connections_to_one_method() -> None:
    assert "create_task(self._read_loop())" in inspect.getsource(Client._process_connect_init)
    assert list(inspect.signature(Client._process_op_err).parameters) == ["self", "e"]
    assert "self._process_op_err(" in inspect.getsource(Client._read_loop)
    assert "if self._pending_data_size > 0:" in inspect.getsource(Client._close)


def test_nats_py_still_sends_commands_as_they_are_and_credentials_with_the_connect_command() -> None:
    assert list(inspect.signature(Client._send_command).parameters) == ["self", "cmd", "priority"]
    assert list(inspect.signature(Client._connect_command).parameters) == ["self"]
    assert "self._connect_command()" in inspect.getsource(Client._process_connect_init)


def test_credentials_are_taken_out_of_addresses_and_shown_nowhere() -> None:
    dialling = create_dialer(Connection(("nats://us%40er:se%2Fcret@host:4333", "tls://[::1]", "plain")), "n")
    first, second, third = dialling.addresses
    assert (first.username, first.password, first.url) == ("us@er", "se/cret", "nats://host:4333")
    assert (second.url, second.tls) == ("tls://[::1]:4222", True)
    assert (third.url, third.tls) == ("nats://plain:4222", False)
    assert "cret" not in f"{dialling!r} {first} {BrokerLogin(password='cret', token='cret')!r}"


def test_tls_settings_forbid_a_connection_in_the_clear() -> None:
    assert [address.url for address in create_dialer(Connection(("nats://host",), tls=Tls()), "n").addresses] == [
        "tls://host:4222"
    ]


@pytest.mark.parametrize("uris", [(), ("nats://",), ("nats://host:port",), ("ws://u:secret@host",), ("mqtt://host",)])
def test_an_address_of_no_form_is_refused_without_its_secrets(uris: tuple[str, ...]) -> None:
    with pytest.raises(GatewayError) as refused:
        create_dialer(Connection(uris), "n")
    assert "secret" not in str(refused.value)


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
            create_dialer(Connection(("host",), login), "n")
    for tls in (Tls(ca=odd), Tls(ca=tmp_path / "away"), Tls(certificate=odd, key=odd)):
        with pytest.raises(GatewayError, match=str(tmp_path)):
            create_dialer(Connection(("host",), tls=tls), "n")
    with pytest.raises(GatewayError, match="key"):
        create_dialer(Connection(("host",), tls=Tls(certificate=odd)), "n")


def test_a_seed_file_is_taken(tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    seed.write_text(f"{key().seed}\n")
    assert create_dialer(Connection(("host",), BrokerLogin(seed=seed)), "n").login.seed == seed
