"""What settings of HTTP mean to a server: who may send, and within which limits."""

from __future__ import annotations

from bindings.http.access import Access
from bindings.http.limits import ServerLimits
from router.settings.inward import HttpAuthSettings, HttpSettings
from router.settings.values import revealed


def access_of(auth: HttpAuthSettings | None) -> Access | None:
    """Return who may send; None is everybody."""
    if auth is None:
        return None
    bearer, basic, keys = (revealed(each) for each in (auth.bearer, auth.basic, auth.api_keys))
    return Access(bearer, basic, keys, auth.api_key_header)


def limits_of(chosen: HttpSettings) -> ServerLimits:
    """Return the limits of requests and connections."""
    return ServerLimits(
        max_target=chosen.max_target,
        max_header_bytes=chosen.max_header,
        max_headers=chosen.max_headers,
        max_connections=chosen.max_connections,
        max_per_address=chosen.max_connections_per_address,
        max_held_bytes=chosen.max_in_flight_bytes,
        header_timeout=chosen.header_timeout.total_seconds(),
        request_timeout=chosen.request_timeout.total_seconds(),
        idle_timeout=chosen.idle_timeout.total_seconds(),
    )
