"""Which versions a write compares, counted at the checker of a family that does the comparing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.compatibility import rules, schemas
from registry.compatibility.schemas import Budget
from tests.support.registry import served

SCHEMA = "/schemagroups/g/schemas/s"


class Counted:
    """Avro's checker, and the pairs that it was asked of, by the ``doc`` of each record."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []
        self.prepared: list[str] = []
        own = rules.CHECKERS["Avro"]

        def prepare(source: Any) -> Any:
            self.prepared.append(source.document["doc"])
            return source.document["doc"], own.prepare(source)

        def unreadable(reader: Any, writer: Any, budget: Budget) -> str:
            self.pairs.append((reader[0], writer[0]))
            return own.find_gap(reader[1], writer[1], budget)

        self.checker = replace(own, prepare=prepare, find_gap=unreadable)

    def taken(self) -> list[tuple[str, str]]:
        """Return the pairs since it was asked last, in order; none was compared or prepared twice."""
        found, prepared = sorted(self.pairs), list(self.prepared)
        self.pairs.clear()
        self.prepared.clear()
        assert len(set(found)) == len(found) and len(set(prepared)) == len(prepared)
        return found


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    monkeypatch.setitem(rules.CHECKERS, "Avro", counted.checker)
    return counted


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with served(tmp_path) as client:
        yield client


def version(number: int) -> dict[str, Any]:
    fields = [{"name": f"f{each}", "type": "int", "default": 0} for each in range(number)]
    return {"format": "Avro", "schema": {"type": "record", "name": "R", "doc": str(number), "fields": fields}}


def filled(client: httpx.Client, rule: str, versions: int = 6) -> None:
    body = {"meta": {"compatibility": rule}, "versions": {str(each): version(each) for each in range(1, versions + 1)}}
    client.put(f"{SCHEMA}$details", json=body).raise_for_status()


def test_a_write_to_one_version_compares_it_with_its_neighbours(client: httpx.Client, counted: Counted) -> None:
    filled(client, "backward")
    assert counted.taken() == [("2", "1"), ("3", "2"), ("4", "3"), ("5", "4"), ("6", "5")]
    client.patch(f"{SCHEMA}/versions/2$details", json={"name": "n"}).raise_for_status()
    assert counted.taken() == [("2", "1"), ("3", "2")]
    client.post(f"{SCHEMA}$details", json=version(7)).raise_for_status()
    assert counted.taken() == [("7", "6")]
    client.patch(f"{SCHEMA}/meta", json={"defaultversionid": "3"}).raise_for_status()
    assert counted.taken() == []


def test_transitive_rules_compare_it_with_all_above_and_below(client: httpx.Client, counted: Counted) -> None:
    filled(client, "backward")
    counted.taken()
    client.patch(f"{SCHEMA}/meta", json={"compatibility": "backward_transitive"}).raise_for_status()
    assert len(counted.taken()) == 15
    client.patch(f"{SCHEMA}/versions/3$details", json={"name": "n"}).raise_for_status()
    assert counted.taken() == [("3", "1"), ("3", "2"), ("4", "3"), ("5", "3"), ("6", "3")]


def test_what_all_versions_cost_is_bounded(
    client: httpx.Client, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(client, "backward")
    counted.taken()
    monkeypatch.setattr(schemas, "MAX_STEPS", 12 * rules.MIN_PAIR_STEPS)
    answer = client.patch(f"{SCHEMA}/meta", json={"compatibility": "backward_transitive"})
    assert (answer.status_code, answer.json()["type"].rpartition("#")[2]) == (400, "compatibility_unknown")
    assert "the schemas are too large to compare" in answer.json()["detail"]
    assert 0 < len(counted.taken()) < 12
    client.patch(f"{SCHEMA}/versions/2$details", json={"name": "n"}).raise_for_status()
