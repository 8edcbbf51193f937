"""Points of a program where a test interferes. They have names, since they are handed to other processes.

A point is ``MODULE:PATH``, or ``MODULE:PATH~TEXT`` for calls with that text in their arguments; an open file counts as
its path. PATH is ``Class.method`` or a plain function.

A plain function can be replaced in one module at a time: who has imported it by name calls the original. So its point
has to name the module that calls it, and one that would be met by some callers only, or by none, is refused.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from tests.support.cases import read_cases

ROOT: Final = Path(__file__).resolve().parents[2]
ROOMS: Final = ("catalog", "bindings", "router")


def read_points() -> dict[str, list[tuple[str, str]]]:
    """Return the lists of points, each with ``before`` or ``after``, of ``tests/cases/kill_points.yaml``."""
    lists = read_cases(ROOT / "tests" / "cases" / "kill_points.yaml")
    return {name: [(point, when) for point, when in points] for name, points in lists.items()}


class NoSuchPoint(Exception):
    """A point that is never met, or not by all who call its function."""


@dataclass(frozen=True, slots=True)
class Point:
    """The function that is ``name`` of ``owner``, a module or a class, where it is looked up at each call."""

    owner: Any
    name: str
    text: str

    @classmethod
    def of(cls, name: str) -> Point:
        """Return the point of that name.

        Raises:
            NoSuchPoint: it names nothing, or no function or method, or a function that others have imported by name.
        """
        place, _, text = name.partition("~")
        module, _, path = place.partition(":")
        *outer, last = path.split(".")
        try:
            owner = functools.reduce(getattr, outer, importlib.import_module(module))
            function = inspect.getattr_static(owner, last)
        except ImportError as error:
            raise NoSuchPoint(f"{name}: {error}") from error
        except AttributeError as error:
            raise NoSuchPoint(f"{name}: there is no {path} in {module}") from error
        if not callable(function) or isinstance(function, type | staticmethod):
            raise NoSuchPoint(f"{name} is a {type(function).__name__}, no function or method")
        if isinstance(owner, ModuleType):
            _check_callers(module, last)
        return cls(owner, last, text)

    def wrap(self, *, before: Callable[[], None] | None = None, after: Callable[[], None] | None = None) -> None:
        """Have the function call *before* and *after* around itself."""
        function = getattr(self.owner, self.name)

        @functools.wraps(function)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            concerned = not self.text or any(self.text in _shown(each) for each in arguments)
            if before is not None and concerned:
                before()
            result = function(*arguments, **named)
            if after is not None and concerned:
                after()
            return result

        setattr(self.owner, self.name, wrapped)


def _check_callers(module: str, function: str) -> None:
    """Read it in the sources of all modules: which of them are loaded already depends on the moment."""
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if function not in source:
            continue
        if (module, function) in _taken(ast.parse(source)):
            caller = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            raise NoSuchPoint(f"{module}:{function}: imported by name in {caller}, so the point is {caller}:{function}")


def _taken(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield from where a module takes which names while it is loaded; a function that imports does so at each call."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def _shown(argument: Any) -> str:
    """Return an argument as text; an open file, or the number of one, as the path that it was opened at."""
    try:
        return os.readlink(f"/proc/self/fd/{argument}") if isinstance(argument, int) else str(argument)
    except OSError:
        return str(argument)
