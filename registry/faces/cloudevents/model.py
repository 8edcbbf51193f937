"""The model as this face shows it (``GET /?model``)."""

from __future__ import annotations

from typing import Any

from registry.faces.cloudevents.names import GROUPS, RESOURCES, SINGULAR
from registry.model.types import Model

_GROUP = {"endpoints": "endpoint", "messagegroups": "definitionGroup", "schemagroups": "schemaGroup"}
_VERSIONS = {"messages": 0, "schemas": -1}


def model_of(model: Model) -> dict[str, Any]:
    """Return the types of groups that the registry has and this face shows, with their resources."""
    return {
        "groups": [
            {
                "singular": _GROUP[plural],
                "plural": older,
                "resources": [
                    {"singular": SINGULAR[name], "plural": RESOURCES[name], "versions": _VERSIONS[name]}
                    for name in model.groups[plural].resources
                    if name in RESOURCES
                ],
            }
            for plural, older in GROUPS.items()
            if plural in model.groups
        ]
    }
