"""The registry's API over SQLite, held by the cases that are written from the specification."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.registry_cases import Case, cases, clean, run
from tests.support.registry_server import served

CASES = cases()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with served(tmp_path_factory.mktemp("registry")) as client:
        yield client


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_case(case: Case, client: httpx.Client) -> None:
    clean(client)
    run(case, client)


def test_each_case_names_its_section_and_there_are_many() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    assert all(case.section for case in CASES)
