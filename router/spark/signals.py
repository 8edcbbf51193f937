"""What SIGTERM and SIGINT do to a process that has a JVM under it: a drain, and at the second one the end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from router.logs import get_logger
from router.spark.jvm_life import kill_jvm

_log = get_logger()


@contextmanager
def signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT ask for a drain; a second one ends the process at once."""

    def on_signal(number: int, _: object) -> None:
        if stop.is_set():
            _log.warning("ended at once by a second signal; a batch in hand is repeated", signal=_name(number))
            kill_jvm()
            os._exit(128 + number)
        _log.info("draining", signal=_name(number))
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _name(number: int) -> str:
    return signal.Signals(number).name
