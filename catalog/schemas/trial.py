"""Bodies that may be costly to check, held against their schemas in a process with limits.

Libraries in native code cannot be stopped from within, and some bodies of a few bytes take them hours or gigabytes.
Such bodies (:class:`~catalog.schemas.contract.TooCostly`) go to a helper, which is started at the first of them and
checks each in a fork of its own with limits on processor time and memory. What exceeds them ends the fork alone.
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

from catalog.schemas.contract import Library, SchemaFault, SchemaSource, TooCostly
from catalog.schemas.families import documents_of

MAX_SECONDS: Final = 2.0
"""Processor time that one body may take."""
MAX_MEMORY: Final = 256 * 1024 * 1024
"""Memory that checking one body may take, beyond what the helper has itself."""
ORDINARY_SECONDS: Final = 0.02
ORDINARY_BYTES: Final = 1_000_000
"""Every body may take ORDINARY_SECONDS, and a second for each ORDINARY_BYTES. What is more is drawn from the store."""
STORE_SECONDS: Final = 10.0
STORE_GAIN: Final = 0.1
"""A process has STORE_SECONDS for bodies that take more than is ordinary, and gains STORE_GAIN of the time that passes.

So a flood of such bodies costs a part of the time and never all of it.
"""
_SCRIPT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import catalog.schemas.trial_process as t; t.main()"
)


class Schema(NamedTuple):
    """A schema on its way to the helper, with every document that it refers to by base and reference."""

    source: SchemaSource
    documents: Mapping[tuple[str, str], tuple[str, Any]]

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return URI and document of a reference, as a library does."""
        return self.documents.get((base, reference))


class Task(NamedTuple):
    """One body to check; ``schema`` is given with the first body of each ``key``."""

    key: bytes
    schema: Schema | None
    body: bytes | None
    content_type: str | None
    seconds: float
    memory: int


class TrialResult(NamedTuple):
    """What came of a task; ``finished`` is False when it met a limit. ``seconds`` is the processor time it took."""

    finished: bool
    fault: SchemaFault | None
    seconds: float


@dataclass(slots=True)
class _Store:
    """Seconds left for bodies that take more than is ordinary."""

    left: float = STORE_SECONDS
    since: float = 0.0

    def allowed(self, size: int) -> float:
        now = time.monotonic()
        self.left = min(STORE_SECONDS, self.left + (now - self.since) * STORE_GAIN)
        self.since = now
        return min(MAX_SECONDS, _ordinary(size) + self.left)

    def draw(self, size: int, seconds: float) -> None:
        self.left = max(0.0, self.left - max(0.0, seconds - _ordinary(size)))


def _ordinary(size: int) -> float:
    return ORDINARY_SECONDS + size / ORDINARY_BYTES


class _Helper:
    """One running helper, and the schemas that it has been given."""

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

    def ask(
        self, key: bytes, schema: Schema, body: bytes | None, content_type: str | None, seconds: float
    ) -> TrialResult:
        """Have one body checked.

        Raises:
            OSError, EOFError: the helper is gone.
        """
        pipe = self._process
        assert pipe.stdin is not None and pipe.stdout is not None
        task = Task(key, None if key in self._known else schema, body, content_type, seconds, MAX_MEMORY)
        pickle.dump(task, pipe.stdin)
        pipe.stdin.flush()
        self._known.add(key)
        answer = pickle.load(pipe.stdout)
        assert isinstance(answer, TrialResult)
        return answer

    def end(self) -> None:
        """End the helper, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # of a task that was not written to the end
                    pipe.close()


class _Trials:
    """The helper of this process and its store; one body at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._helper: _Helper | None = None
        self._store = _Store(since=time.monotonic())

    def answer(self, key: bytes, schema: Schema, body: bytes | None, content_type: str | None) -> TrialResult:
        size = len(body or b"")
        with self._lock:
            for _ in range(2):  # a helper may have been killed since the last body
                try:
                    if self._helper is None or self._helper.owner != os.getpid():
                        self._helper = _Helper()
                        atexit.register(self._forget)
                    answer = self._helper.ask(key, schema, body, content_type, self._store.allowed(size))
                except (OSError, EOFError, pickle.UnpicklingError):
                    self._forget()
                    continue
                self._store.draw(size, answer.seconds)
                return answer
        return TrialResult(finished=False, fault=None, seconds=0.0)

    def _forget(self) -> None:
        if self._helper is not None and self._helper.owner == os.getpid():
            self._helper.end()
        self._helper = None


_trials: Final = _Trials()


class Trial:
    """Checks bodies against one schema with limits on time and memory."""

    def __init__(self, key: bytes, source: SchemaSource, library: Library) -> None:
        self._key = key
        self._schema = Schema(source, documents_of(source, library))

    def fault(self, body: bytes | None, content_type: str | None, cost: TooCostly) -> SchemaFault | None:
        """Return why *body* does not conform; past the limits, that it could not be checked within them.

        Whether a body meets the limit on time depends a little on the machine, and in a flood of such bodies on those
        before it: repeated, it may get the other answer.
        """
        answer = _trials.answer(self._key, self._schema, body, content_type)
        return answer.fault if answer.finished else cost.fault()
