"""The HTTP gateway with real clients."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from bindings.background import fault_counts
from bindings.gateways import GatewayError, Tls
from bindings.http.gateway import HttpGateway
from bindings.http.request import HttpRoute, PathRoutes, RouteMatch, ServerLimits
from bindings.inbox.log import Inbox
from bindings.inbox.space import InboxFull, InboxLimits, InboxRowError
from bindings.parts import InboxRow
from catalog import load as catalog_load
from router.evaluation.plan import Plan
from router.intake.intake import Intake, open_local_store
from router.settings import Settings
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support import plain
from tests.support.gateways import Rows, client_of, rows_in, serving
from tests.support.shop import Counts
from tests.support.waiting import wait_until

FREE = InboxLimits(min_free_bytes=0)
ROUTES = [
    HttpRoute("/endpoints/plain", "/events"),
    HttpRoute("/endpoints/store", "/store/{id}", ("POST", "PUT", "GET")),
]
SECONDS = 300


def parts(row: InboxRow, prefix: str) -> list[tuple[str, bytes | None]]:
    return [(part.key, part.value) for part in row.properties if part.key.startswith(prefix)]


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def gateway(tmp_path: Path, counts: Counts) -> Iterator[HttpGateway]:
    limits = ServerLimits(request_timeout=3.0)
    with (
        closing(Inbox(tmp_path / "inbox", limits=FREE)) as inbox,
        serving(ROUTES, inbox, counts=counts, max_body_bytes=1000, limits=limits) as started,
    ):
        yield started


@pytest.fixture
def client(gateway: HttpGateway) -> Iterator[httpx.Client]:
    with client_of(gateway) as made:
        yield made


def test_a_message_is_stored_as_it_came_without_credentials(client: httpx.Client, tmp_path: Path) -> None:
    headers = [
        (b"Content-Type", b"text/plain"),
        (b"CE-Id", b"caf\xc3\xa9%20\xff"),
        (b"X-Same", b"1"),
        (b"X-Same", b"2"),
        (b"Authorization", b"Bearer x"),
        (b"Proxy-Authorization", b"x"),
        (b"Cookie", b"x=1"),
    ]
    target = "/store/a%2Fb%20c?q=x+y%FF&access_token=secret&q=2&bad=%zz&%FF=1&empty"
    answer = client.put(target, headers=headers, content=b"\x00body")
    assert (answer.status_code, answer.content, answer.http_version) == (202, b"", "HTTP/1.1")
    (row,) = rows_in(tmp_path / "inbox")
    assert (row.endpoint, row.protocol, row.body) == ("/endpoints/store", "HTTP", b"\x00body")
    assert parts(row, "method") == [("method", b"PUT")]
    assert parts(row, "path") == [("path", b"/store/a%2Fb%20c")]
    assert parts(row, "query.") == [
        ("query.q", b"x y\xff"),
        ("query.q", b"2"),
        ("query.bad", b"%zz"),
        ("query.%FF", b"1"),
        ("query.empty", b""),
    ]
    assert parts(row, "headers.ce-id") == [("headers.ce-id", b"caf\xc3\xa9%20\xff")]
    assert parts(row, "headers.x-same") == [("headers.x-same", b"1"), ("headers.x-same", b"2")]
    names = {key for key, _ in parts(row, "headers.")}
    assert not names & {"headers.authorization", "headers.proxy-authorization", "headers.cookie"}


def test_no_body_is_none(client: httpx.Client, tmp_path: Path) -> None:
    assert client.get("/store/1").status_code == 202
    assert client.post("/events", content=b"").status_code == 202
    assert [row.body for row in rows_in(tmp_path / "inbox")] == [None, None]


def test_a_chunked_body_is_taken(client: httpx.Client, tmp_path: Path) -> None:
    assert client.post("/events", content=iter([b"a" * 400, b"b" * 400])).status_code == 202
    assert rows_in(tmp_path / "inbox")[0].body == b"a" * 400 + b"b" * 400


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/nowhere", b"x", 404),
        ("POST", "/store/1/2", b"x", 404),
        ("POST", "/store/", b"x", 404),
        ("DELETE", "/store/1", b"", 405),
        ("POST", "/events", b"x" * 1001, 413),
        ("POST", "/events", b"x" * 3_000_000, 413),
        ("POST", "/events", [b"x" * 700, b"x" * 700], 413),
    ],
)
def test_refusals_are_problems(
    client: httpx.Client, tmp_path: Path, method: str, path: str, content: bytes | list[bytes], status: int
) -> None:
    sent = content if isinstance(content, bytes) else iter(content)
    answer = client.request(method, path, content=sent)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status and answer.json()["detail"]
    if status == 405:
        assert answer.headers["allow"] == "POST, PUT, GET"
    assert client.post("/events", content=b"next").status_code == 202
    assert [row.body for row in rows_in(tmp_path / "inbox")] == [b"next"]


def test_webhook_validation_grants_permission(client: httpx.Client, tmp_path: Path) -> None:
    asked = {"WebHook-Request-Origin": "eventemitter.example.com", "WebHook-Request-Rate": "120"}
    answer = client.options("/events", headers=asked)
    assert answer.status_code == 200
    assert answer.headers["webhook-allowed-origin"] == "eventemitter.example.com"
    assert answer.headers["webhook-allowed-rate"] == "*"
    assert answer.headers["allow"] == "POST, OPTIONS"
    assert client.options("/nowhere", headers=asked).status_code == 404
    assert rows_in(tmp_path / "inbox") == []


def test_counters_tell_received_from_acknowledged(client: httpx.Client, counts: Counts) -> None:
    client.post("/events", content=b"x")
    client.post("/events", content=b"x" * 2000)
    assert (counts.arrived, counts.stored) == ({"/endpoints/plain": 2}, {"/endpoints/plain": 1})


def raw(port: int, request: bytes) -> bytes:
    """Send bytes as they are and return the answer up to its end."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        connection.sendall(request)
        answer = b""
        while data := connection.recv(65536):
            answer += data
        return answer


def test_a_body_needs_a_length_and_an_end(gateway: HttpGateway, tmp_path: Path) -> None:
    head = b"POST /events HTTP/1.1\r\nHost: x\r\n"
    assert raw(gateway.port, head + b"Connection: close\r\n\r\n").split(b" ")[1] == b"411"
    assert raw(gateway.port, head + b"Content-Length: 10\r\n\r\nhalf").split(b" ")[1] == b"400"
    assert rows_in(tmp_path / "inbox") == []


@pytest.mark.parametrize(
    ("error", "status"), [(InboxRowError("no row"), 400), (InboxFull("/var/x is full"), 503), (OSError("/var/x"), 503)]
)
def test_what_the_store_does_not_take_is_answered_without_its_reason(error: Exception, status: int) -> None:
    store = Rows()
    with serving(ROUTES, store) as gateway, client_of(gateway) as client:
        for store.failing, expected in ((None, 202), (error, status), (None, 202)):
            answer = client.post("/events", content=b"x")
            assert answer.status_code == expected and "/var/x" not in answer.text


def test_nothing_is_answered_before_the_store_says_so_and_stop_finishes_it() -> None:
    store = Rows(held=True)
    with (
        serving(ROUTES, store, max_in_flight=1) as gateway,
        ThreadPoolExecutor(2) as pool,
        client_of(gateway) as client,
    ):
        address = "/events"
        waiting = pool.submit(client.post, address, content=b"x")
        wait_until(lambda: store.offered, SECONDS, "the row to reach the store")
        assert client.post(address, content=b"y").status_code == 503, "one more than max_in_flight"
        assert not waiting.done()
        stopping = pool.submit(gateway.stop, SECONDS)
        wait_until(lambda: "stopping" in client.post(address, content=b"z").text, SECONDS, "new messages to be refused")
        assert not stopping.done() and not waiting.done()
        store.release()
        assert waiting.result(SECONDS).status_code == 202
        stopping.result(SECONDS)
        with pytest.raises(httpx.ConnectError):
            client.post(address, content=b"z")
    assert store.offered == 1


def test_an_error_at_a_request_keeps_no_answer_from_others() -> None:
    class Failing(Counts):
        def received(self, endpoint: str) -> None:
            super().received(endpoint)
            if store.offered == 2:
                raise ValueError("an error of ours")

    store = Rows(held=True)
    request = b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    with (
        serving(ROUTES, store, counts=Failing()) as gateway,
        socket.create_connection(("127.0.0.1", gateway.port), timeout=SECONDS) as first,
        socket.create_connection(("127.0.0.1", gateway.port), timeout=SECONDS) as second,
    ):
        for place, (connection, data) in enumerate(((first, request * 2), (second, request)), 1):
            connection.sendall(data)
            wait_until(lambda: store.offered == place, SECONDS, "the row to reach the store")  # noqa: B023
        store.release()
        assert [each.recv(12) for each in (first, second)] == [b"HTTP/1.1 202"] * 2


def test_an_address_in_use_and_a_bad_certificate_are_named(gateway: HttpGateway, tmp_path: Path) -> None:
    pem = tmp_path / "cert.pem"
    pem.write_text("no certificate")
    wrong: dict[str, dict[str, Any]] = {
        f"127.0.0.1:{gateway.port}": {"port": gateway.port},
        "certificate": {"tls": Tls(None, pem, pem)},
    }
    for told, settings in wrong.items():
        with pytest.raises(GatewayError, match=told), serving(ROUTES, Rows(), **settings):
            pass


def test_routes_compare_raw_paths_and_the_first_wins() -> None:
    routes = PathRoutes(
        [HttpRoute("a", "/x/{id}.json"), HttpRoute("b", "/x/1.json", ("GET",)), HttpRoute("c", "{all}")]
    )
    assert routes.find_route("POST", "/x/1.json").endpoint == "a"
    assert routes.find_route("GET", "/x/1.json").endpoint == "b"
    assert routes.find_route("POST", "/x/1xjson").endpoint == "c"
    assert routes.find_route("PUT", "/x/y/z").allowed == ("POST",)
    assert PathRoutes([HttpRoute("a", "/{not ok}")]).find_route("POST", "/z").allowed == ()
    seven, every = HttpRoute("7", "/plants/7", users=frozenset({"ada"})), HttpRoute("any", "/plants/{plant}", ("PUT",))
    found = PathRoutes([seven, every])
    assert found.find_route("POST", "/plants/7") == RouteMatch("7", ("POST", "PUT"), frozenset({"ada"}))
    assert found.find_route("PUT", "/plants/7") == RouteMatch("any", ("POST", "PUT"))
    assert found.find_route("POST", "/plants/8") == RouteMatch(None, ("PUT",))


def test_a_gateway_whose_loop_ended_is_opened_again_on_its_port(tmp_path: Path) -> None:
    source = plain.write(tmp_path, plain.catalog({"shop": plain.endpoint("HTTP", {"path": "/in"})}))
    given = plain.routed(source, plain.lines(tmp_path, "out", "dead"), http={"port": 0})
    settings = Settings.model_validate(given)
    status = RouterStatus()
    with StateFolder.open(tmp_path / "state") as state:
        intake = Intake(settings, Metrics(), status, lambda: open_local_store(settings, state))
        try:
            intake.receive_for_plan(Plan(catalog_load.load([str(source)]), settings))
            server = intake._http
            assert server is not None
            port = server.port
            before = fault_counts()["gateway"]
            plain.post(port, "/in", b"1")
            assert server._loop is not None
            server._loop.call_soon_threadsafe(server._loop.stop)
            wait_until(lambda: not server.alive, SECONDS, "the end of the server")
            intake.check_state()
            assert intake._http is not None and intake._http.port == port
            plain.post(port, "/in", b"2")
            assert fault_counts()["gateway"] == before + 1
        finally:
            intake.close()
