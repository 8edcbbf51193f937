"""The groups of commands: which commands each has, and where they are."""

# Small: the help of a group is shown without loading its commands.

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import typer

from router.lazy_commands import lazy_group


def _make_group(commands: Mapping[str, str], help: str, *, shows_help: bool = False) -> typer.Typer:
    group = typer.Typer(add_completion=False, cls=lazy_group(commands), help=help, no_args_is_help=shows_help)
    group.callback()(lambda: None)
    return group


_CATALOG: Final = "router.commands.catalog"
_LETTERS: Final = "router.commands.dead_letters"
_BATCHES: Final = "router.commands.batches.command"
_REGISTRY: Final = "router.commands.registry.serve"
catalog_app = _make_group(
    {
        "list": f"{_CATALOG}:list_definitions",
        "show": f"{_CATALOG}:show",
        "convert": f"{_CATALOG}:convert_catalog",
        **{name: f"{_CATALOG}:{name}" for name in ("pull", "push", "diff")},
    },
    "Inspect, convert, diff and sync catalogs.",
)
dead_letters_app = _make_group(
    {
        "list": f"{_LETTERS}.commands:list_letters",
        **{name: f"{_LETTERS}.commands:{name}" for name in ("show", "replay", "release")},
        "suggest": f"{_LETTERS}.suggest:suggest_definitions",
        "purge": f"{_LETTERS}.commands:purge_letters",
    },
    "List, show, replay and remove dead letters, and draft definitions for them.",
)
batches_app = _make_group(
    {name: f"{_BATCHES}:{name}" for name in ("show", "park")},
    "Show unfinished batches, and move blocked ones to the dead letters.",
    shows_help=True,
)
schemas_app = _make_group({"pull": "router.commands.schemas:pull"}, "Copy schemas of schema registries to disk.")
registry_app = _make_group(
    {
        **{name: f"{_REGISTRY}:{name}" for name in ("serve", "init")},
        "import": f"{_REGISTRY}:import_document",
        "export": f"{_REGISTRY}:export_document",
        **{name: f"{_REGISTRY}:{name}" for name in ("history", "backup", "restore", "pull", "push")},
    },
    "Serve a registry of endpoints, messages and schemas.",
)
