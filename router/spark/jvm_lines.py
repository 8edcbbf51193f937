"""What the JVM and its Python workers print, as lines of our own log: for ``log.format: json``, where others read it.

Log4j's lines are JSON already (``log4j2.json.properties``). What a JVM says before it has a logger, and a worker that
dies, are wrapped.
"""

from __future__ import annotations

import sys
import threading
from typing import IO, Final

from router.logs import get_logger

MOST: Final = 8192
"""Bytes of one line; what is longer becomes several."""
_JSON: Final = b'{"event": '
_log = get_logger()


def relay(printed: IO[bytes]) -> threading.Thread:
    """Hand on lines to standard error until there are no more, in a thread that nobody waits for."""

    def run() -> None:
        with printed:
            while line := printed.readline(MOST):
                if line.startswith(_JSON) and line.endswith(b"\n"):
                    sys.stderr.write(line.decode("utf-8", "replace"))
                    sys.stderr.flush()
                elif text := line.decode("utf-8", "replace").strip():
                    _log.warning("printed by the JVM", line=text)

    thread = threading.Thread(target=run, name="jvm-lines", daemon=True)
    thread.start()
    return thread
