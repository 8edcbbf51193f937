"""History as it is read: each entry with what of its entity has changed, the old value and the new one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row

from registry.store import history

_DEEPEST: Final = 8
"""Objects within one another that are compared member by member; what is deeper is compared as a whole."""
_ESCAPES: Final = str.maketrans({"~": "~0", "/": "~1"})


@dataclass(frozen=True, slots=True)
class Question:
    """Which entries are asked for.

    ``xid`` is that of an entity, '' for all; with ``below`` entities below it too. ``oldest`` means the oldest first.
    ``after`` is the number of the last entry that the reader has. ``who`` is whether names of writers are shown.
    """

    xid: str = ""
    below: bool = False
    oldest: bool = False
    after: int | None = None
    limit: int = 500
    who: bool = True


def page(connection: Connection, asked: Question, most: int) -> tuple[list[dict[str, Any]], bool]:
    """Return a page of entries, and whether more follow; it ends early before its entities have *most* bytes."""
    found: list[dict[str, Any]] = []
    weight = 0
    for row in history.entries(connection, asked.xid, asked.after, oldest=asked.oldest, deep=asked.below):
        weight += len(row.entity or "") + len(row.before or "")
        if len(found) == asked.limit or (found and weight > most):
            return found, True
        found.append(_entry(row, who=asked.who))
    return found, False


def _entry(row: Row[Any], *, who: bool) -> dict[str, Any]:
    entry = {"number": row.number, "at": row.at, "who": row.who, "action": row.action, "xid": row.xid}
    entry |= {"epoch": row.epoch, "interaction": row.interaction}
    if not who:
        del entry["who"]
    # Without the entry before nobody can say what an update changed; of what was created all is new.
    if row.action == "created" or row.earlier is not None:
        before = None if row.action == "created" else row.before
        entry["changed"] = dict(differences("", _tree(before), _tree(row.entity)))
    return entry


def _tree(text: str | None) -> Mapping[str, Any]:
    return {} if text is None else msgspec.json.decode(text)


def differences(
    place: str, old: Mapping[str, Any], new: Mapping[str, Any], depth: int = 1
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield JSON pointers of what differs, with ``old`` unless it was added, and ``new`` unless it was removed."""
    for name in {**old, **new}:
        pointer = f"{place}/{name.translate(_ESCAPES)}"
        one, other = old.get(name), new.get(name)
        if name in old and name in new:
            if isinstance(one, Mapping) and isinstance(other, Mapping) and depth < _DEEPEST:
                yield from differences(pointer, one, other, depth + 1)
            elif one != other or isinstance(one, bool) != isinstance(other, bool):
                yield pointer, {"old": one, "new": other}
        elif name in old:
            yield pointer, {"old": one}
        else:
            yield pointer, {"new": other}
