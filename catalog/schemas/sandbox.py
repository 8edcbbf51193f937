"""Work on untrusted content in a process with limits on CPU time and memory.

Native libraries cannot be interrupted, and some bodies of a few bytes need hours or gigabytes. Such bodies
(:class:`~catalog.schemas.contract.CostExceeded`) go to one worker process, started at the first of them. It compiles
the schemas and forks a process for each body, which ends with the body that exceeds a limit.
"""

from __future__ import annotations

import atexit
import contextlib
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
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from catalog.schemas.contract import (
    BEYOND_FAULT,
    Library,
    SchemaError,
    SchemaFault,
    SchemaSource,
    Validator,
    make_fault,
)
from catalog.schemas.families import compile_schema, documents_of

MAX_SECONDS: Final = 2.0
"""Maximum CPU seconds for one body."""
MAX_MEMORY: Final = 256 * 1024 * 1024
"""Maximum memory to validate one body, beyond the worker's own."""
ORDINARY_SECONDS: Final = 0.02
ORDINARY_BYTES: Final = 1_000_000
"""Each body may use ORDINARY_SECONDS, plus a second per ORDINARY_BYTES. Anything above is taken from the CPU budget."""
STORE_SECONDS: Final = 10.0
STORE_GAIN: Final = 0.1
"""The CPU budget for costly bodies is STORE_SECONDS, and grows by STORE_GAIN of the elapsed time.

So a flood of such bodies uses only a part of the time.
"""
WAITING: Final = 15
"""Times its CPU seconds that a body may take by the clock: a limit on memory may leave it hanging."""
START_ATTEMPTS: Final = 8
"""Times to try to start a worker, within three seconds, when the system has no process or no memory for it."""
_START_SECONDS: Final = 60.0
"""Time by the clock to start a worker and to compile a schema there."""
_SCRIPT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import catalog.schemas.sandbox as s; s.serve_tasks()"
)
_LIMITS_SCRIPT: Final = """
import resource, sys
for kind, most in (resource.RLIMIT_CPU, int(sys.argv[1])), (resource.RLIMIT_AS, int(sys.argv[2])):
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))
"""


def run_limited(
    script: str, arguments: list[str], *, seconds: int, memory: int, given: bytes = b"", folder: str | None = None
) -> tuple[int, bytes, str]:
    """Run a Python script in a process of its own with limits; return its code, output and errors.

    Its arguments begin at ``sys.argv[3]``. The code is negative if it exceeded a limit on time.
    """
    command = [sys.executable, "-I", "-S", "-c", _LIMITS_SCRIPT + script, str(seconds), str(memory), *arguments]
    try:
        done = subprocess.run(command, input=given, cwd=folder, capture_output=True, check=False, timeout=10 * seconds)
    except subprocess.TimeoutExpired:
        return -1, b"", ""
    return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")


class TaskSchema(NamedTuple):
    """A schema for the worker, with all documents that it refers to by base and reference."""

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


class _Worker:
    """One running worker process, and the schemas that it has."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.process = self._start()
        self._known: set[bytes] = set()

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
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
            f"cannot start the process that validates costly bodies: {failure}. Allow more processes, open files or"
            " memory",
        ) from failure

    def validate(
        self, key: bytes, schema: TaskSchema, body: bytes | None, content_type: str | None, seconds: float
    ) -> Any:
        """Return fault and CPU seconds of one body.

        Raises:
            OSError, EOFError, pickle.UnpicklingError: the worker has died, or does not answer.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        is_known = key in self._known
        pickle.dump(
            Task(key, None if is_known else schema, body, content_type, seconds, MAX_MEMORY), self.process.stdin
        )
        self.process.stdin.flush()
        self._known.add(key)
        answer = select.poll()  # unlike select(), for any number of open files
        answer.register(self.process.stdout, select.POLLIN)
        if not answer.poll(1000 * (WAITING * seconds + (0 if is_known else _START_SECONDS))):
            raise EOFError
        return pickle.load(self.process.stdout)

    def kill(self) -> None:
        """Kill the worker, and the process of a body."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # of a task that was not written to the end
                    pipe.close()


class _Sandbox:
    """The worker of this process and its CPU budget; one body at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.worker: _Worker | None = None
        self._budget = CpuBudget()

    def find_fault(
        self, key: bytes, schema: TaskSchema, body: bytes | None, content_type: str | None
    ) -> SchemaFault | None:
        """Return why *body* is not valid; BEYOND_FAULT if it exceeds a limit.

        Raises:
            OSError: there is no worker, and the system starts none.
        """
        size = len(body or b"")
        with self._lock:
            if self.worker is None or self.worker.owner != os.getpid() or self.worker.process.poll() is not None:
                self.stop()
                self.worker = _Worker()
            seconds = self._budget.allowed_seconds(size)
            found: SchemaFault | None
            try:
                found, used = self.worker.validate(key, schema, body, content_type, seconds)
            except (OSError, EOFError, pickle.UnpicklingError):
                self.stop()
                found, used = BEYOND_FAULT, seconds
            except BaseException:
                self.stop()  # its answer must not be taken for that of the next body
                raise
            self._budget.charge(size, used)
            return found

    def stop(self) -> None:
        """Stop the worker, if this process has one."""
        if self.worker is not None and self.worker.owner == os.getpid():
            self.worker.kill()
        self.worker = None


sandbox: Final = _Sandbox()
atexit.register(sandbox.stop)


class SandboxedValidation:
    """Validates bodies against one schema with limits on time and memory.

    Whether a body exceeds the time limit depends on the machine, and in a flood of such bodies on those before it.
    """

    def __init__(self, key: bytes, source: SchemaSource, library: Library) -> None:
        self._key = key
        self._schema = TaskSchema(source, documents_of(source, library))

    def fault(self, body: bytes | None, content_type: str | None) -> SchemaFault | None:
        """Return why *body* is not valid, or that it could not be checked within the limits."""
        return sandbox.find_fault(self._key, self._schema, body, content_type)


def serve_tasks() -> None:
    """Answer the tasks on standard input until its other end is closed; the main function of the worker."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    validators: dict[bytes, Validator | None] = {}
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            task = pickle.load(sys.stdin.buffer)
            if task.schema is not None:
                validators[task.key] = _compile_task_schema(task.schema)
            _answer_task(validators[task.key], task)


def _answer_task(validator: Validator | None, task: Task) -> None:
    """Write fault and CPU seconds of one body, from a process of its own if the system allows one."""
    try:
        child = os.fork() if validator is not None else None
    except OSError:
        child = None
    if child:
        if os.waitpid(child, 0)[1] == 0:
            return  # it has answered
        answer: tuple[SchemaFault | None, float] = BEYOND_FAULT, task.seconds
    else:
        try:
            answer = _run_task(validator, task)
        except BaseException:
            os._exit(1)
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()
    if child == 0:
        os._exit(0)


def _compile_task_schema(schema: TaskSchema) -> Validator | None:
    try:
        return compile_schema(schema.source, schema)
    except SchemaError:
        return None  # it compiled where the task is from; here it met a limit on time or memory


def _run_task(validator: Validator | None, task: Task) -> tuple[SchemaFault | None, float]:
    """Return fault and CPU seconds of one body; a limit that is exceeded ends the worker."""
    if validator is None:
        return BEYOND_FAULT, 0.0
    with open("/proc/self/statm", encoding="ascii") as pages:
        room = int(pages.read().split()[0]) * resource.getpagesize() + task.memory
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (room if hard == resource.RLIM_INFINITY else min(room, hard), hard))
    before = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, task.seconds)
    try:
        fault = validator.fault(task.body, task.content_type, at_any_cost=True)
    except MemoryError:
        os._exit(1)
    except Exception as error:  # of a library that a body confuses
        fault = make_fault(f"the body cannot be held against the schema: {error!r}")
    signal.setitimer(signal.ITIMER_PROF, 0)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # the next schema needs room, too
    return fault, time.process_time() - before
