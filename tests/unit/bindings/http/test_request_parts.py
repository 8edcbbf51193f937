"""What a request becomes: its parts in order, without credentials, however often a header was met before."""

from __future__ import annotations

from bindings.http.request import RequestHead, RequestParts
from bindings.parts import Part

HEADERS = ((b"host", b"h"), (b"x-a", b"1"), (b"x-key", b"secret"), (b"x-a", b"\xff"), (b"authorization", b"Basic eA=="))
EXPECTED = [
    Part("method", b"POST"),
    Part("path", b"/a%20b"),
    Part("query.q", b"1 2"),
    Part("headers.host", b"h"),
    Part("headers.x-a", b"1"),
    Part("headers.x-a", b"\xff"),
]


def test_parts_keep_order_and_repeats_and_have_no_credentials() -> None:
    maker = RequestParts(frozenset({"x-key"}))
    head = RequestHead("POST", b"/a%20b", b"q=1+2&access_token=t", HEADERS)
    assert [maker.parts_of_head(head), maker.parts_of_head(head)] == [EXPECTED, EXPECTED]


def test_a_stranger_with_ever_new_headers_changes_nothing_for_others() -> None:
    maker = RequestParts()
    for number in range(3_000):
        name = b"x-%d" % number
        assert maker.parts_of_head(RequestHead("POST", b"/", b"", ((name, b""),)))[2] == Part(
            f"headers.x-{number}", b""
        )
    assert maker.parts_of_head(RequestHead("POST", b"/a%20b", b"q=1+2", (*HEADERS[:2], *HEADERS[3:]))) == EXPECTED
