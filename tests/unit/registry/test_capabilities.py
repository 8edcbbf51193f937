"""Capabilities that clients change: kept over restarts, and told of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select

from registry.core.responses import CAPABILITIES
from registry.store.engine import OUTBOX
from tests.support.registry import served


def events(folder: Path) -> list[tuple[str, str, Any]]:
    engine = create_engine(f"sqlite:///{folder}/registry.db")
    with engine.connect() as connection:
        rows = connection.execute(select(OUTBOX.c.type, OUTBOX.c.subject, OUTBOX.c.data).order_by(OUTBOX.c.number))
        found = [(kind, subject, json.loads(data or "null")) for kind, subject, data in rows]
    engine.dispose()
    return found


def test_they_outlive_the_server(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        epoch = client.get("/").json()["epoch"]
        assert client.patch("/capabilities", json={"flags": ["inline"]}).json()["flags"] == ["inline"]
        assert client.get("/").json()["epoch"] == epoch + 1
    with served(tmp_path) as client:
        assert client.get("/capabilities").json()["flags"] == ["inline"]
        tag = client.get("/capabilities").headers["etag"]
        assert client.get("/capabilities", headers={"if-none-match": tag}).status_code == 304
        client.put("/capabilities", json={}).raise_for_status()
        again = client.get("/capabilities", headers={"if-none-match": tag})
        assert "filter" in again.json()["flags"]


def test_events_tell_which_have_changed(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        client.patch("/capabilities", json={"flags": ["inline"], "pagination": False}).raise_for_status()
    found = {kind: (subject, data["changed"]) for kind, subject, data in events(tmp_path) if data}
    assert found["io.xregistry.capabilities.updated"] == ("/capabilities", ["flags", "pagination"])
    assert "capabilities" in found["io.xregistry.registry.updated"][1]


def test_what_a_later_release_adds_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as client:
        client.patch("/capabilities", json={"flags": ["inline"], "ignores": []}).raise_for_status()
    for name in ("flags", "ignores"):
        monkeypatch.setitem(CAPABILITIES, name, [*CAPABILITIES[name], "later"])
    with served(tmp_path) as client:
        shown = client.get("/capabilities").json()
        assert (shown["flags"], shown["ignores"]) == (["inline", "later"], ["later"])


def test_they_are_the_same_within_the_root(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        alone = client.get("/capabilities").json()
        assert client.get("/?inline=capabilities").json()["capabilities"] == alone
        assert all(each.keys() == {"mutable"} for each in alone["available"].values())
