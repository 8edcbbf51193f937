"""The logins of registries alone, for commands that take catalogs by name and no other settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from catalog.documents.logins import Logins
from router.errors import ConfigError
from router.settings.catalogs import logins_of
from router.settings.environment import PREFIX, overlay
from router.settings.load import read_file, settings_from_dict
from router.settings.plaintext import plaintext_faults

_KEYS: Final = ("logins", "allow_plaintext_password")
_SCHEMAS: Final = "schema_registries"
VARIABLES: Final = (*(f"{PREFIX}CATALOG__{key.upper()}" for key in _KEYS), f"{PREFIX}{_SCHEMAS.upper()}")
"""How the variables begin that give logins."""


def read_logins(file: Path | None, environ: Mapping[str, str] | None = None) -> Logins:
    """Return the logins that a settings file has for catalogs and schema registries.

    Those of *environ* (the process's own if None) are laid over them.

    Nothing else of the file is looked at, so what else it refers to need not be there.

    Raises:
        ConfigError: as :func:`router.settings.load.load_settings`, for these keys.
    """
    variables = os.environ if environ is None else environ
    content = read_file(file) if file is not None else {}
    written = content.get("catalog")
    section: dict[str, Any] = (
        {key: written[key] for key in _KEYS if key in written} if isinstance(written, dict) else {}
    )
    of_logins = {name: value for name, value in variables.items() if name.startswith(VARIABLES)}
    schemas = {_SCHEMAS: content[_SCHEMAS]} if content.get(_SCHEMAS) else {}
    unresolved = overlay({"catalog": section, **schemas}, of_logins)
    base = file.resolve().parent if file is not None else Path.cwd()
    name = str(file) if file is not None else ""
    settings = settings_from_dict(unresolved, variables, base, file=name)
    for key, fault in plaintext_faults(settings):
        problem = f"{key}: {fault}"
        raise ConfigError(f"{name}: {problem}" if name else problem, file=name, key=key, problems=(problem,))
    return logins_of(settings)
