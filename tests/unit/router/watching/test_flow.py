"""What the log says of what went through: once a minute, and nothing when nothing did."""

from __future__ import annotations

import io
import json
from typing import Any

from router.evaluation.outputs import DEAD_LETTER, ROUTED, Tally
from router.logs import configure_logs
from router.settings import LogSettings
from router.watching.coverage import EVERY_SECONDS, SHOWN, ThroughputLog
from router.watching.metrics import Metrics


class Minutes:
    """A flow whose clock a test turns, and the lines that it logs."""

    def __init__(self) -> None:
        self.now = 0.0
        self._out = io.StringIO()
        configure_logs(LogSettings(format="json"), self._out)
        self.flow = ThroughputLog(lambda: self.now)

    def told(self, seconds: float = EVERY_SECONDS, *, last: bool = False) -> list[dict[str, Any]]:
        """Let time pass, and return what is logged then."""
        self.now += seconds
        self._out.seek(0)
        self._out.truncate()
        self.flow.log_if_due(last=last)
        return [json.loads(line) for line in self._out.getvalue().splitlines()]


def test_one_line_a_minute_has_the_counts_of_each_endpoint() -> None:
    minutes = Minutes()
    minutes.flow.add({("/endpoints/a", ROUTED, ""): 5, ("/endpoints/a", DEAD_LETTER, "no-match"): 2})
    minutes.flow.add({("/endpoints/b", ROUTED, ""): 9, ("/endpoints/c", ROUTED, ""): 0})
    assert minutes.told(EVERY_SECONDS / 2) == []
    [line] = minutes.told(EVERY_SECONDS / 2)
    assert line["event"] == "throughput"
    assert (line["records"], line["dead_letters"], line["seconds"]) == (16, 2, EVERY_SECONDS)
    assert line["endpoints"] == {"/endpoints/b": {"routed": 9}, "/endpoints/a": {"routed": 5, "no-match": 2}}
    assert minutes.told() == [], "a minute without a record has no line"
    minutes.flow.add({("/endpoints/a", ROUTED, ""): 1})
    assert [line["records"] for line in minutes.told()] == [1]


def test_what_went_through_since_the_last_line_is_told_in_the_end() -> None:
    minutes = Minutes()
    minutes.flow.add({("/endpoints/a", ROUTED, ""): 5})
    [line] = minutes.told(7, last=True)
    assert (line["records"], line["seconds"]) == (5, 7)
    assert minutes.told(7, last=True) == []


def test_many_endpoints_make_no_endless_line() -> None:
    minutes = Minutes()
    minutes.flow.add({(f"/endpoints/{n:03}", ROUTED, ""): 1 + (n < SHOWN) for n in range(SHOWN + 30)})
    [line] = minutes.told()
    assert len(line["endpoints"]) == SHOWN + 1
    assert line["endpoints"]["other"] == {"records": 30}


def test_batches_are_told_and_what_a_start_resumes_is_not() -> None:
    metrics, tally = Metrics(), Tally()
    tally.records["/endpoints/a", ROUTED, ""] = 3
    out = io.StringIO()
    configure_logs(LogSettings(format="json"), out)
    metrics.flow = ThroughputLog(iter([0.0, EVERY_SECONDS]).__next__)
    metrics.count_written_batch("q", tally, 0.1, 0)
    metrics.count_written_batch("q", tally, 0.1, 0, counted=True)
    metrics.flow.log_if_due()
    assert [json.loads(line)["records"] for line in out.getvalue().splitlines()] == [3]
