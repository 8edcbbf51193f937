"""What the HTTP gateway does with clients that mean no good, and with honest ones while those are there.

Run as a script, this file is a gateway process that may open few files more.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bindings.http.gateway import HttpGateway
from bindings.http.request import Access, HttpRoute, PathRoutes, ServerLimits
from bindings.http.server import address_group
from tests.support.gateways import Rows, client_of, serving
from tests.support.http import POST, REFUSED, TAKEN, WELL_FORMED
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
SECONDS = 30
ROUTES = [HttpRoute("/endpoints/plain", "/events"), HttpRoute("/endpoints/days", "/days/{y}-{m}-{d}/x", ("PUT",))]
LIMITS = ServerLimits(
    max_target=300, max_header_bytes=5000, max_headers=20, header_timeout=0.5, request_timeout=1.0, idle_timeout=1.0
)


@pytest.fixture
def rows() -> Rows:
    return Rows()


Serve = Callable[..., HttpGateway]


@pytest.fixture
def serve(rows: Rows) -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:

        def started(limits: ServerLimits = LIMITS, **settings: Any) -> HttpGateway:
            return stack.enter_context(serving(ROUTES, rows, max_body_bytes=1000, limits=limits, **settings))

        yield started


@contextlib.contextmanager
def connected(gateway: HttpGateway, source: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", gateway.port), SECONDS, (source, 0)) as connection:
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Return what comes until the other side closes."""
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65536):
            answer += data
    return answer


def exchange(gateway: HttpGateway, *pieces: bytes) -> bytes:
    with connected(gateway) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return read_all(connection)


def statuses(answer: bytes) -> list[int]:
    return [int(each) for each in re.findall(rb"HTTP/1\.1 (\d+) ", answer)]


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_be_read_in_two_ways_is_refused_and_the_connection_closed(
    serve: Serve, rows: Rows, name: str
) -> None:
    request, status = REFUSED[name]
    gateway = serve()
    answer = exchange(gateway, request + WELL_FORMED)
    assert statuses(answer) == [status]
    assert b"\r\nconnection: close\r\n" in answer and b"application/problem+json" in answer
    assert not rows.stored


@pytest.mark.parametrize("name", TAKEN)
def test_what_senders_may_write_is_taken(serve: Serve, rows: Rows, name: str) -> None:
    gateway = serve(ServerLimits())
    pieces = [bytes([each]) for each in TAKEN[name]] if name == "byte by byte" else [TAKEN[name]]
    with connected(gateway) as connection:
        for piece in pieces:
            connection.sendall(piece)
        if name.startswith("the end"):
            connection.shutdown(socket.SHUT_WR)
            assert statuses(read_all(connection)) == [202]
        else:
            assert statuses(connection.recv(65536)) == [202]
            connection.sendall(b"" if name == "HTTP/1.0" else WELL_FORMED)
            if name != "HTTP/1.0":
                assert statuses(connection.recv(65536)) == [202]
    assert {row.body for row in rows.stored} == {b"a"}


def test_a_pipeline_is_answered_in_order_and_ends_at_its_fault(serve: Serve, rows: Rows) -> None:
    gone = b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = exchange(serve(), WELL_FORMED * 200 + gone + WELL_FORMED + b"rubbish\r\n\r\n" + WELL_FORMED)
    assert statuses(answer) == [202] * 200 + [404, 202, 400]
    assert len(rows.stored) == 201


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n", 401),
        (b"POST /events HTTP/1.1\r\nHost: x\r\nX-Api-Key: k\r\nContent-Length: 5000\r\n", 413),
        (b"POST /nowhere HTTP/1.1\r\nHost: x\r\nX-Api-Key: k\r\nContent-Length: 5\r\n", 404),
    ],
)
def test_nobody_is_asked_for_a_body_that_will_be_refused(serve: Serve, head: bytes, status: int) -> None:
    gateway = serve(access=Access(api_keys={"meter": "k"}))
    began = time.monotonic()
    answer = exchange(gateway, head + b"Expect: 100-continue\r\n\r\n")
    assert statuses(answer) == [status] and time.monotonic() - began < SECONDS
    with connected(gateway) as connection:
        connection.sendall(POST + b"X-Api-Key: k\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
        assert statuses(connection.recv(1000)) == [100]
        connection.sendall(b"a")
        assert statuses(connection.recv(1000)) == [202]


def test_a_path_costs_what_it_is_long_and_strangers_learn_nothing_of_it(serve: Serve) -> None:
    routes = PathRoutes(ROUTES)
    began = time.process_time()
    assert routes.find_route("PUT", "/days/" + "-" * 60_000 + "/y").allowed == ()
    assert routes.find_route("PUT", "/days/" + "-" * 60_000 + "/x").allowed == ("PUT",)
    assert time.process_time() - began < 1.0
    gateway = serve(access=Access(api_keys={"meter": "k"}))
    asked = b" HTTP/1.1\r\nHost: x\r\nWebHook-Request-Origin: o\r\nConnection: close\r\n\r\n"
    for method in (b"GET", b"PUT", b"DELETE", b"OPTIONS"):
        answers = {
            re.sub(rb"date: [^\r]*", b"", exchange(gateway, method + path + asked))
            for path in (b" /events", b" /days/1-2-3/x", b" /nowhere")
        }
        assert len(answers) == 1


def test_a_head_a_body_and_silence_have_their_time(serve: Serve) -> None:
    gateway = serve()
    assert statuses(exchange(gateway, b"POST /events HT")) == [408]
    assert statuses(exchange(gateway, POST + b"Content-Length: 9\r\n\r\nslow")) == [400]
    assert statuses(exchange(gateway, b"")) == []
    assert statuses(exchange(gateway, WELL_FORMED)) == [202]
    with connected(gateway) as connection:  # a byte now and then does not begin the time anew
        for byte in POST * 100:
            try:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)
            except OSError:
                break
        else:
            pytest.fail("the connection was never closed")


def test_the_rest_of_a_refused_body_is_dropped_for_two_seconds(serve: Serve) -> None:
    gateway = serve()
    with connected(gateway) as connection:
        connection.sendall(POST + b"Content-Length: 100000000\r\n\r\n")
        assert statuses(connection.recv(65536)) == [413]
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began < SECONDS:
                connection.sendall(b"x")
                time.sleep(0.05)
        assert 1.0 < time.monotonic() - began < SECONDS


def test_connections_that_the_client_closed_are_closed(serve: Serve) -> None:
    gateway = serve(ServerLimits())
    for _ in range(50):
        with client_of(gateway) as client:
            assert client.post("/events", content=b"x").status_code == 202
    wait_until(
        lambda: not held_open(gateway.port), SECONDS, lambda: f"{held_open(gateway.port)} connections to be closed"
    )


def held_open(port: int) -> int:
    """Return how many connections of this port wait to be closed by us, or are open (CLOSE-WAIT, ESTABLISHED)."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        entries = [line.split()[1:4] for line in table.readlines()[1:]]
    return sum(own.endswith(f":{port:04X}") and state in ("01", "08") for own, _, state in entries)


def test_one_address_has_its_share_and_idle_ones_make_room(serve: Serve) -> None:
    gateway = serve(ServerLimits(max_connections=8, max_per_address=5))
    with contextlib.ExitStack() as stack:
        known = stack.enter_context(connected(gateway))
        known.sendall(WELL_FORMED)
        assert statuses(known.recv(1000)) == [202]
        crowd = [stack.enter_context(connected(gateway, "127.0.0.2")) for _ in range(6)]
        assert read_all(crowd[0]) == b"", "the oldest of its address"
        more = [stack.enter_context(connected(gateway, "127.0.0.3")) for _ in range(4)]
        # Two more than there is room for: the oldest of those who never sent anything are closed.
        assert [read_all(each) for each in crowd[1:3]] == [b"", b""]
        for each in (*more, known):
            each.sendall(WELL_FORMED)
            assert statuses(each.recv(1000)) == [202]


def test_addresses_of_one_host_count_as_one() -> None:
    assert address_group(("2001:db8:1:2:3:4:5:6", 1, 0, 0)) == address_group(("2001:db8:1:2::9", 1, 0, 0))
    assert address_group(("2001:db8:1:3::9", 1, 0, 0)) != address_group(("2001:db8:1:2::9", 1, 0, 0))
    assert address_group(("::ffff:192.0.2.1", 1, 0, 0)) == address_group(("192.0.2.1", 1)) == "192.0.2.1"
    assert address_group(("fe80::1%eth0", 1, 0, 0)) == "fe80::/64"


def test_low_descriptors_are_left_to_clients_that_use_select(serve: Serve) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gateway = serve()
    with connected(gateway) as connection:
        connection.sendall(WELL_FORMED)
        assert statuses(connection.recv(1000)) == [202]
        own = connection.getpeername()
        numbers = [int(each.name) for each in Path("/proc/self/fd").iterdir()]
        assert hard <= 1024 or any(_is_at(number, own) for number in numbers if number >= 1024)


def _is_at(number: int, address: tuple[str, int]) -> bool:
    try:
        with socket.socket(fileno=os.dup(number)) as other:
            return bool(other.getsockname() == address)
    except OSError:
        return False


@pytest.mark.parametrize("limit", ["max_connections", "max_per_address"])
def test_a_request_that_waits_is_never_cut_off(serve: Serve, rows: Rows, limit: str) -> None:
    gateway = serve(ServerLimits(**{limit: 2}))
    rows.held = True
    with connected(gateway) as first, connected(gateway) as second:
        for each in (first, second):
            each.sendall(WELL_FORMED)
        wait_until(lambda: rows.offered == 2, SECONDS, "both rows")
        assert statuses(exchange(gateway)) == [503]
        rows.release()
        assert [statuses(each.recv(1000)) for each in (first, second)] == [[202], [202]]


def test_an_inbox_that_takes_too_long_is_503_and_a_late_answer_is_dropped(serve: Serve, rows: Rows) -> None:
    gateway = serve()
    rows.held = True
    with connected(gateway) as connection:
        connection.sendall(WELL_FORMED)
        answer = connection.recv(1000)
        assert statuses(answer) == [503] and b"may have been stored" in answer
        rows.release()
        rows.held = False
        connection.sendall(WELL_FORMED)
        assert statuses(connection.recv(1000)) == [202]


def test_unfinished_bodies_make_room_for_others(serve: Serve, rows: Rows) -> None:
    gateway = serve(ServerLimits(max_held_bytes=2000))
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(gateway, "127.0.0.2")) for _ in range(4)]
        for each in slow:
            each.sendall(POST + b"Content-Length: 900\r\n\r\n" + b"x" * 800)
        for _ in range(20):
            with client_of(gateway) as client:
                assert client.post("/events", content=b"y" * 900).status_code == 202
    assert {row.body for row in rows.stored} == {b"y" * 900}


def test_a_body_for_which_there_is_no_room_is_503(serve: Serve, rows: Rows) -> None:
    gateway = serve(ServerLimits(max_held_bytes=1000))
    rows.held = True
    with connected(gateway) as first, connected(gateway) as second:
        for each in (first, second):
            each.sendall(POST + b"Content-Length: 900\r\n\r\n" + b"x" * 900)
            wait_until(lambda: rows.offered, SECONDS, "the first row")
        answer = read_all(second)
        assert statuses(answer) == [503] and b"retry-after: 1" in answer
        rows.release()
        assert statuses(first.recv(1000)) == [202]


def test_who_never_reads_answers_is_closed(serve: Serve) -> None:
    gateway = serve()
    asked = b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
    with connected(gateway) as connection:
        connection.settimeout(SECONDS)
        with pytest.raises((ConnectionError, BrokenPipeError)):
            while True:
                connection.sendall(asked)


def test_no_more_descriptors_is_push_back_and_not_the_end(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=ROOT)
    try:
        assert process.stdout is not None
        address = ("127.0.0.1", int(process.stdout.readline()))
        with contextlib.ExitStack() as stack:
            crowd = [stack.enter_context(socket.create_connection(address, SECONDS)) for _ in range(60)]
            assert read_all(crowd[0]) == b"", "the oldest made room"
            late = stack.enter_context(socket.create_connection(address, SECONDS))
            late.sendall(WELL_FORMED)
            assert statuses(late.recv(1000)) == [202]
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
    lines = (tmp_path / "log").read_text().splitlines()
    assert 1 <= len(lines) < 5 and "limit on open files" in lines[0], lines


def serve_with_few_files() -> None:
    """Host a gateway that has ten descriptors for its connections, until killed; its port is the first line."""
    with serving(ROUTES, Rows()) as gateway:
        sys.stdout.write(f"{gateway.port}\n")
        sys.stdout.flush()
        first_free = os.dup(0)
        os.close(first_free)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (first_free + 10, hard))
        threading.Event().wait()


if __name__ == "__main__":
    serve_with_few_files()
