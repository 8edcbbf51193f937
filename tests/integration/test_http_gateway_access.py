"""Who may send over HTTP: every way to say who one is, right and wrong, over real sockets."""

from __future__ import annotations

import base64
import logging
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bindings.gateways import GatewayError, Tls
from bindings.http.gateway import HttpGateway, HttpGatewayConfig
from bindings.http.request import Access, HttpRoute
from router.intake.intake import to_server_config
from router.settings import load_settings
from router.settings.checks import iter_security_warnings
from tests.support.gateways import Rows, client_of, serving
from tests.support.ports import Authority, Pair

SECONDS = 300
TOKEN, OTHER, PASSWORD, KEY = "tok-5f31", "tok-9a77", "pä:ss word", "key-77c2"
SECRETS = (TOKEN, OTHER, PASSWORD, KEY, "guess-1d")
ACCESS = Access({"press": TOKEN, "mill": OTHER}, {"ann": PASSWORD}, {"meter": KEY}, "X-Meter-Key")
ROUTES = [
    HttpRoute("/endpoints/all", "/events"),
    HttpRoute("/endpoints/some", "/some", users=frozenset({"ann", "press"})),
]


@pytest.fixture
def store() -> Rows:
    return Rows()


@pytest.fixture
def gateway(store: Rows) -> Iterator[HttpGateway]:
    with serving(ROUTES, store, access=ACCESS, max_body_bytes=1000) as started:
        yield started


@pytest.fixture
def client(gateway: HttpGateway) -> Iterator[httpx.Client]:
    with client_of(gateway) as made:
        yield made


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


RIGHT: list[dict[str, Any]] = [
    {"headers": {"Authorization": f"Bearer {TOKEN}"}},
    {"headers": {"authorization": f"bearer  {OTHER}"}},
    {"params": {"access_token": TOKEN, "q": "1"}},
    {"headers": basic("ann", PASSWORD)},
    {"headers": {"x-meter-key": KEY}},
    {"headers": {"X-Meter-Key": KEY, "Authorization": "Digest x"}},
]
WRONG: list[dict[str, Any]] = [
    {"headers": {"Authorization": "Bearer guess-1d"}},
    {"headers": {"Authorization": "Bearer"}},
    {"headers": {"Authorization": f"Bearer {KEY}"}},
    {"headers": {"Authorization": f"Bearer {TOKEN}x"}},
    {"headers": {"Authorization": TOKEN}},
    {"headers": {"Authorization": "Basic !"}},
    {"headers": {"Authorization": "Basic " + base64.b64encode(b"ann").decode()}},
    {"headers": basic("ann", "guess-1d")},
    {"headers": basic("press", TOKEN)},
    {"headers": basic("nobody", PASSWORD)},
    {"headers": {"X-Meter-Key": "guess-1d"}},
    {"headers": {"X-Meter-Key": ""}},
    {"headers": {"X-API-Key": KEY, "Authorization": "Bearer guess-1d"}},
    {"params": {"access_token": "guess-1d"}},
]


@pytest.mark.parametrize("shown", RIGHT)
def test_right_credentials_send_and_are_no_part_of_the_record(
    client: httpx.Client, store: Rows, shown: dict[str, Any]
) -> None:
    assert client.post("/events", content=b"x", **shown).status_code == 202
    (row,) = store.stored
    keys = {part.key for part in row.properties}
    assert not keys & {"headers.authorization", "headers.x-meter-key", "query.access_token"}
    assert not [part for part in row.properties if any(secret.encode() in (part.value or b"") for secret in SECRETS)]
    assert ("query.q" in keys) == ("params" in shown)


@pytest.mark.parametrize("shown", WRONG)
def test_wrong_credentials_are_401(
    client: httpx.Client, store: Rows, shown: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "bindings")
    answer = client.post("/events", content=b"x", **shown)
    unauthorized(answer)
    assert "not valid" in answer.json()["detail"]
    assert not store.stored
    told = answer.text + str(answer.headers) + caplog.text
    assert not [secret for secret in SECRETS if secret in told]


def unauthorized(answer: httpx.Response) -> None:
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["status"], problem["title"]) == (401, "Unauthorized")
    challenges = answer.headers.get_list("www-authenticate")
    assert [each.partition(" ")[0] for each in challenges] == ["Bearer", "Basic", "ApiKey"]
    assert 'header="X-Meter-Key"' in challenges[2]


@pytest.mark.parametrize(("method", "path"), [("POST", "/events"), ("GET", "/events"), ("POST", "/nowhere")])
def test_nothing_is_told_to_the_unknown(client: httpx.Client, store: Rows, method: str, path: str) -> None:
    answer = client.request(method, path, headers={"X-API-Key": KEY})
    unauthorized(answer)
    assert answer.json()["detail"] == "send a bearer token or user and password or an API key in X-Meter-Key"
    assert "error=" not in answer.headers["www-authenticate"]
    assert not store.stored


@pytest.mark.parametrize("size", [1001, 3_000_000])
def test_a_stranger_is_refused_whatever_the_body(client: httpx.Client, store: Rows, size: int) -> None:
    """Nothing of the request but its head was looked at: else this were 413, as it is for the known."""
    unauthorized(client.post("/events", content=b"x" * size))
    unauthorized(client.post("/events", content=iter([b"x" * 600] * 3)))
    assert client.post("/events", content=b"x", headers={"X-Meter-Key": KEY}).status_code == 202
    assert len(store.stored) == 1


def test_a_valid_login_may_not_send_everywhere(client: httpx.Client, gateway: HttpGateway, store: Rows) -> None:
    assert client.post("/some", headers=basic("ann", PASSWORD)).status_code == 202
    assert client.post("/some", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 202
    for headers in ({"Authorization": f"Bearer {OTHER}"}, {"X-Meter-Key": KEY}):
        answer = client.post("/some", headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")
        assert "may not" in answer.json()["detail"]
    assert len(store.stored) == 2
    gateway.replace_routes([HttpRoute("/endpoints/some", "/some", users=frozenset({"meter"}))])
    assert client.post("/some", headers={"X-Meter-Key": KEY}).status_code == 202


def test_the_handshake_of_webhooks_needs_no_credentials(client: httpx.Client, store: Rows) -> None:
    answer = client.options("/some", headers={"WebHook-Request-Origin": "events.example.com"})
    assert (answer.status_code, answer.headers["webhook-allowed-origin"]) == (200, "events.example.com")
    assert client.options("/nowhere").status_code == 401
    assert not store.stored


def test_secrets_are_not_printed() -> None:
    assert not [secret for secret in SECRETS if secret in repr(HttpGatewayConfig(access=ACCESS))]


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Pair]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    return authority, authority.sign("server", alternatives="DNS:localhost,IP:127.0.0.1")


def tls_client(port: int, ca: Path, own: Pair | None = None) -> httpx.Client:
    """Return a client that would speak HTTP/2 as well; which one is settled in the handshake."""
    context = ssl.create_default_context(cafile=str(ca))
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    base = f"https://127.0.0.1:{port}"
    return httpx.Client(base_url=base, verify=context, http2=True, timeout=SECONDS, trust_env=False)


def test_https_with_and_without_client_certificates(
    store: Rows, certified: tuple[Authority, Pair], tmp_path: Path
) -> None:
    authority, pair = certified
    ours, stranger = authority.sign("sender"), Authority(tmp_path, "strangers").sign("sender")
    with (
        serving(ROUTES, store, access=ACCESS, tls=Tls(None, pair.certificate, pair.key)) as plain,
        serving(ROUTES, store, tls=Tls(authority.certificate, pair.certificate, pair.key)) as mutual,
    ):
        with tls_client(plain.port, authority.certificate) as client:
            answer = client.post("/events", headers={"X-Meter-Key": KEY})
            assert (answer.status_code, answer.http_version) == (202, "HTTP/1.1")
            assert client.post("/events").status_code == 401
        with tls_client(mutual.port, authority.certificate, ours) as client:
            assert client.post("/events").status_code == 202
        for own in (None, stranger):
            with tls_client(mutual.port, authority.certificate, own) as client:
                # With TLS 1.3 the refusal comes after our handshake is done, as an alert or a closed connection.
                with pytest.raises(httpx.TransportError):
                    client.post("/events")
        assert len(store.stored) == 2


def test_authorities_that_cannot_be_read_are_named(certified: tuple[Authority, Pair], tmp_path: Path) -> None:
    _, pair = certified
    tls = Tls(tmp_path / "none.pem", pair.certificate, pair.key)
    with pytest.raises(GatewayError, match=r"none\.pem"), serving(ROUTES, Rows(), tls=tls):
        pass


SETTINGS = """
sources: [{endpoint: /endpoints/a, users: [ann]}]
http:
  host: 0.0.0.0
  auth: {bearer: {press: "${TOKEN}"}, basic: {ann: "file:secret"}, api_keys: {meter: "${KEY}"}}
"""


def test_settings_make_the_gateway(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{PASSWORD}\n")
    file = tmp_path / "router.yaml"
    file.write_text(SETTINGS)
    settings = load_settings(file, {"TOKEN": TOKEN, "KEY": KEY})
    made = to_server_config(settings.http)
    assert made.access == Access({"press": TOKEN}, {"ann": PASSWORD}, {"meter": KEY})
    assert [key for key, _ in iter_security_warnings(settings)] == ["http.tls"]
    assert not [secret for secret in SECRETS if secret in repr(settings) + str(settings.unresolved)]
    file.write_text(SETTINGS.replace("host: 0.0.0.0", "host: ::1"))
    assert not list(iter_security_warnings(load_settings(file, {"TOKEN": TOKEN, "KEY": KEY})))
    file.write_text(f"{SETTINGS}  tls: {{cert: c.pem, key: k.pem, ca: ca.pem}}\n")
    secured = load_settings(file, {"TOKEN": TOKEN, "KEY": KEY})
    assert not list(iter_security_warnings(secured))
    made = to_server_config(secured.http)
    assert made.tls == Tls(tmp_path / "ca.pem", tmp_path / "c.pem", tmp_path / "k.pem")
    overridden = load_settings(file, {"TOKEN": TOKEN, "KEY": KEY, "XROUTER_HTTP__AUTH__BASIC__ANN": "other"})
    assert overridden.unresolved["http"]["auth"]["basic"] == {"ann": "${XROUTER_HTTP__AUTH__BASIC__ANN}"}
