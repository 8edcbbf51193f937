"""History within its limits: what is taken away, what stays, and what that means to those who ask with ETags."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from sqlalchemy import insert, select

from registry.backup import HistoryKeeper, HistoryLimits
from registry.http.application import RequestLimits
from registry.model.attributes import model_source
from registry.store import history
from registry.store.engine import HISTORY, Database, open_database
from router.cli import run_command_line
from tests.support.ports import free_ports
from tests.support.postgresql import cluster
from tests.support.registry import served
from tests.support.waiting import wait_until

LIMIT = 60.0
OFTEN = 0.02


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    with cluster() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    found = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/r.db" if found else request.getfixturevalue("postgresql")
    database = open_database(url)
    with database.writing() as connection:
        connection.execute(HISTORY.delete())
    yield database
    database.close()


def fill(database: Database, *entries: tuple[str, str]) -> list[int]:
    """Write one entry a second, each of an xid and an action; return their numbers."""
    rows: list[dict[str, object]] = [
        {"interaction": f"i{at}", "at": f"2026-01-01T00:{at // 60:02d}:{at % 60:02d}Z", "who": "me", "action": action}
        | {"xid": xid, "epoch": 1, "entity": None}
        for at, (xid, action) in enumerate(entries)
    ]
    with database.writing() as connection:
        for row in rows:
            connection.execute(insert(HISTORY), row)
        return list(connection.execute(select(HISTORY.c.number).order_by(HISTORY.c.number)).scalars())


def left(database: Database) -> list[str]:
    with database.reading() as connection:
        rows = connection.execute(select(HISTORY.c.xid, HISTORY.c.interaction).order_by(HISTORY.c.number))
        return [f"{xid} {interaction}" for xid, interaction in rows]


def pruned(database: Database, upto: int, before: str | None = None) -> tuple[int, int]:
    """Take away all that may go; return how much that was, and in how many transactions."""
    gone, at, steps = 0, 0, 0
    while True:
        with database.writing_aside() as connection:
            found, at = history.find_prunable(connection, at, upto, before)
            gone, steps = gone + history.delete_entries(connection, found), steps + 1
        if not at:
            return gone, steps


WRITES = (
    ("/a", "created"),
    ("/b", "created"),
    ("/a", "updated"),
    ("/c", "created"),
    ("/b", "deleted"),
    ("/a", "updated"),
    ("/d", "created"),
)


def test_the_newest_entry_of_each_entity_that_is_there_stays(database: Database) -> None:
    numbers = fill(database, *WRITES)
    assert pruned(database, numbers[-1])[0] == 4
    assert left(database) == ["/c i3", "/a i5", "/d i6"]
    assert pruned(database, numbers[-1])[0] == 0


def test_the_newest_of_all_stays_even_of_what_is_gone(database: Database) -> None:
    numbers = fill(database, ("/a", "created"), ("/a", "deleted"))
    assert pruned(database, numbers[-1] + 10)[0] == 1
    assert left(database) == ["/a i1"]


def test_entries_go_by_number_or_by_age(database: Database) -> None:
    numbers = fill(database, *WRITES)
    assert pruned(database, numbers[0])[0] == 1
    assert left(database)[0] == "/b i1"
    assert pruned(database, 0, "2026-01-01T00:00:02Z")[0] == 1
    assert left(database)[0] == "/a i2"


def test_many_go_in_small_transactions(database: Database) -> None:
    numbers = fill(database, *([("/a", "updated"), ("/b", "updated")] * 1250))
    gone, steps = pruned(database, numbers[-1])
    assert (gone, steps) == (2498, 4)
    assert [each.split()[0] for each in left(database)] == ["/a", "/b"]


def test_nobody_waits_for_a_look_that_finds_nothing(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/r.db")
    keeper = HistoryKeeper(database, HistoryLimits(keep=1.0, every=OFTEN))
    try:
        fill(database, *[(f"/{number}", "created") for number in range(2500)])
        with database.writing():
            keeper.start()
            wait_until(lambda: keeper.entries >= 2500, LIMIT / 4, "a look beside a writer")
            assert keeper.pruned == 0
    finally:
        keeper.request_stop()
        keeper.join(LIMIT)
        database.close()


@pytest.mark.slow
@pytest.mark.parametrize("limits", [HistoryLimits(entries=20, every=OFTEN), HistoryLimits(keep=0.2, every=OFTEN)])
def test_a_server_keeps_its_history_small_while_it_is_written_to(tmp_path: Path, limits: HistoryLimits) -> None:
    (port,) = free_ports(1)

    def told(name: str) -> float:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        line = next(each for each in text.splitlines() if each.startswith(f"xrouter_registry_history_{name} "))
        return float(line.split()[1])

    with served(tmp_path, history=limits, metrics=("127.0.0.1", port)) as client:
        for number in range(60):
            client.put(f"/messagegroups/g{number % 3}", json={"name": str(number)}).raise_for_status()
        # The last look may have been before most of the writes: the number of entries alone says nothing.
        wait_until(
            lambda: told("pruned_total") > 30 and told("entries") <= 24, LIMIT, lambda: f"{told('entries')} entries"
        )
        assert [each["epoch"] for each in client.get("/messagegroups").json().values()] == [20, 20, 20]
    with closing(open_database(f"sqlite:///{tmp_path}/registry.db")) as database:
        kept = left(database)
    assert {each.split()[0] for each in kept} >= {f"/messagegroups/g{number}" for number in range(3)} | {"/"}


def test_what_stays_says_what_each_entity_became(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        path = "/messagegroups/g/messages/m"
        client.put(path, json={"name": "first"}).raise_for_status()
        for name in ("second", "third"):
            client.patch(path, json={"name": name}).raise_for_status()
        client.put("/modelsource", json=model_source()).raise_for_status()
        client.patch("/capabilities", json={"pagination": False}).raise_for_status()
        client.put("/modelsource", json={**model_source(), "description": "ours"}).raise_for_status()
        client.put("/messagegroups/h", json={}).raise_for_status()
        meta, group = client.get(f"{path}/meta").json(), client.get("/messagegroups/g").json()
    database = open_database(f"sqlite:///{tmp_path}/registry.db")
    assert pruned(database, 10**9)[0] > 3
    with database.reading() as connection:
        rows = connection.execute(select(HISTORY.c.xid, HISTORY.c.epoch, HISTORY.c.entity)).all()
    database.close()
    kept = {xid: (epoch, json.loads(entity or "null")) for xid, epoch, entity in rows}
    assert len(kept) == len(rows) and [xid for xid, (_, entity) in kept.items() if entity is None] == ["/model"]
    assert all(epoch for epoch, _ in kept.values())
    assert (kept[path][0], kept[path][1]["defaultversionid"]) == (meta["epoch"], "1")
    assert kept[f"{path}/versions/1"][1]["name"] == "third"
    assert kept["/messagegroups/g"][0] == group["epoch"]
    assert kept["/modelsource"][1]["description"] == "ours"
    assert kept["/capabilities"][1] == {"pagination": False}


def test_etags_hold_when_history_goes(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        for number in range(10):
            client.put("/messagegroups/g", json={"name": str(number)}).raise_for_status()
        tag = client.get("/messagegroups").headers["etag"]
        with closing(open_database(f"sqlite:///{tmp_path}/registry.db")) as database:
            assert pruned(database, 10**9)[0] > 5
        again = client.get("/messagegroups", headers={"if-none-match": tag})
        assert (again.status_code, again.headers["etag"]) == (304, tag)
        client.put("/messagegroups/g", json={"name": "more"}).raise_for_status()
        assert client.get("/messagegroups", headers={"if-none-match": tag}).status_code == 200


WRITTEN = (
    ("PUT", "/endpoints/e", {"name": "one", "labels": {"a": "1"}}),
    ("PUT", "/endpoints/e", {"name": "two"}),
    ("DELETE", "/endpoints/e", None),
)
SHOWN = """deleted  /endpoints/e
    - /name: "two"
updated  /endpoints/e
    ~ /name: "one" -> "two"
    - /labels: {"a":"1"}
created  /endpoints/e
    + /name: "one"
    + /labels: {"a":"1"}
"""


def test_the_command_shows_history_of_settings_and_of_a_url(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    config = tmp_path / "registry.yaml"
    config.write_text("open: true\n")
    with served(tmp_path) as client:
        for method, path, body in WRITTEN:
            client.request(method, path, json=body).raise_for_status()
        for source in (str(config), str(client.base_url)):
            status = run_command_line(["registry", "history", source, "/endpoints/e"])
            seen = capsysbinary.readouterr()
            assert status == 0, seen.err
            told = seen.out.decode()
            assert re.sub("(?m)^[^ ]+Z  -  ", "", told) == SHOWN
            limited = ["registry", "history", source, "--limit", "2", "--oldest", "--format", "json"]
            assert run_command_line(limited) == 0
            entries = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
            assert [(each["number"], each["action"]) for each in entries] == [(1, "updated"), (2, "created")]
            assert "changed" not in entries[0]  # what the registry was before its first entry is not kept
    assert run_command_line(["registry", "history", str(config), "endpoints/e"]) == 1


def test_an_update_whose_former_entry_is_gone_claims_no_change(tmp_path: Path) -> None:
    with served(tmp_path) as client, closing(open_database(f"sqlite:///{tmp_path}/registry.db")) as database:
        for name in ("one", "two"):
            client.put("/endpoints/e", json={"name": name}).raise_for_status()
        numbers = [each["number"] for each in client.get("/history.json?xid=/endpoints/e").json()]
        with database.writing() as connection:
            history.delete_entries(connection, numbers[1:])
        (entry,) = client.get("/history.json?xid=/endpoints/e").json()
        assert entry["action"] == "updated" and "changed" not in entry


def test_a_page_of_history_ends_before_it_is_too_large(tmp_path: Path) -> None:
    with served(tmp_path, limits=RequestLimits(max_answer=20_000)) as client:
        for each in range(12):
            client.put("/endpoints/e", json={"description": f"{each}" * 2_000}).raise_for_status()
        found: list[int] = []
        link = "/history.json?xid=/endpoints/e"
        pages = 0
        while link:
            page = client.get(link)
            assert page.status_code == 200 and len(page.content) < 20_000
            found += [each["number"] for each in page.json()]
            link = page.links.get("next", {}).get("url", "")
            pages += 1
        assert len(found) == 12 and found == sorted(found, reverse=True) and pages > 2
