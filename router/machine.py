"""What the machine has, and how it is divided: memory, descriptors, and the size of a batch."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from catalog.values import parse_whole_number
from router.errors import ConfigError
from router.settings import Settings, plain_options

# How the memory of the machine is divided: Spark's JVM, each Python worker, and the batch that goes through both.
#
# What is there is the machine's memory, or less where a control group (a container, a systemd unit) sets a limit.
# Shares that the settings do not give are derived from it, once, when the router starts. They are upper bounds; what is
# left is for this process, which holds one batch for tables and message targets, for brokers and for the page cache.

MIB: Final = 2**20
GIB: Final = 2**30
HEAP_OPTION: Final = "spark.driver.memory"
TASKS_EACH: Final = 2
"""Tasks at a time for each core, of a local Spark whose master is not set."""
MIN_HEAP: Final = 512 * MIB
"""Below about this Spark does not start."""
_MAX_HEAP: Final = 4 * GIB
_MIN_WORKER: Final = 512 * MIB
_MAX_WORKER: Final = GIB
_MIN_BATCH: Final = 16 * MIB
_MAX_BATCH: Final = 128 * MIB
_COPIES: Final = 16
"""A batch is at most this part of the heap: its rows are there several times over while they go to a table."""
_LOCAL_TASKS: Final = re.compile(r"local\[([1-9][0-9]{0,5})(?:,\s*[0-9]+)?\]")
_JVM_SIZE: Final = re.compile(r"(\d+)\s*([bkmgt]?)b?", re.IGNORECASE)
_UNLIMITED: Final = 2**60
"""Control groups of the first version write a number beyond this for no limit."""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes for each part.

    ``machine`` is what there is, ``heap`` the JVM's, ``worker`` what each Python worker may take besides the compiled
    plan, ``batch`` the records of one batch. ``tasks`` is how many tasks a local Spark runs at a time on the ``cores``
    that there are; each has a worker.
    """

    machine: int
    heap: int
    worker: int
    batch: int
    cores: int
    tasks: int

    @property
    def master(self) -> str:
        """The master of a local Spark, where the settings name none."""
        return f"local[{self.tasks}]"

    @property
    def log_fields(self) -> dict[str, str]:
        """The shares for a line of the log, by the keys of the settings that change them."""
        shares = {"machine": self.machine, "memory.heap": self.heap, "memory.worker": self.worker}
        return {name: _mib(size) for name, size in (shares | {"max_bytes_per_batch": self.batch}).items()}

    @property
    def heap_remedy(self) -> str:
        """What to do when the JVM ran out of memory."""
        return (
            f"raise memory.heap, now {_mib(self.heap)}, or lower max_bytes_per_batch, now {_mib(self.batch)}; "
            "a batch that was begun is then read in parts"
        )

    @property
    def worker_remedy(self) -> str:
        """What to do when a Python worker ran out of memory."""
        return f"raise memory.worker, now {_mib(self.worker)}; the machine has {_mib(self.machine)}"

    def remedy(self, fault: str, *, worker: bool = False) -> str:
        """Return what to do about a fault that comes of too little memory; empty for another.

        *worker* is whether a Python worker died, which may be for want of memory.
        """
        if "OutOfMemoryError" in fault:
            return self.heap_remedy
        return self.worker_remedy if worker or fault.startswith("MemoryError") else ""


def divide_memory(settings: Settings, machine: int | None = None, cores: int | None = None) -> MemoryBudget:
    """Divide *machine* bytes among the Python workers of *cores* and the rest; unset takes what is there.

    Raises:
        ConfigError: `spark.conf` has a ``spark.driver.memory`` that is no size.
    """
    machine = machine or measure_memory()
    cores = cores or len(os.sched_getaffinity(0))
    given = plain_options(settings.spark.conf).get(HEAP_OPTION)
    heap = _parse_jvm_size(given) if given is not None else settings.memory.heap or _default_heap(machine)
    worker = settings.memory.worker or _clamp(machine // 8 // cores, _MIN_WORKER, _MAX_WORKER)
    batch = settings.max_bytes_per_batch or _clamp(heap // _COPIES, _MIN_BATCH, _MAX_BATCH)
    workers = (machine - heap) // 2 // worker
    return MemoryBudget(machine, heap, worker, batch, cores, _count_tasks(settings, workers, cores))


def _count_tasks(settings: Settings, workers: int, cores: int) -> int:
    """Return how many tasks run at a time where there is memory for so many workers."""
    master = settings.spark.master
    if master is not None:
        given = _LOCAL_TASKS.fullmatch("local[1]" if master == "local" else master)
        return int(given[1]) if given is not None else cores
    # A task waits by turns for brokers and for its worker, so that one for each core leaves cores idle. Those of a
    # real-time query want a core each (:mod:`router.realtime`).
    tasks = cores * TASKS_EACH
    return tasks if tasks <= workers and not settings.is_real_time else cores


def measure_memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process may count on: the machine's, or its control group's limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_iter_group_limits(root)]
    return min(limits)


def _mib(size: int) -> str:
    return f"{size // MIB} MiB"


def _default_heap(machine: int) -> int:
    # Small machines give a larger part: a JVM of less than a gigabyte spends its time collecting garbage.
    return _clamp(max(machine // 8, min(GIB, machine * 2 // 5)), MIN_HEAP, _MAX_HEAP)


def _clamp(size: int, least: int, most: int) -> int:
    return min(max(size, least), most)


def _parse_jvm_size(text: str) -> int:
    match = _JVM_SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"spark.conf: {HEAP_OPTION} is {text!r}, which is not a valid JVM size",
            key=f"spark.conf.{HEAP_OPTION}",
            hint="write a number with the unit k, m or g, such as 2g; or set memory.heap instead",
        )
    # A number alone is mebibytes, as Spark reads it.
    exponent = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}.get(match[2].lower(), 2)
    return int(match[1]) << 10 * exponent


def _iter_group_limits(root: Path) -> Iterator[int]:
    """Yield the limits of this process's control groups and of all around them, in both versions of those."""
    try:
        lines = (root / "proc/self/cgroup").read_text().split("\n")
    except OSError:
        return
    groups = root / "sys/fs/cgroup"
    for line in filter(None, lines):
        _, controllers, place = line.split(":", 2)
        if controllers == "":
            folder, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the file system begins at the container's own group, whatever the place says.
        inner = folder / place.lstrip("/")
        for each in (folder, inner, *(above for above in inner.parents if folder in above.parents)):
            limit = _read_limit(each / name)
            if limit is not None:
                yield limit


def _read_limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    # What is no number is "max", and 0 says nothing.
    return parse_whole_number(text, _UNLIMITED - 1) or None


# How many records a batch may have so that its bytes and its time stay within bounds, and when to look at it first.
#
# Spark's Kafka source counts records alone, and its limit stands for as long as a query runs. So the limit is an
# estimate: from a sample of what is unread when the query starts, and from the batches that were seen since. A batch
# that may still be too large is measured before its first write (:mod:`router.reading.backlogs`) and, if it is, written
# in parts. The local inbox needs no estimate: its source knows bytes.
#
# While a query is behind, a batch is as large as its limits allow, unless its work takes long: then it has what was
# done in :data:`TARGET_SECONDS` lately. While it is not behind, batches are smaller than any limit, and only the
# trigger counts. A limit changes by a factor that a steady pace does not ask for twice, so that it does not swing. What
# Spark has planned stays as it is: a limit is for batches to come.

SIZE_TOLERANCE: Final = 2.0
"""Batches may be larger than their bound by this factor before they are cut: there is room for it in the heap, and
an estimate that is a little off must not cost a second reading."""
LIMIT_TOLERANCE: Final = 4.0
"""The factor by which an estimate must be off for the query to be started again with a better one."""
DEFAULT_RECORD_BYTES: Final = 2**20
"""Bytes that a record is taken for while nothing is known of its topic: what brokers take by default."""
MIN_RECORDS: Final = 10
TARGET_SECONDS: Final = 20.0
"""Seconds of work that a full batch is meant to take at most: so much is repeated after a crash."""
PACE_TOLERANCE: Final = 2.0
"""The factor by which the time of full batches must be off for the query to be started again."""
_FORGET: Final = 0.9
_OLD_PACE: Final = 0.5


@dataclass(slots=True)
class BatchSizing:
    """What one query knows of its records' size, and of its ``pace`` in records a second.

    ``bound`` is in bytes, ``most`` the records that settings allow, ``aim`` the seconds that a full batch may take.
    Written by the thread of the query's batches, read by the one that starts queries.
    """

    bound: int
    most: int
    mean: float | None = None
    aim: float = TARGET_SECONDS
    pace: float | None = None
    exact: bool = False
    """Whether the source bounds bytes itself, so that their size does not limit records."""
    limit: int = field(init=False)
    relimit: bool = field(default=False, init=False)
    """Whether the limit that the query runs with is too far off."""

    @classmethod
    def of(cls, settings: Settings) -> BatchSizing:
        """Return what is known before anything was seen."""
        aim, limit = max(TARGET_SECONDS, settings.between_batches.total_seconds()), settings.batch_limit.total_seconds()
        aim = min(aim, limit / 2) if limit else aim
        return cls(divide_memory(settings).batch, settings.max_records_per_batch, aim=aim)

    def __post_init__(self) -> None:
        self.limit = self.most

    def begin(self, sampled: float | None) -> int:
        """Return the most records of a batch for a query that starts now.

        *sampled* is the mean size of what it will read. What batches have taught goes before it.
        """
        if self.mean is None:
            self.mean = sampled
        self.limit = self._compute_limit()
        self.relimit = False
        return self.limit

    def suspects(self, records: int) -> bool:
        """Whether so many records may be too large a batch, so that they must be measured."""
        size = DEFAULT_RECORD_BYTES if self.mean is None else self.mean
        return records * size > self.bound * SIZE_TOLERANCE

    def pieces(self, size: int) -> int:
        """Return in how many parts a batch of so many bytes is written; 1 is whole."""
        return 1 if size <= self.bound * SIZE_TOLERANCE else -(-size // self.bound)

    def worked(self, records: int, seconds: float) -> None:
        """Take in how long a batch took; one that is far from full shows nothing, since every batch takes a moment."""
        if records < self.limit // 2 or seconds <= 0:
            return
        pace = records / seconds
        self.pace = pace if self.pace is None else self.pace * _OLD_PACE + pace * (1 - _OLD_PACE)
        better = self._compute_limit()
        self.relimit |= better * PACE_TOLERANCE < self.limit or self.limit * PACE_TOLERANCE <= better

    def learn(self, records: int, size: int) -> None:
        """Take in the size of a batch or a part."""
        if not records:
            return
        mean = size / records
        # A larger size counts at once, a smaller one little by little.
        self.mean = mean if self.mean is None else max(mean, self.mean * _FORGET + mean * (1 - _FORGET))
        better = self._compute_limit()
        binds = records >= self.limit // 2
        self.relimit |= better * LIMIT_TOLERANCE < self.limit or (binds and self.limit * LIMIT_TOLERANCE < better)

    def _compute_limit(self) -> int:
        limits = [float(self.most)]
        if self.mean is not None and not self.exact:
            limits.append(self.bound / max(1.0, self.mean))
        if self.pace is not None:
            limits.append(self.pace * self.aim)
        return max(min(MIN_RECORDS, self.most), int(min(limits)))


# How many files, and so connections, this process may open.

AMPLE_FILES: Final = 4096
"""Descriptors with which the defaults of all limits can be reached, with room for Spark, inbox and tables."""
MIN_FILES: Final = 512
"""Descriptors below which no router starts: the JVM alone opens some 300 files."""


def raise_descriptor_limit() -> None:
    """Raise the limit on open files as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def get_descriptor_limit() -> int:
    """Return how many files this process may open once it has raised its limit; a very large number for no limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 2**31 if hard == resource.RLIM_INFINITY else hard
