"""A real token server: gives JWTs to OAuth clients that know their secret, and shows the key that signed them."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from tests.support.ports import Pair
from tests.support.web import QuietHandler, QuietServer

AUDIENCE: Final = "kafka"
LIFE_SECONDS: Final = 300
_KEY_ID: Final = "tests-1"
_OPENSSL_SECONDS: Final = 60


class TokenServer:
    """``clients`` are ids with their secrets; ``asked`` are the ids that came and what each was answered.

    It serves from the start of the block to its end, by HTTPS with the certificate that is given.
    """

    def __init__(self, folder: Path, clients: Mapping[str, str], certificate: Pair) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._key = folder / "signing.key"
        _openssl("genrsa", "-out", str(self._key), "2048")
        self._clients = dict(clients)
        self.asked: list[tuple[str, int]] = []
        self._server = QuietServer(_handler(self), tls=certificate)
        self.url: Final = self._server.url

    def token(self, authorization: str, form: Mapping[str, list[str]]) -> tuple[int, dict[str, Any]]:
        """Answer a request for a token (RFC 6749 section 4.4)."""
        client, _, secret = _decoded(authorization).partition(":")
        if form.get("grant_type") != ["client_credentials"] or not secret or self._clients.get(client) != secret:
            self.asked.append((client, 401))
            return 401, {"error": "invalid_client"}
        self.asked.append((client, 200))
        now = int(time.time())
        claims = {"iss": self.url, "sub": client, "aud": AUDIENCE, "iat": now, "exp": now + LIFE_SECONDS}
        claims["scope"] = " ".join(form.get("scope", []))
        return 200, {"access_token": self._signed(claims), "token_type": "Bearer", "expires_in": LIFE_SECONDS}

    def keys(self) -> dict[str, Any]:
        """Return the public key as a JWK set."""
        told = _openssl("rsa", "-in", str(self._key), "-noout", "-modulus").decode().strip()
        modulus = bytes.fromhex(told.partition("=")[2])
        key = {"kty": "RSA", "kid": _KEY_ID, "alg": "RS256", "use": "sig", "n": _encoded(modulus), "e": "AQAB"}
        return {"keys": [key]}

    def __enter__(self) -> TokenServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def _signed(self, claims: Mapping[str, Any]) -> str:
        header = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        text = f"{_encoded(json.dumps(header).encode())}.{_encoded(json.dumps(claims).encode())}"
        return f"{text}.{_encoded(_openssl('dgst', '-sha256', '-sign', str(self._key), stdin=text.encode()))}"


def _handler(tokens: TokenServer) -> type[BaseHTTPRequestHandler]:
    class Handler(QuietHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.read_body().decode())
            self._answer(*tokens.token(self.headers.get("Authorization") or "", form))

        def do_GET(self) -> None:
            self._answer(200, tokens.keys())

        def _answer(self, status: int, form: dict[str, Any]) -> None:
            self.reply(status, {"Content-Type": "application/json"}, json.dumps(form).encode())

    return Handler


def _decoded(authorization: str) -> str:
    scheme, _, text = authorization.partition(" ")
    return base64.b64decode(text).decode() if scheme.lower() == "basic" else ""


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _openssl(*arguments: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(
        ["openssl", *arguments], input=stdin, capture_output=True, timeout=_OPENSSL_SECONDS, check=True
    )
    return done.stdout
