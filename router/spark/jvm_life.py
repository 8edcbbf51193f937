"""Whether the JVM under Spark lives, which error its end becomes, and how it is ended without output.

Nothing here brings Spark along: it is also asked where no session was ever begun.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO

from router.errors import JvmError
from router.logs import get_logger

_log = get_logger()
EXIT_SECONDS: Final = 10.0
"""Longest wait for a JVM that is ending: its connection breaks moments before its process is gone."""
OPTIONS: Final = "-XX:+ExitOnOutOfMemoryError"
"""A JVM that lacks memory ends at once, with an exit code of its own, instead of living on with threads missing."""
_REPEATED: Final = "nothing is lost, the next start repeats the batch"
_KILLED: Final = (
    f"the kernel's log tells whether the machine ran out of memory: then lower memory.heap and memory.worker, or give "
    f"it more; {_REPEATED}"
)
_NO_MEMORY: Final = frozenset({3, 52})
"""Exit codes of a JVM that ran out of memory: by :data:`OPTIONS`, and by Spark."""
_KILLED_CODES: Final = frozenset({-9, 137})
"""Exit codes of one that was killed; the second where a shell stands between."""
_NOT_STARTED: Final = (
    "see the lines before this one; `xrouter doctor` looks at Java, and memory.heap may be more than there is"
)
_LOST: Final = ("Py4JNetworkError", "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError")
"""Errors that may come before the process is seen to have ended."""


def jvm_pid() -> int:
    """Return the process of the JVM, which there is."""
    process = _process()
    assert process is not None
    return int(process.pid)


def jvm_alive() -> bool:
    """Whether there is a JVM of ours, and it has not ended."""
    process = _process()
    return process is not None and process.poll() is None


def require_jvm() -> None:
    """Make sure that the JVM, if one was started, lives.

    Raises:
        JvmError: it has ended; the message says how.
    """
    process = _process()
    if process is not None and process.poll() is not None:
        raise _death(process.returncode, "")


@contextmanager
def jvm_death_named(memory: str) -> Iterator[None]:
    """Turn what comes of the JVM's death, or of its lack of memory, into :class:`JvmError`; all else goes through.

    *memory* says what to do when it lacks memory.
    """
    try:
        yield
    except Exception as error:
        process = _process()
        if process is not None and any(kind.__name__ in _LOST for kind in type(error).__mro__):
            with suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_SECONDS)
        if process is not None and process.poll() is not None:
            raise _death(process.returncode, memory) from error
        if "java.lang.OutOfMemoryError" in str(error):
            raise _death(min(_NO_MEMORY), memory) from error
        if "JAVA_GATEWAY_EXITED" in str(error):
            raise JvmError("the JVM of Spark did not start", hint=_NOT_STARTED) from error
        raise


def kill_jvm() -> None:
    """End the JVM and its Python workers at once, without output of theirs; safe in a signal handler."""
    process = _process()
    if process is not None and process.poll() is None:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_SECONDS)


def part_quietly(context: Any) -> None:
    """Have pyspark print nothing past the logs when the JVM goes: whoever needs the JVM gets the error anyway.

    The server that takes a Spark context's accumulators would print a traceback for each connection, and so would
    pickling where it asks the JVM for the number of a broadcast.
    """
    import pyspark.util

    def handle_error(request: object, address: object) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, EOFError | ConnectionError):
            _log.error("counts of a batch could not be taken", error=repr(error))

    context._accumulatorServer.handle_error = handle_error
    # Pickling looks this up at each call, prints by it what it is about to raise, and raises it.
    pyspark.util.print_exec = _print_nothing


def _print_nothing(stream: TextIO) -> None:
    pass


def _death(code: int, memory: str) -> JvmError:
    if code in _NO_MEMORY:
        return JvmError("the JVM of Spark ran out of memory", hint=f"{memory}; {_REPEATED}")
    if code in _KILLED_CODES:
        return JvmError("the JVM of Spark was killed", hint=_KILLED)
    ended = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return JvmError(f"the JVM of Spark {ended}", hint=f"see the lines before this one; {_REPEATED}")


def _process() -> Any:
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return getattr(getattr(context, "_gateway", None), "proc", None)
