"""Who may do what in a registry, and how many writes at once."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from bindings.gateways import Tls
from bindings.http.request import Access
from registry.errors import Refusal
from registry.http.access import MAX_SENDERS, Roles, WriteRateLimiter
from registry.http.application import RequestLimits
from registry.http.server import RegistryServer, RegistrySettings
from tests.support.ports import Authority, Pair
from tests.support.registry import served

ACCESS = Access(bearer={"admin": "a-token", "reader": "r-token"}, basic={"writer": "secret"})
ROLES = Roles(frozenset(("admin",)), {"writer": ("/messagegroups/ours*",)})
ADMIN = {"authorization": "Bearer a-token"}
READER = {"authorization": "Bearer r-token"}


def test_strangers_are_let_in_nowhere(tmp_path: Path) -> None:
    with served(tmp_path, access=ACCESS, roles=ROLES) as client:
        for method, path in (("GET", "/"), ("PUT", "/endpoints/e"), ("OPTIONS", "/"), ("GET", "/nothing")):
            assert client.request(method, path).status_code == 401
        assert client.get("/", headers={"authorization": "Bearer wrong"}).status_code == 401


def test_anonymous_reading_is_given_when_it_is_asked_for(tmp_path: Path) -> None:
    with served(tmp_path, access=ACCESS, roles=Roles(anonymous=True)) as client:
        assert client.get("/").status_code == 200
        assert client.put("/endpoints/e", json={}).status_code == 401
        assert client.get("/", headers={"authorization": "Bearer wrong"}).status_code == 401


def test_readers_read(tmp_path: Path) -> None:
    with served(tmp_path, access=ACCESS, roles=ROLES) as client:
        assert client.get("/", headers=READER).status_code == 200
        refused = client.put("/endpoints/e", json={}, headers=READER)
        assert refused.status_code == 403
        assert refused.json()["type"] == "urn:xrouter:registry:forbidden"
        assert client.patch("/", json={}, headers=READER).status_code == 403
        assert client.put("/", json={"createdat": None}, headers=READER).status_code == 403
        assert client.put("/capabilities", json={}, headers=READER).status_code == 403
        assert client.get("/", headers=READER).json()["epoch"] == 1
        assert client.get("/endpoints/e", headers=READER).status_code == 404


def test_writers_write_to_their_groups(tmp_path: Path) -> None:
    with served(tmp_path, access=ACCESS, roles=ROLES, delivery=None) as client:
        client.auth = ("writer", "secret")
        assert client.put("/messagegroups/ours.1/messages/m", json={}).status_code == 201
        assert client.put("/messagegroups/theirs/messages/m", json={}).status_code == 403
        assert client.post("/messagegroups", json={"ours": {}, "theirs": {}}).status_code == 403
        assert client.post("/", json={"messagegroups": {"ours": {}}}).status_code == 200
        assert client.put("/", json={"name": "mine"}).status_code == 403
        assert client.put("/modelsource", json={}).status_code == 403
        assert client.delete("/messagegroups/theirs").status_code == 403
        assert client.delete("/messagegroups").status_code == 204
        assert client.get("/messagegroups").json() == {}


def test_only_administrators_make_resources_read_only_and_change_those(tmp_path: Path) -> None:
    with served(tmp_path, access=ACCESS, roles=ROLES) as client:
        path = "/messagegroups/ours/messages/m"
        assert client.put(path, json={}, headers=ADMIN).status_code == 201
        client.auth = ("writer", "secret")
        assert client.patch(f"{path}/meta", json={"readonly": True}).json()["readonly"] is False
        with httpx.Client(base_url=client.base_url, headers=ADMIN) as admin:
            assert admin.patch(f"{path}/meta", json={"readonly": True}).json()["readonly"] is True
        for refused in (
            client.put(path, json={}),
            client.post(path, json={}),
            client.delete(path),
            client.delete("/messagegroups/ours"),
            client.delete(f"{path}/versions/1"),
        ):
            assert refused.json()["type"].endswith("#readonly"), refused.text
        assert client.put(f"{path}?ignore=readonly", json={}).json()["type"].endswith("#bad_flag")
        told = client.post("/messagegroups/ours/messages?ignore=readonly", json={"m": {"name": "x"}, "n": {}})
        assert list(told.json()) == ["n"]
        assert client.delete("/messagegroups/ours/messages?ignore=readonly").status_code == 204
        assert list(client.get("/messagegroups/ours/messages").json()) == ["m"]


def test_writes_are_paced_and_reads_are_not(tmp_path: Path) -> None:
    with served(tmp_path, writes_per_second=0.001, write_burst=2) as client:
        codes = [client.put(f"/endpoints/e{number}", json={}).status_code for number in range(3)]
        assert codes == [201, 201, 429]
        refused = client.delete("/endpoints")
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["type"] == "urn:xrouter:registry:rate_limited"
        assert {client.get("/").status_code for _ in range(5)} == {200}


def test_sizes_are_bounded(tmp_path: Path) -> None:
    with served(tmp_path, limits=RequestLimits(max_body=2000, max_answer=5000)) as client:
        assert client.put("/endpoints/e", content=b"{" + b" " * 3000 + b"}").status_code == 413
        for number in range(20):
            assert client.put(f"/endpoints/e{number}", json={"description": "x" * 500}).status_code == 201
        assert client.get("/endpoints").json()["type"].endswith("#too_large")
        assert client.get("/endpoints").status_code == 406
        assert client.get("/?inline=endpoints").status_code == 406
        assert len(client.get("/endpoints?limit=3").json()) == 3


def test_errors_of_lint_refuse_a_write_and_warnings_are_told(tmp_path: Path) -> None:
    broken = {"protocol": "AMQP/1.0", "protocoloptions": {"properties": 5}}
    with served(tmp_path) as client:
        refused = client.put("/messagegroups/g/messages/m", json=broken)
        assert refused.status_code == 400
        assert refused.json()["type"] == "urn:xrouter:registry:findings"
        assert any(each["severity"] == "error" for each in refused.json()["findings"])
        assert client.get("/messagegroups/g").status_code == 404
        taken = client.put("/messagegroups/g/messages/m", json={})
        assert taken.status_code == 201
        assert taken.headers["xrouter-finding"].startswith("warning takes-everything /messagegroups/g/messages/m")
    with served(tmp_path, lint="off") as client:
        assert client.put("/messagegroups/g/messages/n", json=broken).status_code == 201


@pytest.mark.slow
@pytest.mark.parametrize("host", ["evil.example>;rel=x", "a b", "x/y"])
def test_a_host_that_is_none_is_no_part_of_answers(host: str, tmp_path: Path) -> None:
    with served(tmp_path) as client:
        answer = client.get("/", headers={"host": host})
        assert answer.status_code == 400 or answer.json()["self"] == "http://localhost/"


def test_certificates_name_their_clients(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours", "ours"), Authority(tmp_path / "theirs", "theirs")
    server = ours.sign("server", alternatives="IP:127.0.0.1")
    roles = Roles(frozenset(("boss",)), {"clerk": ("/messagegroups/*",)})
    tls = Tls(ours.certificate, server.certificate, server.key)
    registry = RegistryServer(RegistrySettings(f"sqlite:///{tmp_path}/r.db", port=0, roles=roles, tls=tls))
    registry.start()
    try:

        def client(pair: Pair | None) -> httpx.Client:
            context = ssl.create_default_context(cafile=str(ours.certificate))
            if pair is not None:
                context.load_cert_chain(pair.certificate, pair.key)
            return httpx.Client(base_url=f"https://127.0.0.1:{registry.port}", verify=context, timeout=30)

        with (
            client(ours.sign("clerk")) as clerk,
            client(ours.sign("boss")) as boss,
            client(ours.sign("guest")) as guest,
        ):
            assert clerk.put("/messagegroups/g", json={}).status_code == 201
            assert clerk.put("/endpoints/e", json={}).status_code == 403
            assert boss.put("/endpoints/e", json={}).json()["self"].startswith("https://127.0.0.1:")
            assert guest.get("/endpoints/e").status_code == 200
            assert guest.put("/messagegroups/g", json={}).status_code == 403
        for stranger in (None, theirs.sign("boss")):
            with client(stranger) as none, pytest.raises(httpx.HTTPError):
                none.get("/")
    finally:
        registry.stop()


def test_strangers_have_a_pace_of_their_own_for_each_address(tmp_path: Path) -> None:
    def asked(client: httpx.Client) -> list[bool]:
        return [client.get("/permissions/x?key=y").status_code == 429 for _ in range(4)]

    with served(tmp_path, writes_per_second=0.001, write_burst=2) as client:
        assert asked(client) == [False, False, True, True]
        with httpx.Client(
            base_url=client.base_url, transport=httpx.HTTPTransport(local_address="127.0.0.2")
        ) as neighbour:
            assert asked(neighbour) == [False, False, True, True]
        puts = [client.put(f"/messagegroups/g{number}", json={}).status_code for number in range(3)]
        assert puts == [201, 201, 429]


def test_of_very_many_senders_the_latest_are_counted() -> None:
    pace = WriteRateLimiter(0.001, 1)
    for number in range(MAX_SENDERS + 1):
        pace.count_write(str(number), stranger=True)
    pace.count_write("0", stranger=True)
    pace.count_write(str(MAX_SENDERS))
    with pytest.raises(Refusal):
        pace.count_write(str(MAX_SENDERS), stranger=True)
