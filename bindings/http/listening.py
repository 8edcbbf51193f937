"""What servers of HTTP have in common: the socket that they listen at, and their certificates."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from bindings.gateways import GatewayError


def listen(host: str, port: int, who: str) -> socket.socket:
    """Return a listening socket; *who* is named in errors.

    Raises:
        GatewayError: the address is not available.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        remedy = "choose another port, or stop what uses it"
        raise GatewayError(f"{who} cannot listen on {host}:{port}: {error.strerror or error}; {remedy}") from error


def server_tls(certificate: Path | None, key: Path | None, clients: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context of a server; None when it serves without TLS.

    *certificate* and *key* are PEM files; with *clients*, certificates of authorities, a client needs one of theirs.

    Raises:
        GatewayError: one is missing, or cannot be used.
    """
    if certificate is None and key is None and clients is None:
        return None
    if certificate is None or key is None:
        raise GatewayError("TLS needs both a certificate and a key; give tls_certificate and tls_key, or neither")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
        if clients is not None:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        names = f"certificate {certificate} with key {key}" + (f" and authorities {clients}" if clients else "")
        raise GatewayError(f"{names} cannot be used: {error}") from error
    return context
