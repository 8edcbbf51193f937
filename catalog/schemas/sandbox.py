"""Validation of costly bodies in a process with limits.

Native libraries cannot be interrupted, and some bodies of a few bytes need hours or gigabytes. Such bodies
(:class:`~catalog.schemas.contract.CostExceeded`) go to a helper process, started at the first of them, which validates
each in a fork with limits on CPU time and memory. Exceeding them ends only the fork.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from catalog.schemas.contract import CostExceeded, Library, SchemaFault, SchemaSource
from catalog.schemas.families import documents_of

MAX_SECONDS: Final = 2.0
"""Maximum CPU seconds for one body."""
MAX_MEMORY: Final = 256 * 1024 * 1024
"""Maximum memory to validate one body, beyond the helper's own."""
ORDINARY_SECONDS: Final = 0.02
ORDINARY_BYTES: Final = 1_000_000
"""Each body may use ORDINARY_SECONDS, plus a second per ORDINARY_BYTES. Anything above is taken from the CPU budget."""
STORE_SECONDS: Final = 10.0
STORE_GAIN: Final = 0.1
"""The CPU budget for costly bodies is STORE_SECONDS, and grows by STORE_GAIN of the elapsed time.

So a flood of such bodies uses only a part of the time.
"""
_SCRIPT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import catalog.schemas.sandbox_process as t; t.main()"
)


class TaskSchema(NamedTuple):
    """A schema for the helper, with all documents that it refers to by base and reference."""

    source: SchemaSource
    documents: Mapping[tuple[str, str], tuple[str, Any]]

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return URI and document of a reference, like a library."""
        return self.documents.get((base, reference))


class Task(NamedTuple):
    """One body to validate; the first task of each ``key`` has the ``schema``."""

    key: bytes
    schema: TaskSchema | None
    body: bytes | None
    content_type: str | None
    seconds: float
    memory: int


class TaskResult(NamedTuple):
    """The result of a task; ``finished`` is False if it exceeded a limit. ``seconds`` is the CPU time used."""

    finished: bool
    fault: SchemaFault | None
    seconds: float


@dataclass(slots=True)
class _CpuBudget:
    """CPU seconds left for costly bodies."""

    left: float = STORE_SECONDS
    since: float = 0.0

    def allowed_seconds(self, size: int) -> float:
        now = time.monotonic()
        self.left = min(STORE_SECONDS, self.left + (now - self.since) * STORE_GAIN)
        self.since = now
        return min(MAX_SECONDS, _free_seconds(size) + self.left)

    def charge(self, size: int, seconds: float) -> None:
        self.left = max(0.0, self.left - max(0.0, seconds - _free_seconds(size)))


def _free_seconds(size: int) -> float:
    return ORDINARY_SECONDS + size / ORDINARY_BYTES


class _HelperProcess:
    """One running helper process, and the schemas that it has."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._known: set[bytes] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _SCRIPT, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "RUST_BACKTRACE": "0"},
        )

    def validate(
        self, key: bytes, schema: TaskSchema, body: bytes | None, content_type: str | None, seconds: float
    ) -> TaskResult:
        """Validate one body in the helper.

        Raises:
            OSError, EOFError: the helper has died.
        """
        pipe = self._process
        assert pipe.stdin is not None and pipe.stdout is not None
        task = Task(key, None if key in self._known else schema, body, content_type, seconds, MAX_MEMORY)
        pickle.dump(task, pipe.stdin)
        pipe.stdin.flush()
        self._known.add(key)
        result = pickle.load(pipe.stdout)
        assert isinstance(result, TaskResult)
        return result

    def kill(self) -> None:
        """Kill the helper."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # of a task that was not written to the end
                    pipe.close()


class _Sandbox:
    """The helper of this process and its CPU budget; one body at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._helper: _HelperProcess | None = None
        self._budget = _CpuBudget(since=time.monotonic())

    def validate(self, key: bytes, schema: TaskSchema, body: bytes | None, content_type: str | None) -> TaskResult:
        size = len(body or b"")
        with self._lock:
            for _ in range(2):  # a helper may have been killed since the last body
                try:
                    if self._helper is None or self._helper.owner != os.getpid():
                        self._helper = _HelperProcess()
                        atexit.register(self._drop_helper)
                    result = self._helper.validate(key, schema, body, content_type, self._budget.allowed_seconds(size))
                except (OSError, EOFError, pickle.UnpicklingError):
                    self._drop_helper()
                    continue
                self._budget.charge(size, result.seconds)
                return result
        return TaskResult(finished=False, fault=None, seconds=0.0)

    def _drop_helper(self) -> None:
        if self._helper is not None and self._helper.owner == os.getpid():
            self._helper.kill()
        self._helper = None


_sandbox: Final = _Sandbox()


class SandboxedValidation:
    """Validates bodies against one schema with limits on time and memory."""

    def __init__(self, key: bytes, source: SchemaSource, library: Library) -> None:
        self._key = key
        self._schema = TaskSchema(source, documents_of(source, library))

    def fault(self, body: bytes | None, content_type: str | None, cost: CostExceeded) -> SchemaFault | None:
        """Return why *body* is not valid, or that it could not be checked within the limits.

        Whether a body exceeds the time limit depends on the machine, and in a flood of such bodies on those before it.
        """
        result = _sandbox.validate(self._key, self._schema, body, content_type)
        return result.fault if result.finished else cost.fault()
