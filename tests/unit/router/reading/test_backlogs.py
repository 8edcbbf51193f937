"""Up to when all that arrived has been read: by where sources ended, whatever times their records carry."""

from __future__ import annotations

from router.reading.backlogs import ReadUntil


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
