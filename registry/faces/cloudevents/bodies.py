"""Bodies of requests: what identifies an entity is taken apart from what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from registry.core.merging import as_object
from registry.core.requests import ABSENT
from registry.errors import Refusal
from registry.faces.cloudevents.names import RESOURCES
from registry.http.face import Call
from registry.http.requests import tree_of

_IDENTITY: Final = ("id", "version", "epoch", "self", "specversion", "versions", "versionsurl", "versionscount")
_HELD: Final = tuple(f"{name}{end}" for name in RESOURCES.values() for end in ("", "url", "count"))
_TIMES: Final = {"createdOn": "createdat", "modifiedOn": "modifiedat"}
_TYPES: Final = frozenset(("definitiongroup", "endpoint", "schemagroup", "definition", "schema", "schemaversion"))


@dataclass(frozen=True, slots=True)
class Body:
    """What a body says: ``said`` under older names, ``times`` under those of 1.0; ``given`` is all of it."""

    given: Mapping[str, Any]
    said: Mapping[str, Any]
    times: Mapping[str, Any]


def body_of(tree: Mapping[str, Any], *, held: bool = False) -> Body:
    """Take a body apart; *held* is for groups, which name what they hold beside what they say."""
    left_out = {*_IDENTITY, *(_HELD if held else ())}
    said = {name: value for name, value in tree.items() if name.lower() not in left_out and name not in _TIMES}
    kind = said.get("type")
    if isinstance(kind, str) and kind.lower() in _TYPES:
        said.pop("type")
    times = {newer: tree[older] for older, newer in _TIMES.items() if tree.get(older) is not None}
    return Body(tree, said, times)


def definition_body(tree: Mapping[str, Any]) -> Body:
    """Take the body of a definition apart, which may stand in its ``definition`` as listings nest it."""
    nested = tree.get("definition")
    rest = {name: value for name, value in tree.items() if name != "definition"}
    return body_of({**nested, **rest} if isinstance(nested, Mapping) else tree)


def object_of(call: Call, xid: str) -> Mapping[str, Any]:
    """Return the JSON object that a call has as body.

    Raises:
        Refusal: there is none.
    """
    tree = tree_of(call.body, xid)
    if tree is ABSENT:
        raise Refusal("missing_body", xid)
    return as_object(tree, xid)


def collection_of(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the collection that a group has in its body, empty when it has none.

    Raises:
        Refusal: it is no map.
    """
    collection = body.get(name)
    return {} if collection is None else as_object(collection, name)


def list_of(call: Call, xid: str) -> list[Mapping[str, Any]] | None:
    """Return the entities that the body of a deletion names, None when there is no body.

    Raises:
        Refusal: it is no list of entities with an ``id`` each.
    """
    tree = tree_of(call.body, xid)
    if tree is ABSENT:
        return None
    if not isinstance(tree, list) or not all(isinstance(each, dict) for each in tree):
        raise Refusal("bad_request", xid, error_detail="the body needs to be a list of objects with an id")
    return tree
