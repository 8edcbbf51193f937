"""What a face is to the server: an API over the store, on a path of its own. The core API is the one at the root.

Who sends, how large a body and an answer are, how many writes there may be, and TLS are the same for all faces: the
server sees to them before a face is asked (:mod:`registry.http.application`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bindings.http.problems import Reply
from bindings.http.request import Head
from registry.core.service import RegistryService
from registry.errors import Refusal
from registry.http.requests import Pages, Writer


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a face.

    ``path`` is the raw path below the face, ``url`` the face's own URL without a slash at its end, ``registry`` that of
    the core API. ``writer`` is who sends it: what a write touches is held against ``writer.may_write`` by the core.
    """

    head: Head
    body: bytes
    path: bytes
    url: str
    registry: str
    writer: Writer
    pages: Pages
    max_answer: int


class Face(Protocol):
    """Any thread may call it; at most one at a time writes."""

    def reply(self, call: Call) -> Reply:
        """Carry a request out, OPTIONS among them.

        Raises:
            Refusal: it cannot be, and nothing has changed; :meth:`refused` reports it to the client.
        """

    def refused(self, head: Head, url: str, refusal: Refusal) -> Reply:
        """Report a refusal in the words of this face; *url* is the face's own. It does not raise."""


FaceType = Callable[[RegistryService], Face]
"""Makes a face over a registry."""
