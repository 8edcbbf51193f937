"""The durable inbox of the push protocols. The Spark source is in :mod:`bindings.inbox.stream`."""

from __future__ import annotations

from bindings.inbox.errors import InboxClosed, InboxDamaged, InboxError, InboxFormatError, InboxFull, InboxRowError
from bindings.inbox.inbox import Inbox
from bindings.inbox.space import InboxLimits

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
