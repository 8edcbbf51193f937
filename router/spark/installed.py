"""Which packages a Python has: asked in this process, and in a worker of each executor.

Nothing but the standard library is imported here, so that a worker without all the rest can say so.
"""

from __future__ import annotations

import platform
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

ROUTER: Final = "xregistry-router"
_PYTHON: Final = "Python"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def needed() -> tuple[str, ...]:
    """Return the packages that the router needs at run time, by name."""
    wanted = (each for each in requires(ROUTER) or () if "extra ==" not in each)
    return tuple(sorted(match[0] for each in wanted if (match := _NAME.match(each)) is not None))


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package, empty for one that is missing, and that of Python with its machine."""
    return {_PYTHON: f"{platform.python_version()} {platform.machine()}"} | {name: _version(name) for name in packages}


def versions_here(packages: Sequence[str], _: Iterable[int] = ()) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield this machine's name and its :func:`versions`; what a task of Spark runs."""
    yield socket.gethostname(), versions(packages)


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return what is missing there or is of another version than here, each by name and in words."""
    return [
        f"{name} {there[name]} (here {wanted})" if there.get(name) else f"no {name} (here {wanted})"
        for name, wanted in here.items()
        if there.get(name) != wanted
    ]


def _version(package: str) -> str:
    if package == "pyspark":
        # Spark brings its own to its executors, as a mere folder of modules.
        import pyspark

        return pyspark.__version__
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
