"""Apply the changes of another catalog, each in a savepoint of one transaction together with its marks."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from registry.core.ancestry import version_sort_key
from registry.core.changes import put_own_mark
from registry.core.requests import RegistryRequest, RequestSender, Verb, check_may_write
from registry.core.service import RegistrySession
from registry.errors import Refusal
from registry.model.attributes import format_time, parse_time
from registry.replication.entities import (
    ChangePage,
    EntityMerger,
    ReplicatedChange,
    decide_winner,
    home_of,
    is_shortened,
    possible_xids,
)
from registry.store.entities import EntityReader, Version
from registry.store.history import MODEL_XID, Mark, Marks, digest_of, marks_by_version

# Merging the versions of a definition.
#
# Versions have uids, which are the same everywhere, and numbers, which each catalog assigns. If two versions have the
# same number, the one with the lower uid keeps it, and the other gets the next one; of two numbers of one version the
# higher wins. Both catalogs decide alike, and numbers only grow, so this converges.


@dataclass(slots=True)
class WantedVersion:
    """The merged state of a version; ``attributes`` is None if the stored content stays."""

    mark: Mark
    attributes: dict[str, Any] | None = None
    createdat: str = ""


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Versions to write, by id, and ids to delete."""

    written: dict[str, dict[str, Any]] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()


def reconciled_marks(owner: str, reader: EntityReader, marks: Marks) -> dict[str, Mark]:
    """Return the marks of a definition by uid; those of versions missing from the store become deletions."""
    known = marks.version_marks([owner])[owner]
    _mark_missing_as_deleted(marks, known.values(), {each.id for each in reader.iter_versions(f"{owner}/versions")})
    return known


def _mark_missing_as_deleted(marks: Marks, known: Iterable[Mark], stored: Container[str]) -> None:
    """Mark versions missing from the store as deleted: the core prunes versions (``maxversions``)."""
    for mark in known:
        if not mark.deleted and mark.name not in stored:
            mark.deleted, mark.digest = True, ""
            put_own_mark(marks, mark)


class DefinitionMerger:
    """Merges changes into the definition *owner*, and plans the writes."""

    def __init__(self, owner: str, reader: EntityReader, marks: Marks) -> None:
        self._owner = owner
        self._reader = reader
        self._marks = marks
        self._states = {uid: WantedVersion(each) for uid, each in reconciled_marks(owner, reader, marks).items()}
        self._before = marks_by_version(each.mark for each in self._states.values())
        self._before_names = {each.uid: name for name, each in self._before.items()}
        self._store = self._stored_versions()
        self._touched: dict[str, None] = {}

    def merge(self, change: ReplicatedChange, attributes: dict[str, Any] | None) -> bool:
        """Merge one change with the content *attributes*; return whether it was new."""
        state = self._states.get(change.uid)
        digest = "" if attributes is None else digest_of(attributes)
        if state is None:
            mark = Mark(self._owner, change.uid, change.name, change.stamp, change.origin, dict(change.seen))
            state = self._states[change.uid] = WantedVersion(mark)
            self._take_content(state, change, attributes, digest)
            self._number_versions()
            return True
        mark = state.mark
        decision = decide_winner(mark, change, digest)
        moved = self._renumber(state, change)
        if decision.winner == "mine" and decision.seen == mark.seen and not moved:
            return False
        if decision.winner in ("both-mine", "both-theirs"):
            self._keep_both(state, change, attributes or {}, digest, mine=decision.winner == "both-mine")
        elif decision.winner == "theirs":
            self._take_content(state, change, attributes, digest)
        mark.seen = decision.seen
        self._touched[change.uid] = None
        self._number_versions()
        return True

    def plan(self) -> MergePlan:
        """Return the versions to write and to delete."""
        live = marks_by_version(each.mark for each in self._states.values())
        put: dict[str, dict[str, Any]] = {}
        for name in sorted(live, key=version_sort_key):
            state = self._states[live[name].uid]
            before = self._store.get(name)
            content, created = self._content_of(state)
            if before is not None and before.attributes == content and before.createdat == created:
                continue
            put[name] = {**content, "createdat": created or None}
        return MergePlan(put, tuple(name for name in self._store if name not in live))

    def ancestor_chain(self) -> dict[str, dict[str, str]]:
        """Return the ancestors to set after the plan: each version descends from the previous one."""
        listed = sorted(
            self._reader.iter_versions(f"{self._owner}/versions"), key=lambda each: version_sort_key(each.id)
        )
        wanted = {each.id: listed[at - 1].id if at else each.id for at, each in enumerate(listed)}
        return {each.id: {"ancestorid": wanted[each.id]} for each in listed if each.ancestorid != wanted[each.id]}

    def store_marks(self) -> None:
        """Store the marks of changed versions, with digests of the stored content."""
        _mark_missing_as_deleted(self._marks, (each.mark for each in self._states.values()), self._stored_versions())
        for uid in self._touched:
            mark = self._states[uid].mark
            if not mark.deleted:
                version = self._reader.version(f"{self._owner}/versions/{mark.name}")
                attributes = version.attributes if version is not None else {}
                mark.digest, mark.authority = digest_of(attributes), str(attributes.get("authority") or "")
            self._marks.store_mark(mark)

    def _stored_versions(self) -> dict[str, Version]:
        return {each.id: each for each in self._reader.iter_versions(f"{self._owner}/versions")}

    def _content_of(self, state: WantedVersion) -> tuple[dict[str, Any], str]:
        before = self._store.get(self._before_names.get(state.mark.uid, ""))
        attributes = state.attributes if state.attributes is not None else before.attributes if before else {}
        return attributes, state.createdat or (before.createdat if before else "")

    def _take_content(
        self, state: WantedVersion, change: ReplicatedChange, attributes: dict[str, Any] | None, digest: str
    ) -> None:
        mark = state.mark
        mark.stamp, mark.origin, mark.digest, mark.deleted = change.stamp, change.origin, digest, attributes is None
        if change.authority and attributes is None:
            mark.authority = change.authority
        state.attributes = attributes
        if not state.createdat and not self._createdat(state):
            state.createdat = change.createdat
        self._touched[mark.uid] = None

    def _renumber(self, state: WantedVersion, change: ReplicatedChange) -> bool:
        """Give a version the higher of two numbers, and the time that belongs to it."""
        mark = state.mark
        if change.attributes is None or version_sort_key(change.name) < version_sort_key(mark.name):
            return False
        if change.name == mark.name and (mark.deleted or change.createdat <= self._createdat(state)):
            return False
        mark.name, state.createdat = change.name, change.createdat
        return True

    def _keep_both(
        self, state: WantedVersion, change: ReplicatedChange, attributes: dict[str, Any], digest: str, *, mine: bool
    ) -> None:
        """Keep the losing content as a new version."""
        mark = state.mark
        content, created = self._content_of(state)
        lost = (change.stamp, change.origin) if mine else (mark.stamp, mark.origin)
        less = attributes if mine else content
        uid = f"{lost[0]:016d}.{lost[1]}+"  # unique, since a write concerns one version
        if uid not in self._states:
            own = Mark(self._owner, uid, mark.name, *lost, {lost[1]: lost[0]})
            self._states[uid] = WantedVersion(own, dict(less), change.createdat if mine else created)
            self._touched[uid] = None
        if not mine:
            self._take_content(state, change, attributes, digest)

    def _number_versions(self) -> None:
        """Give each version a unique number."""
        taken: dict[str, str] = {}
        highest = max((version_sort_key(each.mark.name)[1] for each in self._states.values()), default=0)
        for uid, state in sorted(self._states.items()):
            mark = state.mark
            if mark.deleted:
                continue
            folded = mark.name.lower()
            if folded in taken:
                highest += 1
                mark.name = folded = str(highest)
                state.createdat = self._time_after_all(state)
                self._touched[uid] = None
            taken[folded] = uid

    def _createdat(self, state: WantedVersion) -> str:
        return self._content_of(state)[1]

    def _time_after_all(self, state: WantedVersion) -> str:
        """Return a time after all versions': the version with the highest number is the newest."""
        times = [parse_time(self._createdat(each)) for each in self._states.values() if not each.mark.deleted]
        latest = max((each for each in times if each is not None), default=None)
        return self._createdat(state) if latest is None else format_time(latest + timedelta(microseconds=1))


_logger = logging.getLogger(__name__)
MAX_REPORTED: Final = 20


@dataclass(frozen=True, slots=True)
class AppliedPage:
    """The result of a page: how many changes took effect here, and how many were refused.

    ``reported`` has the first MAX_REPORTED refused ones with the reason. A refused change is not sent again until it
    changes.
    """

    applied: int
    refused: int = 0
    reported: tuple[tuple[str, str], ...] = ()


class ChangeApplier:
    """Applies changes within one writing session as *author*; *authority* is this catalog's."""

    def __init__(self, session: RegistrySession, author: RequestSender, authority: str) -> None:
        self._session = session
        self._reader = session.reader
        self._author = author
        self._authority = authority
        self.marks: Final = Marks(session.reader.connection)

    def apply(self, page: ChangePage) -> AppliedPage:
        """Apply the changes of a page; refused ones are skipped."""
        applied, refused = 0, 0
        reported: list[tuple[str, str]] = []
        clock = self.marks.latest_stamp
        for each in page.changes:
            subject = each.xid or "/".join(part for part in (each.group, each.definition, each.name) if part)
            fault = each.find_fault(clock)
            if not fault:
                savepoint = self._reader.connection.begin_nested()
                try:
                    applied += self._apply_one(each)
                    self.marks.flush()
                    savepoint.commit()
                except (Refusal, RecursionError) as error:
                    savepoint.rollback()
                    self.marks.discard()
                    fault = error.title if isinstance(error, Refusal) else "nested too deeply"
            refused += bool(fault)
            if fault and len(reported) < MAX_REPORTED:
                reported.append((subject, fault))
                _logger.warning("refused a change of %s: %s", subject, fault)
        return AppliedPage(applied, refused, tuple(reported))

    def _apply_one(self, change: ReplicatedChange) -> bool:
        if not change.xid:
            return self._apply_version(change)
        if change.xid != MODEL_XID:  # the core requires an administrator for the model
            check_may_write(self._author.may_write, "/".join(change.xid.split("/")[:3]))
        return EntityMerger(self._session, self.marks, self._perform, self._revive_group).merge(change)

    def _apply_version(self, change: ReplicatedChange) -> bool:
        here = self._definition_of(change)
        attributes = change.attributes
        if attributes is not None:
            attributes = {name: value for name, value in attributes.items() if name != "authority"}
            if change.authority != self._authority:
                attributes["authority"] = change.authority
        group = _group_of(here)
        check_may_write(self._author.may_write, group)
        merger = DefinitionMerger(here, self._reader, self.marks)
        versions = (*here.split("/")[1:], "versions")
        if not merger.merge(change, attributes):
            self._set_ancestors(merger, versions)  # a local write returns, ordered by the other catalog
            return False
        plan = merger.plan()
        if plan.written:
            self._perform("add", versions, plan.written)
            self._revive_group(group)
        if plan.deleted:
            self._perform("delete", versions, {name: {} for name in plan.deleted})
        self._set_ancestors(merger, versions)
        merger.store_marks()
        return True

    def _set_ancestors(self, merger: DefinitionMerger, versions: tuple[str, ...]) -> None:
        chain = merger.ancestor_chain()
        if chain:
            self._perform("patch", versions, chain)

    def _definition_of(self, change: ReplicatedChange) -> str:
        """Return the definition that a change belongs to: the one with its version, or the path of a new one.

        Anybody may know the uid of a version, so it is looked up only at the two paths that the change can have.
        """
        path, aside = possible_xids(change.group, change.definition, change.authority)
        if not self._author.may_write(_group_of(aside)):
            check_may_write(self._author.may_write, _group_of(path))
        known = {path: reconciled_marks(path, self._reader, self.marks), **self.marks.version_marks([aside])}
        here = next((each for each in (path, aside) if change.uid in known[each]), "")
        if here:
            return here
        whole = self.marks.owner_of(change.uid) if is_shortened(change.group) else ""
        if whole and possible_xids(*home_of(whole, change.authority), change.authority)[1] == aside:
            return whole
        free = all(each.deleted or self._controlled_by(each) == change.authority for each in known[path].values())
        return path if free and all(each.deleted for each in known[aside].values()) else aside

    def _controlled_by(self, mark: Mark) -> str:
        return mark.authority or self._authority

    def _revive_group(self, xid: str) -> None:
        """Mark a group that was created only for its content.

        The mark includes no earlier state, not even a deletion, so that catalogs with the group's attributes keep them.
        """
        known = self.marks.mark_of(xid)
        if known is not None and not known.deleted:
            return
        group = self._reader.group(xid)
        digest = digest_of(group.attributes if group is not None else {})
        stamp, origin = self.marks.issue_stamp(), f"{self.marks.catalog}~"
        self.marks.store_mark(Mark("", "", "", stamp, origin, {origin: stamp}, digest, group=xid))

    def _perform(self, verb: Verb, segments: tuple[str, ...], body: Any) -> None:
        author = self._author
        given = {} if body is None else {"body": body}
        request = RegistryRequest(
            verb,
            segments,
            "/" + "/".join(segments),
            "",
            who=author.name,
            administrator=author.administrator,
            may_write=author.may_write,
            replicated=True,
            **given,
        )
        self._session.perform(request)


def _group_of(owner: str) -> str:
    return owner.partition("/messages/")[0]
