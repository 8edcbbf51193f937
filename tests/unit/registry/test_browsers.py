"""Web pages of other origins: none writes for a stranger; what they may read is in ``tests/cases/access.yaml``."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from registry.http.application import RequestLimits
from router.commands.registry.settings import load_registry
from tests.support.registry import served

OURS = {"origin": "https://ui.example"}


def test_settings_name_origins(tmp_path: Path) -> None:
    config = tmp_path / "registry.yaml"
    config.write_text("open: true\nhttp: {cors: ['https://ui.example', 'http://[::1]:3000']}\n")
    assert load_registry(config)[1].limits.origins == ("https://ui.example", "http://[::1]:3000")


FORM = {"content-type": "text/plain", "sec-fetch-mode": "navigate", "sec-fetch-site": "cross-site"}


@pytest.mark.parametrize("origins", [(), ("https://ui.example",), ("*",)])
def test_no_page_of_a_stranger_writes_with_what_a_browser_keeps(tmp_path: Path, origins: tuple[str, ...]) -> None:
    with served(tmp_path, limits=RequestLimits(origins=origins)) as client:
        evil = {"origin": "https://evil.example"}
        plain = {**evil, "content-type": "text/plain"}  # of a registry without TLS: a browser names its origin alone
        for headers in ({**FORM, **evil}, {**FORM, "origin": "null"}, FORM, plain, {**plain, "origin": "null"}):
            answer = client.post("/endpoints", content=b'{"e": {}}', headers=headers)
            assert answer.status_code == 403, headers
        known = {**OURS, "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
        allowed = {200} if origins else {403}
        for headers in (known, {**known, "content-type": "application/json"}):
            simple = "content-type" not in headers and origins == ("*",)
            answer = client.post("/endpoints", content=b'{"e": {}}', headers=headers)
            assert answer.status_code in ({403} if simple else allowed)
        own = str(client.base_url).rstrip("/")
        same: tuple[dict[str, str], ...] = (
            {"sec-fetch-site": "same-origin", **evil},
            {"sec-fetch-site": "none"},
            {"origin": own},
            {},
        )
        for headers in same:
            assert client.post("/endpoints", content=b'{"e": {}}', headers=headers).status_code == 200, headers
        assert client.get("/endpoints", headers={**FORM, **evil}).status_code == 200


def test_a_page_sees_why_a_request_was_refused_before_it_was_read(tmp_path: Path) -> None:
    limits = RequestLimits(max_body=1000, origins=("https://ui.example",))
    with served(tmp_path, limits=limits) as client:
        many = [(f"x-{number}", "y") for number in range(500)]
        chunks = (b"x" * 600 for _ in range(4))
        answers = {
            431: client.get("/", headers=[*OURS.items(), *many]),
            400: raw(client, b"GET / HTTP/1.1\r\nhost: x\r\norigin: https://ui.example\r\nx: a\x01b\r\n\r\n"),
            413: client.post("/endpoints", content=chunks, headers=OURS),
        }
        for status, answer in answers.items():
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == "https://ui.example", status
        strange = client.get("/", headers=[("origin", "https://evil.example"), *many])
        assert strange.status_code == 431 and "access-control-allow-origin" not in strange.headers


def raw(client: httpx.Client, sent: bytes) -> httpx.Response:
    """Send bytes that no client would, and return the answer."""
    url = client.base_url
    with socket.create_connection((url.host, url.port or 80), 30) as connection:
        connection.sendall(sent)
        text = b"".join(iter(lambda: connection.recv(65536), b"")).decode("latin-1")
    head, _, body = text.partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = [tuple(line.split(": ", 1)) for line in lines]
    return httpx.Response(int(first.split()[1]), headers=[(name, value) for name, value in headers], text=body)
