"""Who may see records on the status page, and who may replay dead letters from it.

Figures are for all who reach the port, as metrics are. Records are shown without a token only to those on the machine
itself: where the port is on a loopback address, no token is set, and the request names such an address as its host (a
page of another site cannot make a browser do that under a name of its own), and no proxy that it came through. A proxy
that says nothing of itself looks like a browser here: behind one, set a token. With ``metrics.token`` every request for
records needs it, in the header ``Authorization``, which no browser sends by itself. Replays always need it.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, Literal
from urllib.parse import urlsplit

from bindings.http.access import Access, Guard
from bindings.http.problems import HttpProblem
from bindings.http.request import Head
from router.settings.model import WatchSettings
from router.settings.security import is_loopback

RecordsFor = Literal["all", "token", "nobody"]
_TOKEN_HINT: Final = "set metrics.token, and send it as `Authorization: Bearer TOKEN`"
_RELAYED: Final = (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip")
_OWN: Final = (b"same-origin", b"none")


class Doorkeeper:
    """Looks at the head of a request and lets it through, or raises the reason why not."""

    def __init__(self, settings: WatchSettings, *, records: bool = True) -> None:
        """With *records* there are records here to be shown."""
        token = settings.token
        self._any = records
        self._guard = None if token is None else Guard(Access(bearer={"metrics.token": token.get_secret_value()}))
        self._local = is_loopback(settings.host)

    @property
    def records_for(self) -> RecordsFor:
        """Who sees records: all who reach the port, those with the token, or nobody."""
        if self._any and self._guard is not None:
            return "token"
        return "all" if self._any and self._local else "nobody"

    @property
    def may_replay(self) -> bool:
        """Whether anybody may replay from here."""
        return self._any and self._guard is not None

    def records(self, head: Head) -> None:
        """Let a request for records through.

        Raises:
            HttpProblem: 401 without the token, 403 where there is none and the request is not of this machine.
        """
        if self._guard is not None:
            self._guard.admit(head._replace(query=b""))
        elif not self._local:
            detail = f"metrics.host is no loopback address, so records are for those with a token: {_TOKEN_HINT}"
            raise HttpProblem(HTTPStatus.FORBIDDEN, detail)
        elif any(head.header(name) is not None for name in _RELAYED):
            detail = f"the request comes by way of a proxy, so perhaps from another machine: {_TOKEN_HINT}"
            raise HttpProblem(HTTPStatus.FORBIDDEN, detail)
        elif not is_loopback(_host(head)):
            detail = f"the request names another host than this machine; ask for localhost, or {_TOKEN_HINT}"
            raise HttpProblem(HTTPStatus.FORBIDDEN, detail)

    def replays(self, head: Head) -> None:
        """Let a request that changes something through.

        Raises:
            HttpProblem: as :meth:`records`, and 403 where no token is set.
        """
        if self._guard is None:
            raise HttpProblem(HTTPStatus.FORBIDDEN, f"nothing can be replayed from here: {_TOKEN_HINT}")
        self.records(head)

    @staticmethod
    def same_origin(head: Head) -> None:
        """Let through what a page of ours sends, or no page at all.

        Raises:
            HttpProblem: 403 for a page of another origin, 415 for a body that a form could send.
        """
        site, origin = head.header(b"sec-fetch-site"), head.header(b"origin")
        # A browser knows better than the address that we see: a proxy before us may have another, and TLS.
        own = site in _OWN if site is not None else origin is None or _netloc(origin) == _text(head, b"host")
        if not own:
            raise HttpProblem(HTTPStatus.FORBIDDEN, "a page of another origin may not ask this")
        if (head.header(b"content-type") or b"").partition(b";")[0].strip().lower() != b"application/json":
            raise HttpProblem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json")


def _netloc(origin: bytes) -> str | None:
    try:
        return urlsplit(origin.decode("latin-1")).netloc
    except ValueError:
        return None


def _host(head: Head) -> str:
    try:
        return urlsplit(f"//{_text(head, b'host')}").hostname or ""
    except ValueError:
        return ""


def _text(head: Head, name: bytes) -> str:
    return (head.header(name) or b"").decode("latin-1")
