"""A PostgreSQL cluster of its own for a test, in a temporary folder, without a network."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

_PLACES: Final = ("/usr/lib/postgresql", "/usr/local/pgsql")
_SECONDS: Final = 120


def program(name: str) -> str:
    """Return the path of a program of PostgreSQL; Debian keeps them where no path leads.

    Raises:
        AssertionError: there is none.
    """
    for place in _PLACES:
        found = sorted(Path(place).glob(f"*/bin/{name}"), key=lambda path: path.parts)
        if found:
            return str(found[-1])
    path = shutil.which(name)
    assert path is not None, f"{name} is missing: install PostgreSQL (Debian: postgresql); .ci/run does so"
    return path


@contextmanager
def cluster() -> Iterator[str]:
    """Run a cluster, and yield the SQLAlchemy URL of an empty database in it."""
    # A socket's path is short, and pytest's folders are not.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    data = folder / "data"
    owner = _owner()
    if owner is not None:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    try:
        _run(owner, program("initdb"), "-D", str(data), "-U", "registry", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-c listen_addresses='' -c unix_socket_directories={folder}"
        _run(owner, program("pg_ctl"), "-D", str(data), "-w", "-o", options, "-l", str(folder / "log"), "start")
        try:
            yield f"postgresql+psycopg://registry@/postgres?host={quote(str(folder))}"
        finally:
            _run(owner, program("pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _owner() -> pwd.struct_passwd | None:
    """Return whom to run it as: PostgreSQL refuses to run as root."""
    return pwd.getpwnam("nobody") if os.getuid() == 0 else None


def _run(owner: pwd.struct_passwd | None, *command: str) -> None:
    who: dict[str, Any] = {} if owner is None else {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"}
    done = subprocess.run(
        command,
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if "start" not in command else subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        timeout=_SECONDS,
        **who,
    )
    assert done.returncode == 0, f"{command[0]} failed: {done.stdout}"
