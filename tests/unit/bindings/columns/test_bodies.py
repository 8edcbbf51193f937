"""Bodies that may be events in plain JSON: none is missed that the exact answer takes for one."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from bindings.columns.envelopes import may_be_events
from bindings.events import looks_like_event

EVENT = b'{"specversion":"1.0"}'
PIECES = (
    EVENT,
    b"{",
    b"}",
    b" \r\n\t",
    b'"specversion"',
    b":",
    b'"1.0"',
    b"\\u0073pecversion",
    b"spec",
    b"version",
    b"",
)
bodies = st.one_of(st.none(), st.binary(max_size=4), st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join))


@given(st.lists(bodies, max_size=12), st.integers(0, 3))
def test_no_event_is_missed(given: list[bytes | None], begin: int) -> None:
    marked = may_be_events(pa.array(given, pa.binary())[begin:])
    assert len(marked) == len(given[begin:])
    for body, mark in zip(given[begin:], marked.tolist(), strict=True):
        assert mark or not looks_like_event(body)


def test_other_bodies_are_passed_over() -> None:
    given = [
        None,
        b"",
        b'{"a":1}',
        b"specversion",
        b"[" + EVENT + b"]",
        EVENT,
        b"\n" + EVENT,
        b'{"a":"\\u0041"}',
        b"{}",
    ]
    assert may_be_events(pa.array(given, pa.binary())).tolist() == [False] * 5 + [True] * 3 + [False]
