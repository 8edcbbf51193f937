"""Marks of what a write has changed of message groups, in its own transaction; see :mod:`registry.store.marks`."""

from __future__ import annotations

from typing import Any

from registry.store.marks import SCOPE, Mark, Marks, digest_of, marked
from registry.store.work import Work


def mark(work: Work) -> None:
    """Mark what a write of ours has changed; entities that it touched and left as they were keep their marks."""
    groups = [xid for xid in work.groups.touched if xid.startswith(SCOPE)]
    versions = [xid for xid in work.versions.touched if xid.startswith(SCOPE)]
    if not groups and not versions:
        return
    marks = Marks(work.reader.connection)
    owners = list(dict.fromkeys(xid.rpartition("/versions/")[0] for xid in versions))
    names = {xid.rpartition("/")[2] for xid in versions}
    known = {owner: marked(each.values()) for owner, each in marks.versions(owners, names).items()}
    # A reader of the marks in order removes the content of a group before it, and adds content after it.
    for gone in (True, False):
        for xid in versions:
            if (work.versions.now[xid] is None) == gone:
                _mark_version(marks, xid, work, known)
        if gone:
            for xid in groups:
                _mark_group(marks, xid, work.groups.now[xid])
    marks.flush()


def _mark_group(marks: Marks, xid: str, now: Any) -> None:
    group_mark = marks.group(xid)
    if group_mark is None:
        if now is None:
            return
        group_mark = Mark("", "", "", 0, "", group=xid)
    digest = "" if now is None else digest_of(now.attributes)
    if group_mark.stamp and (now is None) == group_mark.deleted and digest == group_mark.digest:
        return
    group_mark.deleted, group_mark.digest = now is None, digest
    put_own(marks, group_mark)


def _mark_version(marks: Marks, xid: str, work: Work, known: dict[str, dict[str, Mark]]) -> None:
    owner, _, name = xid.rpartition("/versions/")
    now, mark = work.versions.now[xid], known[owner].get(name)
    if now is None:
        if mark is not None:
            mark.deleted, mark.digest = True, ""
            put_own(marks, mark)
        return
    digest = digest_of(now.attributes)
    if mark is not None and mark.digest == digest:
        return
    if mark is None:
        mark = Mark(owner, new_uid(marks), name, 0, "")
    mark.digest, mark.authority = digest, str(now.attributes.get("authority") or "")
    put_own(marks, mark)


def put_own(marks: Marks, mark: Mark) -> None:
    """Put a mark as that of a write of this catalog, which is later than all that its state has seen."""
    mark.stamp, mark.origin = marks.tick(max(mark.seen.values(), default=0)), marks.catalog
    mark.seen = {**mark.seen, marks.catalog: mark.stamp}
    marks.put(mark)


def new_uid(marks: Marks) -> str:
    """Return the uid of a version that is new here; they order by what their writers had seen."""
    return f"{marks.tick():016d}.{marks.catalog}"
