"""Logins at registries: each origin is shown its own, tokens are renewed in time, and no secret is ever told."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from catalog.documents.connecting import Certificates, Logins, OriginLogin, TokenSource
from catalog.documents.fetching import Fetcher
from catalog.findings import DocumentError
from catalog.load import CatalogWatcher, load
from catalog.model import Catalog
from tests.support.ports import Authority
from tests.support.registry import Registry
from tests.support.web import Reply, Request, Web, serving

SECRET = "s3cret/+ü"
TREE: dict[str, Any] = {"messagegroups": {"G": {"messages": {"m": {"protocol": "KAFKA"}}}}}
XIDS = ["/messagegroups/G/messages/m"]


@pytest.fixture
def issuer() -> Iterator[Web]:
    with serving() as server:
        yield server


def guarded(web: Web, accepts: Callable[[str], bool]) -> Registry:
    """Let nobody in whose Authorization header is not accepted."""
    registry = Registry(web, TREE, inline=()).open()
    for path, route in list(web.routes.items()):
        assert callable(route)

        def answer(request: Request, route: Callable[[Request], Reply | None] = route) -> Reply | None:
            return route(request) if accepts(request.headers.get("authorization", "")) else Reply("who?", 401)

        web.routes[path] = answer
    return registry


def issuing(issuer: Web, **more: Any) -> list[Request]:
    """Issue the tokens t1, t2 and so on; returns the requests for them."""
    asked: list[Request] = []

    def answer(request: Request) -> Reply:
        asked.append(request)
        return Reply({"access_token": f"t{len(asked)}", "token_type": "bearer", **more})

    issuer.routes["/token"] = answer
    return asked


def source(issuer: Web) -> TokenSource:
    return TokenSource(f"{issuer.url}/token", "a client", SECRET, "read all")


def xids(url: str, logins: Logins) -> list[str]:
    catalog = load([url], fetcher=Fetcher(network=True, logins=logins))
    assert [f.message for f in catalog.findings if f.rule == "unreadable-document"] == []
    return list(catalog.definitions)


def refused(url: str, logins: Logins) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        load([url], fetcher=Fetcher(network=True, logins=logins))
    text = f"{caught.value} {caught.value.hint} {caught.value.file} {caught.value.__cause__!r}"
    assert SECRET not in text and base64.b64encode(f"u:{SECRET}".encode()).decode() not in text
    return caught.value


def test_user_and_password(web: Web) -> None:
    expected = "Basic " + base64.b64encode(f"u:{SECRET}".encode()).decode()
    registry = guarded(web, lambda shown: shown == expected)
    logins = Logins([OriginLogin(web.url, basic=("u", SECRET))])
    assert xids(registry.url, logins) == XIDS
    assert "401" in str(refused(registry.url, Logins()))
    assert SECRET not in repr(OriginLogin(web.url, basic=("u", SECRET), bearer=SECRET))


def test_a_token_in_a_file_that_changes(web: Web, tmp_path: Path) -> None:
    valid = ["one"]
    registry = guarded(web, lambda shown: shown == f"Bearer {valid[0]}")
    file = tmp_path / "token"
    file.write_text("one\n")
    logins = Logins([OriginLogin(web.url, bearer_file=file)])
    assert xids(registry.url, logins) == XIDS
    valid[0] = "two"
    assert "401" in str(refused(registry.url, logins))
    file.write_text("two")
    assert xids(registry.url, logins) == XIDS
    file.write_text("two\r\nX-Header: 1")
    assert "is not a valid token" in str(refused(registry.url, logins))
    file.unlink()
    assert str(file) in str(refused(registry.url, logins))


def test_client_credentials_are_asked_for_once_and_again_before_they_end(web: Web, issuer: Web) -> None:
    asked, seconds = issuing(issuer, expires_in=100), [0.0]
    registry = guarded(web, lambda shown: shown == f"Bearer t{len(asked)}")
    logins = Logins([OriginLogin(web.url, tokens=source(issuer))], clock=lambda: seconds[0])
    for now, tokens in ((0.0, 1), (89.0, 1), (90.0, 2), (179.0, 2), (181.0, 3)):
        seconds[0] = now
        assert xids(registry.url, logins) == XIDS
        assert len(asked) == tokens
    request = asked[0]
    assert parse_qs(request.body.decode()) == {"grant_type": ["client_credentials"], "scope": ["read all"]}
    shown = base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode()
    assert shown == "a+client:s3cret%2F%2B%C3%BC"
    assert (request.method, request.headers["content-type"]) == ("POST", "application/x-www-form-urlencoded")


def test_a_token_that_is_refused_is_renewed_once(web: Web, issuer: Web) -> None:
    asked, seconds, valid = issuing(issuer, expires_in=3600), [0.0], ["t1"]
    registry = guarded(web, lambda shown: shown == f"Bearer {valid[0]}")
    logins = Logins([OriginLogin(web.url, tokens=source(issuer))], clock=lambda: seconds[0])
    assert xids(registry.url, logins) == XIDS
    valid[0] = "t2"
    assert xids(registry.url, logins) == XIDS
    assert len(asked) == 2

    valid[0] = "none"
    for _ in range(5):
        assert "401" in str(refused(registry.url, logins))
    assert len(asked) == 2
    seconds[0] = 11.0
    refused(registry.url, logins)
    assert len(asked) == 3


def test_a_watcher_keeps_its_token(web: Web, issuer: Web) -> None:
    asked = issuing(issuer, expires_in=3600)
    registry = guarded(web, lambda shown: shown == "Bearer t1")
    watcher = CatalogWatcher(
        [registry.url], 0, network=True, logins=Logins([OriginLogin(web.url, tokens=source(issuer))])
    )
    first = watcher.poll()
    assert isinstance(first, Catalog) and list(first.definitions) == XIDS
    for _ in range(3):
        assert watcher.poll() is None
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("reply", "says", "transient"),
    [
        (Reply({"error": "invalid_client"}, 401), "answers 401 (invalid_client)", False),
        (Reply({"error": SECRET}, 400), "answers 400", False),
        (Reply("", 503), "answers 503", True),
        (Reply("x" * 100_000, 503), "answers 503", True),
        (Reply("<html>"), "not return a bearer token", False),
        (Reply({"access_token": "t", "token_type": "mac"}), "not return a bearer token", False),
        (Reply({"access_token": "t\r\nx: y"}), "is not a valid token", False),
        (Reply({"access_token": "t" * 100_000}), "is larger than", False),
        (Reply("[" * 50_000), "not return a bearer token", False),
        (Reply("", 302, {"Location": "/token"}), "answers 302", False),
    ],
)
def test_no_token_no_request(web: Web, issuer: Web, reply: Reply, says: str, transient: bool) -> None:
    registry = guarded(web, lambda shown: True)
    issuer.routes["/token"] = lambda request: reply
    error = refused(registry.url, Logins([OriginLogin(web.url, tokens=source(issuer))]))
    assert says in str(error)
    assert error.transient == transient
    assert (web.asked, len(issuer.asked)) == ([], 1)


def test_an_issuer_that_is_away_or_slow_is_waited_for(web: Web, issuer: Web) -> None:
    registry = guarded(web, lambda shown: True)
    gone = TokenSource("http://127.0.0.1:1/token", "c", SECRET)
    assert refused(registry.url, Logins([OriginLogin(web.url, tokens=gone)])).transient

    def never(request: Request) -> None:
        request.stopping.wait(60)

    issuer.routes["/token"] = never
    logins = Logins([OriginLogin(web.url, tokens=source(issuer))])
    with pytest.raises(DocumentError) as caught:
        load([registry.url], fetcher=Fetcher(network=True, logins=logins, fetch_seconds=0.3))
    assert caught.value.transient


@pytest.mark.parametrize("way", ["bearer", "basic", "file", "tokens"])
def test_nothing_is_shown_to_another_origin(web: Web, issuer: Web, tmp_path: Path, way: str) -> None:
    """Neither redirects, nor references, nor pages, nor another port of the same host get what is for one origin."""
    (tmp_path / "token").write_text(SECRET[:6])
    issuing(issuer)
    login = {
        "bearer": OriginLogin(web.url, bearer="s3cret"),
        "basic": OriginLogin(web.url, basic=("u", SECRET)),
        "file": OriginLogin(web.url, bearer_file=tmp_path / "token"),
        "tokens": OriginLogin(web.url, tokens=source(issuer)),
    }[way]
    with serving() as other:
        other.routes["/d"] = Reply(TREE)
        other.routes["/m"] = Reply({"m": {"protocol": "KAFKA"}})
        web.routes["/moved"] = Reply("", 302, {"Location": f"{other.url}/d"})
        web.routes["/named"] = Reply({"messagegroups": {"G": {"messagesurl": f"{other.url}/m"}}})
        for path in ("/moved", "/named"):
            assert xids(web.url + path, Logins([login])) == XIDS
        assert len(other.headers) == 2
        assert not any("authorization" in headers for headers in other.headers)
    assert all("authorization" in headers for headers in web.headers)


def test_a_login_goes_before_what_a_document_names(web: Web) -> None:
    web.routes["/m"] = lambda request: Reply(
        {"m": {}}, 200 if request.headers.get("authorization") == "Bearer t" else 401
    )
    named = web.url.replace("//", "//u:p@") + "/m"
    web.routes["/d"] = lambda request: Reply({"messagegroups": {"G": {"messagesurl": named}}})
    assert xids(f"{web.url}/d", Logins([OriginLogin(web.url, bearer="t")])) == XIDS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def test_own_authorities_and_a_client_certificate(authority: Authority) -> None:
    server, client = authority.sign("server", alternatives="IP:127.0.0.1"), authority.sign("client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    with serving(context) as web:
        registry = Registry(web, TREE).open()
        known = Certificates(authority.certificate, client.certificate, client.key)
        assert xids(registry.url, Logins([OriginLogin(web.url, certificates=known)])) == XIDS
        for less in (Certificates(), Certificates(authority.certificate)):
            assert refused(registry.url, Logins([OriginLogin(web.url, certificates=less)])).transient
        elsewhere = OriginLogin(f"{web.url}0", certificates=known)
        assert "certificate" in str(refused(registry.url, Logins([elsewhere])))


def test_certificates_that_cannot_be_used(web: Web, tmp_path: Path, authority: Authority) -> None:
    registry = Registry(web, TREE).open()
    (tmp_path / "junk.pem").write_text("junk")
    pair = authority.sign("other")
    for files in (
        Certificates(tmp_path / "junk.pem"),
        Certificates(tmp_path / "none.pem"),
        Certificates(None, pair.certificate, authority.sign("third").key),
    ):
        error = refused(registry.url, Logins([OriginLogin(web.url, certificates=files)]))
        assert "cannot be used" in str(error)
        assert web.asked == []
