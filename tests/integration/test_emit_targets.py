"""``emit --to`` a broker of each protocol: what it sends arrives as it would be written to standard output."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from bindings.parts import first_part
from bindings.protocols import BINDINGS
from router.cli import run_command_line
from tests.support import plain
from tests.support.amqp import queue_name
from tests.support.gateways import Rows, running
from tests.support.mqtt import Mosquitto
from tests.support.nats import NatsServer, core
from tests.support.qpid import amqp_for_tests

COUNT: Final = 250
"""More than is handed over at a time."""
Broker = Callable[[Path, Rows], Any]


@contextmanager
def mqtt(folder: Path, rows: Rows) -> Iterator[tuple[str, str]]:
    with Mosquitto(folder) as broker, running("MQTT/5.0", broker.uri, {"/endpoints/in": "#"}, rows):
        yield broker.uri, "plant/line"


@contextmanager
def nats(folder: Path, rows: Rows) -> Iterator[tuple[str, str]]:
    with NatsServer(folder) as server, running("NATS", server.uri, [core(">")], rows):
        yield server.uri, "plant.line"


@contextmanager
def amqp(folder: Path, rows: Rows) -> Iterator[tuple[str, str]]:
    node = queue_name()
    with amqp_for_tests(folder) as uri, running("AMQP/1.0", uri, {"/endpoints/in": node}, rows):
        yield uri, node


@pytest.mark.parametrize(
    ("broker", "protocol", "option"),
    [(mqtt, "MQTT/5.0", "topic"), (nats, "NATS", "subject"), (amqp, "AMQP/1.0", "node")],
    ids=["mqtt", "nats", "amqp"],
)
def test_records_arrive_as_they_were_made(
    tmp_path: Path, broker: Broker, protocol: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The place is in the target, or the endpoint says it."""
    rows, written = Rows(), list[dict[str, Any]]()
    with broker(tmp_path / "broker", rows) as (uri, address):
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
