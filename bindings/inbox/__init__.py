"""The durable inbox of the push protocols. The Spark source is in :mod:`bindings.inbox.source`."""

from __future__ import annotations

from bindings.inbox.log import Inbox
from bindings.inbox.space import (
    InboxClosed,
    InboxDamaged,
    InboxError,
    InboxFormatError,
    InboxFull,
    InboxLimits,
    InboxRowError,
)

__all__ = [
    "Inbox",
    "InboxClosed",
    "InboxDamaged",
    "InboxError",
    "InboxFormatError",
    "InboxFull",
    "InboxLimits",
    "InboxRowError",
]
