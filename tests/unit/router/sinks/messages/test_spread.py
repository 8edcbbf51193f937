"""The cap on distinct destinations of a sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from bindings.protocols import BINDINGS, sending_of
from bindings.sending import MessageRefusal, Outbound
from router.settings.routes import parse_address
from router.sinks.contract import Commit
from router.sinks.messages.sink import MESSAGE, ConfirmedSink, DestinationCap, TemplateComposer, get_destination_cap


class Taking:
    """A target that takes everything, and remembers where it went."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def send(self, messages: Sequence[Outbound]) -> list[MessageRefusal | None]:
        self.addresses += [each.address for each in messages]
        return [None] * len(messages)

    def close(self) -> None: ...


def rows(*places: str) -> pa.Table:
    made: list[dict[str, Any]] = [
        {
            "id": str(at),
            "source": "/s",
            "type": "t",
            "position": f"t-0-{at}",
            "message": "/m",
            "context": [("x", place)],
        }
        for at, place in enumerate(places)
    ]
    return pa.Table.from_pylist(made, MESSAGE)


def test_past_the_cap_a_record_is_refused_and_the_known_destinations_go_on() -> None:
    target, spread = Taking(), DestinationCap(2)
    composer = TemplateComposer(parse_address("a/{context.x}", sending_of("mqtt")), BINDINGS["MQTT/5.0"], "binary")
    sink = ConfirmedSink("out", composer, target, spread=spread)
    result = sink.write(rows("p", "q", "r", "p", "s"), Commit("g", 1))
    assert target.addresses == ["a/p", "a/q", "a/p"]
    assert result.rows == 3
    assert [record.position for record in result.refused] == ["t-0-2", "t-0-4"]
    assert result.refused[0].reason.startswith(
        "a/r: it would be destination 3 of the sink, whose max_destinations is 2"
    )
    # What was decided of a batch stays decided while the process lives.
    again = ConfirmedSink("out", composer, target, spread=spread).write(rows("q", "r"), Commit("g", 2))
    assert [record.position for record in again.refused] == ["t-0-1"]


def test_a_message_that_is_refused_for_its_size_takes_no_place() -> None:
    target = Taking()
    composer = TemplateComposer(
        parse_address("a/{context.x}", sending_of("mqtt")), BINDINGS["MQTT/3.1.1"], "structured"
    )
    sink = ConfirmedSink("out", composer, target, max_body=1, spread=DestinationCap(1))
    result = sink.write(rows("p", "q"), Commit("g", 1))
    assert all("max_body" in record.reason for record in result.refused)


def test_the_known_destinations_outlive_a_plan() -> None:
    first = get_destination_cap("test-a", 1)
    assert first.fault("x") is None
    assert get_destination_cap("test-a", 1).fault("y") is not None
    assert get_destination_cap("test-a", 2).fault("y") is None
    assert get_destination_cap("test-b", 1).fault("y") is None
