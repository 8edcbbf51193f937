"""What is told of processes and their threads, held against this process."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.process_tree import processor_seconds, thread_seconds
from tests.support.waiting import wait_until


def test_the_time_of_threads_is_a_part_of_the_time_of_their_process() -> None:
    me = os.getpid()
    name = Path("/proc/self/comm").read_text().rstrip("\n")

    def worked() -> float:
        sum(range(100_000))
        return thread_seconds([me], name)

    mine = wait_until(worked, 30.0, "processor time of the first thread")
    assert 0 < mine <= processor_seconds([me])
    assert thread_seconds([me], f"{name} and more") == 0
