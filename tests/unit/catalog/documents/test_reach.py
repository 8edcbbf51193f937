"""References of strangers' catalogs lead to public addresses only, whatever names and redirects stand before them."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from catalog.documents import connecting
from catalog.documents.connecting import ConnectionPolicy, Credentials, FetchLimits, Logins, Trust
from catalog.documents.fetching import HttpResponse, fetch_url
from catalog.findings import DocumentError
from catalog.load import CatalogWatcher, load
from catalog.model import Catalog
from tests.support.web import Reply, Web, serving

FORBIDDEN = (
    *("127.0.0.1", "127.9.9.9", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
    *("::1", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "224.0.0.1", "255.255.255.255"),
    *("64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1", "::127.0.0.1", "2002:7f00:1::", "::"),
)


def allowed(reach: ConnectionPolicy, address: str, origin: str = "http://h") -> bool:
    try:
        reach.check_address(f"{origin}/x", origin, "h", address)
    except DocumentError as error:
        assert not error.transient and "--allow-address" in error.hint
        return False
    return True


def test_only_public_addresses_unless_allowed() -> None:
    assert not any(allowed(ConnectionPolicy(), each) for each in FORBIDDEN)
    assert all(allowed(ConnectionPolicy(["*"]), each) for each in FORBIDDEN)
    assert all(allowed(ConnectionPolicy(["H"]), each) for each in FORBIDDEN), "by its host, in any letter case"
    assert allowed(ConnectionPolicy(), "93.184.216.34") and allowed(ConnectionPolicy(), "2606:2800:220:1::1")
    assert allowed(ConnectionPolicy(["10.0.0.0/8"]), "10.1.2.3") and not allowed(
        ConnectionPolicy(["10.0.0.0/8"]), "192.168.1.1"
    )
    assert allowed(ConnectionPolicy(["::1"]), "::1") and not allowed(ConnectionPolicy(["::1"]), "127.0.0.1")
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/99"):
        ConnectionPolicy(["10.0.0.0/99"])


def test_who_named_an_origin_counts() -> None:
    reach = ConnectionPolicy()
    reach.name("http://h", Trust.FILE)
    near = {each for each in FORBIDDEN if allowed(reach, each)}
    assert {"127.0.0.1", "10.1.2.3", "192.168.1.1", "::1", "fd00::1"} <= near
    assert not near & {"169.254.169.254", "fe80::1", "0.0.0.0", "::", "224.0.0.1", "64:ff9b::a9fe:a9fe"}
    assert allowed(reach, "127.0.0.1", "https://h"), "where servers lead from http"
    assert not allowed(reach, "127.0.0.1", "http://h:9200"), "another port is another service"
    reach.name("http://h", Trust.OPERATOR)
    reach.name("http://h", Trust.NETWORK)
    assert all(allowed(reach, each) for each in FORBIDDEN)


def catalog_with(base: str) -> dict[str, Any]:
    return {"messagegroups": {"g": {"messages": {"m": {"envelope": "CloudEvents/1.0", "basemessage": base}}}}}


def told(catalog: Catalog) -> str:
    return " ".join(each.message for each in catalog.findings)


def test_a_catalog_of_the_network_cannot_ask_its_neighbours(web: Web) -> None:
    with serving() as other:
        other.routes["/b.json"] = Reply(catalog_with("#/x"))
        web.routes["/c.json"] = Reply(catalog_with(f"{other.url}/b.json#/messagegroups/g/messages/m"))
        found = load([f"{web.url}/c.json"], network=True)
        assert other.asked == [] and "non-public address" in told(found)
        assert not found.pending, "nobody waits for what is never fetched"
        load([f"{web.url}/c.json"], network=True, allow=["127.0.0.1"])
        assert other.asked, "with leave it is"


def test_nor_by_a_redirect_of_the_operators_own_registry(web: Web) -> None:
    with serving() as other:
        other.routes["/b.json"] = Reply(catalog_with("#/x"))
        web.routes["/c.json"] = Reply("", 302, {"Location": f"{other.url}/b.json"})
        with pytest.raises(DocumentError, match="non-public address"):
            load([f"{web.url}/c.json"], network=True)
        assert other.asked == []
        load([f"{web.url}/c.json"], network=True, allow=["127.0.0.0/8"])
        assert other.asked


def test_a_file_may_refer_to_private_addresses(web: Web, tmp_path: Path) -> None:
    web.routes["/b.json"] = Reply(catalog_with("#/x"))
    (tmp_path / "c.json").write_text(json.dumps(catalog_with(f"{web.url}/b.json#/messagegroups/g/messages/m")))
    load([tmp_path / "c.json"], network=True)
    assert web.asked
    (tmp_path / "c.json").write_text(json.dumps(catalog_with("http://169.254.1.1/b.json#/messagegroups/g/messages/m")))
    assert "the non-public address 169.254.1.1" in told(load([tmp_path / "c.json"], network=True))


def test_a_watcher_goes_on_refusing(web: Web) -> None:
    with serving() as other:
        web.routes["/c.json"] = Reply(catalog_with(f"{other.url}/b.json#/messagegroups/g/messages/m"))
        watcher = CatalogWatcher([f"{web.url}/c.json"], 0, network=True)
        for _ in range(3):
            watcher.poll()
        assert other.asked == [] and web.asked


def test_the_address_that_was_judged_is_the_one_connected_to(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.routes["/a"] = Reply("A")
    port = int(web.url.rsplit(":", 1)[1])
    looked: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: Any, *rest: Any, **more: Any) -> Any:
        """Give a good address at the first look-up of a name, and another at every later one."""
        if host != "public.example":
            return real(host, *rest, **more)
        looked.append(host)
        address = "127.0.0.1" if len(looked) == 1 else "127.0.0.2"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    answer = fetch_url(
        f"http://public.example:{port}/a",
        Credentials(Logins()),
        FetchLimits(100, 5.0),
        ConnectionPolicy(["127.0.0.1/32"]),
    )
    assert isinstance(answer, HttpResponse) and answer.data == b"A" and answer.url.startswith("http://public.example")
    assert looked == ["public.example"]
    with pytest.raises(DocumentError, match=r"public\.example has the non-public address 127\.0\.0\.2"):
        fetch_url(
            f"http://public.example:{port}/a",
            Credentials(Logins()),
            FetchLimits(100, 5.0),
            ConnectionPolicy(["127.0.0.1/32"]),
        )


def test_a_proxy_is_not_a_way_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "getproxies", lambda: {"http": "http://127.0.0.1:1"})
    monkeypatch.setattr(connecting, "proxy_bypass", lambda host: False)
    for host in ("169.254.169.254", "127.0.0.1", "localhost"):
        with pytest.raises(DocumentError, match="non-public address"):
            fetch_url(f"http://{host}/latest", Credentials(Logins()), FetchLimits(100, 5.0), ConnectionPolicy())
