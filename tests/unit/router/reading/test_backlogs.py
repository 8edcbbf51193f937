"""Up to when all that arrived has been read, whatever times records carry, and what of an inbox waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from bindings.inbox.log import Inbox
from bindings.inbox.source import InboxView
from bindings.parts import InboxRow
from router.reading import backlogs
from router.reading.backlogs import InboxBacklog, InboxRows, ReadUntil
from router.watching.backlogs import Backlog


def test_what_lay_before_the_ends_of_a_question_is_read_once_they_are_reached() -> None:
    read = ReadUntil()
    assert read.seconds == 0
    read.look(10.0, ["t"], {("t", 0): 5, ("t", 1): 7}, {("t", 0): 0, ("t", 1): 7})
    assert read.seconds == 0, "five wait"
    read.look(20.0, ["t"], {("t", 0): 9, ("t", 1): 8}, {("t", 0): 4, ("t", 1): 8})
    assert read.seconds == 0, "one of them waits"
    read.look(30.0, ["t"], {("t", 0): 20, ("t", 1): 8}, {("t", 0): 6, ("t", 1): 8})
    assert read.seconds == 10, "others came since, and always may"
    read.look(40.0, ["t"], {("t", 0): 30, ("t", 1): 8}, {("t", 0): 20, ("t", 1): 8})
    assert read.seconds == 30
    read.look(50.0, ["t"], {("t", 0): 30, ("t", 1): 8}, {("t", 0): 30, ("t", 1): 8})
    assert read.seconds == 50, "nothing waits"


def test_a_topic_that_does_not_exist_has_nothing_to_wait_for() -> None:
    read = ReadUntil()
    read.look(10.0, ["t", "nosuch"], {("t", 0): 5}, {("t", 0): 5})
    assert read.seconds == 10
    read.look(20.0, ["t", "nosuch"], {("t", 0): 9, ("nosuch", 0): 3}, {("t", 0): 9, ("nosuch", 0): 0})
    assert read.seconds == 10
    read.look(30.0, ["t", "nosuch"], {("t", 0): 9}, {("t", 0): 9})
    assert read.seconds == 30, "it was deleted"


def test_a_topic_that_was_made_anew_is_read_from_its_first_record() -> None:
    read = ReadUntil()
    read.look(10.0, ["t"], {("t", 0): 100}, {("t", 0): 90})
    read.look(20.0, ["t"], {("t", 0): 5}, {("t", 0): 0})
    assert read.seconds == 0
    read.look(30.0, ["t"], {("t", 0): 6}, {("t", 0): 5})
    assert read.seconds == 10


def test_a_source_that_is_new_may_have_older_records() -> None:
    read = ReadUntil()
    read.look(10.0, ["t"], {("t", 0): 5}, {("t", 0): 5})
    assert read.seconds == 10
    read.look(20.0, ["t", "u"], {("t", 0): 5, ("u", 0): 5}, {("t", 0): 5, ("u", 0): 1})
    assert read.seconds == 0
    read.look(30.0, ["t", "u"], {("t", 0): 5, ("u", 0): 9}, {("t", 0): 5, ("u", 0): 5})
    assert read.seconds == 20


def test_what_is_kept_of_an_inbox_that_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlogs, "MAX_CHUNKS", 4)
    inbox = Inbox(tmp_path / "inbox", partitions=1)
    try:
        view, rows = InboxView(tmp_path / "inbox"), InboxRows()
        firsts = {number: view.first_position(number) for number in view.partitions}
        for at in range(1, 20):
            inbox.append_many([InboxRow("/e/a" if at % 3 else "/e/b", "HTTP", at * 1000, [], b"")]).result(60)
            found = rows.look(view, firsts, {number: view.end_position(number) for number in view.partitions})
            assert found is not None and sum(each.records for each in found.values()) == at
            assert all(len(known) <= 4 for known in rows._known.values())
        assert found == {"/e/a": Backlog(13, 1, 12), "/e/b": Backlog(6, 3, 6)}
    finally:
        inbox.close()


def test_the_oldest_row_of_an_inbox_is_known_before_all_rows_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlogs, "LOOK_ROWS", 2)
    inbox = Inbox(tmp_path / "inbox", partitions=1)
    try:
        inbox.append_many([InboxRow("/e/a", "HTTP", at * 1000, [], b"") for at in (7, 8, 9)]).result(60)
        backlog = InboxBacklog(tmp_path / "inbox")
        assert (backlog.look(None), backlog.endpoints) == (Backlog(3, 7), None)
        assert backlog.look(None) == Backlog(3, 7)
        assert backlog.endpoints == {"/e/a": Backlog(3, 7)}
    finally:
        inbox.close()
