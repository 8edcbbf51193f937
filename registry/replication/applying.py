"""Taking the changes of another catalog in: each is a savepoint of one transaction, and leaves its marks there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from registry.core.marking import put_own
from registry.core.requests import Request, Verb
from registry.core.service import Session
from registry.errors import Refusal
from registry.replication.changes import Change, Changes, judged
from registry.replication.definitions import DefinitionMerger, fitted
from registry.replication.entities import EntityMerger
from registry.replication.places import home_of, is_shortened, owners_for
from registry.store.marks import MODEL, SCOPE, Mark, Marks, digest_of

_logger = logging.getLogger(__name__)
MAX_REPORTED: Final = 20


@dataclass(frozen=True, slots=True)
class Author:
    """In whose name changes are written: what history calls it, and what it may write to."""

    name: str
    administrator: bool = False
    may_write: Callable[[str], bool] = lambda group: True


@dataclass(frozen=True, slots=True)
class Taken:
    """The outcome of a page: how many changes changed something here, and how many were refused.

    ``reported`` has the first refused ones, at most MAX_REPORTED, each with the reason. A refused change does not come
    again before it changes.
    """

    applied: int
    refused: int = 0
    reported: tuple[tuple[str, str], ...] = ()


class Applier:
    """Applies changes within one writing session, as *author*; *authority* is ours."""

    def __init__(self, session: Session, author: Author, authority: str) -> None:
        self._session = session
        self._reader = session.reader
        self._author = author
        self._authority = authority
        self.marks: Final = Marks(session.reader.connection)

    def apply(self, page: Changes) -> Taken:
        """Apply all changes of a page that can be."""
        applied, refused = 0, 0
        reported: list[tuple[str, str]] = []
        clock = self.marks.latest
        for each in page.changes:
            subject = each.xid or "/".join(part for part in (each.group, each.definition, each.name) if part)
            fault = each.fault(clock)
            if not fault:
                savepoint = self._reader.connection.begin_nested()
                try:
                    applied += self._taken(each)
                    self.marks.flush()
                    savepoint.commit()
                except (Refusal, RecursionError) as error:
                    savepoint.rollback()
                    self.marks.forget()
                    fault = error.title if isinstance(error, Refusal) else "it is nested too deeply"
            refused += bool(fault)
            if fault and len(reported) < MAX_REPORTED:
                reported.append((subject, fault))
                _logger.warning("a change of %s is not taken: %s", subject, fault)
        return Taken(applied, refused, tuple(reported))

    def _taken(self, change: Change) -> bool:
        if not change.xid:
            return self._version(change) if change.definition else self._group(change)
        if change.xid != MODEL:  # of the model the core asks for an administrator
            self._admit("/".join(change.xid.split("/")[:3]))
        return EntityMerger(self._session, self.marks, self._perform, self._revive).merge(change)

    def _version(self, change: Change) -> bool:
        here = self._home(change)
        attributes = change.attributes
        if attributes is not None:
            attributes = {name: value for name, value in attributes.items() if name != "authority"}
            if change.authority != self._authority:
                attributes["authority"] = change.authority
        group = _group_of(here)
        self._admit(group)
        merger = DefinitionMerger(here, self._reader, self.marks)
        versions = (*here.split("/")[1:], "versions")
        if not merger.merge(change, attributes):
            self._chain(merger, versions)  # a write of ours comes back, which the other side has ordered
            return False
        plan = merger.plan()
        if plan.written:
            self._perform("add", versions, plan.written)
            self._revive(group)
        if plan.gone:
            self._perform("delete", versions, {name: {} for name in plan.gone})
        self._chain(merger, versions)
        merger.leave_marks()
        return True

    def _chain(self, merger: DefinitionMerger, versions: tuple[str, ...]) -> None:
        chain = merger.chain()
        if chain:
            self._perform("patch", versions, chain)

    def _home(self, change: Change) -> str:
        """Return the definition here that a change is of: that which has its version, or the place for a new one.

        Anybody may know the uid of a version, so it counts at the two places alone that the change itself names.
        """
        path, aside = owners_for(change.group, change.definition, change.authority)
        if not self._author.may_write(_group_of(aside)):
            self._admit(_group_of(path))
        known = {path: fitted(path, self._reader, self.marks), **self.marks.versions([aside])}
        here = next((each for each in (path, aside) if change.uid in known[each]), "")
        if here:
            return here
        whole = self.marks.owner_of(change.uid) if is_shortened(change.group) else ""
        if whole and owners_for(*home_of(whole, change.authority), change.authority)[1] == aside:
            return whole
        free = all(each.deleted or self._controls(each) == change.authority for each in known[path].values())
        return path if free and all(each.deleted for each in known[aside].values()) else aside

    def _controls(self, mark: Mark) -> str:
        return mark.authority or self._authority

    def _admit(self, group: str) -> None:
        """Make sure that a change may be written: the core checks all but the marks."""
        if not self._author.may_write(group):
            raise Refusal("forbidden", group, error_detail=f"these credentials may not write to {group}")

    def _revive(self, xid: str) -> None:
        """Mark a group that had to be made for what is in it.

        It builds on no state of that group, not even on its deletion: whoever has its attributes keeps them.
        """
        known = self.marks.group(xid)
        if known is not None and not known.deleted:
            return
        group = self._reader.group(xid)
        digest = digest_of(group.attributes if group is not None else {})
        stamp, origin = self.marks.tick(), f"{self.marks.catalog}~"
        self.marks.put(Mark("", "", "", stamp, origin, {origin: stamp}, digest, group=xid))

    def _group(self, change: Change) -> bool:
        xid = f"{SCOPE}{change.group}"
        self._admit(xid)
        mine = self._mark_of(xid)
        theirs = change.attributes
        digest = "" if theirs is None else digest_of(theirs)
        verdict = judged(mine, change, digest)
        if verdict.winner == "mine" and verdict.seen == mine.seen:
            return False
        mine.seen = verdict.seen
        if verdict.winner == "theirs" and theirs is None:
            self._lose(mine, change)
            return True
        if verdict.winner == "theirs" or verdict.winner == "both-theirs":
            mine.stamp, mine.origin = change.stamp, change.origin
        if verdict.winner != "mine":
            assert theirs is not None
            group = self._reader.group(xid)
            known: dict[str, Any] = {} if group is None else group.attributes
            given = {"theirs": theirs, "both-theirs": {**known, **theirs}, "both-mine": {**theirs, **known}}
            self._perform("replace", (SCOPE.strip("/"), change.group), given[verdict.winner])
            after = self._reader.group(xid)
            mine.deleted, mine.digest = False, digest_of(after.attributes if after is not None else {})
        self.marks.put(mine)
        return True

    def _mark_of(self, xid: str) -> Mark:
        """Return the mark of a group, which fits the store as :func:`fitted` has it."""
        mark, group = self.marks.group(xid), self._reader.group(xid)
        if mark is None:
            mark = Mark("", "", "", 0, "", group=xid, deleted=True)
        if mark.deleted != (group is None):
            mark.deleted, mark.digest = group is None, "" if group is None else digest_of(group.attributes)
            put_own(self.marks, mark)
        return mark

    def _lose(self, mine: Mark, change: Change) -> None:
        """Take a group away, unless there is something in it that its deletion had not seen."""
        xid = mine.group
        group = self._reader.group(xid)
        if group is not None and (self.marks.has_versions(xid) or self._reader.resource_types(xid)):
            mine.deleted, mine.digest = False, digest_of(group.attributes)
            put_own(self.marks, mine)
            return
        if group is not None:
            self._perform("delete", (SCOPE.strip("/"), change.group), None)
        mine.deleted, mine.digest = True, ""
        mine.stamp, mine.origin = change.stamp, change.origin
        self.marks.put(mine)

    def _perform(self, verb: Verb, segments: tuple[str, ...], body: Any) -> None:
        author = self._author
        given = {} if body is None else {"body": body}
        request = Request(
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
