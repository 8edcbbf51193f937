"""What a write has changed: events as ``events.md`` has them, and history with the entities as they became."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from registry.store.entities import Entity, Resource, Version, text_of
from registry.store.work import Changes, Work

_ORDER: Final = ("updated", "created", "deleted")


@dataclass(slots=True)
class Change:
    """What became of one entity. ``changed`` are names of attributes, with those of ``deprecated`` apart.

    ``entity`` is how it is now, None for what is gone, and for ``/model``, which follows from its source.
    """

    kind: str
    action: str
    changed: dict[str, None] = field(default_factory=dict)
    deprecated: dict[str, None] = field(default_factory=dict)
    epoch: int = 0
    entity: Mapping[str, Any] | None = None


class Log:
    """Collects what a write has changed; each entity has one entry, and deletion counts more than creation."""

    def __init__(self) -> None:
        self._changes: dict[str, Change] = {}

    def note(self, subject: str, kind: str, action: str, changed: Iterable[str] = ()) -> Change:
        """Note a change of an entity."""
        change = self._changes.setdefault(subject, Change(kind, action))
        if _ORDER.index(action) > _ORDER.index(change.action):
            change.action = action
        change.changed.update(dict.fromkeys(changed))
        return change

    def relate(self, owner: Entity, kind: str, changed: Iterable[str]) -> None:
        """Note that something below an entity changed what that shows."""
        change = self.note(owner.xid, kind, "updated", changed)
        change.epoch, change.entity = owner.epoch, _kept(owner)

    def history(self, interaction: str, now: str, who: str) -> list[dict[str, Any]]:
        """Return the rows of history."""
        return [
            {
                "interaction": interaction,
                "at": now,
                "who": who,
                "action": each.action,
                "xid": subject,
                "epoch": each.epoch,
                "entity": None if each.entity is None else text_of(each.entity),
            }
            for subject, each in self._changes.items()
        ]

    def events(self, interaction: str, now: str) -> list[dict[str, Any]]:
        """Return the rows of events."""
        return [
            {"interaction": interaction, "at": now, "type": kind, "subject": subject, "data": data}
            for subject, each in self._changes.items()
            for kind, data in _events(each)
        ]


def log_of(work: Work) -> Log:
    """Return all that a write has changed, before it is flushed or after."""
    log = Log()
    if work.registry_touched:
        entry = log.note("/", "registry", "updated", _differences(work.registry_before, work.registry))
        entry.epoch, entry.entity = work.registry.epoch, _kept(work.registry)
        if work.registry.modelsource != work.registry_before.modelsource:
            entry.changed.update({"model": None, "modelsource": None})
            log.note("/model", "model", "updated").epoch = work.registry.epoch
            source = log.note("/modelsource", "modelsource", "updated")
            source.epoch, source.entity = work.registry.epoch, work.registry.modelsource
        one, other = work.registry_before.capabilities, work.registry.capabilities
        if one != other:
            entry.changed["capabilities"] = None
            names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
            chosen = log.note("/capabilities", "capabilities", "updated", names)
            chosen.epoch, chosen.entity = work.registry.epoch, other
    _collect(log, work.groups, "group")
    _collect(log, work.resources, "resource")
    _collect(log, work.versions, "version")
    _relate(log, work)
    return log


def _collect(log: Log, changes: Changes[Any], kind: str) -> None:
    for xid in changes.touched:
        before, now = changes.before.get(xid), changes.now[xid]
        if before is None and now is None:
            continue
        if now is None:
            log.note(xid, kind, "deleted").epoch = before.epoch if before is not None else 0
            continue
        entry = log.note(xid, kind, "created" if before is None else "updated")
        entry.epoch, entry.entity = now.epoch, _kept(now)
        if before is None:
            continue
        prefix = "meta." if kind == "resource" else ""
        entry.changed.update({f"{prefix}{name}": None for name in _differences(before, now)})
        old, new = _deprecated(before), _deprecated(now)
        entry.deprecated.update({name: None for name in {**old, **new} if old.get(name) != new.get(name)})


def _deprecated(entity: Entity) -> Mapping[str, Any]:
    """Return what an entity says of its deprecation, which may be anything where the model has no such attribute."""
    deprecated = entity.attributes.get("deprecated")
    return deprecated if isinstance(deprecated, Mapping) else {}


def _relate(log: Log, work: Work) -> None:
    """Note on owners that entities came or went, and on resources what their default version changes."""
    for xid, before, now in _moved(work.groups):
        plural = xid.split("/")[1]
        if (before is None) != (now is None):
            log.relate(work.registry, "registry", (plural, f"{plural}count", "epoch", "modifiedat"))
    for xid, before, now in _moved(work.resources):
        _, _, _, plural, _ = xid.split("/")
        owner = xid.rsplit("/", 2)[0]
        group = work.groups.now.get(owner)
        if (before is None) != (now is None) and group is not None:
            log.relate(group, "group", (plural, f"{plural}count", "epoch", "modifiedat"))
    for xid, before, now in _moved(work.versions):
        owner = xid.rsplit("/", 2)[0]
        resource = work.resources.now.get(owner)
        if resource is None:
            continue
        if (before is None) != (now is None):
            log.relate(resource, "resource", ("versions", "versionscount", "meta.epoch", "meta.modifiedat"))
        elif before is not None and now is not None and resource.defaultversionid == now.id:
            log.relate(resource, "resource", _differences(before, now))


def _moved(changes: Changes[Any]) -> Iterator[tuple[str, Any, Any]]:
    for xid in changes.touched:
        yield xid, changes.before.get(xid), changes.now[xid]


def _differences(before: Entity, now: Entity) -> list[str]:
    one, other = _kept(before), _kept(now)
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def _kept(entity: Entity) -> dict[str, Any]:
    state: dict[str, Any] = {**entity.attributes, "epoch": entity.epoch}
    state |= {"createdat": entity.createdat, "modifiedat": entity.modifiedat}
    if isinstance(entity, Resource):
        more = {"xref": entity.xref, "defaultversionid": entity.defaultversionid, "defaultversionsticky": entity.sticky}
        state |= {name: value for name, value in more.items() if value is not None}
    if isinstance(entity, Version):
        state["ancestorid"] = entity.ancestorid
    return state


def _events(change: Change) -> Iterator[tuple[str, str | None]]:
    has_data = change.action == "updated" and change.kind not in ("model", "modelsource")
    data = text_of({"changed": list(change.changed)}) if has_data else None
    yield f"io.xregistry.{change.kind}.{change.action}", data
    if change.deprecated:
        yield f"io.xregistry.{change.kind}.deprecation", text_of({"changed": list(change.deprecated)})
