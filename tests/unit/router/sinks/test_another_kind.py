"""A kind of sink is a module and a line in a list: one that is added here is checked, opened, shown and read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pytest
from pydantic import Field

from catalog.load import load
from router.dead_letters.dead_letter import DeadLetter, make_letter
from router.dead_letters.reading import read_dead_letters, read_latest, readable_sinks
from router.dead_letters.stores import LetterStore
from router.errors import ConfigError
from router.evaluation.plan import Plan
from router.overview.picture import survey_routes
from router.settings import Settings, load_settings
from router.settings.sinks.contract import Fault, SinkSettings, TemplateFiller
from router.sinks import ArrowSink, Commit, RejectedRow, WriteResult, open_sink
from router.sinks.jsonlines import DEAD_LETTER, WIDE
from tests.support.cases import registered
from tests.support.settings_pages import make_settings_reference

SHELVES: dict[str, list[dict[str, Any]]] = {}
"""What the shelves of the process hold, by their names."""


class ShelfSink(SinkSettings):
    """A shelf in memory."""

    opener: ClassVar[str] = f"{__name__}:open_shelf"
    letters: ClassVar[str] = f"{__name__}:ShelfLetters"

    type: Literal["shelf"] = Field(description="`shelf`.")
    shelf: str = Field(description="Name of the shelf.")

    def faults(self, key: str, *, events: bool, letters: bool) -> Iterator[Fault]:
        if not self.shelf.isalpha():
            yield f"{key}.shelf", "has only letters; correct the name"

    def destination(self, filled: TemplateFiller, *, letters: bool) -> str:
        return f"shelf {self.shelf}"


class Shelf(ArrowSink):
    def __init__(self, name: str) -> None:
        self._rows = SHELVES.setdefault(name, [])
        self._commits: set[Commit] = set()

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        if self.has_commit(commit):
            return WriteResult(0, repeated=True)
        self._rows += rows.to_pylist()
        self._commits.add(commit)
        return WriteResult(rows.num_rows)

    def has_commit(self, commit: Commit) -> bool:
        return commit in self._commits


def open_shelf(name: str, settings: ShelfSink, kind: str, catalog: object, framings: object) -> ArrowSink:
    return Shelf(f"{settings.shelf}-{kind}")


class ShelfLetters(LetterStore):
    def read(self, *, bodies: bool = True) -> Iterator[DeadLetter]:
        return (make_letter(row, self.name) for row in SHELVES[f"{self.settings.shelf}-dead-letters"])


@pytest.fixture(autouse=True)
def another_kind() -> Iterator[None]:
    with registered(ShelfSink):
        yield
    SHELVES.clear()


def settings_of(folder: Path, shelf: str = "top") -> Settings:
    sinks = {"s": {"type": "shelf", "shelf": shelf}}
    document = {"sinks": sinks, "routes": [{"to": "s"}], "dead_letters": {"sinks": ["s"]}}
    (folder / "router.yaml").write_text(json.dumps(document))
    return load_settings(folder / "router.yaml", {})


def test_it_takes_events_once_and_tells_what_it_lacks(tmp_path: Path) -> None:
    sink = open_sink("s", settings_of(tmp_path).sinks["s"], "events")
    rows = pa.Table.from_pylist([{"id": "1", "source": "/s", "type": "T", "position": "t-0-1"}], WIDE)
    assert sink.write(rows, Commit("app", 1)).rows == 1
    assert sink.write(rows, Commit("app", 1)).repeated and sink.has_commit(Commit("app", 1))
    assert [row["id"] for row in SHELVES["top-events"]] == ["1"]
    lacking = RejectedRow("t-0-2", "why", "/e", "/m")
    assert list(sink.iter_missing_rows(Commit("app", 2), [lacking])) == [lacking]


def test_dead_letters_are_read_back(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    row = {name: None for name in DEAD_LETTER.names} | {
        "letter": "0" * 32,
        "reason": "no-match",
        "detail": "",
        "nearest": "[]",
        "protocol": "HTTP",
        "native": "{}",
        "epoch": "e",
        "position": "p-0-1",
        "attempts": 1,
    }
    letters = open_sink("s", settings.sinks["s"], "dead-letters")
    letters.write(pa.Table.from_pylist([row], DEAD_LETTER), Commit("app", 1))
    assert readable_sinks(settings) == ("s",)
    assert [(each.reason, each.sink) for each in read_dead_letters(settings)] == [("no-match", "s")]
    assert [each.id for each in read_latest(settings, 1)] == ["0" * 32]


def test_it_is_checked_and_named_with_the_others(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has only letters"):
        settings_of(tmp_path, "7")
    (tmp_path / "router.yaml").write_text("sinks: {s: {type: cupboard}}\nroutes: [{to: s}]")
    with pytest.raises(ConfigError, match=r"known: table, kafka, jsonl, mqtt, amqp, nats, http, shelf"):
        load_settings(tmp_path / "router.yaml", {})
    assert ("sinks.NAME[shelf].shelf", "string", "required", "Name of the shelf.") in make_settings_reference()


def test_its_destination_is_shown_with_the_routes(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"messagegroups": {"G": {"messages": {"m": {"protocol": "HTTP"}}}}}))
    shown = survey_routes(Plan(load([tmp_path / "c.json"]), settings_of(tmp_path)))
    assert "shelf top" in repr(shown)
