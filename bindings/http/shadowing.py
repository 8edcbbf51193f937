"""Routes that let in more senders than a later route for the same path: the first route that takes a path decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bindings.http.routing import HttpRoute
from catalog.templates import tokens_of

_GAP = None
"""Stands for one character of a placeholder, followed by any number of more."""
Pattern = tuple[str | None, ...]


def shadows(routes: Sequence[HttpRoute]) -> Iterator[tuple[HttpRoute, HttpRoute]]:
    """Yield each pair of an earlier and a later route where the earlier takes requests of senders that the later bars.

    That is so when some path and method suit both, and the earlier is open to all or to somebody whom ``users`` of the
    later does not name.
    """
    patterns = [_segments(route.path) for route in routes]
    for place, later in enumerate(routes):
        if later.users is None:
            continue
        for at, earlier in enumerate(routes[:place]):
            open_to_more = earlier.users is None or not earlier.users <= later.users
            if open_to_more and set(earlier.methods) & set(later.methods) and _meet(patterns[at], patterns[place]):
                yield earlier, later


def _segments(path: str) -> list[Pattern]:
    """Cut a template at its slashes, which no placeholder takes."""
    segments: list[list[str | None]] = [[]]
    for place, token in enumerate(tokens_of(path)):
        if place % 2:
            segments[-1].append(_GAP)
            continue
        first, *rest = token.split("/")
        segments[-1].extend(first)
        segments.extend(list(each) for each in rest)
    return [tuple(each) for each in segments]


def _meet(one: Sequence[Pattern], other: Sequence[Pattern]) -> bool:
    """Tell whether some path fits both."""
    return len(one) == len(other) and all(map(_segments_meet, one, other))


def _segments_meet(one: Pattern, other: Pattern) -> bool:
    """Tell whether some text fits both, by walking every pair of places that a common text may have come to.

    A place is an index and whether the gap before it may go on; there are few, so that this takes at most four times
    the product of both lengths.
    """
    start = (0, False, 0, False)
    reached, waiting = {start}, [start]
    while waiting:
        at, more, there, also = waiting.pop()
        if at == len(one) and there == len(other):
            return True
        for here, going in _steps(one, at, more):
            for beyond, moving in _steps(other, there, also):
                if _fit(_read(one, at, here), _read(other, there, beyond)):
                    step = (here, going, beyond, moving)
                    if step not in reached:
                        reached.add(step)
                        waiting.append(step)
    return False


def _steps(pattern: Pattern, at: int, more: bool) -> Iterator[tuple[int, bool]]:
    """Yield where one more character may lead to: on inside the gap before, or past the next element."""
    if more:
        yield at, True
    if at < len(pattern):
        yield at + 1, pattern[at] is _GAP


def _read(pattern: Pattern, before: int, after: int) -> str | None:
    """Return the character that a step takes; None is any."""
    return None if before == after else pattern[before]


def _fit(one: str | None, other: str | None) -> bool:
    return one is None or other is None or one == other
