"""Errors of the router with their exit codes, and the classification of other errors."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, Final, Literal

from catalog.schemas.ids.client import RegistryUnavailableError

# Exit code 2 belongs to typer (wrong usage of the command line). A record never ends the process: a faulty one becomes
# a dead letter (MATCHING.md#dead-letters).


class RouterError(Exception):
    """An error that ends a command with one line; exit code 1.

    ``message`` is one line that says what failed and where; ``hint`` says how to fix it ('' if the message does).
    Neither contains a secret.
    """

    others: tuple[RouterError, ...] = ()
    """Further errors, each with its own line; the first error decides the exit code."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(" ".join(message.split()))
        self.hint = " ".join(hint.split())

    @property
    def message(self) -> str:
        """The line without the hint."""
        return str(self.args[0])

    @property
    def exit_code(self) -> int:
        """The exit code of the process."""
        return next(EXIT_CODES[kind] for kind in type(self).__mro__ if kind in EXIT_CODES)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(RouterError):
    """Settings are unreadable, unknown or invalid; exit code 3.

    ``file`` is the settings file ('' for none) and ``key`` the path of the first faulty key, such as
    ``sinks.bus.topic``. ``problems`` has a line ``key: fault`` for every fault; the message has the first. ``places``
    has the location of each: ``router.yaml:6``, or ``environment variable XROUTER_TRIGGER``; empty if unknown.
    """

    places: tuple[str, ...] = ()

    def __init__(
        self, message: str, *, file: str = "", key: str = "", problems: tuple[str, ...] = (), hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.key = key
        self.problems = problems or (self.message,)


class CatalogUnavailable(RouterError):
    """No usable catalog at startup; exit code 4. A failed reload raises no error: it keeps the last valid catalog.

    ``awaited`` is the address of an unreachable source, '' if retrying does not help.
    """

    awaited: str = ""


class BrokerUnreachable(RouterError):
    """A broker or schema registry is unreachable or rejects the credentials; exit code 5."""


class StateError(RouterError):
    """The state folder is locked by another process, damaged, of a newer format, or of another router; exit code 6."""


class ConnectorError(RouterError):
    """Connector jars are missing and cannot be downloaded, or do not match the manifest; exit code 7."""


class SinkError(RouterError):
    """A sink cannot write a batch; exit code 8. ``sink`` is its name in the settings.

    Nothing is lost: the batch is not committed and will be written again, at the latest after a restart.
    """

    def __init__(self, sink: str, message: str, *, hint: str = "") -> None:
        super().__init__(f"sink {sink}: {message}", hint=hint)
        self.sink = sink


class BatchPinError(RouterError):
    """An unfinished batch is pinned to a plan that cannot be read; exit code 9."""


class JvmError(RouterError):
    """Spark's JVM ended, could not start, or ran out of memory; exit code 10. Nothing is lost."""


class DiskError(RouterError):
    """The disk of the state folder is full or fails at startup; exit code 11. Nothing is lost."""


GOOD: Final = 0
WRONG: Final = 1
"""What a command looked at is not as it should be."""
USAGE: Final = 2
"""Wrong usage, also input that cannot be read."""
INTERRUPTED: Final = 130
EXIT_CODES: Final[Mapping[type[BaseException], int]] = {
    RouterError: 1,
    ConfigError: 3,
    CatalogUnavailable: 4,
    BrokerUnreachable: 5,
    StateError: 6,
    ConnectorError: 7,
    SinkError: 8,
    BatchPinError: 9,
    JvmError: 10,
    DiskError: 11,
}
"""Exit code of each error; 0 is success, 2 wrong usage (typer's), and 1 anything that is not in this table."""


def hint_near(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Return a hint for an unknown name: the nearest known one, else *otherwise*, by default all known ones."""
    names = list(known)
    near = get_close_matches(name, names, 1)
    if near:
        return f"did you mean {near[0]}?"
    return f"known: {', '.join(names) or 'none'}" if otherwise is None else otherwise


# Whether the environment or the batch itself caused a batch to fail.
#
# Faults of the environment (a sink, a broker, the disk, the network, a broken installation) pass or are fixed by
# somebody; the batch waits or is retried until then. Any other fault comes from a record and would recur: the batch is
# split until the record is found (:mod:`router.batches.splitting`).
#
# Faults are recognized by the *classes* of errors, never by texts that a record can influence.

FaultKind = Literal["error", "worker", "time"]
TEXT_CAP: Final = 300
REASON_CAP: Final = 600
_NOISE: Final = re.compile(r"0x[0-9a-fA-F]+|'[^']{0,200}'|\"[^\"]{0,200}\"|[0-9]+")
_LAST_LINE: Final = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)")
_SQL_STATE: Final = re.compile(r"\s+SQLSTATE: \w+\s*\Z")
_STOPPED: Final = re.compile(r"SparkContext was shut down|stopped SparkContext")
_CRASHED: Final = "Python worker exited unexpectedly"
_IDLE: Final = "Python worker process terminated due to idle timeout"
_EXECUTOR: Final = re.compile(
    r"Job aborted due to stage failure: Task \d+ in stage [\d.]+ failed \d+ times, most recent failure: "
    r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^()\s]+ executor \S+\): ExecutorLostFailure "
)
"""The text before it holds nothing of a record: only Spark's own numbers, and an address of the cluster."""
CANCELLED: Final = "exceeded batch_limit"
"""In the reason with which a job is cancelled that took too long (:mod:`router.watching.batches`)."""
_WORLD_JAVA: Final = (
    "org.apache.kafka.",
    # Of Spark's reader: what is in a topic is not what was planned. No record does that.
    "org.apache.spark.sql.kafka010.KafkaIllegalStateException",
    "java.io.",
    "java.net.",
    "java.nio.",
    "java.lang.InterruptedException",
    "java.lang.NoClassDefFoundError",
    "java.lang.ClassNotFoundException",
    "java.lang.NoSuchMethodError",
    "java.lang.UnsatisfiedLinkError",
    "org.apache.spark.shuffle.FetchFailedException",
    "org.apache.spark.SparkFileNotFoundException",
)
_LOST: Final = ("data may have been lost", "KAFKA_DATA_LOSS", "OffsetOutOfRange")
"""What Spark, and our own client, say when a broker no longer has records that were to be read."""
_WHICH: Final = re.compile(r"Reason:\s*([^\n]{1,300})")
_DAMAGED: Final = ("InboxDamaged", "InboxFormatError")
"""What a Python worker says of an inbox that no further try repairs."""
_UNREADABLE: Final = ("org.apache.spark.sql.kafka010.KafkaIllegalStateException", "java.lang.ArithmeticException")
"""An error of Spark's Kafka source, and its cause: a timestamp that is too large for microseconds."""
_RECORDS_JAVA: Final = ("org.apache.kafka.common.errors.RecordTooLargeException",)
"""Errors of a client that one record causes, and will cause again."""
_WORLD_PYTHON: Final = frozenset(
    (
        *("OSError", "PermissionError", "FileNotFoundError", "ConnectionError", "ConnectionResetError"),
        *("ConnectionRefusedError", "BrokenPipeError", "TimeoutError", "BlockingIOError", "NotADirectoryError"),
        *("InterruptedError", "ImportError", "ModuleNotFoundError", "KeyboardInterrupt", "SystemExit"),
        *("InboxDamaged", "InboxError", "InboxFormatError", "InboxFull"),
        *("KafkaException", "KafkaError", "RangeUnreadable", "RangeLost", RegistryUnavailableError.__name__),
    )
)
_GONE: Final = ("Py4JNetworkError", "Py4JError")
"""Of the bridge to the JVM, not of what ran there."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of something in a batch. ``text`` is one line; ``digest`` is equal for faults that are alike."""

    kind: FaultKind
    text: str
    digest: str


def find_batch_fault(error: BaseException) -> Fault | None:
    """Return the fault in the batch that caused an error; None if the environment did, or it is unknown.

    Faults are alike if class and message are equal, except for numbers and quoted values.
    """
    if isinstance(error, RouterError) or not isinstance(error, Exception):
        return None
    chain = list(_java_chain(error))
    if not chain:
        return None if _is_environment(type(error), error) else _make_fault("error", type(error).__name__, str(error))
    for name, message in chain:
        if name.startswith("org.apache.spark.api.python.PythonException"):
            return _worker_fault(message)
        if message.startswith(_CRASHED):
            return _make_fault("worker", "", "a Python worker died (signal or out of memory)")
        if _EXECUTOR.match(message):
            return _make_fault("worker", "", "executors died repeatedly while running a task")
        if message.startswith(_IDLE):
            return _make_fault("time", "", "a Python worker made no progress within worker_timeout")
        if CANCELLED in message:
            return _make_fault("time", "", "batch_limit exceeded")
    if any(name in _RECORDS_JAVA for name, _ in chain):
        name, message = next(each for each in chain if each[0] in _RECORDS_JAVA)
        return _make_fault("error", name, message)
    if any(name.startswith(_WORLD_JAVA) or _STOPPED.search(message[:500]) for name, message in chain):
        return None
    name, message = chain[-1]
    return _make_fault("error", name, message)


def is_timestamp_overflow(error: BaseException) -> bool:
    """Whether Spark's Kafka source cannot read some record because its timestamp is too large for Spark."""
    return any(pair == _UNREADABLE for pair in pairwise(name for name, _ in _java_chain(error)))


def find_lost_registry(error: BaseException) -> str:
    """Return which schema registry is unreachable, and why, if that caused the error; else ``""``."""
    if isinstance(error, RegistryUnavailableError):
        return str(error)[:REASON_CAP]
    for name, message in _java_chain(error):
        if name.startswith("org.apache.spark.api.python.PythonException"):
            kind, _, reason = _last_line(message).partition(":")
            return reason.strip()[:REASON_CAP] if kind.rpartition(".")[2] == RegistryUnavailableError.__name__ else ""
    return ""


def _is_environment(kind: type[Exception], error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return False  # A name that a record gave.
    names = {each.__name__ for each in kind.__mro__}
    return bool(names & _WORLD_PYTHON) or bool(names & set(_GONE))


def _worker_fault(message: str) -> Fault | None:
    """Return the fault in the traceback of a Python worker: its last line that begins with a class."""
    last = _last_line(message)
    name = last.partition(":")[0].rpartition(".")[2]
    if name in _WORLD_PYTHON:
        return None
    return _make_fault("error", name, last.partition(":")[2])


def _last_line(message: str) -> str:
    lines = [line for line in _SQL_STATE.sub("", message).split("\n") if line.strip()]
    return next((line for line in reversed(lines) if _LAST_LINE.match(line)), lines[-1] if lines else "")


def _make_fault(kind: FaultKind, name: str, message: str) -> Fault:
    line = " ".join(message.split("\n", 1)[0].split())
    short = name.rpartition(".")[2]
    text = (f"{short}: {line}" if short and line else short or line)[:TEXT_CAP]
    alike = _NOISE.sub("#", text)
    return Fault(kind, text, hashlib.sha256(f"{kind}|{alike}".encode("utf-8", "replace")).hexdigest()[:16])


def _java_chain(error: BaseException) -> Iterator[tuple[str, str]]:
    """Yield class and message of an error that came of the JVM, and of what caused it; nothing for others."""
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    depth = 0
    while java is not None and depth < 20:
        yield str(java.getClass().getName()), str(java.getMessage() or "")
        java, depth = java.getCause(), depth + 1


def extract_cause(text: str) -> str:
    """Return the line with the cause from a failed query's error text."""
    lines = [line.strip() for line in text.split("\n") if line.strip() and not line.strip().startswith("at ")]
    causes = [line for line in lines if line.startswith("Caused by:") or "Exception:" in line or "Error:" in line]
    return (causes[-1] if causes else lines[0] if lines else "unknown").removeprefix("Caused by: ")[:400]


def is_data_loss(text: str) -> bool:
    """Whether an error says that a broker no longer has records that were to be read."""
    return any(sign in text for sign in _LOST)


def find_permanent_error(query: str, text: str) -> StateError | None:
    """Return the error of a failed query that a restart does not fix; None if the query may be restarted."""
    if is_data_loss(text):
        which = _WHICH.search(text)
        lost = (which[1].strip(" .") if which else "") or extract_cause(text)
        return StateError(
            f"query {query}: records were lost at the broker before they were read: {lost}",
            hint="find out which; `on_data_loss: continue` continues with the remaining records",
        )
    if any(sign in text for sign in _DAMAGED):
        return StateError(f"query {query}: {extract_cause(text)}", hint="see the operations notes on damaged state")
    return None
