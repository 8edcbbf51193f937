"""References in values: ``${VAR}``, ``${VAR:-default}`` and ``file:/path``.

A secret is only ever written as a reference, so that the unresolved settings can be stored with a plan. ``$$`` is a
literal ``$``. What a reference stands for is not looked into again, so no outside text can name another variable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from catalog.parsing.regular import read_input
from router.errors import ConfigError
from router.settings.places import Place, absolute, dotted, holds_file, holds_secret, map_texts

_REFERENCE: Final = re.compile(r"\$\$|\$\{([^}]*)\}")
_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_FILE: Final = "file:"
MAX_SECRET: Final = 1024 * 1024
"""Bytes of a file that a value stands in."""


def resolve(unresolved: Mapping[str, Any], environ: Mapping[str, str], base: Path, file: str = "") -> dict[str, Any]:
    """Return the settings with every reference replaced and every path absolute.

    *base* is the folder that relative paths start from; *file* is named in errors.

    Raises:
        ConfigError: a variable that is not set, a file that cannot be read, a malformed reference, or a secret that is
            written out.
    """

    def change(place: Place, text: str) -> str:
        try:
            if holds_secret(place) and not is_reference(text):
                raise ValueError("a secret must not be written out; use ${VAR} or file:/path")
            return _resolved(place, text, environ, base)
        except (ValueError, OSError) as error:
            fault = f"{dotted(place)}: {error}"
            prefix = f"{file}: " if file else ""
            raise ConfigError(f"{prefix}{fault}", file=file, key=dotted(place), problems=(fault,)) from error

    resolved: dict[str, Any] = map_texts(unresolved, change)
    return resolved


def is_reference(text: str) -> bool:
    """Tell whether a text takes its value from elsewhere."""
    return text.startswith(_FILE) or any(hit.group() != "$$" for hit in _REFERENCE.finditer(text))


def _resolved(place: Place, text: str, environ: Mapping[str, str], base: Path) -> str:
    value = _REFERENCE.sub(lambda hit: "$" if hit.group() == "$$" else _variable(hit[1], environ), text)
    if holds_file(place):
        return absolute(value, base)
    if value.startswith(_FILE):
        return _content(value, base)
    return value


def _variable(inner: str, environ: Mapping[str, str]) -> str:
    match = _NAME.fullmatch(inner)
    if match is None:
        raise ValueError(f"${{{inner}}} is no reference; write ${{NAME}}, ${{NAME:-default}}, or $$ for a plain $")
    name, default = match.groups()
    value = environ.get(name)
    if default is not None:
        return value or default
    if value is None:
        raise ValueError(f"environment variable {name} is not set; set it, or write ${{{name}:-default}}")
    return value


def _content(reference: str, base: Path) -> str:
    path = Path(absolute(reference.removeprefix(_FILE).removeprefix("//"), base))
    try:
        return read_input(path, MAX_SECRET).decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text") from error
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
