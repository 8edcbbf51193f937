"""Who may do what: readers, writers of groups, administrators, known by the credentials of :mod:`bindings.http`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Final

from bindings.http.access import Access, Guard
from bindings.http.problems import HttpProblem
from bindings.http.request import Head
from registry.errors import Refusal
from registry.http.requests import Writer

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

    def admit(self, head: Head) -> Writer:
        """Return who sends a request, from its head alone.

        Raises:
            HttpProblem: 401.
        """
        if self._open:
            return Writer("", True, lambda group: True, writes=True)
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
    def nobody(self) -> Writer:
        """Somebody without credentials."""
        return Writer("", False, lambda group: False)

    def _writer(self, name: str) -> Writer:
        if name in self._roles.administrators:
            return Writer(name, True, lambda group: True, writes=True)
        patterns = self._roles.writers.get(name, ())
        allowed = bool(patterns)
        return Writer(name, False, lambda group: any(fnmatchcase(group, each) for each in patterns), writes=allowed)


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
