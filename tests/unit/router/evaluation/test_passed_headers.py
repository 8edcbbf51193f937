"""Headers that go on with a record which becomes an event."""

from __future__ import annotations

from bindings.envelope import Envelope
from bindings.parts import Part
from bindings.protocols import BINDINGS
from catalog.protocols.properties import CONNECTION_HEADERS
from router.evaluation.forwarding import forwarded_header_name
from router.evaluation.outputs import _forwarded_headers
from router.matching.record_columns import ExactReading

KEPT = ("x-receipt", "accept", "date")


def test_no_header_that_speaks_of_the_connection_goes_on() -> None:
    parts = [Part(f"headers.{name}", b"v") for name in (*sorted(CONNECTION_HEADERS), *KEPT)]
    reading = ExactReading(parts, b"", Envelope("native"))
    assert {"proxy-connection", "trailer", "upgrade"} < CONNECTION_HEADERS
    assert _forwarded_headers(reading, list(BINDINGS).index("HTTP")) == [(name, b"v") for name in KEPT]


def test_such_names_of_other_protocols_say_nothing_of_a_connection() -> None:
    assert (
        forwarded_header_name("user_properties.host") == forwarded_header_name("application-properties.host") == "host"
    )
    assert (
        forwarded_header_name("headers.host")
        is forwarded_header_name("query.host")
        is forwarded_header_name("path")
        is None
    )
