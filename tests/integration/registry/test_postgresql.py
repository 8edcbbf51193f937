"""The registry over PostgreSQL: the same cases as over SQLite, and two processes' worth of writers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.postgresql import cluster
from tests.support.registry_cases import Case, cases, clean, run
from tests.support.registry_server import served

CASES = cases()


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with cluster() as url:
        yield url


@pytest.fixture(scope="module")
def client(store: str) -> Iterator[httpx.Client]:
    with served(store) as client:
        yield client


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_case(case: Case, client: httpx.Client) -> None:
    clean(client)
    run(case, client)


def test_two_servers_over_one_database_lose_no_write(store: str, client: httpx.Client) -> None:
    clean(client)
    with served(store) as second:

        def write(number: int) -> int:
            chosen = (client, second)[number % 2]
            return chosen.post("/messagegroups/g/messages/m", json={"labels": {"n": str(number)}}).status_code

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(write, range(100))) == {201}
    versions = client.get("/messagegroups/g/messages/m/versions").json()
    assert sorted(int(each["labels"]["n"]) for each in versions.values()) == list(range(100))
    assert client.get("/messagegroups/g/messages/m/meta").json()["epoch"] == 100
