"""Errors of the router room, each a way for the process to end.

RouterError              1   any other error of the router
├── ConfigError          3   settings that cannot be read, are unknown, or contradict each other
├── CatalogUnavailable   4   no usable catalog: missing, unreadable, or with nothing that can be used
├── BrokerUnreachable    5   a broker or schema registry of the settings does not answer or refuses us
├── StateError           6   the state folder is locked, damaged, of a newer format, or not ours
├── ConnectorError       7   the jars of a connector are missing and cannot be fetched
├── SinkError            8   a destination cannot take a batch: disk, permission, schema, connection
├── BatchPinError        9   a batch that had begun under a plan which no longer exists
├── JvmError            10   the JVM under Spark died, did not start, or ran out of memory
└── DiskError           11   the disk of the state folder is full or refuses

Exit code 2 belongs to typer (wrong usage of the command line). A record never ends the process: what is wrong with
one becomes a dead letter (JUDGING.md#dead-letters).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


class RouterError(Exception):
    """Anything that ends a command with one clear line; exit code 1.

    ``message`` is one line that names the thing and the place, ``hint`` says what to do about it ('' when the
    message already does). Neither ever holds a secret.
    """

    others: tuple[RouterError, ...] = ()
    """What is wrong besides, each with its own line; the exit code is that of the first."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(" ".join(message.split()))
        self.hint = " ".join(hint.split())

    @property
    def message(self) -> str:
        """The line without the remedy."""
        return str(self.args[0])

    @property
    def exit_code(self) -> int:
        """The code that the process ends with."""
        return exit_code(self)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(RouterError):
    """Settings that are unreadable, unknown or invalid; exit code 3.

    ``file`` is the settings file ('' when there is none) and ``key`` the path of the first key at fault, such as
    ``sinks.bus.topic``. ``problems`` holds every fault found as a line ``key: fault``, the first also in the message.
    ``places`` says of each where it was written: ``router.yaml:6``, or ``environment variable XROUTER_TRIGGER``; it is
    empty where that is not known.
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
    """No usable catalog to start with; exit code 4. A reload that fails is not this: the last good one goes on.

    ``awaited`` is the address of a source that cannot be reached for now, '' when waiting mends nothing.
    """

    awaited: str = ""


class BrokerUnreachable(RouterError):
    """A broker, or a schema registry, that does not answer or refuses our credentials; exit code 5."""


class StateError(RouterError):
    """The state folder is locked by another process, damaged, of a newer format, or not ours; exit code 6."""


class ConnectorError(RouterError):
    """The connector jars are missing and could not be fetched, or are not those of the manifest; exit code 7."""


class SinkError(RouterError):
    """A destination that cannot take a batch; exit code 8. ``sink`` is its name in the settings.

    Nothing is lost by it: the batch is not committed and is written again, now or after the next start.
    """

    def __init__(self, sink: str, message: str, *, hint: str = "") -> None:
        super().__init__(f"sink {sink}: {message}", hint=hint)
        self.sink = sink


class BatchPinError(RouterError):
    """A batch to be repeated is pinned to a plan that cannot be read any more; exit code 9."""


class JvmError(RouterError):
    """The JVM under Spark ended, could not start, or ran out of memory; exit code 10. Nothing is lost by it."""


class DiskError(RouterError):
    """The disk of the state folder is full, or refuses, at a start; exit code 11. Nothing is lost by it."""


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


def exit_code(error: BaseException) -> int:
    """Return the process exit code for *error*: that of its nearest class in :data:`EXIT_CODES`, else 1."""
    for kind in type(error).__mro__:
        if kind in EXIT_CODES:
            return EXIT_CODES[kind]
    return 1
