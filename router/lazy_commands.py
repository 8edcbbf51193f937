"""Import each command only when it is called, so that no command loads libraries that it does not use."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

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
