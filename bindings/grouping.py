"""How messages that wait for the store are grouped: one append, one commit, one fsync for each group."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol, TypeVar

from bindings.parts import InboxRow

GROUP_ROWS: Final = 5_000
GROUP_BYTES: Final = 8 * 2**20
"""Most rows, and most bytes of bodies, of one group; a single larger message is a group of its own."""


class Message(Protocol):
    """What waits: a row, and whatever its owner needs to answer its sender."""

    @property
    def row(self) -> InboxRow:
        """What is stored."""
        ...


M = TypeVar("M", bound=Message)


def next_group(waiting: deque[M], most: int = GROUP_ROWS) -> list[M]:
    """Take the next group out of those that wait, in their order: up to *most* messages, at least one."""
    group: list[M] = []
    size = 0
    while waiting and len(group) < most:
        size += len(waiting[0].row.body or b"")
        if group and size > GROUP_BYTES:
            break
        group.append(waiting.popleft())
    return group
