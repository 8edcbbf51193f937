"""Entities as they are kept. What only the place of an entity says (its URLs, counts) is not among its attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(slots=True)
class Entity:
    """What all kinds have in common: ``parent`` is the path of the collection, such as ``/endpoints``."""

    parent: str
    id: str
    epoch: int
    createdat: str
    modifiedat: str
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def xid(self) -> str:
        """The path from the root."""
        return f"{self.parent}/{self.id}"


@dataclass(slots=True)
class Registry(Entity):
    """The registry itself; ``id`` is its ``registryid``, ``capabilities`` those that clients have changed."""

    modelsource: dict[str, Any] = field(default_factory=dict)
    capabilities: dict[str, Any] = field(default_factory=dict)

    @property
    def xid(self) -> str:
        """The root."""
        return "/"


@dataclass(slots=True)
class Group(Entity):
    """A group."""


@dataclass(slots=True)
class Resource(Entity):
    """A resource: times, epoch and attributes are those of its ``meta``; ``counter`` is the last version number made.

    With an ``xref`` it has no versions, and no default one.
    """

    xref: str | None = None
    defaultversionid: str | None = None
    sticky: bool = False
    counter: int = 0

    @property
    def group(self) -> str:
        """The xid of its group."""
        return self.parent.rsplit("/", 1)[0]

    @property
    def versions(self) -> str:
        """The path of its versions."""
        return f"{self.xid}/versions"


@dataclass(slots=True)
class Version(Entity):
    """A version; its document is kept apart. One that is its own ancestor is a root."""

    ancestorid: str = ""

    @property
    def resource(self) -> str:
        """The xid of its resource."""
        return self.parent.rsplit("/", 1)[0]


def text_of(tree: Mapping[str, Any]) -> str:
    """Return a tree as the tables keep it."""
    return msgspec.json.encode(tree).decode("utf-8")
