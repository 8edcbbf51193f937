"""A registry whose disk is full: 507 with a plain reason, no traceback, nothing half written, and reads go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.support.registry import served

PAGES = 400


@pytest.fixture
def little_room() -> Iterator[None]:
    """Let SQLite's files grow to so many pages only: from there on it answers as on a disk that is full."""

    def limit(connection: Any, _record: Any) -> None:
        connection.execute(f"PRAGMA max_page_count = {PAGES}").close()

    event.listen(Engine, "connect", limit)
    yield
    event.remove(Engine, "connect", limit)


@pytest.mark.slow
def test_a_full_disk_answers_507(tmp_path: Path, little_room: None, caplog: pytest.LogCaptureFixture) -> None:
    body = {"description": "x" * 3000}
    with served(f"sqlite:///{tmp_path}/registry.db") as client:
        answers = [client.put(f"/endpoints/{number}", json=body) for number in range(PAGES)]
        full = next(each for each in answers if not each.is_success)
        assert full.status_code == 507
        assert full.json()["type"].endswith(":storage_full") and "disk is full" in full.json()["title"]
        refused = full.request.url.path
        assert client.get(refused).status_code == 404
        assert client.get("/endpoints/0").json()["description"] == body["description"]
    assert "Traceback" not in caplog.text
