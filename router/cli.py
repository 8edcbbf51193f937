"""The command line ``xrouter``: its entry point and how errors are printed. The commands are in :mod:`router.commands`.

An error is printed on standard error as one line ``xrouter: error: ...``, usually followed by ``hint: ...``, and the
exit code is that of :mod:`router.errors` (2 for wrong usage). Each settings error and each failed preflight check has a
line of its own. ``XROUTER_DEBUG=1`` adds the traceback.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.metadata import version
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from catalog.extras import MissingExtraError
from catalog.findings import CatalogError, DocumentError
from router.errors import (
    INTERRUPTED,
    USAGE,
    BrokerUnreachable,
    CatalogUnavailable,
    ConfigError,
    RouterError,
    find_lost_registry,
)
from router.terminal import close_output, leave_output, print_text

# Import each command only when it is called, so that no command loads libraries that it does not use.

# Typer vendors click under a private name; click's types are reached through typer's classes.
_Context = Any
_Command = Any
HELP: Final = {"help_option_names": ["-h", "--help"]}
# The base class of all usage errors; typer exports only its subclass BadParameter.
UsageError: Final[type[Exception]] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


class PlainHelp:
    """Mixin that shows plain value names in help: none for flags, and no Python types."""

    def get_params(self, ctx: _Context) -> list[Any]:
        """Return the parameters with plain value names for their help."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in params:
            if getattr(each, "is_bool_flag", False):
                each.metavar = ""
            elif each.metavar is None or each.param_type_name == "argument":
                each.display_type_rich = _PlainValueType(each)
        return params


class _PlainValueType:
    """Render a parameter's value type in help, in place of typer's own text."""

    def __init__(self, param: Any) -> None:
        self._param = param
        self._before: Callable[..., str | None] | None = getattr(type(param), "display_type_rich", None)

    def __call__(self, ctx: _Context) -> str | None:
        if self._before is None or (self._param.param_type_name == "argument" and self._param.metavar):
            return None  # The argument's name is enough.
        typed = self._before(self._param, ctx=ctx) or ""
        plain = re.sub(r"^<list\[(.*)\]>$", r"<\1>", typed)
        return re.sub(r"^<(?:int|float)(?: range)?>$", "<number>", plain).replace("<str>", "<text>") or None


class PlainHelpCommand(PlainHelp, TyperCommand):
    """A single command whose help text wraps at the terminal's width."""

    def __init__(self, *arguments: Any, help: str | None = None, **options: Any) -> None:
        text = "\n\n".join(each.replace("\n", " ") for each in (help or "").split("\n\n"))
        super().__init__(*arguments, help=text, **options)


class PlainHelpGroup(PlainHelp, TyperGroup):
    """A command group."""


class CommandGroup(NamedTuple):
    """Commands below one name: the help of the group, and its commands as ``module:function``."""

    help: str
    commands: Mapping[str, str]


def lazy_group(commands: Mapping[str, str | CommandGroup]) -> type[TyperGroup]:
    """Return a group class of *commands*: name to ``module:function``, or to a group."""

    class LazyGroup(PlainHelpGroup):
        _only_names = False

        def list_commands(self, ctx: _Context) -> list[str]:
            return list(commands)

        def get_command(self, ctx: _Context, cmd_name: str) -> _Command:
            place = commands.get(cmd_name)
            if place is not None and self._only_names:
                return _STAND_IN
            return None if place is None else _load_command(cmd_name, place)

        def resolve_command(self, ctx: _Context, args: list[str]) -> Any:
            try:
                return super().resolve_command(ctx, args)
            except UsageError as error:
                near = get_close_matches(args[0], commands, 1)
                if near and args[0] not in commands:
                    error.message = f"unknown command {args[0]}; did you mean {near[0]}?"  # type: ignore[attr-defined]
                raise

        def shell_complete(self, ctx: _Context, incomplete: str) -> Any:
            # Completion needs only names, so it imports no command.
            self._only_names = True
            try:
                return super().shell_complete(ctx, incomplete)
            finally:
                self._only_names = False

    return LazyGroup


def _load_command(name: str, place: str | CommandGroup) -> _Command:
    if isinstance(place, CommandGroup):
        app = typer.Typer(add_completion=False, cls=lazy_group(place.commands), help=place.help)
        app.callback()(lambda: None)
    else:
        module, _, function = place.partition(":")
        app = typer.Typer(add_completion=False, context_settings=HELP)
        app.command(name, cls=PlainHelpCommand)(getattr(importlib.import_module(module), function))
    command = get_command(app)
    command.name = name
    return command


_empty = typer.Typer(add_completion=False)
_empty.command()(lambda: None)
_STAND_IN: Final = get_command(_empty)
"""Placeholder for a command of which completion needs only the name."""


DEBUG: Final = "XROUTER_DEBUG"
BROKEN_PIPE: Final = 1
"""The exit code that typer uses when the reader of standard output has closed it."""

COMMANDS: Final[dict[str, str | CommandGroup]] = {
    "init": "router.commands.init:init",
    "run": "router.commands.run:run",
    "wait": "router.commands.top:wait",
    "gateway": "router.commands.run:gateway",
    "top": "router.commands.top:top",
    "tap": "router.commands.tap:tap",
    "check": "router.commands.check.command:check",
    "routes": "router.commands.routes:routes",
    "plan": "router.commands.plan:plan",
    "test": "router.commands.test.command:test",
    "match": "router.commands.match:match",
    "emit": "router.commands.emit.command:emit",
    "catalog": CommandGroup(
        "Inspect, convert, diff and sync catalogs.",
        {
            "list": "router.commands.catalog:list_definitions",
            "convert": "router.commands.catalog:convert_catalog",
            **{name: f"router.commands.catalog:{name}" for name in ("show", "pull", "push", "diff")},
        },
    ),
    "dead-letters": CommandGroup(
        "List, show, replay and remove dead letters, and draft definitions for them.",
        {
            "list": "router.commands.dead_letters.commands:list_letters",
            **{name: f"router.commands.dead_letters.commands:{name}" for name in ("show", "replay", "release")},
            "suggest": "router.commands.dead_letters.suggest:suggest_definitions",
            "purge": "router.commands.dead_letters.commands:purge_letters",
        },
    ),
    "batches": CommandGroup(
        "Show unfinished batches, and move blocked ones to the dead letters.",
        {name: f"router.commands.batches:{name}" for name in ("show", "park")},
    ),
    "schemas": CommandGroup("Copy schemas of schema registries to disk.", {"pull": "router.commands.schemas:pull"}),
    "registry": CommandGroup(
        "Serve a registry of endpoints, messages and schemas.",
        {
            **{name: f"router.commands.registry.serve:{name}" for name in ("serve", "init")},
            "import": "router.commands.registry.serve:import_document",
            "export": "router.commands.registry.serve:export_document",
            **{name: f"router.commands.registry.serve:{name}" for name in ("history", "backup", "restore")},
            **{name: f"router.commands.registry.serve:{name}" for name in ("pull", "push")},
        },
    ),
    "doctor": "router.commands.doctor:doctor",
    "demo": "router.commands.demo.command:demo",
}
SUMMARY: Final = "Route messages of Kafka, MQTT, AMQP, NATS and HTTP by the definitions of an xRegistry catalog."
app = typer.Typer(name="xrouter", cls=lazy_group(COMMANDS), help=SUMMARY, context_settings=HELP)


def _show_version(wanted: bool) -> None:
    if wanted:
        print_text(f"xrouter {version('xregistry-router')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print_text(context.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; *arguments* default to ``sys.argv``."""
    _open_closed_streams()
    sys.exit(run_command_line(arguments))


def run_command_line(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; raise nothing but ``SystemExit``."""
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
        # Every error becomes one line and an exit code here.
        if os.environ.get(DEBUG):
            traceback.print_exc()
        for each in (error, *getattr(error, "others", ())):
            message, hint, _ = _describe_error(each)
            lines = [f"xrouter: error: {line}" for line in _iter_error_lines(each, message)]
            for line in (*lines, *([f"hint: {hint}"] if hint else [])):
                print_text(" ".join(line.split()), err=True)
        return _describe_error(error)[2]


def _iter_error_lines(error: Exception, message: str) -> Iterator[str]:
    """Yield one line per settings error, with its location; for other errors, the message."""
    if not isinstance(error, ConfigError) or not error.places:
        yield message
        return
    for place, problem in zip(error.places, error.problems, strict=True):
        # A problem without a key already names the file.
        yield problem if error.file and problem.startswith(error.file) else f"{place}: {problem}"


def _describe_error(error: Exception) -> tuple[str, str, int]:
    """Return message, hint and exit code of an error."""
    if isinstance(error, RouterError):
        return error.message, error.hint, error.exit_code
    if isinstance(error, MissingExtraError):
        return str(error), "", USAGE
    if isinstance(error, DocumentError):
        return str(error), error.hint, CatalogUnavailable("").exit_code
    if away := find_lost_registry(error):
        return away, "retry when it is reachable", BrokerUnreachable("").exit_code
    if isinstance(error, CatalogError):
        return str(error), "", 1
    # Imported here: Kafka's client is slow to load and most commands do not use it.
    from bindings.kafka.client import KafkaUnreachable

    if isinstance(error, KafkaUnreachable):
        return str(error), "check the address and that the broker is running", BrokerUnreachable("").exit_code
    if isinstance(error, UsageError):
        hint = f"see `{getattr(getattr(error, 'ctx', None), 'command_path', 'xrouter')} --help`"
        return str(getattr(error, "format_message", error.__str__)()), hint, USAGE
    hint = f"this is a bug in xrouter; please report it with the traceback that {DEBUG}=1 shows"
    return f"unexpected {type(error).__name__}: {error}", hint, 1


def _open_closed_streams() -> None:
    """Open standard streams that the caller closed (``>&-``) on the null device, so that no file gets their numbers."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))
