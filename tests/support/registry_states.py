"""What a registry has of everything, as far as replication keeps it alike in two of them."""

from __future__ import annotations

from typing import Any, Final

import httpx

_OWN: Final = ("self", "xid", "epoch", "modifiedat", "formatvalidated", "compatibilityvalidated")
_OF_ENTITIES: Final = ("createdat",)


def whole_state_of(client: httpx.Client) -> dict[str, Any]:
    """Return model, groups, resources with their versions, documents, ancestors and default versions.

    Times of groups and resources, epochs and URLs are each registry's own, and messages of message groups are compared
    by :func:`tests.support.catalog_states.state_of`.
    """
    answer = client.get("/", params={"inline": "*,modelsource"})
    answer.raise_for_status()
    tree = answer.json()
    source = tree["modelsource"]
    state: dict[str, Any] = {"modelsource": source}
    for plural, kind in source["groups"].items():
        for name, group in tree.get(plural, {}).items():
            xid = f"/{plural}/{name}"
            below = kind.get("resources", {})
            state[xid] = _plain(group, {*_OF_ENTITIES, *below})
            for resources in below if plural != "messagegroups" else ():
                for resource, body in group.get(resources, {}).items():
                    where = f"{xid}/{resources}/{resource}"
                    state[where] = _plain(body["meta"], _OF_ENTITIES)
                    for version, each in body.get("versions", {}).items():
                        state[f"{where}/versions/{version}"] = _plain(each, ())
    return state


def _plain(body: dict[str, Any], left_out: Any) -> dict[str, Any]:
    kept = {name: value for name, value in body.items() if name not in _OWN and name not in left_out}
    return {name: value for name, value in kept.items() if not name.endswith(("url", "count")) or name == "schemaurl"}
