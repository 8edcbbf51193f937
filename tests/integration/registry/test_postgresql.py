"""The registry over PostgreSQL: the same cases as over SQLite, and two processes' worth of writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import httpx
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from registry.store import engine, history
from registry.store.engine import Database, StoreError, open_database
from registry.store.history import DeliveryProgress, SubscriberRow
from tests.support.cases import spread
from tests.support.postgresql import cluster
from tests.support.registry import Case, cases, clean, run, served
from tests.support.waiting import wait_until

CASES = cases()
T = TypeVar("T")


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with cluster() as url:
        yield url


@pytest.fixture(scope="module")
def client(store: str) -> Iterator[httpx.Client]:
    with served(store) as client:
        yield client


@pytest.mark.parametrize("case", spread(CASES, quick=30), ids=[case.id for case in CASES])
def test_case(case: Case, client: httpx.Client, database: Database) -> None:
    clean(client, database)
    run(case, client)


def test_two_servers_over_one_database_lose_no_write(store: str, client: httpx.Client, database: Database) -> None:
    clean(client, database)
    with served(store) as second:

        def write(number: int) -> int:
            chosen = (client, second)[number % 2]
            return chosen.post("/messagegroups/g/messages/m", json={"labels": {"n": str(number)}}).status_code

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(write, range(100))) == {201}
    versions = client.get("/messagegroups/g/messages/m/versions").json()
    assert sorted(int(each["labels"]["n"]) for each in versions.values()) == list(range(100))
    assert client.get("/messagegroups/g/messages/m/meta").json()["epoch"] == 100


@pytest.fixture(scope="module")
def database(store: str) -> Iterator[Database]:
    database = open_database(store)
    yield database
    database.close()


def meanwhile(database: Database, first: Callable[[Connection], object], then: Callable[[Connection], T]) -> T:
    """Do two things in overlapping transactions: the second waits for the first, and ends after it."""
    waits = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")

    def second() -> T:
        with database.writing_aside() as connection:
            return then(connection)

    def waiting() -> bool:
        with database.reading() as connection:
            return bool(connection.execute(waits).scalar())

    with ThreadPoolExecutor(1) as pool:
        with database.writing_aside() as connection:
            first(connection)
            ended = pool.submit(second)
            wait_until(lambda: waiting() or ended.done(), 30, "a transaction that waits")
        return ended.result(30)


def test_two_processes_may_enter_one_subscriber(database: Database) -> None:
    given = SubscriberRow("entered", "settings", "", "", "{}", 1, 0)
    assert not meanwhile(
        database, lambda first: history.add_subscriber(first, given), lambda then: history.add_subscriber(then, given)
    )


def test_nothing_is_held_for_a_subscriber_that_is_removed_meanwhile(database: Database) -> None:
    with database.writing_aside() as connection:
        history.add_subscriber(connection, SubscriberRow("removed", "settings", "", "", "{}", 1, 0))
    reached = {"removed": DeliveryProgress(4, frozenset((3,)))}
    meanwhile(
        database,
        lambda first: history.remove_subscriber(first, "removed"),
        lambda then: history.store_progress(then, reached),
    )
    with database.reading() as connection:
        assert not history.blocked_events(connection, "removed")


def test_a_permission_and_a_replacement_at_once_both_count(database: Database) -> None:
    given = SubscriberRow("changed", "api", "", "{}", "{}", 1, 0)
    with database.writing_aside() as connection:
        history.add_subscriber(connection, given)

    def replace(connection: Connection) -> None:
        found = history.find_subscriber(connection, "changed", changing=True)
        assert found is not None
        history.replace_subscriber(connection, found)

    meanwhile(database, replace, lambda then: history.store_permission(then, given, '{"granted":true}'))
    with database.reading() as connection:
        found = history.find_subscriber(connection, "changed")
    assert found is not None and (found.revision, found.permission) == (3, '{"granted":true}')


def test_a_store_of_a_later_version_is_left_alone(store: str) -> None:
    url = f"{store}&application_name=later"
    database = open_database(url)
    try:
        with database.writing() as connection:
            known = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        try:
            with pytest.raises(StoreError, match="has an unknown schema"):
                open_database(url)
        finally:
            with database.writing() as connection:
                connection.execute(text("UPDATE alembic_version SET version_num = :known"), {"known": known})
    finally:
        database.close()


def test_a_writer_waits_for_others_so_long(store: str, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_BUSY_SECONDS", 0.3)
    with database.writing(), pytest.raises(OperationalError), database.writing():
        pass
    with database.writing() as connection:
        assert connection.execute(text("SHOW lock_timeout")).scalar() == "300ms"
    with database.reading() as connection:
        assert connection.execute(text("SHOW lock_timeout")).scalar() == "0"
