"""Asking a webhook for permission: the validation handshake of the CloudEvents webhook specification, section 4.

Our side of it: an ``OPTIONS`` request names us, and the answer allows us by name or with ``*``.
"""

from __future__ import annotations

import threading
from typing import Final
from urllib.parse import urlsplit

import httpx

ASK: Final = "WebHook-Request-Origin"
ALLOWED: Final = "WebHook-Allowed-Origin"


class NotPermitted(Exception):
    """The target has not allowed us to send; the message names it and the remedy."""


class Permissions:
    """The targets that have allowed us, each asked once; thread-safe. A rate that a target names is not kept."""

    def __init__(self, client: httpx.Client, origin: str) -> None:
        self._client = client
        self._origin = origin
        self._given: set[str] = set()
        self._lock = threading.Lock()

    def ensure(self, url: str) -> None:
        """Return when the target of *url* allows us; its query does not matter.

        Raises:
            NotPermitted: it does not, or does not know the handshake.
            httpx.TransportError: it does not answer.
        """
        parts = urlsplit(url)
        target = f"{parts.scheme}://{parts.netloc}{parts.path}"
        with self._lock:
            if target in self._given:
                return
            answer = self._client.options(url, headers={ASK: self._origin})
            allowed = [name.strip() for name in answer.headers.get(ALLOWED, "").split(",")]
            if not answer.is_success or not {"*", self._origin} & set(allowed):
                shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
                raise NotPermitted(
                    f"{shown} answers {answer.status_code} to our webhook handshake and does not allow "
                    f"{self._origin}; allow it there, or leave out webhook_origin"
                )
            self._given.add(target)
