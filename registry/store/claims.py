"""Claims that one process has at a time over a database, and that end with it however it ends."""

from __future__ import annotations

import fcntl
import os
from typing import Final, Protocol

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

_KEY: Final = 7_218_904_117_442_316
"""Our number among PostgreSQL's advisory locks."""
_SUFFIX: Final = "-delivery"
_FILE_MODE: Final = 0o600


class Claim(Protocol):
    """Something that is ours until it is released, or until this process ends."""

    @property
    def holds(self) -> bool:
        """Whether it is ours still; it asks the database."""
        ...

    def release(self) -> None:
        """Let others have it."""
        ...


class FileClaim:
    """A lock on a file beside that of SQLite, which the system releases when the process ends."""

    def __init__(self, file: int | None) -> None:
        self._file = file

    @classmethod
    def of(cls, database: str | None) -> FileClaim | None:
        """Return the claim over the database in a file; over one in memory, which nobody else has, it is always ours.

        Raises:
            OSError: no file can be made there.
        """
        if not database or database == ":memory:":
            return cls(None)
        file = os.open(f"{database}{_SUFFIX}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        return cls(file)

    @property
    def holds(self) -> bool:
        """Whether it is ours still."""
        return True

    def release(self) -> None:
        """Let others have it; the file stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class SessionClaim:
    """An advisory lock of PostgreSQL: it ends with its connection, which nothing else uses."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    def of(cls, connection: Connection) -> SessionClaim | None:
        """Return the claim, None while another connection has it.

        Raises:
            SQLAlchemyError: the database does not answer.
        """
        try:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            if connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _KEY}).scalar_one():
                return cls(connection)
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        connection.close()
        return None

    @property
    def holds(self) -> bool:
        """Whether the connection lives, and so the lock."""
        try:
            self._connection.execute(text("SELECT 1"))
        except SQLAlchemyError:
            return False
        return not self._connection.invalidated

    def release(self) -> None:
        """Let others have it, by ending the connection."""
        self._connection.invalidate()
        self._connection.close()
