"""What waits in a local inbox, asked of its files."""

from __future__ import annotations

import json
from pathlib import Path

import structlog

from bindings.inbox.format import InboxPosition, list_segments, partition_directory, segment_path, to_offset
from bindings.inbox.log import Inbox
from bindings.inbox.space import InboxLimits
from bindings.parts import InboxRow
from router.reading import generations
from router.running.monitoring import BacklogPoller
from router.sources import INBOX
from router.state.state import StateFolder
from router.watching.backlogs import Backlog
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support.listed import plan_of
from tests.support.waiting import wait_until

LIMIT = 60.0


def test_an_inbox_that_misses_a_segment_has_no_figures(tmp_path: Path) -> None:
    plan, backlogs = plan_of(["lake"]), Metrics().backlogs
    with StateFolder.open(tmp_path / "state") as state:
        inbox = Inbox(state.inbox, partitions=1, limits=InboxLimits(segment_bytes=4096))
        try:
            for _ in range(8):
                inbox.append_many([InboxRow("/endpoints/e", "HTTP", 1, [], b"x" * 1000) for _ in range(2)]).result(60)
            path = generations.begin(state, INBOX, ()).path
            for name in ("offsets", "commits"):
                (path / name).mkdir()
                lines = ("v1", "{}", json.dumps(to_offset(inbox.layout.inbox, {0: InboxPosition(0, 0)})))
                (path / name / "0").write_text("\n".join(lines))
            with BacklogPoller(state, lambda: plan, backlogs, RouterStatus(), inbox_seconds=0.01):
                wait_until(lambda: backlogs.get_current().get(INBOX) == Backlog(16, 0), LIMIT, "what waits to be told")
                assert backlogs.read_until() == 0
            folder = partition_directory(state.inbox, 0)
            assert len(list_segments(folder)) > 2
            segment, aside = segment_path(folder, list_segments(folder)[1]), tmp_path / "aside"
            segment.rename(aside)
            with (
                structlog.testing.capture_logs() as logged,
                BacklogPoller(state, lambda: plan, backlogs, RouterStatus(), inbox_seconds=0.01),
            ):
                wait_until(lambda: INBOX in backlogs.get_current(), LIMIT, "the files to be looked at")
                assert backlogs.get_current()[INBOX] is None
                aside.rename(segment)
                wait_until(
                    lambda: backlogs.get_current()[INBOX] == Backlog(16, 0), LIMIT, "what waits to be told again"
                )
            lost, again = logged
            assert (lost["event"], lost["log_level"]) == ("source unreachable; its lag is unknown", "warning") and lost[
                "problem"
            ]
            assert (again["event"], again["log_level"]) == ("source reachable again", "info")
        finally:
            inbox.close()
