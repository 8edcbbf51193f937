"""Processes and their descendants, as the kernel tells of them now."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_FIRST_TIME: Final = 11
"""Place of the first of the four times in a process's status, behind its name: its own, and of children that ended."""


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that live, ascending."""
    found: list[int] = []
    for thread in _threads(pid):
        try:
            found += map(int, (thread / "children").read_text().split())
        except OSError:
            continue  # It ended meanwhile.
    return sorted(found)


def program_of(pid: int) -> str:
    """Return the path of the program that a process runs; empty when it has ended."""
    try:
        return str((_PROC / str(pid) / "exe").readlink())
    except OSError:
        return ""


def below(pid: int, left_out: Collection[int] = ()) -> list[int]:
    """Return a process and its descendants, but for those left out and what is below them."""
    found = [pid]
    for each in found:
        found += [child for child in children(each) if child not in left_out]
    return found


def command_of(pid: int) -> str:
    """Return the command line of a process, its words one behind the other; empty when it has ended."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def processor_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of processes, with that of their children that ended."""
    return sum(map(_ticks, pids)) / _TICKS


def thread_seconds(pids: Iterable[int], name: str) -> float:
    """Return the processor time of the threads of processes whose names begin so, of those that live."""
    return sum(_thread_ticks(pid, name) for pid in pids) / _TICKS


def _threads(pid: int) -> list[Path]:
    """Return the folders of a process's threads; none when it has ended, for which `Path.glob` has an error."""
    tasks = _PROC / str(pid) / "task"
    try:
        return [tasks / name for name in os.listdir(tasks)]
    except OSError:
        return []


def _thread_ticks(pid: int, name: str) -> int:
    ticks = 0
    for thread in _threads(pid):
        try:
            if (thread / "comm").read_text(errors="replace").startswith(name):
                told = (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()
                ticks += sum(map(int, told[_FIRST_TIME : _FIRST_TIME + 2]))
        except OSError:
            continue  # It ended meanwhile.
    return ticks


def _ticks(pid: int) -> int:
    try:
        told = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0  # It has just ended; its time is its parent's now.
    return sum(map(int, told[_FIRST_TIME : _FIRST_TIME + 4]))
