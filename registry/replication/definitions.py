"""One definition that two catalogs have written to: its versions, their numbers, and what is to be written here.

Versions have uids, which are the same everywhere, and numbers, which each catalog gives out by itself. Where two have
one number, the one with the lower uid keeps it, and the other gets the next one; of two numbers of one version the
higher counts. Both catalogs decide alike, and numbers only grow, so that this ends.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from registry.core.lineage import rank
from registry.core.marking import new_uid, put_own
from registry.model.moments import moment_of, written
from registry.replication.changes import Change, judged
from registry.store.entities import Version
from registry.store.marks import Mark, Marks, digest_of, marked
from registry.store.reading import Reader


@dataclass(slots=True)
class State:
    """A version as it shall be: its content is None while that of the store stays."""

    mark: Mark
    attributes: dict[str, Any] | None = None
    createdat: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Versions to be written whole, by their ids, and ids that go."""

    written: dict[str, dict[str, Any]] = field(default_factory=dict)
    gone: tuple[str, ...] = ()


def fitted(owner: str, reader: Reader, marks: Marks) -> dict[str, Mark]:
    """Return the marks of a definition by uid, which fit what the store has.

    A process of a release without marks may have written beside this one. What has no mark gets one of ours, and what
    is not there any more was deleted here.
    """
    known = marks.versions([owner])[owner]
    stored = {each.id: each for each in reader.versions(f"{owner}/versions")}
    _bury(marks, known.values(), stored)
    live = marked(known.values())
    for name, version in stored.items():
        if name not in live:
            authority = str(version.attributes.get("authority") or "")
            mark = Mark(owner, new_uid(marks), name, 0, "", digest=digest_of(version.attributes), authority=authority)
            put_own(marks, mark)
            known[mark.uid] = mark
    return known


def _bury(marks: Marks, known: Iterable[Mark], stored: Container[str]) -> None:
    """Mark as deleted what is not in the store: the core prunes versions without being asked (``maxversions``)."""
    for mark in known:
        if not mark.deleted and mark.name not in stored:
            mark.deleted, mark.digest = True, ""
            put_own(marks, mark)


class DefinitionMerger:
    """Merges changes into the definition *owner*, and says what is to be done."""

    def __init__(self, owner: str, reader: Reader, marks: Marks) -> None:
        self._owner = owner
        self._reader = reader
        self._marks = marks
        self._states = {uid: State(each) for uid, each in fitted(owner, reader, marks).items()}
        self._before = marked(each.mark for each in self._states.values())
        self._before_names = {each.uid: name for name, each in self._before.items()}
        self._store = self._versions()
        self._touched: dict[str, None] = {}

    def merge(self, change: Change, attributes: dict[str, Any] | None) -> bool:
        """Take one change in, whose content here is *attributes*; False when it is nothing new."""
        state = self._states.get(change.uid)
        digest = "" if attributes is None else digest_of(attributes)
        if state is None:
            mark = Mark(self._owner, change.uid, change.name, change.stamp, change.origin, dict(change.seen))
            state = self._states[change.uid] = State(mark)
            self._take(state, change, attributes, digest)
            self._settle()
            return True
        mark = state.mark
        verdict = judged(mark, change, digest)
        moved = self._move(state, change)
        if verdict.winner == "mine" and verdict.seen == mark.seen and not moved:
            return False
        if verdict.winner in ("both-mine", "both-theirs"):
            self._keep_both(state, change, attributes or {}, digest, mine=verdict.winner == "both-mine")
        elif verdict.winner == "theirs":
            self._take(state, change, attributes, digest)
        mark.seen = verdict.seen
        self._touched[change.uid] = None
        self._settle()
        return True

    def plan(self) -> Plan:
        """Return what is to be written and what goes."""
        live = marked(each.mark for each in self._states.values())
        put: dict[str, dict[str, Any]] = {}
        for name in sorted(live, key=rank):
            state = self._states[live[name].uid]
            before = self._store.get(name)
            content, created = self._content(state)
            if before is not None and before.attributes == content and before.createdat == created:
                continue
            put[name] = {**content, "createdat": created or None}
        return Plan(put, tuple(name for name in self._store if name not in live))

    def chain(self) -> dict[str, dict[str, str]]:
        """Return the ancestors to be set behind the plan: each version descends from the one before."""
        listed = sorted(self._reader.versions(f"{self._owner}/versions"), key=lambda each: rank(each.id))
        wanted = {each.id: listed[at - 1].id if at else each.id for at, each in enumerate(listed)}
        return {each.id: {"ancestorid": wanted[each.id]} for each in listed if each.ancestorid != wanted[each.id]}

    def leave_marks(self) -> None:
        """Put the marks of what has changed; digests are of what the store has now."""
        _bury(self._marks, (each.mark for each in self._states.values()), self._versions())
        for uid in self._touched:
            mark = self._states[uid].mark
            if not mark.deleted:
                version = self._reader.version(f"{self._owner}/versions/{mark.name}")
                attributes = version.attributes if version is not None else {}
                mark.digest, mark.authority = digest_of(attributes), str(attributes.get("authority") or "")
            self._marks.put(mark)

    def _versions(self) -> dict[str, Version]:
        return {each.id: each for each in self._reader.versions(f"{self._owner}/versions")}

    def _content(self, state: State) -> tuple[dict[str, Any], str]:
        before = self._store.get(self._before_names.get(state.mark.uid, ""))
        attributes = state.attributes if state.attributes is not None else before.attributes if before else {}
        return attributes, state.createdat or (before.createdat if before else "")

    def _take(self, state: State, change: Change, attributes: dict[str, Any] | None, digest: str) -> None:
        mark = state.mark
        mark.stamp, mark.origin, mark.digest, mark.deleted = change.stamp, change.origin, digest, attributes is None
        if change.authority and attributes is None:
            mark.authority = change.authority
        state.attributes = attributes
        if not state.createdat and not self._createdat(state):
            state.createdat = change.createdat
        self._touched[mark.uid] = None

    def _move(self, state: State, change: Change) -> bool:
        """Give a version the higher of two numbers, with its time."""
        mark = state.mark
        if change.attributes is None or rank(change.name) < rank(mark.name):
            return False
        if change.name == mark.name and (mark.deleted or change.createdat <= self._createdat(state)):
            return False
        mark.name, state.createdat = change.name, change.createdat
        return True

    def _keep_both(self, state: State, change: Change, attributes: dict[str, Any], digest: str, *, mine: bool) -> None:
        """Make a version of its own of the content that does not count."""
        mark = state.mark
        content, created = self._content(state)
        lost = (change.stamp, change.origin) if mine else (mark.stamp, mark.origin)
        less = attributes if mine else content
        uid = f"{lost[0]:016d}.{lost[1]}+"  # a write is one version's, so this is that of no other
        if uid not in self._states:
            own = Mark(self._owner, uid, mark.name, *lost, {lost[1]: lost[0]})
            self._states[uid] = State(own, dict(less), change.createdat if mine else created)
            self._touched[uid] = None
        if not mine:
            self._take(state, change, attributes, digest)

    def _settle(self) -> None:
        """Give each version a number of its own."""
        taken: dict[str, str] = {}
        highest = max((rank(each.mark.name)[1] for each in self._states.values()), default=0)
        for uid, state in sorted(self._states.items()):
            mark = state.mark
            if mark.deleted:
                continue
            folded = mark.name.lower()
            if folded in taken:
                highest += 1
                mark.name = folded = str(highest)
                state.createdat = self._later(state)
                self._touched[uid] = None
            taken[folded] = uid

    def _createdat(self, state: State) -> str:
        return self._content(state)[1]

    def _later(self, state: State) -> str:
        """Return a time after those of all versions: what has the highest number is the newest."""
        times = [moment_of(self._createdat(each)) for each in self._states.values() if not each.mark.deleted]
        latest = max((each for each in times if each is not None), default=None)
        return self._createdat(state) if latest is None else written(latest + timedelta(microseconds=1))
