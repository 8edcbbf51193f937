"""Who may do what in a registry, and how many writes at once; most are cases (``tests/cases/access.yaml``)."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from bindings.gateways import Tls
from bindings.http.request import Access
from registry.errors import Refusal
from registry.http.access import MAX_SENDERS, Roles, WriteRateLimiter
from registry.http.application import RequestLimits
from registry.http.server import RegistryServer, RegistrySettings
from tests.support.cases import read_cases
from tests.support.ports import Authority, Pair
from tests.support.registry import Case, run, served

ACCESS = Access(bearer={"admin": "a-token", "reader": "r-token"}, basic={"writer": "secret"})
ROLES = Roles(frozenset(("admin",)), {"writer": ("/messagegroups/ours*",)})
CASES = read_cases(Path(__file__).parents[2] / "cases" / "access.yaml")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_who_may_do_what(case: dict[str, Any], tmp_path: Path) -> None:
    given = dict(case.get("given", {}))
    if "access" in case:
        given |= {"access": ACCESS, "roles": Roles(anonymous=True) if "anonymous" in case else ROLES}
    if "limits" in case:
        given |= {"limits": RequestLimits(**case["limits"])}
    with served(tmp_path, **given) as client:
        run(Case(case["name"], "", case["steps"]), client)


def test_sizes_are_bounded(tmp_path: Path) -> None:
    with served(tmp_path, limits=RequestLimits(max_body=2000, max_answer=5000)) as client:
        assert client.put("/endpoints/e", content=b"{" + b" " * 3000 + b"}").status_code == 413
        for number in range(20):
            assert client.put(f"/endpoints/e{number}", json={"description": "x" * 500}).status_code == 201
        assert client.get("/endpoints").json()["type"].endswith("#too_large")
        assert client.get("/endpoints").status_code == 406
        assert client.get("/?inline=endpoints").status_code == 406
        assert len(client.get("/endpoints?limit=3").json()) == 3


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
