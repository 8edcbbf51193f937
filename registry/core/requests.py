"""A request and its answer as the registry understands them, whatever protocol carries them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from registry.core.documents import Given

Verb = Literal["read", "replace", "patch", "add", "delete"]
"""GET, PUT, PATCH, POST and DELETE."""
ABSENT: Final = object()
"""A body that is not there."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of a request as they are written (core ``spec.md``, Request Flags); None and () for none."""

    inline: Sequence[str] = ()
    filter: Sequence[str] = ()
    ignore: Sequence[str] = ()
    sort: str | None = None
    epoch: str | None = None
    setdefaultversionid: str | None = None
    specversion: str | None = None
    doc: bool = False
    collections: bool = False
    binary: bool = False


def _everybody(group: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for.

    ``segments`` is the path, decoded, without ``$details``; ``path`` is how errors name it. ``details`` asks for the
    metadata where there is a document too. ``body`` is the JSON tree of a body, ABSENT without one. Where a document is
    the body, ``document`` has it, and ``body`` the attributes beside it. ``who`` is the writer's name for history;
    ``may_write`` takes a group's xid ('' for the registry), and says whether the writer may write there. ``matches``
    are ETags of which one must be that of the entity, ``known`` those of answers that the reader has, or, of a write,
    of which none may be; ``*`` stands for whatever is there. ``replicated`` means that another catalog has the write
    already: it is not linted, and keeps its mark from there. ``from_client``
    means that the flags come from a client of the core API, so capabilities say which count. ``exact`` is a document of
    the whole registry whose epochs and times what is written has, whatever the write did to them.
    """

    verb: Verb
    segments: tuple[str, ...]
    path: str
    base: str
    flags: Flags = field(default_factory=Flags)
    details: bool = False
    body: Any = ABSENT
    document: Given | None = None
    contenttype: str = "application/json"
    limit: int | None = None
    cursor: str = ""
    who: str = ""
    administrator: bool = False
    may_write: Callable[[str], bool] = _everybody
    matches: tuple[str, ...] | None = None
    max_answer: int = 64 * 2**20
    known: tuple[str, ...] = ()
    replicated: bool = False
    from_client: bool = False
    exact: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Paging:
    """Where the next page begins ('' for nowhere), and how many entities there are, if that is known."""

    after: str
    count: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes of a request.

    ``body`` is None for an answer without one, or one that the reader has already. ``document`` is set where the
    document is the answer, and ``body`` then has the attributes that go beside it; ``elsewhere`` is the URL of a
    document that is not kept here. ``location`` is the URL of an entity that was created, ``version`` that of the
    version that was met or made. ``findings`` are what lint says of a write.
    """

    body: Mapping[str, Any] | None
    document: bytes | None = None
    elsewhere: str = ""
    name: str = ""
    location: str = ""
    version: str = ""
    etag: str = ""
    paging: Paging | None = None
    interaction: str = ""
    findings: tuple[Mapping[str, str], ...] = ()
