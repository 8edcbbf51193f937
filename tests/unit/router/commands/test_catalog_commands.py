"""``xrouter catalog show``, ``convert`` and ``diff``: outputs, exit codes, and what is refused."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalog.load import load
from router.cli import run_command_line

SAMPLES = Path(__file__).resolve().parents[4] / "catalog" / "samples"
MARKET, GREENHOUSE = str(SAMPLES / "market.xreg.json"), str(SAMPLES / "greenhouse.xreg.yaml")
HARBOUR = str(SAMPLES / "harbour.cereg.yaml")
READING = "/messagegroups/Greenhouse.Mqtt/messages/Greenhouse.Mqtt.Reading"


@pytest.fixture
def xrouter(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """``xrouter(*arguments)`` gives exit code, standard output and standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        status = run_command_line(arguments)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return run


def test_show_says_where_each_value_comes_from(xrouter: Any) -> None:
    status, out, err = xrouter("catalog", "show", READING, GREENHOUSE)
    rows = [line.split("\t") for line in out.splitlines()]
    assert (status, err) == (0, "") and rows[0][:2] == ["message", READING]
    found = {row[0]: row[1:] for row in rows}
    assert found["envelopemetadata.source value"][0] == "/houses/{house}/beds/{bed}"
    assert found["envelopemetadata.source value"][1].startswith("/messagegroups/Greenhouse/messages/Greenhouse.Reading")
    assert found["protocoloptions.topic_name type"] == ["uritemplate", "protocol table"]
    assert found["protocol"][1].startswith("itself (")
    assert found["base"] == ["/messagegroups/Greenhouse/messages/Greenhouse.Reading"]


@pytest.mark.parametrize(
    "xid",
    [
        READING,
        "/endpoints/tills",
        "/messagegroups/Market.Tills",
        "/schemagroups/Harbour.Data",
        "/schemagroups/Harbour.Data/schemas/shipArrived",
        "/schemagroups/Harbour.Data/schemas/shipArrived/versions/1.0",
    ],
)
def test_show_of_each_kind(xrouter: Any, xid: str) -> None:
    status, out, _ = xrouter("catalog", "show", xid, str(SAMPLES), "--format", "json")
    form = json.loads(out)
    assert (status, form["xid"]) == (0, xid)
    status, out, _ = xrouter("catalog", "show", xid, str(SAMPLES))
    assert status == 0 and out.splitlines()[0].split("\t")[:2] == [form["kind"], xid]


def test_show_of_what_is_not_there(xrouter: Any, tmp_path: Path) -> None:
    status, out, err = xrouter("catalog", "show", "/endpoints/till", MARKET)
    assert (status, out) == (1, "") and "did you mean /endpoints/tills" in err
    loop = tmp_path / "loop.json"
    message = {"basemessage": "/messagegroups/g/messages/m", "protocol": "NATS"}
    loop.write_text(json.dumps({"messagegroups": {"g": {"messages": {"m": message}}}}))
    status, _, err = xrouter("catalog", "show", "/messagegroups/g/messages/m", str(loop))
    assert status == 1 and "is its own base" in err
    status, _, err = xrouter("catalog", "convert", str(loop))
    assert status == 0 and "m has an error and is left out" in err


@pytest.mark.parametrize("flatten", [[], ["--flatten"]])
def test_convert_writes_one_document(xrouter: Any, tmp_path: Path, flatten: list[str]) -> None:
    target = tmp_path / "all.yaml"
    status, out, err = xrouter("catalog", "convert", GREENHOUSE, MARKET, HARBOUR, "--output", str(target), *flatten)
    assert (status, out, err) == (0, "", "")
    assert yaml.safe_load(target.read_text("utf-8"))["specversion"] == "1.0-rc4"
    old, new = load([GREENHOUSE, MARKET, HARBOUR]), load([target])
    assert old.endpoints == new.endpoints and old.definitions.keys() == new.definitions.keys()
    assert flatten or old.definitions == new.definitions
    assert not [each for each in new.findings if each.severity == "error"]
    assert [path.name for path in tmp_path.iterdir()] == ["all.yaml"]


def test_convert_to_standard_output_and_not_over_a_file(xrouter: Any, tmp_path: Path) -> None:
    status, out, _ = xrouter("catalog", "convert", MARKET)
    assert status == 0 and json.loads(out)["messagegroups"].keys() >= {"Market.Tills"}
    status, out, _ = xrouter("catalog", "convert", MARKET, "--to", "yaml")
    assert status == 0 and yaml.safe_load(out)["specversion"] == "1.0-rc4"
    target = tmp_path / "there.json"
    target.write_text("mine")
    status, _, err = xrouter("catalog", "convert", MARKET, "--output", str(target))
    assert status == 1 and "--force" in err and target.read_text() == "mine"
    assert xrouter("catalog", "convert", MARKET, "--output", str(target), "--force")[0] == 0
    assert json.loads(target.read_text())["specversion"] == "1.0-rc4"
    status, _, err = xrouter("catalog", "convert", MARKET, "--output", str(target / "below.json"))
    assert status == 1 and "cannot write" in err
    nothing = tmp_path / "nothing.json"
    nothing.write_text('{"specversion": "1.0-rc4"}')
    status, _, err = xrouter("catalog", "convert", str(nothing))
    assert status == 4 and "nothing to convert" in err


def test_diff_of_the_same_meaning_ends_with_0(xrouter: Any, tmp_path: Path) -> None:
    target = str(tmp_path / "again.json")
    assert xrouter("catalog", "convert", GREENHOUSE, "--output", target)[0] == 0
    status, out, err = xrouter("catalog", "diff", GREENHOUSE, target)
    assert (status, err) == (0, "") and out == "nothing changed for consumers\n"


@pytest.mark.parametrize(
    ("edit", "status", "told"),
    [
        (("valves.{house}.{valve}", "valves.{house}.7"), 1, "property-changed protocoloptions.subject (narrower)"),
        (('old/{house}/{bed}"}', 'old/{house}/{bed}", description: d}'), 0, "nothing changed"),
        (("application/json", "application/jsonx"), 1, "selector-changed datacontenttype (different)"),
    ],
)
def test_diff_tells_and_ends(xrouter: Any, tmp_path: Path, edit: tuple[str, str], status: int, told: str) -> None:
    other = tmp_path / "other.yaml"
    text = Path(GREENHOUSE).read_text("utf-8")
    assert edit[0] in text
    other.write_text(text.replace(*edit), "utf-8")
    found, out, _ = xrouter("catalog", "diff", GREENHOUSE, str(other))
    assert found == status and told in out
    found, out, _ = xrouter("catalog", "diff", GREENHOUSE, str(other), "--format", "json")
    form = json.loads(out)
    assert (found, form["compatible"]) == (status, status == 0)
    members = {"kind", "xid", "name", "compatible", "relation", "before", "after", "detail"}
    assert all(each.keys() == members for each in form["changes"])


def test_diff_of_what_cannot_be_read_ends_with_2(xrouter: Any) -> None:
    status, out, err = xrouter("catalog", "diff", MARKET, "nowhere.json")
    assert (status, out) == (2, "") and "nowhere.json does not exist" in err


@pytest.mark.parametrize("command", ["show", "convert", "diff"])
def test_help(xrouter: Any, command: str) -> None:
    status, out, _ = xrouter("catalog", command, "--help")
    assert status == 0 and "Usage" in out
    assert command != "diff" or "Exit codes: 0" in " ".join(out.split())


def test_asyncapi_is_written_and_read_by_every_command(xrouter: Any, tmp_path: Path) -> None:
    written = tmp_path / "market.yaml"
    status, out, err = xrouter("catalog", "convert", MARKET, "--to", "asyncapi-3.0", "--output", str(written))
    assert (status, out) == (0, "") and yaml.safe_load(written.read_text("utf-8"))["asyncapi"] == "3.0.0"
    assert "xrouter: note: AsyncAPI has no place for envelopemetadata.source of " in err and "x-xregistry has it" in err
    assert load([written]).definitions.keys() == load([MARKET]).definitions.keys()
    assert xrouter("check", str(written))[0] == 0
    again = tmp_path / "again.json"
    assert xrouter("catalog", "convert", str(written), "--output", str(again)) == (0, "", "")
    assert xrouter("catalog", "diff", MARKET, str(again))[0] == 0
    settings = {
        "catalog": {"source": str(written)},
        "sinks": {
            "out": {"type": "jsonl", "path": str(tmp_path / "out")},
            "dead": {"type": "jsonl", "path": str(tmp_path / "dead")},
        },
        "routes": [{"to": ["out"]}],
        "dead_letters": {"sinks": ["dead"]},
        "sources": [{"endpoint": next(iter(load([written]).endpoints))}],
        "state": str(tmp_path / "state"),
    }
    (tmp_path / "router.yaml").write_text(yaml.safe_dump(settings), "utf-8")
    status, out, err = xrouter("check", str(written), "--config", str(tmp_path / "router.yaml"))
    assert status == 0, out + err


def test_what_of_asyncapi_has_no_place_is_named(xrouter: Any, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "asyncapi: 3.0.0\ninfo: {title: T, version: '1', tags: []}\n"
        "channels: {c: {address: t, bindings: {kafka: {}}, messages: {M: {}}}}\n"
    )
    status, out, err = xrouter("catalog", "convert", str(tmp_path / "a.yaml"), "--to", "yaml")
    assert status == 0 and yaml.safe_load(out)["messagegroups"]["T.c"]["messages"]["M"]["protocol"] == "KAFKA"
    assert err == f"xrouter: note: {tmp_path / 'a.yaml'}/info/tags: xRegistry has no place for tags of this info\n"
