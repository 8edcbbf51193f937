"""The limits of one HTTP server: for each request, and for all connections together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Sizes in bytes, times in seconds.

    ``max_target`` bounds path and query (414), ``max_header_bytes`` the request line with all headers and
    ``max_headers`` their number (431). ``max_connections`` of all clients and ``max_per_address`` of one address are
    open at a time. ``max_held_bytes`` bounds the bodies that are held at a time.

    ``header_timeout`` is what a client has from its first byte to the end of the headers, for the TLS handshake, and to
    take an answer; ``request_timeout`` what a body has to arrive, and then again what its answer has; ``idle_timeout``
    what lies between two requests; ``linger`` how long the rest of a refused body is read and dropped.
    """

    max_target: int = 8 * 2**10
    max_header_bytes: int = 64 * 2**10
    max_headers: int = 200
    max_connections: int = 1000
    max_per_address: int = 256
    max_held_bytes: int = 256 * 2**20
    header_timeout: float = 10.0
    request_timeout: float = 30.0
    idle_timeout: float = 30.0
    linger: float = 2.0
