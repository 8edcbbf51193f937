"""The command line: ``xrouter``. The commands are in :mod:`router.commands`; here is what they share at the edge.

Whatever goes wrong ends as one line ``xrouter: error: ...`` and mostly a line ``hint: ...`` on standard error, with the
exit code of :mod:`router.errors` (2 for wrong usage). Faults of settings, and what stops a start, have a line each.
``XROUTER_DEBUG=1`` shows the traceback as well.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Annotated, Final

import typer

from catalog.findings import CatalogError, DocumentError
from router.errors import BrokerUnreachable, CatalogUnavailable, ConfigError, RouterError, registry_away
from router.lazy import HELP, UsageError, lazy_group
from router.terminal import close_output, leave_output, say

DEBUG: Final = "XROUTER_DEBUG"
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 1
"""As typer ends a command whose reader went away: quietly, and not with success."""

COMMANDS: Final = {
    "init": "router.commands.init:init",
    "run": "router.commands.run:run",
    "wait": "router.commands.wait:wait",
    "gateway": "router.commands.run:gateway",
    "top": "router.commands.top:top",
    "tap": "router.commands.tap:tap",
    "check": "router.commands.check.command:check",
    "routes": "router.commands.routes:routes",
    "plan": "router.commands.plan:plan",
    "test": "router.commands.test.command:test",
    "match": "router.commands.match:match",
    "emit": "router.commands.emit.command:emit",
    "catalog": "router.commands.catalog:catalog_app",
    "dead-letters": "router.commands.dead_letters.commands:dead_letters_app",
    "batches": "router.commands.batches.command:batches_app",
    "schemas": "router.commands.schemas.group:schemas_app",
    "registry": "router.commands.registry.group:registry_app",
    "doctor": "router.commands.doctor:doctor",
    "demo": "router.commands.demo.command:demo",
}
app = typer.Typer(
    name="xrouter",
    cls=lazy_group(COMMANDS),
    help="Demultiplex message channels by an xRegistry catalog.",
    context_settings=HELP,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"xrouter {version('xregistry-router')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Demultiplex message channels by an xRegistry catalog."""
    if context.invoked_subcommand is None:
        say(context.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process; *arguments* default to the process's own."""
    _open_closed_streams()
    sys.exit(status_of(arguments))


def status_of(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; nothing but a real interpreter exit is raised."""
    try:
        status = app(args=None if arguments is None else list(arguments), prog_name="xrouter", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        leave_output()
        return INTERRUPTED
    except BrokenPipeError:
        close_output()
        return BROKEN_PIPE
    except Exception as error:
        # The edge of the process: whatever it is becomes one line and an exit code.
        if os.environ.get(DEBUG):
            traceback.print_exc()
        for each in (error, *getattr(error, "others", ())):
            message, hint, _ = _described(each)
            for line in _lines(each, message):
                say(_flat(f"xrouter: error: {line}"), err=True)
            if hint:
                say(_flat(f"hint: {hint}"), err=True)
        return _described(error)[2]


def _lines(error: Exception, message: str) -> Iterator[str]:
    """Yield a line for each fault of settings, with where it was written; else the message."""
    if not isinstance(error, ConfigError) or not error.places:
        yield message
        return
    for place, problem in zip(error.places, error.problems, strict=True):
        # One of no key names the file by itself.
        yield problem if error.file and problem.startswith(error.file) else f"{place}: {problem}"


def _described(error: Exception) -> tuple[str, str, int]:
    """Return message, hint and exit code of an error."""
    if isinstance(error, RouterError):
        return error.message, error.hint, error.exit_code
    if isinstance(error, DocumentError):
        return str(error), error.hint, CatalogUnavailable("").exit_code
    if away := registry_away(error):
        return away, "try again when it answers", BrokerUnreachable("").exit_code
    if isinstance(error, CatalogError):
        return str(error), "", 1
    # Here, since Kafka's client takes long to load and most commands never ask it.
    from bindings.kafka.client import KafkaUnreachable

    if isinstance(error, KafkaUnreachable):
        return str(error), "check the address, and that the broker runs", BrokerUnreachable("").exit_code
    if isinstance(error, UsageError):
        return str(getattr(error, "format_message", error.__str__)()), _usage_hint(error), USAGE
    hint = f"this is a fault of xrouter; {DEBUG}=1 shows where, for a report"
    return f"unexpected {type(error).__name__}: {error}", hint, 1


def _usage_hint(error: Exception) -> str:
    command = getattr(getattr(error, "ctx", None), "command_path", "xrouter")
    return f"`{command} --help` shows what it takes"


def _flat(text: str) -> str:
    return " ".join(text.split())


def _open_closed_streams() -> None:
    """Let a standard stream that the caller closed (``>&-``) lead to nowhere; no file opened later takes its number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))


if __name__ == "__main__":
    main()
