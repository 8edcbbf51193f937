"""A router one of whose tasks has a fate once it has written the files of a table.

``python -m tests.support.fated_staging FATE FOLDER COMMAND...`` runs ``xrouter COMMAND...``. FATE is

* ``killed``: its executor dies before the driver hears of the files, so that the task runs again;
* ``twice``: it waits until another try of the same task, which Spark begins since the first is slow, wrote as well.

FOLDER takes the marks by which tries of tasks know of each other, and that a fate was met.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext, cloudpickle

from catalog.model import Catalog
from router.cli import main
from router.sinks.contract import Commit, FileStager, StagedFile
from router.sinks.tables.delta import DeltaSink

LIMIT: Final = 120.0


@dataclass(frozen=True)
class FatedStaging:
    """Writes as *inner* does; one task, the first that asks, meets *fate*."""

    inner: FileStager
    fate: str
    marks: str

    def write(self, rows: pa.Table, task: str, catalog: Catalog) -> Sequence[StagedFile]:
        context = TaskContext.get()
        assert context is not None
        mine = str(context.partitionId())
        if self._is_first(mine):
            return self._fated(rows, task, catalog)
        staged = self.inner.write(rows, task, catalog)
        first = Path(self.marks, "first")
        if first.read_text() == mine:
            Path(self.marks, "again").touch()
        return staged

    def discard(self, files: Iterable[StagedFile]) -> None:
        self.inner.discard(files)

    def _is_first(self, mine: str) -> bool:
        draft = Path(self.marks, f"draft-{os.getpid()}")
        draft.write_text(mine)
        try:
            os.link(draft, Path(self.marks, "first"))
        except FileExistsError:
            return False
        return True

    def _fated(self, rows: pa.Table, task: str, catalog: Catalog) -> Sequence[StagedFile]:
        staged = self.inner.write(rows, task, catalog)
        Path(self.marks, "met").touch()
        if self.fate == "killed":
            # Of the daemon that this worker is a child of, the parent is the executor.
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
        deadline = time.monotonic() + LIMIT
        while not Path(self.marks, "again").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return staged


def run(fate: str, marks: str, command: list[str]) -> None:
    """Run a command with such a task."""
    given = DeltaSink.make_stager
    # Executors have the router's packages, and not the tests'.
    cloudpickle.register_pickle_by_value(sys.modules[FatedStaging.__module__])  # type: ignore[no-untyped-call]

    def staging(self: DeltaSink, commit: Commit) -> FileStager | None:
        inner = given(self, commit)
        return None if inner is None else FatedStaging(inner, fate, marks)

    DeltaSink.make_stager = staging  # type: ignore[method-assign, assignment]
    main(command)


if __name__ == "__main__":
    from tests.support.fated_staging import run as run_it

    run_it(sys.argv[1], sys.argv[2], sys.argv[3:])
