"""Logs: one line for each event on standard error, for people or as JSON, the same for our code and for libraries.

Values under names such as ``password`` or ``token`` are masked, times are UTC, and no text can break out of its line.
The JVM has its own logger, which prints to the same place; :func:`make_jvm_log_conf` configures what it leaves out.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from catalog.findings import escape_controls, to_one_line
from router.settings import LogSettings

MASKED: Final = "***"
OURS: Final = ("catalog", "bindings", "registry", "router")
QUIET: Final[Mapping[str, int]] = {"py4j": logging.CRITICAL}
"""Loggers that say more than anyone asked: py4j calls every closed connection an error, though what matters is raised
to its caller."""
SHOWN: Final = 5
"""Names that one line has of many."""
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"

_SECRET: Final = re.compile(
    r"passw(or)?d|passphrase|secret|token|sasl|authorization|jaas|credential|(private|api|access)[._-]?key",
    re.IGNORECASE,
)
_MULTILINE: Final = frozenset({"exception", "stack"})


def configure_logs(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send all logs of this process to *stream* (standard error if None), replacing what was set up before.

    Our own packages log from ``settings.level``, all others from ``warning``. Text is coloured only on a terminal, and
    not when ``NO_COLOR`` is set.
    """
    out = sys.stderr if stream is None else stream
    shared = _shared_processors()
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, ProcessorFormatter.wrap_for_formatter],
        wrapper_class=BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[ProcessorFormatter.remove_processors_meta, *_make_renderers(settings, out)],
        )
    )
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.filters[:] = [_is_not_py4j]
    root.setLevel(max(level, logging.WARNING))
    for name in OURS:
        logging.getLogger(name).setLevel(level)
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(max(level, least))
    logging.captureWarnings(True)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Drop what py4j logs through the root logger, for the same reason that its own logger is quiet."""
    return "py4j" not in Path(record.pathname).parts


def get_logger(name: str | None = None) -> BoundLogger:
    """Return a logger for events with fields: ``log.info("batch held", query=name)``.

    *name* is that of the calling module if None. It may be called before :func:`configure_logs`, which takes effect
    on it all the same.
    """
    # The calling module, as for logging.getLogger(__name__); the place of the first log line may be another module.
    module = name or sys._getframe(1).f_globals.get("__name__", "router")
    logger: BoundLogger = structlog.stdlib.get_logger(module)
    return logger


def mask_secrets(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Replace the value of every field whose name looks like a secret's, also inside maps and lists."""
    return {name: MASKED if _is_secret(name) else _mask_value(value) for name, value in event.items()}


def make_jvm_log_conf(conf: Mapping[str, str] | None = None, *, json: bool = False) -> dict[str, str]:
    """Return the Spark configuration that has the JVM print only errors, each as one line, and no progress bars.

    The lines are *json*, or texts like our own. *conf* is the configuration to be added to: Java options in it are
    kept, and one that names a log4j configuration of its own wins. It must be set before the session starts.
    """
    given = (conf or {}).get(JAVA_OPTIONS, "")
    ours = f"-Dlog4j2.configurationFile={log4j2_file(json=json).as_uri()}"
    options = given if "log4j2.configurationFile" in given else f"{given} {ours}".strip()
    return {JAVA_OPTIONS: options, "spark.ui.showConsoleProgress": "false"}


def log4j2_file(*, json: bool = False) -> Path:
    """Return the shipped configuration of the JVM's logger."""
    return Path(__file__).resolve().with_name("log4j2.json.properties" if json else "log4j2.properties")


def _shared_processors() -> list[Processor]:
    """What every event goes through, ours or a library's, before it is rendered."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        mask_secrets,
    ]


def _make_renderers(settings: LogSettings, out: TextIO) -> list[Processor]:
    # Neither form shows the local variables of a traceback: they hold whole settings, secrets included.
    if settings.format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    colours = out.isatty() and not os.environ.get("NO_COLOR")
    console = structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=_write_traceback)
    return [_escape_fields, console]


def _write_traceback(stream: TextIO, exc_info: ExcInfo) -> None:
    """Write a traceback, whose last line may hold text of a record."""
    plain = io.StringIO()
    structlog.dev.plain_traceback(plain, exc_info)
    stream.write(escape_controls(plain.getvalue()))


def _escape_fields(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Escape what a terminal acts upon, so that text out of a record can neither forge a line nor hide one."""
    return {name: _escape_value(name, value) for name, value in event.items()}


def _escape_value(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value  # lists and maps are shown as Python writes them, which escapes
    return escape_controls(value) if name in _MULTILINE else to_one_line(value)


def _is_secret(name: object) -> bool:
    return isinstance(name, str) and _SECRET.search(name) is not None


def _mask_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: MASKED if _is_secret(name) else _mask_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_mask_value(inner) for inner in value)
    return value


def shorten_list(names: Sequence[str], most: int = SHOWN) -> str:
    """Return the first of these names, and how many more there are, for one line."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
