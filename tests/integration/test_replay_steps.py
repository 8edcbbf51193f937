"""A replay that dies at each of its steps, is held by a sink, or meets letters that nothing mends: in one process."""

from __future__ import annotations

import functools
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from bindings.protocols import BINDINGS
from router.dead_letters.reading import DeadLetterFilter
from router.replay import replay as replaying
from router.replay.batches import Summary
from router.replay.replay import ReplayOptions, ReplayResult, replay
from router.sinks.jsonlines import dead_letter_to_json_line
from router.sinks.messages.sink import ConfirmedSink
from router.sinks.tables.delta import DeltaSink
from router.state.ledger import LetterLedger, PendingReplay
from tests.support import shop
from tests.support.web import Answer, Webhook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
POINTS: tuple[tuple[type, str, str], ...] = (
    (LetterLedger, "begin", "after"),
    (DeltaSink, "commit_staged", "after"),
    (ConfirmedSink, "write", "after"),
    (LetterLedger, "finish", "before"),
)
OF_ALL = DeadLetterFilter()


class Died(BaseException):
    """What stands for the end of the process."""


class Quiet:
    """A watcher; *held* is called when a sink keeps a batch waiting. ``settled`` are letters tried, batch by batch."""

    def __init__(self, held: Callable[[str], None] | None = None) -> None:
        self._held = held
        self.settled: list[int] = []

    def resumed(self, pending: PendingReplay) -> None:
        """Say nothing."""

    def progress(self, summary: Summary) -> None:
        """Take down how many letters have been tried."""
        self.settled.append(summary.settled)

    def held(self, reason: str, seconds: float) -> None:
        """Do what the test wants."""
        assert self._held is not None, reason
        self._held(reason)


@pytest.fixture(autouse=True)
def _shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let replays use the session of the tests, which they must not end."""

    @contextmanager
    def session(*_: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(replaying, "open_spark_session", session)


def configured(folder: Path, hook: Webhook, **more: Any) -> Path:
    """Write settings whose events go to two tables and a webhook, and dead letters to a folder."""
    shop.write_catalog(folder, mended=True)
    told = shop.settings(folder, hook.url, state=str(folder / "state"))
    told["sinks"]["files"] = {"type": "jsonl", "path": str(folder / "files")}
    told["sinks"]["dead"] = {"type": "jsonl", "path": str(folder / "dead")}
    told["routes"] = [{"to": ["lake", "files", "hook"]}]
    told["dead_letters"] = {"sinks": ["dead"], **more}
    config = folder / "router.yaml"
    config.write_text(yaml.safe_dump(told))
    return config


def write_letters(folder: Path, reasons: Sequence[str], detail: str = "") -> list[str]:
    """Write one dead letter for each reason, as a router would; returns their ids."""
    (folder / "dead").mkdir()
    lines: list[bytes] = []
    for n, reason in enumerate(reasons):
        (row,) = shop.records(reason, [n])
        native = BINDINGS["HTTP"].build(list(row.properties))
        told: dict[str, Any] = {
            "letter": f"{n:032x}",
            "reason": reason,
            "detail": detail,
            "endpoint": row.endpoint,
            "protocol": "HTTP",
        }
        told |= {"nearest": None, "native": json.dumps(native), "body": row.body, "epoch": "e", "position": f"u-0-{n}"}
        when = datetime(2026, 1, 2, tzinfo=UTC)
        lines.append(dead_letter_to_json_line({**told, "received": when, "failed": when, "attempts": 1}))
    (folder / "dead" / "app-000000000000.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return [f"{n:032x}" for n in range(len(reasons))]


def run(config: Path, watcher: Quiet | None = None, **options: Any) -> ReplayResult:
    """Replay every letter, two at a time."""
    return replay(config, OF_ALL, ReplayOptions(batch=2, **options), watcher or Quiet())


def die_at(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, when: str) -> None:
    """Let the next call of a method be the last thing that happens."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def dying(*arguments: Any, **named: Any) -> None:
        if when == "after":
            function(*arguments, **named)
        raise Died

    monkeypatch.setattr(owner, name, dying)


def in_files(folder: Path) -> Counter[str]:
    """Count events of the folder by id."""
    lines = (line for path in (folder / "files").glob("*.jsonl") for line in path.read_text().splitlines())
    return Counter(json.loads(line)["cloudevent"]["id"] for line in lines)


def test_dying_at_each_step_leaves_every_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Webhook() as hook:
        config = configured(tmp_path, hook)
        letters = write_letters(tmp_path, ["no-match"] * (2 * len(POINTS) + 1))
        for point in POINTS:
            with monkeypatch.context() as patched, pytest.raises(Died):
                die_at(patched, *point)
                run(config)
        with LetterLedger.open(tmp_path / "state", create=False) as ledger:
            assert ledger.pending() is not None
        result = run(config)
        assert result.summary.routed.total() + Counter(result.skipped)["replayed"] >= len(letters)
        once = Counter(f"id-{n}" for n in range(len(letters)))
        assert Counter(row["id"] for row in shop.rows_of(tmp_path / "lake")) == once
        assert in_files(tmp_path) == once
        posted = Counter(request.header("ce-id") for request in hook.taken)
        assert set(posted) == set(once)
        again = run(config)
        assert (again.summary.settled, again.skipped) == (0, Counter(replayed=len(letters)))
        assert Counter(request.header("ce-id") for request in hook.taken) == posted


def test_a_sink_that_is_away_holds_the_batch_and_ctrl_c_loses_nothing(tmp_path: Path) -> None:
    with Webhook() as hook:
        config = configured(tmp_path, hook)
        (letter,) = write_letters(tmp_path, ["no-match"])
        hook.close()
        reasons: list[str] = []

        def interrupted(reason: str) -> None:
            reasons.append(reason)
            os.kill(os.getpid(), signal.SIGINT)

        result = run(config, Quiet(interrupted))
        assert result.interrupted
        assert "sink hook" in reasons[0]
        assert len(shop.rows_of(tmp_path / "lake")) == 1
        hook.open()
        assert run(config).summary.routed == Counter({"/messagegroups/G/messages/late": 1})
        assert len(shop.rows_of(tmp_path / "lake")) == len(hook.taken) == 1
        with LetterLedger.open(tmp_path / "state", create=False) as ledger:
            assert ledger.standing([letter]) == {letter: "replayed"}


def test_what_a_sink_refuses_goes_there_alone_and_is_parked_in_the_end(tmp_path: Path) -> None:
    with Webhook(lambda request: Answer(422)) as hook:
        config = configured(tmp_path, hook, max_replays=2)
        write_letters(tmp_path, ["no-match", "undecodable"])
        for parked in (0, 2):
            result = run(config)
            assert result.summary.dead == Counter({"sink-rejected": 1, "undecodable": 1})
            assert result.summary.parked == parked
        assert len(shop.rows_of(tmp_path / "lake")) == 1  # Once: the second replay went to the hook alone.
        assert run(config).skipped == Counter(parked=2)
        hook.answer = lambda request: Answer()
        result = run(config, parked=True)
        assert (result.summary.routed.total(), result.summary.dead) == (1, Counter({"undecodable": 1}))
        assert len(shop.rows_of(tmp_path / "lake")) == len(hook.taken) == 1


def test_a_letter_whose_sinks_left_the_route_is_not_called_settled(tmp_path: Path) -> None:
    with Webhook() as hook:
        config = configured(tmp_path, hook)
        write_letters(tmp_path, ["sink-rejected"], detail="sink old bus: no; sink gone: no")
        result = run(config)
        assert result.summary.dead == Counter({"sink-rejected": 1})
        assert not shop.rows_of(tmp_path / "lake")


def test_five_hundred_letters_are_one_batch(tmp_path: Path) -> None:
    """Each batch costs commits and a job of Spark, so that a few letters at a time would take minutes."""
    with Webhook() as hook:
        config = configured(tmp_path, hook)
        letters = write_letters(tmp_path, ["no-match"] * 500)
        watcher = Quiet()
        result = replay(config, OF_ALL, ReplayOptions(), watcher)
        assert watcher.settled == [len(letters)]
        assert result.summary.routed.total() == len(letters) == len(hook.taken)
