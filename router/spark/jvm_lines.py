"""What the JVM and its Python workers print, as lines of our own log.

Log4j's lines have its form already (``log4j2.properties``, ``log4j2.json.properties``). What a JVM says before it has a
logger, and a worker that dies, are wrapped; of a trace the line with the error is passed on, and the rest is for
debugging.
"""

from __future__ import annotations

import re
import sys
import threading
from typing import IO, Final

from router.logs import get_logger

MOST: Final = 8192
"""Bytes of one line; what is longer becomes several."""
_OURS: Final = re.compile(rb'\{"event": |\d{4}-\d\d-\d\dT[\d:.]+Z ')
_NOTHING: Final = (b"WARNING: Using incubator modules", b"WARNING: package sun.")
"""Begins what a JVM says of options that Spark gives it, each time it starts."""
_TRACE: Final = (b"Traceback (most recent call last)", b"During handling of", b"The above exception was")
_log = get_logger()


def relay(printed: IO[bytes], *, whole: bool = False) -> threading.Thread:
    """Hand on lines to standard error until there are no more, in a thread that nobody waits for.

    With *whole* traces are handed on, too.
    """

    def run() -> None:
        with printed:
            while line := printed.readline(MOST):
                if _OURS.match(line) and line.endswith(b"\n"):
                    sys.stderr.write(line.decode("utf-8", "replace"))
                    sys.stderr.flush()
                elif text := line.decode("utf-8", "replace").strip():
                    quiet = line.startswith((*_NOTHING, *_TRACE, b"  ", b"\t"))
                    (_log.debug if quiet and not whole else _log.warning)("printed by the JVM", line=text)

    thread = threading.Thread(target=run, name="jvm-lines", daemon=True)
    thread.start()
    return thread
