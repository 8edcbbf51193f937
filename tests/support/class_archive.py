"""Class archives: what one JVM of the tests has loaded and verified, the next ones map as it is (JEP 350).

Spark and the brokers load ten thousand classes each time they start, which is most of the time that a test of a whole
router takes. An archive is made once for a class path and a Java, in the cache of jars. A JVM that cannot use it goes
on without a word, so that nothing depends on it but the time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from router.spark.connectors import cache_root, find_java

SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For JVMs that end before the best code would pay: they compile quickly and only once, and collect in one thread."""
_QUIET: Final = "-Xlog:cds*=off"
_KEPT_SECONDS: Final = 14 * 86400
"""Since its last use; other checkouts of the project have archives of their own."""
# Read at import: the tests' environment is cleaned of our variables before each of them.
_FOLDER: Final = cache_root() / "archives"


def start_options(kind: str, classpath: Sequence[Path], make: Callable[[Sequence[str]], None]) -> list[str]:
    """Return options for a JVM that starts with the archive of that *kind* and *classpath*.

    Where there is none yet, *make* runs such a JVM, with the options it is given, to its end.
    """
    archive = _FOLDER / f"{kind}-{_key(classpath)}.jsa"
    if not archive.exists():
        _FOLDER.mkdir(parents=True, exist_ok=True)
        with (_FOLDER / f"{kind}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.exists():
                _fill(kind, archive, make)
    os.utime(archive)
    return [*SHORT_LIVED, f"-XX:SharedArchiveFile={archive}", _QUIET]


def _fill(kind: str, archive: Path, make: Callable[[Sequence[str]], None]) -> None:
    for old in _FOLDER.glob(f"{kind}-*.jsa"):
        if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
            old.unlink(missing_ok=True)
    draft = archive.with_name(f".{archive.name}.{os.getpid()}")
    make([*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={draft}", _QUIET])
    if draft.exists():
        draft.chmod(0o644)
        draft.rename(archive)
    else:
        archive.touch()  # this Java makes none; nobody is to try again


def _key(classpath: Sequence[Path]) -> str:
    java = Path(find_java()).resolve()
    # Java compares names and times of the jars itself; the key is for having one archive per state of them.
    parts = [str(java), *SHORT_LIVED, *(f"{path}:{path.stat().st_mtime_ns}" for path in sorted((java, *classpath)))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
