"""The registry's API over SQLite, held by the cases that are written from the specification."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from registry.http.server import RegistryServer, RegistrySettings
from tests.support.registry_cases import Case, cases, clean, run

CASES = cases()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("registry")
    settings = RegistrySettings(f"sqlite:///{folder}/registry.db", port=0, writes_per_second=1e6, write_burst=10**6)
    server = RegistryServer(settings)
    server.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=30) as client:
        yield client
    server.stop()


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_case(case: Case, client: httpx.Client) -> None:
    clean(client)
    run(case, client)


def test_each_case_names_its_section_and_there_are_many() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    assert all(case.section for case in CASES)
