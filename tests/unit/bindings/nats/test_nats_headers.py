"""The header block of NATS messages, read and written byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.nats.binding import NatsHeader, NatsStatus, build_header_block, parse_headers, parse_status

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
