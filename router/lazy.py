"""Commands that are imported when they are called: nobody waits for the libraries of what he does not use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

# Typer ships what it is built on under a name of its own; its types are reached through its own classes.
_Context = Any
_Command = Any
HELP: Final = {"help_option_names": ["-h", "--help"]}


def lazy_group(commands: Mapping[str, str]) -> type[TyperGroup]:
    """Return a group of *commands*: by name the function or Typer app that each is, as ``module:attribute``."""

    class LazyGroup(TyperGroup):
        def list_commands(self, ctx: _Context) -> list[str]:
            return list(commands)

        def get_command(self, ctx: _Context, cmd_name: str) -> _Command:
            place = commands.get(cmd_name)
            return None if place is None else _command(cmd_name, place)

    return LazyGroup


def _command(name: str, place: str) -> _Command:
    module, _, attribute = place.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    app = found
    if not isinstance(found, typer.Typer):
        app = typer.Typer(add_completion=False, context_settings=HELP)
        app.command(name)(found)
    command = get_command(app)
    command.name = name
    return command
