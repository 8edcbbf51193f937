"""``xrouter plan``: what a new catalog would do to the last records, told before a reload does it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bindings.inbox.log import Inbox
from bindings.inbox.space import InboxLimits
from bindings.parts import InboxRow, Part
from router.cli import run_command_line
from router.dead_letters.redaction import HIDDEN
from tests.support import plain
from tests.support.letters import row, write_letters
from tests.support.spark_cluster import RECORDS, catalog, lines, message, messages, settings

Planned = Callable[..., tuple[int, dict[str, Any]]]
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Planned:
    """``plan(change, *arguments)`` judges :data:`RECORDS` by the catalog and a changed one: exit code and report."""
    (tmp_path / "catalog.json").write_text(json.dumps(catalog()))
    config, records = settings(tmp_path), lines(tmp_path / "records.jsonl", RECORDS)

    def run(change: Change | None, *arguments: object) -> tuple[int, dict[str, Any]]:
        new = copy.deepcopy(catalog())
        if change is not None:
            change(new)
        (tmp_path / "new.json").write_text(json.dumps(new))
        given = arguments or ("--records", records)
        status = run_command_line(
            ["plan", str(config), "--new", str(tmp_path / "new.json"), "--format", "json", *map(str, given)]
        )
        out, err = capsys.readouterr()
        assert not err
        return status, json.loads(out)

    return run


def differences(report: dict[str, Any]) -> dict[str, int]:
    return {kind: number for kind, number in report["changed"].items() if number}


def with_gate(tree: dict[str, Any]) -> None:
    """Add an endpoint of HTTP with one definition, whose subject is a secret."""
    tree["endpoints"]["gate"] = plain.endpoint("HTTP", {}, "Gate", uri="http://127.0.0.1/gate")
    subject = {"value": "card/{card}", "type": "uritemplate", "sensitive": True}
    entry = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "entry"}, "subject": subject}}
    tree["messagegroups"]["Gate"] = {"messages": {"Entry": entry}}


def without_entry(tree: dict[str, Any]) -> None:
    tree["messagegroups"]["Gate"]["messages"]["Entry"]["envelopemetadata"]["subject"]["value"] = "pass/{card}"


def entry(number: int, type_: str = "entry") -> InboxRow:
    headers = {
        "specversion": "1.0",
        "id": str(number),
        "source": "/gate",
        "type": type_,
        "subject": f"card/443355{number}",
    }
    parts = [Part("method", b"POST"), Part("path", b"/gate")]
    parts += [Part(f"headers.ce-{name}", value.encode()) for name, value in headers.items()]
    received = int(datetime(2026, 1, 2, tzinfo=UTC).timestamp()) * 1_000_000 + number
    return InboxRow("/endpoints/gate", "HTTP", received, parts, b"{}")


@pytest.fixture
def gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """``gate(*arguments)`` plans a catalog in which an endpoint's records would miss their definition."""
    tree = catalog()
    with_gate(tree)
    (tmp_path / "catalog.json").write_text(json.dumps(tree))
    without_entry(tree)
    (tmp_path / "new.json").write_text(json.dumps(tree))
    config = settings(tmp_path)

    def run(*arguments: object) -> tuple[int, str]:
        status = run_command_line(["plan", str(config), "--new", str(tmp_path / "new.json"), *map(str, arguments)])
        out, err = capsys.readouterr()
        assert not err, err
        return status, out

    return run


def test_the_inbox_gives_its_last_records(gate: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "state" / "inbox", partitions=2, limits=InboxLimits(min_free_bytes=0))
    try:
        inbox.append_many([entry(number) for number in range(20)]).result(60)
        status, out = gate("--from", "inbox", "--format", "json", "--last", 15)
        report = json.loads(out)
        assert (status, report["outcomes"], differences(report)) == (1, 15, {"dead-letter": 15})
        assert report["places"] == [{"place": "inbox", "records": 15, "notes": []}]
        report = json.loads(gate("--from", "inbox", "--format", "json")[1])
        assert (report["outcomes"], report["places"][0]["notes"]) == (20, ["it has no more than 20"])
        report = json.loads(gate("--from", "inbox", "--format", "json", "--since", "2026-01-03")[1])
        assert (report["outcomes"], report["samples"]) == (0, [])
    finally:
        inbox.close()


def test_what_is_marked_as_sensitive_is_hidden(gate: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "state" / "inbox", partitions=1, limits=InboxLimits(min_free_bytes=0))
    try:
        inbox.append_many([entry(1), entry(2, "exit")]).result(60)
        for form in ("text", "json"):
            status, out = gate("--from", "inbox", "--format", form)
            assert status == 1
            assert HIDDEN in out
            assert "443355" not in out
        assert "card/4433551" in gate("--from", "inbox", "--reveal")[1]
    finally:
        inbox.close()


def test_dead_letters_that_would_match_are_told(tmp_path: Path, plan: Planned) -> None:
    native = {
        "topic": "plant",
        "partition": 0,
        "offset": 4,
        "key": "lines/7",
        "headers": [{"name": "kind", "value": "door"}],
    }
    letters = [
        row(
            number,
            protocol="KAFKA",
            native=json.dumps(native),
            endpoint="/endpoints/plant",
            position=f"plant-0-{number}",
        )
        for number in range(3)
    ]
    write_letters(tmp_path / "router.yaml", letters)
    status, report = plan(lambda new: messages(new).update(Door=message("door")), "--from", "dead-letters")
    assert (status, differences(report)) == (0, {"matched": 3})
    assert report["places"][0]["notes"] == ["3 letters found among the newest"]
    _, report = plan(None, "--from", "dead-letters", "--since", "2026-02-01")
    assert report["outcomes"] == 0
