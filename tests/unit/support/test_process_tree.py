"""What is told of processes and their threads, held against this process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.processes import below, children, command_of, processor_seconds, program_of, thread_seconds
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


def test_a_process_that_has_ended_has_no_more_to_tell() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    told = children(ended.pid), below(ended.pid), program_of(ended.pid), command_of(ended.pid)
    assert told == ([], [ended.pid], "", "")
    assert thread_seconds([ended.pid], "") == processor_seconds([ended.pid]) == 0
