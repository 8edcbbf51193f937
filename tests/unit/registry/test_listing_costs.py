"""What a listing costs: statements of the store, which do not grow with the entities that it shows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event
from sqlalchemy.pool import Pool

from tests.support.registry import served

MANY = 300


@contextmanager
def counted() -> Iterator[list[str]]:
    """Give the statements of all stores of this process that read entities, as they come."""
    found: list[str] = []

    def note(statement: str) -> None:
        if any(f"FROM {table}" in statement for table in ("groups", "resources", "versions")):
            found.append(statement)

    def watch(connection: sqlite3.Connection, *_: Any) -> None:
        connection.set_trace_callback(note)

    event.listen(Pool, "checkout", watch)
    try:
        yield found
    finally:
        event.remove(Pool, "checkout", watch)
    assert found, "nothing was counted"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("registry")
    files = {"files": {"singular": "file", "hasdocument": False}}
    model = {"groups": {"dirs": {"singular": "dir"}, "boxes": {"singular": "box", "resources": files}}}
    with served(folder, delivery=None) as client:
        client.put("/modelsource", json=model).raise_for_status()
        named: dict[str, Any] = {f"e{number:03d}": {"name": f"n{MANY - number}"} for number in range(MANY)}
        client.post("/dirs", json=named).raise_for_status()
        client.post("/boxes/b/files", json=named).raise_for_status()
        client.post("/boxes/b/files/e000/versions", json=named).raise_for_status()
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/dirs", "/boxes/b/files", "/boxes/b/files/e000/versions"])
def test_sorted_collections_are_read_many_at_a_time(client: httpx.Client, path: str) -> None:
    with counted() as statements:
        shown = client.get(f"{path}?sort=name=desc&limit=1000").raise_for_status().json()
    assert len(shown) >= MANY
    names = [each["name"] for each in shown.values() if "name" in each]
    assert names == sorted(names, reverse=True)
    assert len(statements) < 25


@pytest.mark.slow
def test_versions_that_a_write_made_are_read_many_at_a_time(client: httpx.Client) -> None:
    given: dict[str, Any] = {f"v{number:03d}": {} for number in range(MANY)}
    with counted() as statements:
        answer = client.post("/boxes/b/files/e001/versions", json=given).raise_for_status().json()
    assert list(answer) == list(given)
    assert len([each for each in statements if each.startswith("SELECT")]) < 25
