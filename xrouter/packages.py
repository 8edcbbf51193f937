"""Our other packages are found before anything else of their names, such as a ``router.py`` on ``PYTHONPATH``."""

# Small: it runs before any other import, with what Python has loaded already.

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False
"""As of typing, which could be a typing.py of the working directory."""
_NAMES = ("catalog", "bindings", "registry", "router")
_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""Where this installation is, which may be an archive."""


class _OwnPackages:
    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find our packages beside this one."""
        return PathFinder.find_spec(name, [_FOLDER]) if name in _NAMES else None


def _find_own_packages() -> None:
    """Have imports find our packages first from here on.

    Raises:
        ImportError: another module of such a name is loaded already.
    """
    for name in _NAMES:
        module = sys.modules.get(name)
        file = str(getattr(module, "__file__", None) or getattr(module, "__path__", ""))
        own = os.path.realpath(os.path.join(_FOLDER, name))
        if module is not None and os.path.realpath(os.path.dirname(file)) != own:
            raise ImportError(f"xrouter has a package {name} of its own, but {file} is loaded by that name: rename it")
    sys.meta_path.insert(0, _OwnPackages)


_find_own_packages()
