"""Subscriptions of NATS by endpoint options, its messages as rows, header blocks, and as whom to connect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.gateways import BrokerLogin, Connection, EndpointSubscription, GatewayError
from bindings.nats.binding import (
    NatsDelivery,
    NatsHeader,
    NatsStatus,
    StreamPlan,
    build_header_block,
    is_subject,
    parse_ack_subject,
    parse_headers,
    parse_status,
    plan_subscriptions,
    to_row,
)
from bindings.nats.publisher import NatsDialer
from bindings.parts import Part
from tests.support.cases import read_cases
from tests.support.nats import key

CASES = read_cases(Path(__file__).parents[3] / "cases" / "values" / "nats.yaml")


def one(address: str = "a.>", **options: Any) -> EndpointSubscription:
    return EndpointSubscription("/endpoints/e", address, options)


def test_durable_has_a_name_that_stays_and_differs_by_subject() -> None:
    first, second = plan_subscriptions([one("a"), one("b")], {"stream": "S"})
    assert isinstance(first, StreamPlan)
    assert isinstance(second, StreamPlan)
    assert first.durable != second.durable
    assert plan_subscriptions([one("a")], {"stream": "S"}) == (first,)
    assert first.durable.startswith("xrouter-e-")


@pytest.mark.parametrize("subscriptions", CASES["refused"], ids=str)
def test_what_no_server_takes_is_refused_with_the_endpoint(subscriptions: list[dict[str, Any]]) -> None:
    with pytest.raises(GatewayError, match="/endpoints/e"):
        plan_subscriptions([one(**each) for each in subscriptions], {})


@pytest.mark.parametrize(
    ("text", "filter_", "published"), [*CASES["subjects"], ("\ud800", False, False), ("a" * 1025, False, False)]
)
def test_subjects(text: str, filter_: bool, published: bool) -> None:
    assert is_subject(text, wildcards=True) is filter_
    assert is_subject(text, wildcards=False) is published


# Messages of NATS as rows of the inbox.


@pytest.mark.parametrize(("reply", "place"), [*CASES["stored"], (f"$JS.ACK.S.c.1.{'9' * 5000}.7.1.0", None)])
def test_where_a_message_is_stored(reply: str, place: list[Any] | None) -> None:
    found = parse_ack_subject(reply.encode())
    assert (found and [found.stream.decode(), found.sequence, found.time]) == place


def test_header_name_that_is_no_text_stays_recognisable() -> None:
    row = to_row("/endpoints/e", NatsDelivery(b"a", b"", b"", b"NATS/1.0\r\n\xffx: 1\r\n\r\n"), None, 5, 10)
    assert row.properties[-1] == Part("headers.\\xffx", b"1")


# The header block of NATS messages, read and written byte for byte.


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=9)
VALUES = st.binary(max_size=9).map(lambda value: value.replace(b"\r", b"").replace(b"\n", b"").strip(b" \t"))


def test_repeats_order_letter_case_and_bytes_stay() -> None:
    block = b"NATS/1.0\r\nB: 1\r\nA:\xff\xfe\r\nb:  two words \r\nB: 1\r\nempty:\r\n\r\n"
    assert parse_headers(block) == [
        NatsHeader(b"B", b"1"),
        NatsHeader(b"A", b"\xff\xfe"),
        NatsHeader(b"b", b"two words"),
        NatsHeader(b"B", b"1"),
        NatsHeader(b"empty", b""),
    ]


def test_a_line_without_a_colon_is_a_header_without_a_value() -> None:
    assert parse_headers(b"NATS/1.0\r\nalone\r\n\r\n") == [NatsHeader(b"alone", None)]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\n\r\n", NatsStatus(100, "Idle Heartbeat")),
        (b"NATS/1.0 503\r\n\r\n", NatsStatus(503, "")),
        (b"NATS/1.0\r\nA: 1\r\n\r\n", None),
        (b"NATS/1.0 \xff\xff\xff\r\n\r\n", None),
        (b"", None),
    ],
)
def test_status(block: bytes, expected: NatsStatus | None) -> None:
    assert parse_status(block) == expected


@given(st.lists(st.tuples(NAMES, VALUES)))
def test_what_is_written_reads_back(headers: list[tuple[str, bytes]]) -> None:
    assert [(name.decode(), value) for name, value in parse_headers(build_header_block(headers))] == headers


@pytest.mark.parametrize(
    "header", [("", b""), ("a b", b""), ("a:b", b""), ("\u00e4", b""), ("a\r\nb", b""), ("a", b"1\r\n2"), ("a", b"\n")]
)
def test_what_would_break_the_block_is_refused(header: tuple[str, bytes]) -> None:
    with pytest.raises(ValueError, match="header"):
        build_header_block([header])


# As whom to connect.


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
