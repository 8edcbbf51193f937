"""Sparkplug B by the sample catalog: births, data, deaths and state of real sessions, each in its typed table."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.support import plain
from tests.support.cases import FOLDER
from tests.support.mqtt import Client, Mosquitto
from tests.support.router import RouterProcess
from tests.support.tables import by_duckdb
from tests.support.waiting import wait_until

SECONDS: Final = 120.0
INT64, DOUBLE, BOOLEAN, STRING = 4, 10, 11, 12
"""Data types of metrics (Sparkplug 3.0 section 6.4.16)."""
Value = int | float | bool | str


def _number(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def _varint(field: int, value: int) -> bytes:
    return _number(field << 3) + _number(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _number(field << 3 | 2) + _number(len(value)) + value


def metric(name: str, value: Value, alias: int, timestamp: int) -> bytes:
    """Return the bytes of a metric, its value in the field that its type asks for."""
    head = _bytes(1, name.encode()) + _varint(2, alias) + _varint(3, timestamp)
    if isinstance(value, bool):
        return head + _varint(4, BOOLEAN) + _varint(14, int(value))
    if isinstance(value, int):
        return head + _varint(4, INT64) + _varint(11, value)
    if isinstance(value, float):
        return head + _varint(4, DOUBLE) + _number(13 << 3 | 1) + struct.pack("<d", value)
    return head + _varint(4, STRING) + _bytes(15, value.encode())


def payload(timestamp: int, metrics: Iterable[bytes], seq: int | None = None) -> bytes:
    """Return the bytes of a payload; an extension of somebody's own is in it."""
    made = _varint(1, timestamp) + b"".join(_bytes(2, each) for each in metrics)
    if seq is not None:
        made += _varint(3, seq)
    return made + _bytes(1000, b"an extension")


class EdgeNode:
    """A connected edge node with a will; leaving the context is a crash: the broker has to publish its death."""

    def __init__(self, uri: str, group: str, node: str, *, old: bool) -> None:
        self._place = urlsplit(uri)
        self._group, self._node = group, node
        version = MQTTProtocolVersion.MQTTv311 if old else MQTTProtocolVersion.MQTTv5
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"{group}-{node}", protocol=version)
        death = payload(1, [metric("bdSeq", 0, 0, 1)])
        self._client.will_set(self._topic("NDEATH"), death, qos=1)

    def __enter__(self) -> EdgeNode:
        self._client.connect(str(self._place.hostname), self._place.port or 1883)
        self._client.loop_start()
        wait_until(self._client.is_connected, SECONDS, "the edge node to connect")
        return self

    def __exit__(self, *_: object) -> None:
        # The loop goes first: it would connect again.
        self._client.loop_stop()
        place: Any = self._client.socket()
        place.close()

    def send(self, kind: str, body: bytes, device: str = "") -> None:
        """Publish with QoS 0, as births and data are, and return when it is on its way."""
        self._client.publish(self._topic(kind, device), body).wait_for_publish(SECONDS)

    def _topic(self, kind: str, device: str = "") -> str:
        return "/".join(filter(None, ("spBv1.0", self._group, kind, self._node, device)))


LIMIT: Final = 300.0


def configure(router: RouterProcess, uri: str) -> None:
    folder = router.folder / "catalog"
    shutil.copytree(FOLDER / "sparkplug", folder / "sparkplug")
    text = (FOLDER / "sparkplug.xreg.yaml").read_text()
    address = "mqtt://broker.example.com:1883"
    assert address in text
    (folder / "sparkplug.xreg.yaml").write_text(text.replace(address, uri))
    sinks = plain.tables(router.folder, "typed", layout="definition", table="{messageid}")
    sinks |= plain.lines(router.folder, "dead")
    told = plain.routed(folder / "sparkplug.xreg.yaml", sinks, match={"validate": "always"})
    told["catalog"]["network"] = False
    router.configure({**told, "sources": [{"endpoint": "/endpoints/sparkplug"}]})


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    return by_duckdb(folder / "typed" / f"Sparkplug.{kind}").rows


def test_sessions_of_edge_nodes_become_typed_tables(router: RouterProcess, tmp_path: Path) -> None:
    with Mosquitto(tmp_path / "mosquitto") as broker:
        configure(router, broker.uri)
        with Client(broker.uri) as host:
            # Retained, and published before anybody listens.
            host.send("spBv1.0/STATE/scada", b'{"online": true, "timestamp": 1700000000000}', retain=True)
            router.start()
            wait_until(lambda: router.total("xrouter_records_total") >= 1, LIMIT, lambda: router.log[-3000:])
            for old in (False, True):
                with EdgeNode(broker.uri, "plant", f"edge-{old}", old=old) as node:
                    born = [metric("bdSeq", 0, 0, 10), metric("running", True, 1, 10), metric("speed", 2.5, 2, 10)]
                    node.send("NBIRTH", payload(10, born, 0))
                    node.send("DBIRTH", payload(11, [metric("Motor/Name", "mö", 3, 11)], 1), "motor")
                    node.send("NDATA", payload(12, [metric("", 3.5, 2, 12)], 2))
                    node.send("DDATA", payload(13, [metric("", 2**40, 4, 13), metric("", False, 5, 13)], 3), "motor")
                    node.send("DDEATH", payload(14, (), 4), "motor")
            host.send(
                "spBv1.0/plant/NCMD/edge-False", payload(15, [metric("Node Control/Rebirth", True, 6, 15)]), qos=0
            )
            host.send("spBv1.0/plant/DCMD/edge-False/motor", payload(16, [metric("speed", 1.0, 7, 16)]), qos=0)
            host.send("spBv1.0/STATE/scada", b'{"online": "maybe"}')
            host.send("spBv1.0/plant/NOTHING/edge", b"")
        total = 1 + 2 * 6 + 4
        wait_until(lambda: router.total("xrouter_records_total") >= total, LIMIT, lambda: router.log[-3000:])
        wait_until(lambda: router.readiness()["ready"], LIMIT, lambda: router.log[-3000:])
        assert router.total("xrouter_records_total") == total
        assert router.stop() == 0, router.log[-3000:]

    twice = ("NBIRTH", "NDATA", "NDEATH", "DBIRTH", "DDATA", "DDEATH")
    counts = {**dict.fromkeys(twice, 2), "NCMD": 1, "DCMD": 1, "STATE": 1}
    assert {kind: len(rows(router.folder, kind)) for kind in counts} == counts

    (birth, _) = sorted(rows(router.folder, "NBIRTH"), key=lambda row: str(row["context"]))
    # Unsigned numbers of 64 bits are decimals, which the reader gives as text.
    assert (birth["payload"]["timestamp"], birth["payload"]["seq"]) == ("10", "0")
    metrics = birth["payload"]["metrics"]
    assert [(each["name"], each["alias"]) for each in metrics] == [("bdSeq", "0"), ("running", "1"), ("speed", "2")]
    assert [(each["long_value"], each["boolean_value"], each["double_value"]) for each in metrics] == [
        ("0", None, None), (None, True, None), (None, None, 2.5),
    ]  # fmt: skip
    (data, _) = rows(router.folder, "DDATA")
    assert [each["long_value"] for each in data["payload"]["metrics"]] == [str(2**40), None]
    (named, _) = rows(router.folder, "DBIRTH")
    assert named["payload"]["metrics"][0]["string_value"] == "mö"
    for death in rows(router.folder, "NDEATH"):
        assert death["payload"]["seq"] is None
    (state,) = rows(router.folder, "STATE")
    assert state["payload"] == {"online": True, "timestamp": 1700000000000}

    letters = plain.lines_of(router.folder / "dead")
    assert sorted(each["reason"] for each in letters) == ["no-match", "schema-violation"]
