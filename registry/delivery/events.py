"""Rows of the outbox as CloudEvents: those of xRegistry (``events.md``), or of Message Catalog 0.1 (section 5.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from registry.store.outbox import Row

Kind = Literal["xregistry", "messagecatalog"]
UPDATED: Final = "io.cloudevents.messagecatalog.updated.v1"
DELETED: Final = "io.cloudevents.messagecatalog.deleted.v1"
CATALOG: Final = "io.cloudevents.messagecatalog."
_ENTITIES: Final = ("messagegroups", "messages", "versions")
_PATHS: Final = ("", "/messagedefinitions", "/versions")
_ACTIONS: Final[Mapping[str, str]] = {"created": UPDATED, "updated": UPDATED, "deleted": DELETED}


@dataclass(frozen=True, slots=True)
class Sources:
    """Where events come from: URLs without a slash at their ends.

    ``catalog`` is the base of the Message Catalog, whose groups are below ``path``, such as ``/messagecatalog``.
    """

    registry: str
    catalog: str
    path: str = "/messagecatalog"


def sources_of(base: str, catalog: str) -> Sources:
    """Return the sources of a registry at the URL *base*; *catalog* is where its Message Catalog is below that, if any.

    The last part of that path belongs to the paths of the catalog, as ``/messagecatalog`` does in its specification.
    """
    parent, mark, last = catalog.rpartition("/")
    return Sources(base, base + parent, mark + last) if last else Sources(base, base)


@dataclass(frozen=True, slots=True)
class Event:
    """One event. ``number`` is its place in the outbox, ``entity`` the xid whose events keep their order.

    ``attributes`` are those of CloudEvents, ``specversion`` first, the same at every try; ``data`` is JSON.
    """

    number: int
    entity: str
    at: str
    attributes: Mapping[str, str]
    data: bytes | None


def event_of(row: Row, kind: Kind, sources: Sources) -> Event | None:
    """Return the event of a row; None for one that the Message Catalog does not know.

    Both kinds may have one source, so their ids differ too: consumers and brokers recognise a repeated event by source
    and id.
    """
    first = {"specversion": "1.0", "id": f"{row.interaction}-{row.number}"}
    if kind == "messagecatalog":
        path, action = _catalog_path(row.subject, sources.path), _ACTIONS.get(row.type.rpartition(".")[2])
        if path is None or action is None:
            return None
        first["id"] += "-catalog"
        attributes = {**first, "source": sources.catalog, "type": action, "subject": path, "time": row.at}
        return Event(row.number, row.subject, row.at, attributes, None)
    attributes = {**first, "source": sources.registry, "type": row.type, "subject": row.subject, "time": row.at}
    attributes["xregcorrelationid"] = row.interaction
    if row.data is None:
        return Event(row.number, row.subject, row.at, attributes, None)
    attributes["datacontenttype"] = "application/json"
    return Event(row.number, row.subject, row.at, attributes, row.data.encode("utf-8"))


def _catalog_path(xid: str, groups: str) -> str | None:
    """Return where the Message Catalog has an entity, None for what is no group of messages or in none.

    Versions are at ``versions``, where they can be read (section 4.1), though an example of 5.5 says ``version``.
    """
    parts = xid.split("/")[1:]
    if len(parts) % 2 or tuple(parts[0::2]) != _ENTITIES[: len(parts) // 2]:
        return None
    return groups + "".join(f"{plural}/{name}" for plural, name in zip(_PATHS, parts[1::2], strict=False))
