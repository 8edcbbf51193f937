"""What SIGTERM, SIGINT and SIGHUP do to a process that has a JVM under it: a drain, and at the second one the end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType

from router.logs import get_logger
from router.spark.jvm_life import kill_jvm

_log = get_logger()


class Stopped(BaseException):
    """A start that was ended by a signal, wherever it was."""


class Stopping(threading.Event):
    """The order to stop. A start that has nothing to drain yet is ended by it at once."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupts = False
        self.drains = False
        """There is something to drain: queries or gateways run."""

    def begin_work(self) -> None:
        """From here on a signal asks for a drain.

        Raises:
            Stopped: the order had come before, so there is nothing to drain.
        """
        if self.is_set():
            raise Stopped
        self.drains = True

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal end the block in the main thread, by :class:`Stopped`. The block must need no clean-up.

        Raises:
            Stopped: the order had come before the block, or came in it.
        """
        self.interrupts = True
        try:
            if self.is_set():
                raise Stopped
            yield
            if self.is_set():
                raise Stopped  # It came where nothing may be raised.
        except KeyboardInterrupt:
            # Spark's own answer to SIGINT, while it makes a context.
            self.set()
            raise Stopped from None
        finally:
            self.interrupts = False


@contextmanager
def signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM, SIGINT and SIGHUP ask for a drain; a second one ends the process at once, unless it is SIGHUP.

    A process that was started to ignore SIGHUP, as ``nohup`` does, goes on ignoring it.

    Raises:
        Stopped: as :meth:`Stopping.at_once`.
    """
    own, asked = os.getpid(), count()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:
            return  # Ctrl-C goes to the child as well that is about to become the JVM; the router ends that itself.
        # It is counted first, since the next signal may come in the middle of this, and is handled there.
        again = next(asked) > 0 or stop.is_set()
        if again and number == signal.SIGHUP:
            return  # Some supervisors and terminals send it right after another signal, in the middle of the drain.
        if again:
            _log.warning("ended at once by a second signal; a batch in hand is repeated", signal=_name(number))
            kill_jvm()
            os._exit(128 + number)
        starting = isinstance(stop, Stopping) and not stop.drains
        stop.set()
        _log.info("stopping before it has started" if starting else "draining", signal=_name(number))
        if isinstance(stop, Stopping) and stop.interrupts and not _begins_a_process(frame):
            raise Stopped

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asking = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asking.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in asking}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _begins_a_process(frame: FrameType | None) -> bool:
    """Tell whether a process is being started: what is raised in functions called around a fork is only printed."""
    while frame is not None:
        if frame.f_code.co_name == "_execute_child" and frame.f_globals.get("__name__") == "subprocess":
            return True
        frame = frame.f_back
    return False


def _name(number: int) -> str:
    return signal.Signals(number).name
