"""What documents declare, before inheritance: the one form that every dialect gives and that inheritance takes.

Attribute names are those of 1.0; what is inside the attributes is still as written, since the spelling of protocol
options can only be settled once the protocol is known, and that may be inherited.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MESSAGE_REFERENCE: Final = re.compile(
    r"(?:^|[/#])(?:\$)?(messagegroups|endpoints)/([^/?#]+)/messages/([^/?#]+)(?:/versions/([^/?#]+))?/?$"
)
"""A reference to a message: its collection, the id of its holder, its own, and that of a version."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is written: a file (path or URL) and a JSON pointer into it.

    ``mounts`` tells, for a document that was put together from several, which members are written elsewhere.
    """

    file: str
    pointer: str = ""
    mounts: Mapping[tuple[str, str], Place] | None = field(default=None, compare=False, repr=False)

    def __truediv__(self, key: str | int) -> Place:
        """Return the place of a member."""
        pointer = f"{self.pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"
        if self.mounts is None:
            return Place(self.file, pointer)
        mounted = self.mounts.get((self.file, pointer))
        return Place(mounted.file if mounted else self.file, mounted.pointer if mounted else pointer, self.mounts)


@dataclass(frozen=True, slots=True)
class DeclaredMessage:
    """One message as written. ``base`` and ``borrowed`` are references as written.

    ``borrowed`` (xref, uri) differs from ``base`` in that the message is nothing without its target.
    ``hidden`` messages are versions that can be referred to but are no definitions of their own. ``written`` says
    where each attribute is written, which is not always below ``place`` and not always under its 1.0 name;
    a key ``protocoloptions.PROPERTY`` says it of one property that a dialect spells or places in its own way.
    ``other`` is all that says nothing about how the message looks (names, descriptions, extensions), as written.
    """

    xid: str
    group: str
    place: Place
    attributes: Mapping[str, Any]
    base: str | None = None
    borrowed: str | None = None
    hidden: bool = False
    written: Mapping[str, Place] = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)

    def at(self, attribute: str) -> Place:
        """Return the place of an attribute, given its 1.0 name."""
        return self.written.get(attribute) or self.place / attribute


@dataclass(frozen=True, slots=True)
class DeclaredGroup:
    """A message group and the defaults that it gives its messages; ``other`` is what else it says, as written."""

    xid: str
    place: Place
    envelope: str | None = None
    protocol: str | None = None
    other: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeclaredEndpoint:
    """An endpoint; ``messagegroups`` are references as written, its messages are declared messages of its xid.

    ``groups_written`` is where each of those references stands, when that is not ``messagegroups``. ``other`` is what
    else it says, as written; its ``protocoloptions`` are those that are neither addresses nor options of the channel.
    """

    xid: str
    place: Place
    usage: tuple[str, ...] = ()
    envelope: str | None = None
    protocol: str | None = None
    envelopeoptions: Mapping[str, Any] = field(default_factory=dict)
    uris: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    messagegroups: tuple[str, ...] = ()
    groups_written: tuple[Place, ...] = ()
    other: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Declarations:
    """All that the documents of one load declare, by xid; dialects fill it, the first declaration of an xid stays.

    ``schemagroups`` is what schema groups say beside their schemas, ``registry`` what documents say beside collections.
    ``addresses`` are those that registries have of their own, by each file that their documents are read from.
    ``beyond`` are the groups and endpoints of messages that were only referred to, in documents beyond the sources.
    """

    messages: dict[str, DeclaredMessage] = field(default_factory=dict)
    groups: dict[str, DeclaredGroup] = field(default_factory=dict)
    endpoints: dict[str, DeclaredEndpoint] = field(default_factory=dict)
    schemas: dict[str, Any] = field(default_factory=dict)
    schema_places: dict[str, Place] = field(default_factory=dict)
    schemagroups: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    registry: dict[str, Any] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    beyond: dict[str, DeclaredGroup | DeclaredEndpoint] = field(default_factory=dict)
