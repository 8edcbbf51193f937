"""Replication of entities marked by xid: the model, groups, resources and versions other than messages.

Each entity has its own state. A resource's meta (default version, ancestry) needs the versions, so it is sent again
after each of them; until all have arrived it is applied as far as possible.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import select

from registry.core.changes import digest_of_state, put_own_mark, state_of_resource, state_of_version
from registry.core.requests import ResourcePath, Verb, parse_resource_path
from registry.core.service import RegistrySession, read_registry
from registry.errors import Refusal
from registry.model.attributes import format_time, parse_time
from registry.store.engine import VERSIONS
from registry.store.entities import EntityReader
from registry.store.history import MESSAGE_GROUPS, MODEL_XID, Mark, Marks, digest_of, is_by_xid

# Changes in JSON, and the choice between two states of an entity.
#
# A state includes everything that its writer had seen. A state that includes the other one wins. If neither does, the
# writes were concurrent, and all catalogs decide alike: an existing entity wins over a deleted one, and of two contents
# the one with the later stamp wins; the other is kept as well.

Winner = Literal["mine", "theirs", "both-mine", "both-theirs"]
"""Which state wins; with ``both`` the other content is kept as well."""
MAX_ORIGINS: Final = 1000
_NAME_FORM: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9\-._~:@+]{0,127}", re.ASCII)
MAX_AHEAD: Final = 2**32
"""How far stamps of a page may be ahead of our clock before the page."""
MAX_STAMP: Final = 2**62
"""The highest stamp accepted from others; higher ones are reserved for local writes."""


class ReplicatedChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One state of an entity; ``attributes`` is None if it was deleted.

    An entity other than a message has an ``xid``. A version of a message has a ``group`` and a ``definition``, ids in
    the catalog whose ``authority`` it is. The other members are those of :class:`registry.store.history.Mark`.
    """

    stamp: int
    origin: str
    seen: dict[str, int]
    group: str = ""
    definition: str = ""
    uid: str = ""
    name: str = ""
    authority: str = ""
    createdat: str = ""
    attributes: dict[str, Any] | None = None
    xid: str = ""

    def find_fault(self, clock: int) -> str:
        """Return why this change is invalid, '' if it is valid.

        *clock* is ours before the page, so that a page advances it by at most MAX_AHEAD, and never to its end.
        """
        stamps, last = [self.stamp, *self.seen.values()], min(clock + MAX_AHEAD, MAX_STAMP)
        if not all(0 < each <= last for each in stamps) or not 0 < len(self.seen) <= MAX_ORIGINS:
            return "its stamps are not valid"
        if self.seen.get(self.origin, 0) < self.stamp:
            return "its own stamp is missing in seen"
        named = (_xid_names(self.xid) or ("",)) if self.xid else (self.group,)
        if not all(_NAME_FORM.fullmatch(each) for each in (*named, self.origin, *self.seen)):
            return "it has names that are not valid"
        own = (self.definition, self.uid, self.name)
        if not self.xid and not all(_NAME_FORM.fullmatch(each) for each in own):
            return "a version needs a definition, a uid and an id"
        return "" if self.authority.isprintable() else "its authority is not valid"


def _xid_names(xid: str) -> list[str]:
    """Return the names in an xid of an entity marked by xid, [] for any other text."""
    names = xid.split("/")[1:]
    if not xid.startswith("/") or len(names) > 6 or (len(names) == 6 and names[4] != "versions"):
        return []
    return names if xid == MODEL_XID or (len(names) in (2, 4, 6) and is_by_xid(xid)) else []


class ChangePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of changes of a catalog, up to a position; ``more`` is whether others follow."""

    catalog: str
    authority: str
    position: int
    changes: list[ReplicatedChange]
    more: bool = False


@dataclass(frozen=True, slots=True)
class MergeDecision:
    """Which state wins, and what the result includes."""

    winner: Winner
    seen: dict[str, int]


def decide_winner(mine: Mark, theirs: ReplicatedChange, digest: str) -> MergeDecision:
    """Decide between our state and another catalog's; *digest* is of the other's content."""
    seen = {name: max(mine.seen.get(name, 0), theirs.seen.get(name, 0)) for name in {**mine.seen, **theirs.seen}}
    gone = theirs.attributes is None
    same = mine.deleted == gone and (gone or mine.digest == digest)
    if seen == mine.seen == theirs.seen:
        ahead = (not gone, digest) > (not mine.deleted, mine.digest)
        return MergeDecision("theirs" if ahead and not same else "mine", seen)
    if seen == mine.seen:
        return MergeDecision("mine", seen)
    if seen == theirs.seen:
        return MergeDecision("theirs", seen)
    if mine.deleted != gone:
        return MergeDecision("theirs" if mine.deleted else "mine", seen)
    later = (theirs.stamp, theirs.origin) > (mine.stamp, mine.origin)
    if same:
        return MergeDecision("theirs" if later else "mine", seen)
    return MergeDecision("both-theirs" if later else "both-mine", seen)


def parse_page(data: bytes | Mapping[str, Any]) -> ChangePage | None:
    """Parse changes; return None if they are not valid."""
    try:
        changes = (
            msgspec.json.decode(data, type=ChangePage)
            if isinstance(data, bytes)
            else msgspec.convert(data, type=ChangePage)
        )
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return changes


# Paths of definitions of other authorities.
#
# The authority distinguishes definitions (section 2.2.1), and names may differ between catalogs (5.3). So if two
# definitions have the same path, the second one is put into a group named after its authority.

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9.-]+", re.ASCII)
_SUFFIX: Final = re.compile(r"@[A-Za-z0-9.-]{1,24}-[0-9a-f]{8}", re.ASCII)
MAX_ID: Final = 128
_SUFFIX_LENGTH: Final = 34


def authority_suffix(authority: str) -> str:
    """Return the suffix of names of groups for an authority's definitions."""
    plain = _UNSAFE.sub("-", authority.partition("://")[2] or authority).strip("-.")[:24]
    return f"@{plain or 'x'}-{hashlib.sha256(authority.encode()).hexdigest()[:8]}"


def has_authority_suffix(group: str) -> bool:
    """Whether a group has such a suffix."""
    return "@" in group and _SUFFIX.fullmatch(group[group.rindex("@") :]) is not None


def is_shortened(group: str) -> bool:
    """Whether a group has such a suffix and its name may be shortened."""
    return len(group) == MAX_ID - _SUFFIX_LENGTH


def home_of(owner: str, authority: str) -> tuple[str, str]:
    """Return group and id of a definition in the catalog of its authority."""
    group, _, name = owner.removeprefix(MESSAGE_GROUPS).partition("/messages/")
    return group.removesuffix(authority_suffix(authority)), name


def possible_xids(group: str, name: str, authority: str) -> tuple[str, str]:
    """Return the two possible xids of a definition: its own path, and the one with the authority's suffix."""
    aside = f"{group[: MAX_ID - _SUFFIX_LENGTH]}{authority_suffix(authority)}"
    return f"{MESSAGE_GROUPS}{group}/messages/{name}", f"{MESSAGE_GROUPS}{aside}/messages/{name}"


_logger = logging.getLogger(__name__)
Perform = Callable[[Verb, tuple[str, ...], Any], None]
_DIGEST_LENGTH: Final = 8


class VersionState(msgspec.Struct, omit_defaults=True):
    """A version: its own attributes, and its document in base64, None if it has none here.

    ``ancestorid`` is used if the version is new to the receiver.
    """

    attributes: dict[str, Any]
    createdat: str
    document: str | None = None
    ancestorid: str = ""


class ResourceState(msgspec.Struct, omit_defaults=True):
    """The meta of a resource. ``ancestors`` maps versions to ancestors; ``default`` is set only if it is sticky."""

    attributes: dict[str, Any]
    sticky: bool = False
    default: str = ""
    xref: str = ""
    ancestors: dict[str, str] = {}


def entity_state(reader: EntityReader, xid: str) -> dict[str, Any] | None:
    """Return the state of an entity, None if it does not exist."""
    depth = xid.count("/")
    if xid == MODEL_XID:
        return dict(read_registry(reader).modelsource)
    if depth == 2:
        group = reader.group(xid)
        return None if group is None else group.attributes
    if depth == 4:
        resource = reader.resource(xid)
        return None if resource is None else {**state_of_resource(resource), "ancestors": ancestors_of(reader, xid)}
    version = reader.version(xid)
    if version is None:
        return None
    return {**state_of_version(version, reader.document(xid)), "ancestorid": version.ancestorid}


def ancestors_of(reader: EntityReader, resource: str) -> dict[str, str]:
    """Return the ancestors of a resource's versions, by version id."""
    query = select(VERSIONS.c.id, VERSIONS.c.ancestorid).where(VERSIONS.c.parent == f"{resource}/versions")
    return {str(row[0]): str(row[1]) for row in reader.connection.execute(query)}


def _compared_digest(state: Mapping[str, Any] | None) -> str:
    """Return the digest by which two catalogs compare a state: the order of versions is a part of it."""
    return "" if state is None else digest_of(state, ("ancestorid",))


class EntityMerger:
    """Merges changes of such entities; *perform* writes, *revive* marks a group created for its content."""

    def __init__(self, session: RegistrySession, marks: Marks, perform: Perform, revive: Callable[[str], None]) -> None:
        self._session = session
        self._reader = session.reader
        self._marks = marks
        self._perform = perform
        self._revive = revive

    def merge(self, change: ReplicatedChange) -> bool:
        """Merge a change; return False if it is not new, or something that it needs is still missing.

        Raises:
            Refusal: it is refused.
        """
        names = tuple(change.xid.split("/")[1:])
        if change.xid != MODEL_XID:
            kinds = self._session.model.groups
            gone = change.attributes is None
            if gone and (names[0] not in kinds or (len(names) > 2 and names[2] not in kinds[names[0]].resources)):
                return False  # an unknown type has no entities
            parse_resource_path(self._session.model, names, change.xid)
        before = entity_state(self._reader, change.xid)
        mine = self._mark_of(change.xid, before)
        theirs = change.attributes
        decision = decide_winner(mine, change, _compared_digest(theirs))
        if decision.seen == mine.seen and decision.winner == "mine":
            return False
        if decision.winner == "theirs" and theirs is None:
            if not self._delete(change.xid, names):
                mine.deleted, mine.digest = False, "" if before is None else digest_of_state(before)
                put_own_mark(self._marks, mine)  # it has content newer than the deletion
                return True
        elif not self._write(change, names, decision.winner, before, mine):
            return False
        after = entity_state(self._reader, change.xid)
        digest = "" if after is None else digest_of_state(after)
        if mine.seen == decision.seen and after == before and mine.stamp:
            return False
        mine.seen, mine.deleted, mine.digest = decision.seen, after is None, digest
        if decision.winner in ("theirs", "both-theirs"):
            mine.stamp, mine.origin = change.stamp, change.origin
        self._marks.store_mark(mine)
        return True

    def _mark_of(self, xid: str, state: Mapping[str, Any] | None) -> Mark:
        """Return the mark of an entity, reconciled with its state; implicitly created entities have none."""
        mark, digest = self._marks.mark_of(xid), _compared_digest(state)
        if mark is None:
            return Mark("", "", "", 0, "", group=xid, deleted=state is None, digest=digest)
        if state is None and not mark.deleted:
            mark.deleted = True
            put_own_mark(self._marks, mark)
        mark.deleted, mark.digest = state is None, digest
        return mark

    def _delete(self, xid: str, names: tuple[str, ...]) -> bool:
        """Delete an entity; return False if it has content newer than the deletion."""
        reader = self._reader
        if len(names) == 2 and (self._marks.has_versions(xid) or reader.resource_types(xid)):
            return reader.group(xid) is None
        if len(names) == 4 and (resource := reader.resource(xid)) is not None and resource.xref is None:
            return False
        if entity_state(reader, xid) is not None:
            self._perform("delete", names[:-1], {names[-1]: {}})
        return True

    def _write(
        self,
        change: ReplicatedChange,
        names: tuple[str, ...],
        winner: Winner,
        before: dict[str, Any] | None,
        mine: Mark,
    ) -> bool:
        """Write the merged state; return False if something that it needs is missing."""
        theirs = change.attributes
        if len(names) in (1, 2):
            wanted = before if winner == "mine" else _join_attributes(before or {}, theirs or {}, winner)
            if wanted != before:
                self._perform("replace", names, wanted)
            return True
        if len(names) == 4:
            return self._write_resource(change, names, winner, before)
        if winner == "mine":
            return True
        state = _parse_state(change, VersionState)
        kept = None if before is None else msgspec.convert(before, VersionState)
        if winner in ("both-mine", "both-theirs") and kept is not None:
            lost, other = (state, kept) if winner == "both-mine" else (kept, state)
            origin = (change.stamp, change.origin) if winner == "both-mine" else (mine.stamp, mine.origin)
            self._keep_losing_version(names, lost, other, origin)
        if winner != "both-mine":
            self._write_version(names, state)
        return True

    def _write_version(self, names: tuple[str, ...], state: VersionState) -> None:
        group, owner = "/".join(("", *names[:2])), "/".join(("", *names[:4]))
        place = parse_resource_path(self._session.model, names, join_xid(names))
        resource = self._reader.resource(owner)
        if resource is not None and resource.xref is not None:  # it is no longer a reference
            self._perform("delete", names[:3], {names[3]: {}})
        body = {**state.attributes, "createdat": state.createdat}
        if state.document is not None and place.resource.document_names[2] not in body:
            body[place.resource.document_names[1]] = state.document
        there = ancestors_of(self._reader, owner)
        if names[5] in there:
            body["ancestorid"] = there[names[5]]  # the resource sets all; one alone could form a cycle
        elif state.ancestorid in there:
            body["ancestorid"] = state.ancestorid
        elif not there or not place.resource.singleversionroot:
            body["ancestorid"] = names[5]  # until its ancestor arrives
        self._perform("add", names[:5], {names[5]: body})
        self._revive(group)

    def _keep_losing_version(
        self, names: tuple[str, ...], lost: VersionState, other: VersionState, write: tuple[int, str]
    ) -> None:
        """Keep the losing content as a new version, older than the winning one."""
        digest = digest_of_state(msgspec.to_builtins(lost))
        name = f"{names[5][: MAX_ID - _DIGEST_LENGTH - 1]}-{digest[:_DIGEST_LENGTH]}"
        where = (*names[:5], name)
        xid = join_xid(where)
        if not write[1] or self._marks.mark_of(xid) is not None:
            return
        moments = [each for each in map(parse_time, (lost.createdat, other.createdat)) if each is not None]
        lost.createdat = format_time(min(moments) - timedelta(microseconds=1)) if moments else lost.createdat
        lost.ancestorid = name if other.ancestorid == names[5] else other.ancestorid
        savepoint = self._reader.connection.begin_nested()
        try:
            self._write_version(where, lost)
            savepoint.commit()
        except Refusal as refusal:
            savepoint.rollback()
            _logger.warning("lost one of two concurrent contents of %s: %s", join_xid(names), refusal.title)
            return
        state = entity_state(self._reader, xid)
        mark = Mark("", "", "", write[0], write[1], {write[1]: write[0]}, group=xid)
        mark.deleted, mark.digest = state is None, "" if state is None else digest_of_state(state)
        self._marks.store_mark(mark)

    def _write_resource(
        self, change: ReplicatedChange, names: tuple[str, ...], winner: Winner, before: dict[str, Any] | None
    ) -> bool:
        if winner == "mine":
            return True
        wanted, resource = _parse_state(change, ResourceState), self._reader.resource(change.xid)
        there: dict[str, str] = {} if before is None else before["ancestors"]
        if before is not None and winner != "theirs":
            kept = msgspec.convert(before, ResourceState)
            first, other = (wanted, kept) if winner == "both-theirs" else (kept, wanted)
            values = {**other.attributes, **first.attributes}
            wanted = ResourceState(values, first.sticky, first.default, first.xref, first.ancestors)
        meta = (*names, "meta")
        if wanted.xref:
            if resource is None or resource.xref != wanted.xref:
                self._perform("replace", meta, {"xref": wanted.xref})
                self._revive("/".join(("", *names[:2])))
            return True
        if resource is None or resource.xref is not None:
            return False  # its versions are still missing
        missing = {name for name in (*wanted.ancestors, wanted.default) if name and name not in there}
        self._set_ancestors(names, parse_resource_path(self._session.model, names, change.xid), wanted.ancestors, there)
        sticky = wanted.sticky and wanted.default in there
        body = {**wanted.attributes, "defaultversionsticky": sticky}
        if sticky:
            body["defaultversionid"] = wanted.default
        now = state_of_resource(resource)
        if (now["attributes"], now["sticky"], now.get("default", "")) != (
            wanted.attributes,
            sticky,
            wanted.default if sticky else "",
        ):
            self._perform("replace", meta, body)
        return not missing - {
            name.rpartition("/")[2]
            for name in self._marks.marks_by_xid([f"{change.xid}/versions/{each}" for each in sorted(missing)])
        }

    def _set_ancestors(
        self, names: tuple[str, ...], place: ResourcePath, wanted: Mapping[str, str], there: Mapping[str, str]
    ) -> None:
        """Set the wanted ancestors; a version whose ancestor is missing is a root until that arrives."""
        if place.resource.versionmode != "manual":
            return
        wanted = {name: other if other in there else name for name, other in wanted.items() if name in there}
        chain = {name: {"ancestorid": other} for name, other in wanted.items() if there[name] != other}
        if chain:
            self._perform("patch", (*names, "versions"), chain)


def join_xid(names: tuple[str, ...]) -> str:
    """Return the xid with these names."""
    return "/".join(("", *names))


def _parse_state(change: ReplicatedChange, kind: Any) -> Any:
    try:
        return msgspec.convert(change.attributes, kind)
    except msgspec.ValidationError as error:
        raise Refusal("bad_request", change.xid, error_detail=f"the state is not valid: {error}") from None


def _join_attributes(mine: Mapping[str, Any], theirs: Mapping[str, Any], winner: Winner) -> dict[str, Any]:
    """Return the union of attributes (in models also of group types); the winner's value if both have one."""
    if winner == "theirs":
        return dict(theirs)
    first, other = (theirs, mine) if winner == "both-theirs" else (mine, theirs)
    groups = [each.get("groups") for each in (other, first)]
    both = {**other, **first}
    if all(isinstance(each, Mapping) for each in groups):
        both["groups"] = {**groups[0], **groups[1]}  # type: ignore[dict-item]
    return both
