"""Retention: what goes, what stays, and that neither batches nor the ledger are harmed by it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from router.dead_letters import retention
from router.dead_letters.reading import read_dead_letters
from router.dead_letters.retention import RetentionThread, purge
from router.errors import StateError
from router.settings import Settings, load_settings
from router.settings.checks import iter_retention_warnings
from router.sinks import Commit, open_sink
from router.sinks.jsonlines import DEAD_LETTER
from router.state.ledger import LetterLedger, PendingReplay
from tests.support.ledger import replayed
from tests.support.letters import SINKS, letter_id, row, settings_file, write_letters
from tests.support.waiting import wait_until

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def three_days(folder: Path, *sinks: str) -> Settings:
    """Write letters 1, 2 and 3, of three days, two days and one day ago, each a batch of its own."""
    file = settings_file(folder, sinks)
    for number in (1, 2, 3):
        written = NOW - (4 - number) * DAY
        settings = write_letters(file, [row(number, failed=written)], number)
    return settings


def left(settings: Settings, sink: str) -> list[str]:
    return [letter.id for letter in read_dead_letters(settings, sinks=[sink])]


@pytest.mark.parametrize("sink", SINKS)
def test_letters_past_the_age_go_and_a_repeated_batch_stays_out(tmp_path: Path, sink: str) -> None:
    settings = three_days(tmp_path, sink)
    limits = 2 * DAY
    [would] = purge(settings, limits, now=NOW, dry_run=True)
    assert (would.sink, would.letters) == (sink, 1) and would.size > 0
    assert len(left(settings, sink)) == 3
    assert purge(settings, limits, now=NOW) == [would]
    assert left(settings, sink) == [letter_id(2), letter_id(3)]
    assert purge(settings, limits, now=NOW) == []
    assert [each.letters for each in purge(settings, age=DAY / 2, now=NOW)] == [2]
    assert left(settings, sink) == []
    target = open_sink(sink, settings.sinks[sink], "dead-letters")
    again = Commit(f"app-{sink}-letters", 3)
    assert target.has_commit(again)
    assert target.write(pa.Table.from_pylist([row(3)], DEAD_LETTER), again).repeated
    write_letters(settings, [row(4, failed=NOW)], 4)
    assert left(settings, sink) == [letter_id(4)]


@pytest.mark.parametrize("sink", SINKS)
def test_the_oldest_go_until_the_rest_fits(tmp_path: Path, sink: str) -> None:
    settings = three_days(tmp_path, sink)
    files = [path for path in (tmp_path / sink).glob("*") if path.is_file()]
    most = int(2.5 * max(path.stat().st_size for path in files))
    assert [each.letters for each in purge(settings, size=most)] == [1]
    assert left(settings, sink) == [letter_id(2), letter_id(3)]
    assert purge(settings, size=most) == []
    assert [each.letters for each in purge(settings, size=1)] == [2]


def test_a_file_of_damaged_lines_alone_goes_too(tmp_path: Path) -> None:
    settings = three_days(tmp_path, "lines")
    *_, newest = sorted((tmp_path / "lines").glob("*.jsonl"))
    newest.write_bytes(b'{"letter": 3\n' * 3)
    os.utime(newest, (0, 0))
    [gone] = purge(settings, age=DAY * 100, now=NOW)
    assert (gone.letters, gone.size, newest.stat().st_size) == (0, 39, 0)
    assert purge(settings, age=DAY * 100, now=NOW) == []


def test_the_ledger_forgets_what_is_gone_from_every_sink(tmp_path: Path) -> None:
    settings = three_days(tmp_path, "delta", "lines")
    write_letters(settings, [row(1, failed=NOW)], 9, app="late")
    (tmp_path / "lines").joinpath("late-lines-letters-000000000009.jsonl").unlink()
    with LetterLedger.open(Path(settings.state)) as ledger:
        replayed(ledger, [letter_id(1), letter_id(2), letter_id(3)], NOW)
    purge(settings, age=1.5 * DAY, now=NOW)
    with LetterLedger.open(Path(settings.state)) as ledger:
        assert ledger.standing([letter_id(1), letter_id(2), letter_id(3)]) == {
            letter_id(1): "replayed",  # a sink has it still
            letter_id(2): "open",
            letter_id(3): "replayed",
        }


def test_nothing_goes_while_a_replay_needs_it(tmp_path: Path) -> None:
    settings = three_days(tmp_path, "delta")
    with LetterLedger.open(Path(settings.state)) as ledger:
        with ledger.exclusive(), pytest.raises(StateError, match="another replay or purge is running"):
            purge(settings, age=DAY, now=NOW)
        ledger.begin(PendingReplay(1, "plan", (letter_id(1),)))
        with pytest.raises(StateError, match="a replay is unfinished"):
            purge(settings, age=DAY, now=NOW)
    assert len(left(settings, "delta")) == 3


def test_files_of_large_letters_go_by_their_age(tmp_path: Path) -> None:
    settings = load_settings(settings_file(tmp_path))
    spill = Path(settings.state) / "spill"
    spill.mkdir(parents=True)
    for name, age in (("old", 3), ("new", 1)):
        (spill / f"{name}.json").write_text("{}")
        when = (NOW - age * DAY).timestamp()
        os.utime(spill / f"{name}.json", (when, when))
    assert purge(settings, size=1, now=NOW) == []
    [removed] = purge(settings, age=2 * DAY, now=NOW)
    assert (removed.sink, removed.letters, removed.size) == ("spill", 1, 2)
    assert [path.name for path in spill.iterdir()] == ["new.json"]


def test_a_batch_that_commits_meanwhile_is_not_in_the_way(tmp_path: Path) -> None:
    settings = three_days(tmp_path, "delta")
    target = open_sink("delta", settings.sinks["delta"], "dead-letters")
    commit = Commit("other", 1)
    assert not target.has_commit(commit)  # it has the table open now
    purge(settings, age=2 * DAY, now=NOW)
    target.write(pa.Table.from_pylist([row(4, failed=NOW)], DEAD_LETTER), commit)
    assert left(settings, "delta") == [letter_id(2), letter_id(3), letter_id(4)]
    assert DeltaTable(str(tmp_path / "delta")).transaction_version("other") == 1


def test_a_running_router_does_it_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "INTERVAL_SECONDS", 0.05)
    settings = load_settings(settings_file(tmp_path, ("delta",), retention={"age": "1d"}))
    write_letters(settings, [row(1, failed=NOW - 10_000 * DAY)])
    with RetentionThread(settings):
        wait_until(lambda: not left(settings, "delta"), 30, "the first letter to be removed")
        write_letters(settings, [row(2, failed=NOW - 9_000 * DAY), row(3, failed=datetime.now(UTC))], 2)
        wait_until(lambda: left(settings, "delta") == [letter_id(3)], 30, "the second one to be removed")


def test_off_by_default_and_what_kafka_needs_is_said(tmp_path: Path) -> None:
    settings = load_settings(settings_file(tmp_path))
    assert not settings.dead_letters.retention.on and list(iter_retention_warnings(settings)) == []
    file = settings_file(tmp_path, ("delta", "bus"), retention={"size": "1GiB"})
    [(key, caution)] = iter_retention_warnings(load_settings(file))
    assert key == "dead_letters.retention" and "sink bus" in caution and "retention.ms" in caution
