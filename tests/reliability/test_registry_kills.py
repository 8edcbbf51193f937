"""A registry that is killed while it is written to: every write that was answered is there, and none by half.

Its events are delivered at least once, none of them without its write, and those of each entity in order.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select

from registry.store.engine import DOCUMENTS, GROUPS, HISTORY, RESOURCES, VERSIONS, open_database
from tests.support.postgresql import cluster
from tests.support.registry import LIMIT_SECONDS, Served, kill_under_writes, until
from tests.support.web import Answer, Taken, Webhook

WRITERS = 4


def serve(folder: Path, store: str, hook: Webhook, name: str = "registry") -> Served:
    """Serve a registry that tells *hook* of its events."""
    target = f"subscribers: {{audit: {{to: {{type: http, url: '{hook.url}/hook'}}}}}}"
    return Served(folder, store, f"base_url: https://reg.example\nevents: {{{target}}}", name=name)


class Writer(threading.Thread):
    """Writes messages, each with a schema, and remembers which writes were answered."""

    def __init__(self, number: int, port: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.answered: list[str] = []
        self.tried: list[str] = []
        self._port = port
        self._stopping = stop

    def run(self) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=10) as client:
            while not self._stopping.is_set():
                name = f"{self.number}-{len(self.tried)}"
                self.tried.append(name)
                schema = {"schemas": {name: {"schema": {"title": name}, "versions": {}}}}
                body = {
                    "messagegroups": {f"g{name}": {"messages": {name: {"name": name}}}},
                    "schemagroups": {"s": schema},
                }
                try:
                    if client.post("/", json=body).status_code == 200:
                        self.answered.append(name)
                except httpx.HTTPError:
                    pass  # whether it was written is not known


def endure(folder: Path, store: str, url: str, *, writes: int, kills: int, beside: bool = False) -> None:
    """Kill the registry while it is written to, then look at what it has, and at what was told of it.

    *beside* has another process serve the same store, which nobody kills and nobody writes to.
    """
    with Webhook(_whole) as hook:
        served = serve(folder, store, hook)
        other = serve(folder, store, hook, "beside") if beside else None
        answered, tried = _written(served, writes, kills)
        try:
            messages = look(url, answered, tried)
            until(lambda: len(_told(hook)) >= len(messages), "events stand still")
        finally:
            for each in (served, other):
                assert each is None or each.stop() == 0
        check_events(hook, messages)


def _whole(request: Taken) -> Answer:
    """Take what has come whole: who is killed may be in the middle of a request."""
    return Answer(204 if len(request.body) == int(request.header("Content-Length") or 0) else 400)


def _written(served: Served, writes: int, kills: int) -> tuple[set[str], set[str]]:
    """Write, and kill the registry now and then; return the names of what was answered, and of what was tried."""
    stop = threading.Event()
    writers = [Writer(number, served.port, stop) for number in range(WRITERS)]
    kill_under_writes(served, writers, lambda: sum(len(each.answered) for each in writers), writes=writes, kills=kills)
    stop.set()
    for writer in writers:
        writer.join(LIMIT_SECONDS)
    return {name for writer in writers for name in writer.answered}, {n for w in writers for n in w.tried}


def look(url: str, answered: set[str], tried: set[str]) -> set[tuple[str, str]]:
    """Hold the store against what was answered and tried; return interaction and xid of every change."""
    database = open_database(url)
    with database.reading() as connection:
        messages = {row[0] for row in connection.execute(select(RESOURCES.c.id).where(RESOURCES.c.xid.like("/m%")))}
        schemas = {row[0] for row in connection.execute(select(RESOURCES.c.id).where(RESOURCES.c.xid.like("/s%")))}
        assert answered <= messages == schemas <= tried
        count = len(messages)
        numbers = {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (GROUPS, VERSIONS, DOCUMENTS)
        }
        assert numbers == {"groups": count + 1, "versions": 2 * count, "documents": count}
        rows = connection.execute(select(HISTORY.c.interaction, HISTORY.c.xid, HISTORY.c.action)).all()
    database.close()
    assert {xid.split("/")[-1] for _, xid, action in rows if action == "created" and xid.count("/") == 4} == messages
    return {(interaction, xid) for interaction, xid, _ in rows}


def _told(hook: Webhook) -> set[tuple[str, str]]:
    """Return interaction and xid of every event that was taken."""
    with hook.lock:
        taken = [json.loads(each.body) for each in hook.taken]
    return {(each["xregcorrelationid"], each["subject"]) for each in taken}


def check_events(hook: Webhook, changes: set[tuple[str, str]]) -> None:
    """Hold what was told against the history: all of it, nothing else, and each entity's in order."""
    assert _told(hook) == changes
    first: dict[str, dict[int, None]] = {}
    for event in (json.loads(each.body) for each in hook.taken):
        first.setdefault(event["subject"], {})[int(event["id"].rpartition("-")[2])] = None
    assert all(list(numbers) == sorted(numbers) for numbers in first.values())


@pytest.fixture
def database() -> Iterator[str]:
    with cluster() as url:
        yield url


def test_postgresql(tmp_path: Path, database: str) -> None:
    endure(tmp_path, f"url: '{database}'", database, writes=30, kills=1, beside=True)


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_two_thousand_writes(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    if kind == "sqlite":
        endure(tmp_path, "path: ./r.db", f"sqlite:///{tmp_path}/r.db", writes=2000, kills=20)
        return
    url = request.getfixturevalue("database")
    endure(tmp_path, f"url: '{url}'", url, writes=2000, kills=20, beside=True)
