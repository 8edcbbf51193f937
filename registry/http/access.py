"""Who may do what: readers, writers of groups, administrators, known by the credentials of :mod:`bindings.http`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Final, Protocol

from bindings.http.request import HttpProblem, Reply, RequestHead
from bindings.http.routing import Access, Guard
from registry.core.service import RegistryService
from registry.errors import Refusal
from registry.http.requests import PageSizes, RequestSender

READING: Final = ("GET", "HEAD", "OPTIONS")
MAX_SENDERS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Roles:
    """What those with credentials may do, by name; all of them may read. Of a certificate the name is the common name.

    ``writers`` gives the groups that each may write to, as xids where ``*`` stands for any text. ``anonymous`` lets
    everybody read without credentials.
    """

    administrators: frozenset[str] = frozenset()
    writers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    anonymous: bool = False


class Gatekeeper:
    """Decides what the sender of a request may do.

    Without an :class:`Access` the clients' *certificates* name the sender, and without those everybody may do
    everything.
    """

    def __init__(self, access: Access | None, roles: Roles, *, certificates: bool = False) -> None:
        self._named = access is None and certificates
        self._open = access is None and not certificates
        self._guard = Guard(access)
        self._roles = roles

    def admit(self, head: RequestHead) -> RequestSender:
        """Return who sends a request, from its head alone.

        Raises:
            HttpProblem: 401.
        """
        if self._open:
            return RequestSender("", True, lambda group: True, writes=True)
        if self._named:
            if not head.peer:
                raise HttpProblem(HTTPStatus.FORBIDDEN, "the certificate of this client has no common name")
            return self._writer(head.peer)
        try:
            name = self._guard.admit(head)
        except HttpProblem:
            shown = head.header(b"authorization") is not None
            if shown or not self._roles.anonymous or head.method not in READING:
                raise
            return self.nobody
        return self._writer(name or "")

    @property
    def nobody(self) -> RequestSender:
        """Somebody without credentials."""
        return RequestSender("", False, lambda group: False)

    def _writer(self, name: str) -> RequestSender:
        if name in self._roles.administrators:
            return RequestSender(name, True, lambda group: True, writes=True)
        patterns = self._roles.writers.get(name, ())
        allowed = bool(patterns)
        return RequestSender(
            name, False, lambda group: any(fnmatchcase(group, each) for each in patterns), writes=allowed
        )


class Pace:
    """Bounds how many writes each sender makes in a second, with as many more at once as make up ``burst``.

    Beyond MAX_SENDERS it forgets those whose last request is the oldest.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left: dict[tuple[bool, str], tuple[float, float]] = {}

    def take(self, name: str, *, stranger: bool = False) -> None:
        """Count a write of a sender by name, or of a *stranger* by address.

        Raises:
            Refusal: ``rate_limited``.
        """
        now = time.monotonic()
        key = stranger, name
        left, since = self._left.pop(key, (float(self._burst), now))
        left = min(float(self._burst), left + (now - since) * self._per_second)
        self._left[key] = (left - 1 if left >= 1 else left), now
        if len(self._left) > MAX_SENDERS:
            del self._left[next(iter(self._left))]
        if left < 1:
            raise Refusal("rate_limited", "", seconds=str(max(1, round((1 - left) / self._per_second))))


# What a face is to the server: an API over the store, on a path of its own. The core API is the one at the root.
#
# Who sends, how large a body and an answer are, how many writes there may be, and TLS are the same for all faces: the
# server sees to them before a face is asked (:mod:`registry.http.application`).


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a face.

    ``path`` is the raw path below the face, ``url`` the face's own URL without a slash at its end, ``registry`` that of
    the core API. ``writer`` is who sends it: what a write touches is held against ``writer.may_write`` by the core.
    """

    head: RequestHead
    body: bytes
    path: bytes
    url: str
    registry: str
    writer: RequestSender
    pages: PageSizes
    max_answer: int


class Face(Protocol):
    """Any thread may call it; at most one at a time writes."""

    def reply(self, call: Call) -> Reply:
        """Carry a request out, OPTIONS among them.

        Raises:
            Refusal: it cannot be, and nothing has changed; :meth:`refused` reports it to the client.
        """

    def refused(self, head: RequestHead, url: str, refusal: Refusal) -> Reply:
        """Report a refusal in the words of this face; *url* is the face's own. It does not raise."""


FaceType = Callable[[RegistryService], Face]
"""Makes a face over a registry."""
