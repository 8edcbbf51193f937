"""The helper of :mod:`catalog.schemas.sandbox`: reads tasks from its standard input, and answers on its output."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import select
import signal
import sys
import time
from typing import Final

from catalog.schemas.contract import SchemaError, SchemaFault, Validator, make_fault
from catalog.schemas.families import compile_schema
from catalog.schemas.sandbox import Task, TaskResult

WAITING: Final = 15
"""Times the processor time of a body that its check may take by the clock: a limit on memory may leave it hanging."""
_PAGES: Final = "/proc/self/statm"


def main() -> None:
    """Answer tasks until the other end is closed."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    validators: dict[bytes, Validator | None] = {}
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            task = pickle.load(sys.stdin.buffer)
            if task.schema is not None:
                validators[task.key] = _compile_task_schema(task)
            pickle.dump(_run_task(validators[task.key], task), sys.stdout.buffer)
            sys.stdout.buffer.flush()


def _compile_task_schema(task: Task) -> Validator | None:
    assert task.schema is not None
    try:
        return compile_schema(task.schema.source, task.schema)
    except SchemaError:
        return None  # it compiled where the task is from; here it met a limit on time or memory


def _run_task(validator: Validator | None, task: Task) -> TaskResult:
    if validator is None:
        return TaskResult(finished=False, fault=None, seconds=0.0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _validate_in_child(validator, task, writing)
    os.close(writing)
    pickled = _read_pipe(reading, child, WAITING * task.seconds)
    os.close(reading)
    _, status, usage = os.wait4(child, 0)
    seconds = usage.ru_utime + usage.ru_stime
    if status != 0:
        return TaskResult(finished=False, fault=None, seconds=seconds)
    return TaskResult(finished=True, fault=pickle.loads(pickled), seconds=seconds)


def _validate_in_child(validator: Validator, task: Task, writing: int) -> None:
    """Check one body and end this process; its code is 0 when there is an answer."""
    code = 1
    try:
        room = _address_space_bytes() + task.memory
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (room if hard == resource.RLIM_INFINITY else min(room, hard), hard))
        signal.setitimer(signal.ITIMER_PROF, task.seconds)
        pickled = pickle.dumps(_find_fault(validator, task))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickled)
        code = 0
    finally:
        os._exit(code)


def _find_fault(validator: Validator, task: Task) -> SchemaFault | None:
    try:
        return validator.fault(task.body, task.content_type, at_any_cost=True)
    except MemoryError:
        raise
    except Exception as error:  # of a library that a body confuses: no reason to say nothing of it
        return make_fault(f"the body cannot be held against the schema: {error!r}")


def _address_space_bytes() -> int:
    with open(_PAGES, encoding="ascii") as pages:
        return int(pages.read().split()[0]) * resource.getpagesize()


def _read_pipe(reading: int, child: int, seconds: float) -> bytes:
    """Return what the child writes until its end; a child that takes longer is killed."""
    received = b""
    until = time.monotonic() + seconds
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            return b""
        piece = os.read(reading, 65536)
        if not piece:
            return received
        received += piece
