"""The changes of a write, as events (``events.md``), history, and replication marks."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row

from catalog.parsing.pointers import to_pointer
from registry.core.views import CHECKS
from registry.errors import invalid_value
from registry.store import history
from registry.store.entities import Entity, Registry, Resource, Version, WriteTransaction, level_of, to_json_text
from registry.store.history import MODEL_XID, Mark, Marks, digest_of, is_by_xid, marks_by_version


@dataclass(slots=True)
class EntityChange:
    """The change of one entity. ``changed`` are names of attributes; those inside ``deprecated`` are separate.

    ``entity`` is its new state, None if it was deleted, and for ``/model``, which derives from its source.
    """

    kind: str
    action: str
    changed: dict[str, None] = field(default_factory=dict)
    deprecated: dict[str, None] = field(default_factory=dict)
    epoch: int = 0
    entity: Mapping[str, Any] | None = None


class _ChangeLog(dict[str, EntityChange]):
    """The changes of a write by subject; each entity has one entry."""

    def record(self, subject: str, action: str, changed: Iterable[str] = ()) -> EntityChange:
        """Record a change of an entity."""
        level = level_of(subject)
        configured = not level and subject != "/"  # the model, its source, or the capabilities
        kind = subject[1:] if configured else ("registry", "group", "resource", "version")[level]
        change = self.setdefault(subject, EntityChange(kind, action))
        change.changed.update(dict.fromkeys(changed))
        return change

    def record_state(self, entity: Entity, changed: Iterable[str], action: str = "updated") -> EntityChange:
        """Record a change of an entity with its new state."""
        change = self.record(entity.xid, action, changed)
        change.epoch, change.entity = entity.epoch, _compared_values(entity)
        return change


def store_changes(work: WriteTransaction, interaction: str, now: str, writer: str) -> None:
    """Store the changes of a write as history and as events."""
    history: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for subject, each in _collect_changes(work).items():
        entity = None if each.entity is None else to_json_text(each.entity)
        common = {"interaction": interaction, "at": now}
        more = {"who": writer, "action": each.action, "xid": subject, "epoch": each.epoch, "entity": entity}
        history.append({**common, **more})
        events += [{**common, "type": kind, "subject": subject, "data": data} for kind, data in _iter_event_types(each)]
    work.store_history(history, events)


def _collect_changes(work: WriteTransaction) -> _ChangeLog:
    log, changes = _ChangeLog(), list(work.changes())
    for xid, before, now in changes:
        if now is None:
            log.record(xid, "deleted").epoch = before.epoch
        elif before is None:
            log.record_state(now, (), "created")
        else:
            prefix = "meta." if isinstance(now, Resource) else ""
            entry = log.record_state(now, [f"{prefix}{name}" for name in _changed_names(before, now)])
            if isinstance(now, Registry):
                _record_configuration(log, entry, before, now)
                continue
            old, new = _deprecated_object(before), _deprecated_object(now)
            entry.deprecated.update(dict.fromkeys(_differing_names(old, new)))
    for xid, before, now in changes:
        _record_on_owner(log, work, xid, before, now)
    return log


def _record_configuration(log: _ChangeLog, entry: EntityChange, before: Registry, now: Registry) -> None:
    if now.modelsource != before.modelsource:
        entry.changed |= {"model": None, "modelsource": None}
        log.record("/model", "updated").epoch = now.epoch
        source = log.record("/modelsource", "updated")
        source.epoch, source.entity = now.epoch, now.modelsource
    one, other = before.capabilities, now.capabilities
    if one != other:
        entry.changed["capabilities"] = None
        chosen = log.record("/capabilities", "updated", _differing_names(one, other))
        chosen.epoch, chosen.entity = now.epoch, other


def _deprecated_object(entity: Entity) -> Mapping[str, Any]:
    """Return the ``deprecated`` object of an entity; it may be any type if the model does not declare it."""
    deprecated = entity.attributes.get("deprecated")
    return deprecated if isinstance(deprecated, Mapping) else {}


def _record_on_owner(log: _ChangeLog, work: WriteTransaction, xid: str, before: Any, now: Any) -> None:
    """Record on its owner that an entity was added or deleted, and on a resource what its default version changes."""
    above, plural, _ = xid.rsplit("/", 2) if xid != "/" else ("", "", "")
    owner = work.now.get(above or "/")
    if not plural or owner is None:
        return
    is_version = isinstance(owner, Resource)
    if (before is None) != (now is None):
        prefix = "meta." if is_version else ""
        log.record_state(owner, (plural, f"{plural}count", f"{prefix}epoch", f"{prefix}modifiedat"))
    elif is_version and owner.defaultversionid == now.id:
        log.record_state(owner, _changed_names(before, now))


def _changed_names(before: Entity, now: Entity) -> list[str]:
    return _differing_names(_compared_values(before), _compared_values(now))


def _differing_names(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def _compared_values(entity: Entity) -> dict[str, Any]:
    state: dict[str, Any] = {**entity.attributes, "epoch": entity.epoch}
    state |= {"createdat": entity.createdat, "modifiedat": entity.modifiedat}
    if isinstance(entity, Resource):
        more = {"xref": entity.xref, "defaultversionid": entity.defaultversionid, "defaultversionsticky": entity.sticky}
        state |= {name: value for name, value in more.items() if value is not None}
    if isinstance(entity, Version):
        state["ancestorid"] = entity.ancestorid
    return state


def _iter_event_types(change: EntityChange) -> Iterator[tuple[str, str | None]]:
    has_data = change.action == "updated" and change.kind not in ("model", "modelsource")
    data = to_json_text({"changed": list(change.changed)}) if has_data else None
    yield f"io.xregistry.{change.kind}.{change.action}", data
    if change.deprecated:
        yield f"io.xregistry.{change.kind}.deprecation", to_json_text({"changed": list(change.deprecated)})


# Replication marks of changed entities, written in the same transaction; see :mod:`registry.store.history`.
#
# Messages in message groups have a version history that catalogs merge. Everything else is replicated by state: a
# group, a version with its document, a resource with its meta, and the model.


def mark_changes(work: WriteTransaction) -> None:
    """Mark what a local write has changed; entities that it touched but did not change keep their marks."""
    marks = Marks(work.reader.connection)
    versions = [xid for xid in work.touched if level_of(xid) == 3 and not is_by_xid(xid)]
    owners = list(dict.fromkeys(xid.rpartition("/versions/")[0] for xid in versions))
    names = {xid.rpartition("/")[2] for xid in versions}
    found = marks.version_marks(owners, names).items() if owners else ()
    known = {owner: marks_by_version(each.values()) for owner, each in found}
    # In mark order a group's content is removed before the group, and added after it.
    for xid in versions:
        if work.now[xid] is None:
            _mark_version(marks, xid, work, known)
    _mark_by_xid(marks, work)
    for xid in versions:
        if work.now[xid] is not None:
            _mark_version(marks, xid, work, known)
    marks.flush()


def _mark_by_xid(marks: Marks, work: WriteTransaction) -> None:
    touched = [xid for xid in work.touched if xid != "/" and is_by_xid(xid)]
    # Resources whose set of versions or ancestry has changed.
    moved = {
        xid.rpartition("/versions/")[0]
        for xid in touched
        if level_of(xid) == 3 and _is_moved(work.before.get(xid), work.now[xid])
    }
    gone = sorted((xid for xid in touched if work.now[xid] is None), key=level_of, reverse=True)
    # The model comes before entities of its types.
    source = work.registry.modelsource
    digests = {} if source == work.before["/"].modelsource else {MODEL_XID: digest_of_state(source)}
    for xid in sorted(dict.fromkeys((*touched, *moved)), key=lambda xid: (1, 3, 2).index(level_of(xid))):
        now = work.now.get(xid)
        if now is not None:
            digests[xid] = digest_of_state(_state_of(work, now))
    known = marks.marks_by_xid([*gone, *digests])
    for xid in gone:
        if xid in known and not known[xid].deleted:
            known[xid].deleted, known[xid].digest = True, ""
            put_own_mark(marks, known[xid])
    for xid, digest in digests.items():
        mine = known.get(xid)
        if mine is None or mine.deleted or mine.digest != digest or xid in moved:
            mine = mine if mine is not None else Mark("", "", "", 0, "", group=xid)
            mine.deleted, mine.digest = False, digest
            put_own_mark(marks, mine)


def _is_moved(before: Version | None, now: Version | None) -> bool:
    return before is None or now is None or before.ancestorid != now.ancestorid


def _state_of(work: WriteTransaction, entity: Entity) -> Mapping[str, Any]:
    if isinstance(entity, Version):
        return state_of_version(entity, work.document(entity))
    return state_of_resource(entity) if isinstance(entity, Resource) else entity.attributes


def state_of_version(version: Version, document: bytes | None) -> dict[str, Any]:
    """Return the state of a version that all registries share."""
    kept = {name: value for name, value in version.attributes.items() if name not in CHECKS}
    given = {} if document is None else {"document": base64.b64encode(document).decode("ascii")}
    return {"attributes": kept, "createdat": version.createdat, **given}


def state_of_resource(resource: Resource) -> dict[str, Any]:
    """Return the state of a resource that all registries share, without the ancestry of its versions."""
    state = {"attributes": resource.attributes, "sticky": resource.sticky}
    default = {"default": resource.defaultversionid} if resource.sticky else {}
    return {**state, **default, **({"xref": resource.xref} if resource.xref is not None else {})}


def digest_of_state(state: Mapping[str, Any]) -> str:
    """Return a digest of a state; the ancestry of a resource's versions is left out."""
    return digest_of(state, ("ancestors", "ancestorid"))


def _mark_version(marks: Marks, xid: str, work: WriteTransaction, known: dict[str, dict[str, Mark]]) -> None:
    owner, _, name = xid.rpartition("/versions/")
    now, mark = work.now[xid], known[owner].get(name)
    if now is None:
        if mark is not None:
            mark.deleted, mark.digest = True, ""
            put_own_mark(marks, mark)
        return
    digest, authority = digest_of(now.attributes), str(now.attributes.get("authority") or "")
    if not authority.isprintable():  # other catalogs refuse it, and PostgreSQL refuses NUL
        raise invalid_value(xid, "authority", "has characters that are not printable")
    if mark is not None and mark.digest == digest:
        return
    if mark is None:
        mark = Mark(owner, new_uid(marks), name, 0, "")
    mark.digest, mark.authority = digest, authority
    put_own_mark(marks, mark)


def put_own_mark(marks: Marks, mark: Mark) -> None:
    """Store a mark as a write of this catalog, later than everything its state has seen."""
    mark.stamp, mark.origin = marks.issue_stamp(max(mark.seen.values(), default=0)), marks.catalog
    mark.seen = {**mark.seen, marks.catalog: mark.stamp}
    marks.store_mark(mark)


def new_uid(marks: Marks) -> str:
    """Return the uid of a version created here; uids sort by logical time."""
    return f"{marks.issue_stamp():016d}.{marks.catalog}"


# History for readers: each entry with the changed attributes, old and new values.

_MAX_DEPTH: Final = 8
"""Nesting depth that is compared member by member; deeper objects are compared as a whole."""


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """A query of the history.

    ``xid`` is an entity, '' for all; ``below`` includes entities below it. ``oldest`` means oldest first. ``after`` is
    the number of the last entry that the reader has. ``who`` is whether writers' names are shown.
    """

    xid: str = ""
    below: bool = False
    oldest: bool = False
    after: int | None = None
    limit: int = 500
    who: bool = True


def history_page(connection: Connection, query: HistoryQuery, max_bytes: int) -> tuple[list[dict[str, Any]], bool]:
    """Return a page of entries, and whether more follow; a page holds about *max_bytes* bytes."""
    found: list[dict[str, Any]] = []
    weight = 0
    for row in history.iter_entries(connection, query.xid, query.after, oldest=query.oldest, deep=query.below):
        weight += len(row.entity or "") + len(row.before or "")
        if len(found) == query.limit or (found and weight > max_bytes):
            return found, True
        found.append(_history_entry(row, who=query.who))
    return found, False


def _history_entry(row: Row[Any], *, who: bool) -> dict[str, Any]:
    entry = {"number": row.number, "at": row.at, "who": row.who, "action": row.action, "xid": row.xid}
    entry |= {"epoch": row.epoch, "interaction": row.interaction}
    if not who:
        del entry["who"]
    # Without the previous entry an update has no diff; of a created entity everything is new.
    if row.action == "created" or row.earlier is not None:
        before = None if row.action == "created" else row.before
        entry["changed"] = dict(iter_json_differences("", _parse_tree(before), _parse_tree(row.entity)))
    return entry


def _parse_tree(text: str | None) -> Mapping[str, Any]:
    return {} if text is None else msgspec.json.decode(text)


def iter_json_differences(
    place: str, old: Mapping[str, Any], new: Mapping[str, Any], depth: int = 1
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield JSON pointers of differences, with ``old`` unless added and ``new`` unless removed."""
    for name in {**old, **new}:
        pointer = place + to_pointer([name])
        one, other = old.get(name), new.get(name)
        if name in old and name in new:
            if isinstance(one, Mapping) and isinstance(other, Mapping) and depth < _MAX_DEPTH:
                yield from iter_json_differences(pointer, one, other, depth + 1)
            elif one != other or isinstance(one, bool) != isinstance(other, bool):
                yield pointer, {"old": one, "new": other}
        elif name in old:
            yield pointer, {"old": one}
        else:
            yield pointer, {"new": other}
