"""Web pages of other origins: which of them a browser lets use a registry, and what of its answers they may read."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from bindings.http.request import Access
from registry.http.access import Roles
from registry.http.application import RequestLimits
from router.commands.registry.settings import load_registry
from tests.support.registry import served

OURS = {"origin": "https://ui.example"}
ASKS = {"access-control-request-method": "PUT", "access-control-request-headers": "authorization,xregistry-name"}
ACCESS = Access(bearer={"ann": "token"})


def test_it_is_off_without_origins(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        for method in ("GET", "OPTIONS"):
            answer = client.request(method, "/", headers={**OURS, **ASKS})
            assert "access-control-allow-origin" not in answer.headers
            assert "Origin" not in answer.headers.get("vary", "")


def test_a_page_of_a_named_origin_may_do_what_its_credentials_allow(tmp_path: Path) -> None:
    with served(
        tmp_path, access=ACCESS, roles=Roles(frozenset(("ann",))), limits=RequestLimits(origins=("https://ui.example",))
    ) as client:
        asked = client.options("/endpoints/e", headers={**OURS, **ASKS})  # without credentials
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-origin"] == "https://ui.example"
        assert asked.headers["access-control-allow-headers"] == "authorization,xregistry-name"
        assert "PUT" in asked.headers["access-control-allow-methods"] and asked.headers["vary"] == "Origin"
        refused = client.get("/", headers=OURS)  # which the page may see
        assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "https://ui.example"
        credentials = {"authorization": "Bearer token"}
        found = client.get("/", headers={**OURS, **credentials})
        assert found.status_code == 200 and found.headers["access-control-allow-credentials"] == "true"
        exposed = found.headers["access-control-expose-headers"]
        assert {"ETag", "Link", "Location", "xRouter-Finding"} <= set(exposed.split(", "))
        client.put("/schemagroups/g/schemas/s", content=b"{}", headers={**credentials, "xregistry-name": "x"})
        document = client.get("/schemagroups/g/schemas/s", headers={**OURS, **credentials})
        names = [name for name in document.headers if name.startswith("xregistry-")]
        readable = document.headers["access-control-expose-headers"].lower()
        assert len(names) > 3 and all(name in readable for name in names)


def test_pages_of_other_origins_get_nothing(tmp_path: Path) -> None:
    with served(tmp_path, limits=RequestLimits(origins=("https://ui.example",))) as client:
        for origin in ("https://evil.example", "https://ui.example.evil.example", "null"):
            for method in ("GET", "OPTIONS"):
                answer = client.request(method, "/", headers={"origin": origin, **ASKS})
                assert not [name for name in answer.headers if name.startswith("access-control-allow-origin")]
                assert "Origin" in answer.headers["vary"].split(", ")


def test_all_origins_go_without_credentials_of_the_browser(tmp_path: Path) -> None:
    with served(tmp_path, limits=RequestLimits(origins=("*",))) as client:
        for method in ("GET", "OPTIONS"):
            answer = client.request(method, "/", headers={**OURS, **ASKS})
            assert answer.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in answer.headers
        assert "access-control-allow-origin" not in client.get("/").headers


def test_a_plain_options_is_answered_as_before(tmp_path: Path) -> None:
    with served(tmp_path, limits=RequestLimits(origins=("*",))) as client:
        answer = client.options("/model", headers=OURS)
        assert answer.status_code == 200 and answer.headers["allow"] == "GET, HEAD, OPTIONS"


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
