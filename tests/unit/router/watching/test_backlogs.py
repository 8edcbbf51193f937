"""Up to when all that arrived is in the sinks; figures of backlogs are cases (``tests/cases/watching/status.yaml``)."""

from __future__ import annotations

from router.watching.backlogs import INBOX, Backlog, Backlogs

A, B = "/endpoints/a", "/endpoints/b"


def test_up_to_when_all_that_arrived_is_read() -> None:
    backlogs = Backlogs()
    assert backlogs.read_until() == 0, "nobody has said anything"
    backlogs.update("kafka-1", {A: Backlog(0), B: Backlog(0)}, 990.0)
    backlogs.update("inbox", {INBOX: Backlog(0)}, 1_000.0)
    assert backlogs.read_until() == 990
    backlogs.update("rest", {})
    assert backlogs.read_until() == 0, "one has not been asked yet"
    backlogs.forget("rest")
    assert backlogs.read_until() == 990
