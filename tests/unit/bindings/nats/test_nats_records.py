"""Messages of NATS as rows of the inbox."""

from __future__ import annotations

import pytest

from bindings.nats.binding import FORM, NatsDelivery, StreamPosition, parse_ack_subject, to_row
from bindings.parts import Part, native_of

ACK = b"$JS.ACK.ORDERS.worker.1.42.7.1700000000123456789.0"


def test_core_message_has_subject_reply_and_headers() -> None:
    headers = b"NATS/1.0\r\nce-id: 1\r\nX: \xff\r\nce-id: 2\r\n\r\n"
    row = to_row("/endpoints/e", NatsDelivery(b"a.b", b"answers", b"body", headers), None, 5, 100)
    assert (row.endpoint, row.protocol, row.received, row.body) == ("/endpoints/e", "NATS", 5, b"body")
    assert native_of(row.properties, FORM) == {
        "subject": "a.b",
        "reply-to": "answers",
        "headers": [
            {"name": "ce-id", "value": "1"},
            {"name": "X", "value_base64": "/w=="},
            {"name": "ce-id", "value": "2"},
        ],
    }


def test_stream_message_has_stream_sequence_and_its_own_time_but_no_reply() -> None:
    row = to_row("/endpoints/e", NatsDelivery(b"a.b", ACK, b"", b""), parse_ack_subject(ACK), 5, 100)
    assert row.received == 1_700_000_000_123_456
    assert row.body is None
    assert native_of(row.properties, FORM) == {"subject": "a.b", "stream": "ORDERS", "sequence": 42}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (ACK, StreamPosition(b"ORDERS", 42, 1_700_000_000_123_456)),
        (b"$JS.ACK.hub.hash.S.c.1.42.7.1700000000123456789.0.random", StreamPosition(b"S", 42, 1_700_000_000_123_456)),
        (b"$JS.ACK.hub.hash.S.c.1.42.7.1700000000123456789.0", StreamPosition(b"S", 42, 1_700_000_000_123_456)),
        (b"$JS.ACK.short", None),
        (b"$JS.ACK.S.c.1.x.7.1.0", None),
        (b"_INBOX.abc", None),
        (b"$JS.ACK.S.c.1.42.7.%d.0" % (2**63 - 1), StreamPosition(b"S", 42, (2**63 - 1) // 1000)),
        (b"$JS.ACK.S.c.1.42.7.%d.0" % 2**63, None),
        (b"$JS.ACK.S.c.1.%d.7.1.0" % (2**64 - 1), StreamPosition(b"S", 2**64 - 1, 0)),
        (b"$JS.ACK.S.c.1.%d.7.1.0" % 2**64, None),
        (b"$JS.ACK.S.c.1." + b"9" * 5000 + b".7.1.0", None),
        ("$JS.ACK.S.c.1.\u00b2.7.1.0".encode(), None),
        (b"", None),
    ],
)
def test_where_a_message_is_stored(reply: bytes, expected: StreamPosition | None) -> None:
    assert parse_ack_subject(reply) == expected


def test_oversized_body_is_kept_whole_and_its_size_told() -> None:
    row = to_row("/endpoints/e", NatsDelivery(b"a", b"", b"x" * 11, b""), None, 5, 10)
    assert row.body == b"x" * 11
    assert row.properties[-1] == Part("oversized", b"11", "json")
    assert to_row("/endpoints/e", NatsDelivery(b"a", b"", b"x" * 10, b""), None, 5, 10).body == b"x" * 10


def test_header_name_that_is_no_text_stays_recognisable() -> None:
    row = to_row("/endpoints/e", NatsDelivery(b"a", b"", b"", b"NATS/1.0\r\n\xffx: 1\r\n\r\n"), None, 5, 10)
    assert row.properties[-1] == Part("headers.\\xffx", b"1")
