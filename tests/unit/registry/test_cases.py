"""The registry's API over SQLite, held by the cases that are written from the specification."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from registry.store.engine import Database, open_database
from tests.support.registry import Case, cases, clean, run, served

CASES = cases()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('registry')}/registry.db"


@pytest.fixture(scope="module")
def client(store: str) -> Iterator[httpx.Client]:
    with served(store) as client:
        yield client


@pytest.fixture(scope="module")
def database(store: str, client: httpx.Client) -> Iterator[Database]:
    with closing(open_database(store)) as database:
        yield database


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_case(case: Case, client: httpx.Client, database: Database) -> None:
    clean(client, database)
    run(case, client)


def test_each_case_names_its_section_and_there_are_many() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    assert all(case.section for case in CASES)
