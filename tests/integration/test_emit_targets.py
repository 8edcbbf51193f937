"""``emit --to`` a broker of each protocol: what it sends arrives as it would be written to standard output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from bindings.gateways import EndpointSubscription
from bindings.parts import first_part
from bindings.protocols import BINDINGS
from router.cli import run_command_line
from tests.support import plain
from tests.support.gateways import ENDPOINT, Rows, peer_for_tests, running
from tests.support.nats import core

COUNT: Final = 250
"""More than is handed over at a time."""


@pytest.mark.parametrize(
    ("kind", "option", "wanted"),
    [
        ("mqtt", "topic", EndpointSubscription(ENDPOINT, "#")),
        ("nats", "subject", core(">")),
        ("amqp", "node", EndpointSubscription(ENDPOINT, "q.line")),
    ],
)
def test_records_arrive_as_they_were_made(
    tmp_path: Path, kind: str, option: str, wanted: EndpointSubscription, capsys: pytest.CaptureFixture[str]
) -> None:
    """The place is in the target, or the endpoint says it."""
    rows, written = Rows(), list[dict[str, Any]]()
    with peer_for_tests(kind, tmp_path) as peer, running(peer.protocol, peer.uri, [wanted], rows):
        uri, address, protocol = peer.uri, peer.place("line"), peer.protocol
        for place, target in (("elsewhere", f"{uri}/{address}"), (address, uri)):
            endpoint = plain.endpoint(protocol, {option: place}, "g")
            catalog = plain.write(tmp_path, plain.catalog({"e": endpoint}, g={"g.made": plain.event("made")}))
            words = ["emit", "--catalog", str(catalog), "--message", "made", "--count", str(COUNT)]
            words += ["--seed", str(len(written))]
            assert run_command_line(words) == 0
            written += [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert run_command_line([*words, "--to", target]) == 0
            rows.wait(len(written))
    binding = BINDINGS[protocol]

    prefix = binding.rule.prefixes[0]

    def id_of(parts: Any) -> str:
        part = first_part(parts, f"{prefix}id")
        assert part is not None and part.text, [each.key for each in parts]
        return part.text

    came = {id_of(row.properties): row.body for row in rows.stored}
    made = {id_of(binding.split(record["native"])): record["body"].encode() for record in written}
    assert came == made and len(made) == 2 * COUNT
