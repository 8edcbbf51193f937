"""Fetching: each thing once, within limits, and nothing of a stranger's document reaches local files or passwords."""

from __future__ import annotations

import base64
import itertools
import os
import time
from pathlib import Path
from typing import Any

import pytest

from catalog.documents.connecting import redirect_target
from catalog.documents.fetching import Fetcher, HttpCache
from catalog.findings import DocumentError
from tests.support.cases import read_cases
from tests.support.web import Reply, Request, Web, serving

ADDRESSES: dict[str, Any] = read_cases(Path(__file__).parents[3] / "cases" / "values" / "addresses.yaml")

SHORT = 0.5
"""Seconds that a fetch gets here from a server which never ends."""
GENEROUS = 120.0
"""Seconds after which a fetch that should have been cut off was not."""


def failure(fetcher: Fetcher, uri: str) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        fetcher.fetch(uri)
    return caught.value


def test_each_address_is_fetched_once_and_so_is_its_failure(web: Web, tmp_path: Path) -> None:
    web.routes["/a"] = Reply(b"A")
    fetcher = Fetcher(network=True)
    assert [fetcher.fetch(f"{web.url}/a{fragment}") for fragment in ("", "#x", "")] == [b"A"] * 3
    assert failure(fetcher, f"{web.url}/b") is failure(fetcher, f"{web.url}/b")
    assert web.asked == [("/a", 200), ("/b", 404)]

    (tmp_path / "f g").write_bytes(b"F")
    assert fetcher.fetch(tmp_path / "f g") == fetcher.fetch(f"file://{tmp_path}/x/../f%20g") == b"F"


@pytest.mark.parametrize(
    ("status", "transient"),
    [(404, False), (410, False), (401, False), (400, False), (429, True), (500, True), (503, True)],
)
def test_statuses(web: Web, status: int, transient: bool) -> None:
    web.routes["/a"] = Reply(b"", status)
    error = failure(Fetcher(network=True), f"{web.url}/a")
    assert (error.transient, error.file) == (transient, f"{web.url}/a")
    assert str(status) in str(error)


def drip(request: Request) -> None:
    """Send a byte now and then, headers first."""
    try:
        for byte in itertools.chain(b"HTTP/1.1 200 OK\r\n", itertools.repeat(ord("x"))):
            request.connection.sendall(bytes([byte]))
            if request.stopping.wait(0.05):
                return
    except OSError:
        return


def endless(request: Request) -> None:
    request.connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while not request.stopping.is_set():
        try:
            request.connection.sendall(b"x" * 65536)
        except OSError:
            return


def hang_up(request: Request) -> None:
    request.connection.close()


def test_servers_that_never_end(web: Web) -> None:
    web.routes.update({"/drip": drip, "/endless": endless, "/hang-up": hang_up})
    started = time.monotonic()
    slow = failure(Fetcher(network=True, fetch_seconds=SHORT), f"{web.url}/drip")
    large = failure(Fetcher(network=True, document_bytes=1000), f"{web.url}/endless")
    gone = failure(Fetcher(network=True), f"{web.url}/hang-up")
    assert time.monotonic() - started < GENEROUS
    assert (slow.transient, large.transient, gone.transient) == (True, False, True)
    assert "larger than 1000 bytes" in str(large)
    assert "longer than 0.5 s" in str(slow)


def test_nobody_there_is_transient_and_that_server_is_not_asked_again() -> None:
    with serving() as web:
        url = web.url
    fetcher = Fetcher(network=True)
    assert failure(fetcher, f"{url}/a").transient
    second = failure(fetcher, f"{url}/b")
    assert second.transient
    assert f"{url}/a" in str(second)


def test_redirects(web: Web) -> None:
    def to(target: str) -> Reply:
        return Reply(b"", 302, {"Location": target})

    web.routes["/dir/a"] = Reply(b"A")
    web.routes.update({"/moved": to("dir/a"), "/loop": to("/loop"), "/file": to("file:///etc/hosts")})
    fetcher = Fetcher(network=True)
    assert fetcher.fetch(f"{web.url}/moved") == b"A"
    assert fetcher.resolve("b", f"{web.url}/moved") == f"{web.url}/dir/b"
    for path in ("/loop", "/file"):
        assert not failure(fetcher, web.url + path).transient


@pytest.mark.parametrize("target", ["http://h/b", "HTTP://h/b", "ftp://h/b", "file:///etc/hosts"])
def test_redirects_from_https_stay_there(target: str) -> None:
    with pytest.raises(DocumentError, match="not followed"):
        redirect_target("https://h/a", "https://h/a", target)
    assert redirect_target("https://h/a", "https://h/a", "//me:secret@other/b") == "https://other/b"


def test_limits_of_a_load(web: Web) -> None:
    for name in "abc":
        web.routes[f"/{name}"] = Reply(b"x" * 100)
    few = Fetcher(network=True, max_fetches=1)
    assert few.fetch(f"{web.url}/a") == few.fetch(f"{web.url}/a")
    assert not failure(few, f"{web.url}/b").transient
    small = Fetcher(network=True, load_bytes=150)
    small.fetch(f"{web.url}/a")
    assert not failure(small, f"{web.url}/b").transient
    assert failure(Fetcher(network=True, load_seconds=0), f"{web.url}/a").transient


@pytest.mark.parametrize(
    ("reference", "base", "address"),
    ADDRESSES["references"],
)
def test_references(reference: str, base: str, address: str) -> None:
    assert Fetcher(network=False).resolve(reference, base) == address


@pytest.mark.parametrize(
    ("reference", "base"),
    ADDRESSES["refused"],
)
def test_refused_references(reference: str, base: str) -> None:
    with pytest.raises(DocumentError) as caught:
        Fetcher(network=True).resolve(reference, base)
    assert not caught.value.transient


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * 11)
    fetcher = Fetcher(network=False, document_bytes=10)
    for uri in (
        str(tmp_path),
        str(tmp_path / "pipe"),
        "/dev/zero",
        str(tmp_path / "large"),
        str(tmp_path / "none"),
        "a\0b",
    ):
        assert not failure(fetcher, uri).transient
    assert "network" in str(failure(fetcher, "https://h/a"))


def test_passwords_are_sent_and_never_shown(web: Web) -> None:
    web.routes["/dir/a"] = Reply(b"A")
    fetcher = Fetcher(network=True)
    url = web.url.replace("http://", "http://me:se%2Fcret@")
    assert fetcher.fetch(f"{url}/dir/a") == b"A"
    address = fetcher.address(f"{url}/dir/a")
    assert address == fetcher.address(f"{web.url}/dir/a") == web.url.replace("http://", "http://***@") + "/dir/a"
    error = failure(fetcher, fetcher.resolve("b", address))
    assert "cret" not in f"{error} {error.file} {error.hint} {fetcher.seen} {error.__cause__}"
    sent = f"Basic {base64.b64encode(b'me:se/cret').decode()}"
    assert [each.get("authorization") for each in web.headers] == [sent, sent]
    for bad in ("http://me:secret@[x/", "http://me:secret@h:port/", "http://me:secret@/x"):
        assert "secret" not in str(failure(fetcher, bad))


def test_passwords_do_not_follow_to_other_servers(web: Web) -> None:
    with serving() as other:
        other.routes["/a"] = Reply(b"A")
        web.routes["/a"] = Reply(b"", 302, {"Location": f"{other.url}/a"})
        assert Fetcher(network=True).fetch(web.url.replace("http://", "http://me:secret@") + "/a") == b"A"
        assert "authorization" not in other.headers[0]


def test_asking_again_costs_a_304(web: Web) -> None:
    web.routes["/a"] = Reply(b"one", etag="auto")
    cache = HttpCache()
    first = Fetcher(network=True, cache=cache)
    first.fetch(f"{web.url}/a")
    again = Fetcher(network=True, cache=cache)
    assert not again.has_changed(first.seen)
    assert again.fetch(f"{web.url}/a") == b"one"
    web.routes["/a"] = Reply(b"two", etag="auto")
    assert Fetcher(network=True, cache=cache).has_changed(first.seen)
    assert web.statuses() == [200, 304, 200]


def test_the_cache_is_bounded(web: Web) -> None:
    for name in "ab":
        web.routes[f"/{name}"] = Reply(b"x" * 60, etag="auto")
    cache = HttpCache(max_bytes=100)
    for _ in range(2):
        fetcher = Fetcher(network=True, cache=cache)
        for name in "ab":
            fetcher.fetch(f"{web.url}/{name}")
    assert web.statuses() == [200, 200, 200, 200]


def test_failures_that_took_long_are_held(web: Web) -> None:
    now = [0.0]
    cache = HttpCache(clock=lambda: now[0])
    url = f"{web.url}/a"
    cache.store_failure(url, DocumentError("slow", file=url, transient=True), took=2.0)
    assert "slow" in str(failure(Fetcher(network=True, cache=cache), url))
    web.routes["/a"] = Reply(b"A")
    now[0] = 20.0
    assert Fetcher(network=True, cache=cache).fetch(url) == b"A"
