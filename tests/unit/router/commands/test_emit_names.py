"""What ``emit`` makes out of short names, of endpoints that nobody named, and of targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from catalog.load import load
from catalog.model import Catalog
from router.cli import run_command_line
from router.commands.emit.command import UnknownName, find_only_endpoint, find_xid

ROOT: Final = Path(__file__).resolve().parents[4]
MARKET: Final = str(ROOT / "catalog" / "samples" / "market.xreg.json")
XIDS: Final = tuple(
    f"/messagegroups/{group}/messages/{each}"
    for group, each in (
        ("Plant", "Plant.Line.Started"),
        ("Plant", "Plant.Line.Stopped"),
        ("Plant", "Started"),
        ("Lab", "Lab.Stopped"),
        ("Lab", "same"),
        ("Yard", "same"),
        ("Yard", "Same.Other"),
    )
)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (XIDS[0], XIDS[0]),
        ("Plant.Line.Started", XIDS[0]),
        ("Line.Started", XIDS[0]),
        ("Started", XIDS[2]),
        ("started", XIDS[2]),
        ("line.stopped", XIDS[1]),
        ("Lab.Stopped", XIDS[3]),
        ("Lab/same", XIDS[4]),
        ("yard/SAME", XIDS[5]),
        ("Other", XIDS[6]),
    ],
)
def test_as_much_of_a_name_as_only_one_has_is_enough(name: str, found: str) -> None:
    assert find_xid(name, XIDS, "message") == found


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Stopped", f"several messages are called Stopped: {XIDS[1]}, {XIDS[3]} (give more of the name, or the xid)"),
        ("same", f"several messages are called same: {XIDS[4]}, {XIDS[5]}"),
        ("Startd", f"the catalog has no message Startd (did you mean {XIDS[2]}?)"),
        ("zzz", "`xrouter catalog list` shows what there is"),
        ("", "the catalog has no message"),
    ],
)
def test_a_name_of_none_or_several_is_refused(name: str, told: str) -> None:
    with pytest.raises(UnknownName) as caught:
        find_xid(name, XIDS, "message")
    assert told in str(caught.value)


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    """A definition at two endpoints of different protocols, one at one, and one at none."""

    def definition(kind: str) -> dict[str, Any]:
        return {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": kind}}}

    def endpoint(protocol: str, options: dict[str, str], *groups: str) -> dict[str, Any]:
        return {
            "usage": ["consumer"],
            "protocol": protocol,
            "protocoloptions": {"options": options},
            "messagegroups": [f"/messagegroups/{group}" for group in groups],
        }

    groups = {each: {"messages": {f"{each}.made": definition(each)}} for each in ("both", "one", "none")}
    endpoints = {
        "line": endpoint("MQTT/5.0", {"topic": "plant/line"}, "both", "one"),
        "desk": endpoint("HTTP", {"path": "/desk"}, "both"),
    }
    file = tmp_path / "plant.xreg.json"
    file.write_text(json.dumps({"messagegroups": groups, "endpoints": endpoints}))
    return file


def xid(name: str) -> str:
    return f"/messagegroups/{name}/messages/{name}.made"


@pytest.mark.parametrize(
    ("name", "protocol", "found"),
    [
        ("one", None, "line"),
        ("both", None, None),
        ("both", "MQTT/5.0", "line"),
        ("both", "HTTP", "desk"),
        ("both", "NATS", None),
        ("none", None, None),
    ],
)
def test_the_only_endpoint_is_taken(plant: Path, name: str, protocol: str | None, found: str | None) -> None:
    catalog: Catalog = load([plant])
    assert find_only_endpoint(catalog, xid(name), protocol) == (found and f"/endpoints/{found}")


def emitted(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    status = run_command_line(["emit", *words])
    out, err = capsys.readouterr()
    return status, json.loads(out) if out else {}, err


def test_the_command_takes_short_names_and_finds_the_endpoint(plant: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, record, _ = emitted(capsys, "--catalog", str(plant), "--message", "one.made")
    assert (status, record["endpoint"], record["native"]["topic_name"]) == (0, "/endpoints/line", "plant/line")
    status, record, _ = emitted(capsys, "--catalog", str(plant), "--message", "both.made", "--endpoint", "desk")
    assert (status, record["endpoint"], record["native"]["path"]) == (0, "/endpoints/desk", "/desk")
    status, record, _ = emitted(capsys, "--catalog", str(plant), "--message", "both.made", "--protocol", "mqtt")
    assert (status, record["endpoint"]) == (0, "/endpoints/line")
    status, _, err = emitted(capsys, "--catalog", str(plant), "--message", "both.made")
    assert status == 1 and "names no protocol" in err
    status, record, _ = emitted(capsys, "--catalog", str(plant), "--message", "none.made", "--protocol", "NATS")
    assert status == 0 and "endpoint" not in record and record["native"]["subject"] == "none.made"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["mqtt", "amqp", "nats"])
def test_a_broker_that_is_away_is_told(
    plant: Path, scheme: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.commands.emit.command._SECONDS", 2.0)
    to = f"{scheme}://user:hush@127.0.0.1:1/place"
    status, _, err = emitted(capsys, "--catalog", str(plant), "--message", "none.made", "--to", to)
    assert status == 5, err
    assert f"{scheme}://127.0.0.1:1 did not accept every record" in err and "hush" not in err
    assert len(err.splitlines()) == 2


def test_a_node_is_to_be_named(plant: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--catalog", str(plant), "--message", "none.made", "--to", "amqp://127.0.0.1:1")
    status, _, err = emitted(capsys, *words)
    assert status == 1 and "the record has no destination at amqp://127.0.0.1:1" in err
