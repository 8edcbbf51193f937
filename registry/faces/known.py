"""All faces beside the core API. One more is a room here, and its entry in ``FACES``."""

# Small: it names all faces; each is a room of its own.

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Final

from registry.faces.cloudevents.api import CloudEventsFace
from registry.faces.messagecatalog.api import DefinitionLookup, MessageCatalogFace
from registry.http.access import FaceType

CATALOG: Final = "messagecatalog"
LOOKUP: Final = "messagedefinition"
"""Message Catalog 0.1 has it beside the catalog, so it is there unless a path is given for it."""
FACES: Final[Mapping[str, FaceType]] = {
    "cloudevents": CloudEventsFace,
    CATALOG: MessageCatalogFace,
    LOOKUP: DefinitionLookup,
}
"""By the name that settings call it by."""
_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~-]{1,64}){1,8}", re.ASCII)


def faces_at(paths: Mapping[str, str]) -> dict[str, FaceType]:
    """Return faces by their paths, given paths by the faces' names.

    Raises:
        ValueError: a face is unknown, or a path is none, or within another's.
    """
    faces: dict[str, FaceType] = {}
    for name, path in paths.items():
        if name not in FACES:
            raise ValueError(f"{name!r} is no face; there are {', '.join(sorted(FACES)) or 'none'}")
        if not _PATH.fullmatch(path):
            raise ValueError(f"the path of {name} must begin with a slash and not to end with one: {path!r}")
        for other in faces:
            if f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/"):
                raise ValueError(f"the path of {name}, {path}, is within another's, or another's within it")
        faces[path] = FACES[name]
    if CATALOG in paths:
        beside = f"{paths[CATALOG].rpartition('/')[0]}/{LOOKUP}"
        faces[paths.get(LOOKUP, beside)] = partial(DefinitionLookup, catalog=paths[CATALOG])
    return faces
