"""Work on untrusted content in a process with limits on CPU time and memory.

Native libraries cannot be interrupted, and some inputs of a few bytes need hours or gigabytes. Such calls go to one
worker process, started at the first of them. It forks a process for each call, which ends if it exceeds a limit.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from catalog.schemas.contract import (
    BEYOND_FAULT,
    Library,
    SchemaError,
    SchemaFault,
    SchemaSource,
    Validator,
    make_fault,
)
from catalog.schemas.families import MAX_COMPILED, KnownDocuments, compile_schema, documents_of

T = TypeVar("T")
MAX_SECONDS: Final = 2.0
"""Maximum CPU seconds for one call."""
MAX_MEMORY: Final = 256 * 1024 * 1024
"""Maximum memory for one call, beyond the worker's own."""
ORDINARY_SECONDS: Final = 0.02
ORDINARY_BYTES: Final = 1_000_000
"""Each body may use ORDINARY_SECONDS, plus a second per ORDINARY_BYTES. Anything above is taken from the CPU budget."""
STORE_SECONDS: Final = 10.0
STORE_GAIN: Final = 0.1
"""The CPU budget for costly bodies is STORE_SECONDS, and grows by STORE_GAIN of the elapsed time.

So a flood of such bodies uses only a part of the time.
"""
WAITING: Final = 15
"""Times its CPU seconds that a process may take by the clock: a limit on memory may leave it hanging."""
START_ATTEMPTS: Final = 8
"""Times to try to start a worker, within three seconds, when the system has no process or no memory for it."""
_START_SECONDS: Final = 60.0
"""Time by the clock to start a worker, and to prepare for a call there."""
_SCRIPT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import catalog.schemas.sandbox as s; s.serve_tasks()"
)
COMPILE_SECONDS: Final = 10.0
COMPILE_MEMORY: Final = 1024 * 1024 * 1024
"""Maximum CPU seconds and memory to compile a schema."""


class Task(NamedTuple):
    """A call for the worker: a function of a module, its arguments, and its limits.

    *prepare* is called in the worker itself, without limits, so that its effects remain for later calls.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    seconds: float
    memory: int
    prepare: Callable[[], object] | None


class LimitExceeded(Exception):
    """A call has exceeded a limit, or has failed."""


def _start_worker() -> subprocess.Popen[bytes]:
    for attempt in range(START_ATTEMPTS):
        try:
            return subprocess.Popen(
                [sys.executable, "-I", "-c", _SCRIPT, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "RUST_BACKTRACE": "0"},
            )
        except OSError as error:
            failure = error
        time.sleep(0.1 * attempt)
    raise OSError(
        failure.errno,
        f"cannot start the process that does costly work: {failure}. Allow more processes, open files or memory",
    ) from failure


def _exchange(worker: subprocess.Popen[bytes], task: Task, seconds: float) -> Any:
    """Return the answer of a worker, within so many seconds by the clock.

    Raises:
        OSError, EOFError, pickle.UnpicklingError: it has died, or does not answer.
    """
    assert worker.stdin is not None and worker.stdout is not None
    pickle.dump(task, worker.stdin)
    worker.stdin.flush()
    answer = select.poll()  # unlike select(), for any number of open files
    answer.register(worker.stdout, select.POLLIN)
    if not answer.poll(1000 * seconds):
        raise EOFError
    return pickle.load(worker.stdout)


class Sandbox:
    """The worker of this process; one call at a time. Thread-safe."""

    def __init__(self) -> None:
        self.worker: subprocess.Popen[bytes] | None = None
        self.is_inside = False
        """Whether this process is itself a worker, which compiles again what was compiled within limits before."""
        self._lock = threading.Lock()
        self._owner = 0
        self._prepared: set[bytes] = set()

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        seconds: float = MAX_SECONDS,
        memory: int = MAX_MEMORY,
        key: bytes = b"",
        prepare: Callable[[], object] | None = None,
    ) -> tuple[Any, float]:
        """Return the result of a function, and the CPU seconds that it took.

        *prepare* is called before the first call of each worker with this *key*.

        Raises:
            LimitExceeded: it exceeds a limit, or fails.
            OSError: there is no worker, and the system starts none.
        """
        if self.is_inside:
            return function(*arguments), 0.0
        with self._lock:
            is_full = len(self._prepared) >= MAX_COMPILED  # catalogs change for years, and it forgets no schema
            if self.worker is None or self._owner != os.getpid() or self.worker.poll() is not None or is_full:
                self.stop()
                self.worker, self._owner, self._prepared = _start_worker(), os.getpid(), set()
            is_prepared = key in self._prepared
            self._prepared.add(key)
            task = Task(function, arguments, seconds, memory, None if is_prepared else prepare)
            try:
                answer = _exchange(self.worker, task, WAITING * seconds + (0 if is_prepared else _START_SECONDS))
            except (OSError, EOFError, pickle.UnpicklingError):
                self.stop()
                raise LimitExceeded from None
            except BaseException:
                self.stop()  # its answer must not be taken for that of the next call
                raise
        if answer is None:
            raise LimitExceeded
        result, used = answer
        return result, used

    def stop(self) -> None:
        """Kill the worker and the process of a call, if they are of this process."""
        worker, self.worker = self.worker, None
        if worker is None or self._owner != os.getpid():
            return
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        for pipe in filter(None, (worker.stdin, worker.stdout)):
            with contextlib.suppress(OSError):  # of a task that was not written to the end
                pipe.close()


sandbox: Final = Sandbox()
atexit.register(sandbox.stop)


def compile_limited(function: Callable[..., T], *arguments: Any, module: str) -> T:
    """Return what a function does to compile a schema within limits; *module* is a library that it needs.

    Raises:
        LimitExceeded, OSError: as :meth:`Sandbox.call`.
    """
    load = partial(importlib.import_module, module)
    limits: Any = {"seconds": COMPILE_SECONDS, "memory": COMPILE_MEMORY}
    compiled: T = sandbox.call(function, *arguments, key=module.encode(), prepare=load, **limits)[0]
    return compiled


def serve_tasks() -> None:
    """Answer the tasks on standard input until its other end is closed; the main function of the worker."""
    sandbox.is_inside = True
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            task: Task = pickle.load(sys.stdin.buffer)
            if task.prepare is not None:
                task.prepare()
            _answer_task(task)


def _answer_task(task: Task) -> None:
    """Write result and CPU seconds of a call, None if it exceeds a limit, from a process of its own if there is one."""
    try:
        child = os.fork()
    except OSError:
        child = None
    answer = None
    if child:
        if os.waitpid(child, 0)[1] == 0:
            return  # it has answered
    else:
        try:
            answer = _run_task(task)
        except BaseException:
            os._exit(1)
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()
    if child == 0:
        os._exit(0)


def _run_task(task: Task) -> tuple[Any, float]:
    """Return result and CPU seconds of a call; a limit that is exceeded ends the process."""
    with open("/proc/self/statm", encoding="ascii") as pages:
        room = int(pages.read().split()[0]) * resource.getpagesize() + task.memory
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (room if hard == resource.RLIM_INFINITY else min(room, hard), hard))
    before = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, task.seconds)
    result = task.function(*task.arguments)
    signal.setitimer(signal.ITIMER_PROF, 0)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # the next call needs room, too
    return result, time.process_time() - before


# Costly bodies: each is validated within limits, and a flood of them uses only a part of the time.


class CpuBudget:
    """CPU seconds left for costly bodies."""

    def __init__(self) -> None:
        self.left = STORE_SECONDS
        self.since = time.monotonic()

    def allowed_seconds(self, size: int) -> float:
        """Return the CPU seconds that a body of this size may use now."""
        now = time.monotonic()
        self.left = min(STORE_SECONDS, self.left + (now - self.since) * STORE_GAIN)
        self.since = now
        return min(MAX_SECONDS, _free_seconds(size) + self.left)

    def charge(self, size: int, seconds: float) -> None:
        """Take the CPU seconds that a body used."""
        self.left = max(0.0, self.left - max(0.0, seconds - _free_seconds(size)))


def _free_seconds(size: int) -> float:
    return ORDINARY_SECONDS + size / ORDINARY_BYTES


_budget: Final = CpuBudget()
_validators: Final[dict[bytes, Validator]] = {}
"""The compiled schemas of the worker, by fingerprint."""


class SandboxedValidation:
    """Validates bodies against one schema with limits on time and memory.

    Whether a body exceeds the time limit depends on the machine, and in a flood of such bodies on those before it.
    """

    def __init__(self, key: bytes, source: SchemaSource, library: Library) -> None:
        self._key = key
        self._prepare = partial(_load_schema, key, source, KnownDocuments(documents_of(source, library)))

    def fault(self, body: bytes | None, content_type: str | None) -> SchemaFault | None:
        """Return why *body* is not valid, or that it could not be checked within the limits.

        Raises:
            OSError: there is no worker, and the system starts none.
        """
        size = len(body or b"")
        seconds = _budget.allowed_seconds(size)
        fault: SchemaFault | None
        try:
            fault, used = sandbox.call(
                _find_fault, self._key, body, content_type, seconds=seconds, key=self._key, prepare=self._prepare
            )
        except LimitExceeded:
            fault, used = BEYOND_FAULT, seconds
        _budget.charge(size, used)
        return fault


def _load_schema(key: bytes, source: SchemaSource, library: Library) -> None:
    with contextlib.suppress(SchemaError):  # it compiled where it is from; here it met a limit
        _validators[key] = compile_schema(source, library)


def _find_fault(key: bytes, body: bytes | None, content_type: str | None) -> SchemaFault | None:
    validator = _validators.get(key)
    try:
        return BEYOND_FAULT if validator is None else validator.fault(body, content_type, at_any_cost=True)
    except MemoryError:
        raise
    except Exception as error:  # of a library that a body confuses
        return make_fault(f"the body cannot be held against the schema: {error!r}")
