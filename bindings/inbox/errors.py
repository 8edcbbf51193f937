"""Errors of the durable inbox.

InboxError
├── InboxFull        no room, or the disk refused: nothing was taken, try again later
├── InboxClosed      the inbox no longer takes rows
├── InboxRowError    one row that cannot be stored, whatever the state of the disk
├── InboxFormatError format.json is missing, of a newer version, or of another layout
└── InboxDamaged     rows that were acknowledged are missing or fail their checksum
"""

from __future__ import annotations


class InboxError(Exception):
    """Anything the inbox refuses; the message names the place and the remedy."""


class InboxFull(InboxError):
    """The row was not taken: a limit is reached or the disk refused. Appending works again once there is room."""


class InboxClosed(InboxError):
    """The inbox is closing or closed, or its writer stopped; the row was not taken."""


class InboxRowError(InboxError):
    """A row that no disk could take, such as one with a property of the wrong type or too large for a frame."""


class InboxFormatError(InboxError):
    """The inbox on disk is not one this version reads."""


class InboxDamaged(InboxError):
    """Acknowledged rows cannot be read. ``file`` is the segment, ``row`` the first row that is in doubt."""

    def __init__(self, message: str, *, file: str, row: int) -> None:
        super().__init__(message)
        self.file = file
        self.row = row
