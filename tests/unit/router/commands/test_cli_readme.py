"""Pages say what the code does: their tables are those of the code, the README's example gives what it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

from catalog.load import load
from catalog.record import Record
from router.commands.emit.producer import encode_record_line
from router.matching.records import RecordMatcher
from router.settings import load_settings
from router.settings.routes import REASONS
from tests.support.readme import COMMANDS, README, SETTINGS, block, made

MESSAGE = "/messagegroups/Garden/messages/Garden.Moisture"


def test_the_tables_are_those_of_the_code() -> None:
    for page in (SETTINGS, COMMANDS):
        text = page.read_text(encoding="utf-8")
        assert text == made(text), f"{page.name} has drifted: run `python -m tests.support.readme`"


def test_every_reason_and_the_way_to_the_command_are_told() -> None:
    text = README.read_text(encoding="utf-8")
    assert sorted(re.findall(r"\[`([a-z-]+)`\]\(router/MATCHING\.md#\1\)", text)) == sorted(REASONS)
    assert ".venv/bin/xrouter" in text


def test_the_example_gives_what_it_shows(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    path = tmp_path / "garden.xreg.json"
    path.write_text(block(text, "catalog"))
    (tmp_path / "router.yaml").write_text(block(text, "settings"))
    assert load_settings(tmp_path / "router.yaml", {}).routes[0].to == ("out",)
    catalog = load([path])
    assert not catalog.findings

    def outcome(route: str) -> dict[str, object]:
        headers = [{"name": "content-type", "value": "application/json"}]
        native = {"method": "POST", "path": route, "headers": headers}
        record = Record("HTTP", native, b'{"percent": 41}', endpoint="/endpoints/garden")
        return next(RecordMatcher(catalog).outcomes([encode_record_line(record)]))

    moisture = outcome("/beds/7/moisture")
    assert (moisture["message"], moisture["context"]) == (MESSAGE, {"bed": "7"})
    shown = {"source": "/beds/7", "type": "com.example.garden.moisture", "datacontenttype": "application/json"}
    assert shown.items() <= moisture["cloudevent"].items()  # type: ignore[attr-defined]
    assert all(json.dumps(value) in text for value in shown.values())
    assert outcome("/beds/7/slugs")["reason"] == "no-match"
