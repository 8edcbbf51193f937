"""The APIs besides the core API. To add one, add a package here and an entry in ``APIS``."""

# Small: it only lists the APIs; each is a package of its own.

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Final

from registry.apis.cloudevents.api import CloudEventsApi
from registry.apis.messagecatalog.api import DefinitionLookup, MessageCatalogApi
from registry.http.access import RegistryApiFactory

CATALOG: Final = "messagecatalog"
LOOKUP: Final = "messagedefinition"
"""Message Catalog 0.1 requires it beside the catalog, so it is served by default."""
APIS: Final[Mapping[str, RegistryApiFactory]] = {
    "cloudevents": CloudEventsApi,
    CATALOG: MessageCatalogApi,
    LOOKUP: DefinitionLookup,
}
"""APIs by their names in settings."""
_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~-]{1,64}){1,8}", re.ASCII)


def apis_by_path(paths: Mapping[str, str]) -> dict[str, RegistryApiFactory]:
    """Return APIs by path, from paths by name.

    Raises:
        ValueError: an API is unknown, or a path is not valid, or contains another.
    """
    apis: dict[str, RegistryApiFactory] = {}
    for name, path in paths.items():
        if name not in APIS:
            raise ValueError(f"unknown API {name!r}; known are {', '.join(sorted(APIS)) or 'none'}")
        if not _PATH.fullmatch(path):
            raise ValueError(f"the path of {name} must begin with a slash and must not end with one: {path!r}")
        for other in apis:
            if f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/"):
                raise ValueError(f"the path of {name}, {path}, overlaps with another")
        apis[path] = APIS[name]
    if CATALOG in paths:
        beside = f"{paths[CATALOG].rpartition('/')[0]}/{LOOKUP}"
        apis[paths.get(LOOKUP, beside)] = partial(DefinitionLookup, catalog=paths[CATALOG])
    return apis
