"""A registry copied while it is served, and put back from the copy; a document that loses nothing, or is refused."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry import backup as upkeep
from registry.store.engine import StoreError
from router.cli import run_command_line
from tests.support.postgresql import cluster
from tests.support.registry import served
from tests.support.waiting import repeating


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "registry.yaml"
    path.write_text("open: true\n")
    return path


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    with cluster() as url:
        yield url


def everything(client: httpx.Client) -> tuple[Any, Any]:
    """All entities, as text that knows no port, and all of history."""
    text = client.get("/?inline").text.replace(str(client.base_url).rstrip("/"), "")
    return json.loads(text), client.get("/history.json").json()


@pytest.mark.slow
def test_a_copy_that_is_made_between_writes_has_what_was_answered(tmp_path: Path, config: Path) -> None:
    copy = tmp_path / "copy"
    with served(tmp_path) as client:
        client.put("/schemagroups/g/schemas/s", content=b"{}").raise_for_status()
        with repeating(lambda number: client.put(f"/endpoints/e{number}", json={}).raise_for_status(), 0.0):
            assert run_command_line(["registry", "backup", str(config), str(copy)]) == 0
        before = everything(client)
        assert run_command_line(["registry", "backup", str(config), str(copy)]) == 1  # it is there
        assert run_command_line(["registry", "backup", str(config), str(copy), "--force"]) == 0
        client.delete("/endpoints").raise_for_status()
        assert run_command_line(["registry", "restore", str(config), str(copy), "--force"]) != 0  # it is served
        assert client.get("/endpoints").json() == {}
    assert not list(tmp_path.glob(".*.part*"))
    assert run_command_line(["registry", "restore", str(config), str(copy)]) != 0  # it is there
    assert run_command_line(["registry", "restore", str(config), str(copy), "--force"]) == 0
    assert not list(tmp_path.glob(".*.part*"))
    with served(tmp_path) as client:
        assert everything(client) == before
        assert client.get("/schemagroups/g/schemas/s").content == b"{}"
        client.put("/endpoints/later", json={}).raise_for_status()


def test_what_is_no_sound_copy_is_refused_and_the_store_stays(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(tmp_path) as client:
        client.put("/endpoints/e", json={}).raise_for_status()
    bad = tmp_path / "bad"
    bad.write_bytes(b"no database" * 1000)
    with closing(sqlite3.connect(tmp_path / "other")) as other:
        other.execute("CREATE TABLE a (b)")
    assert run_command_line(["registry", "backup", str(config), str(tmp_path / "damaged")]) == 0
    whole = (tmp_path / "damaged").read_bytes()
    (tmp_path / "damaged").write_bytes(whole[: len(whole) // 2 // 4096 * 4096])
    for name, told in (("bad", "cannot be copied"), ("other", "no registry"), ("damaged", ""), ("nothing", "No such")):
        assert run_command_line(["registry", "restore", str(config), str(tmp_path / name), "--force"]) != 0, name
        assert told in capsys.readouterr().err
    with served(tmp_path) as client:
        assert client.get("/endpoints/e").status_code == 200


@pytest.mark.slow
def test_postgresql_is_copied_and_put_back_by_its_own_tools(postgresql: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with served(postgresql) as client:
        client.put("/endpoints/e", json={"name": "kept"}).raise_for_status()
        upkeep.back_up(postgresql, copy)
        before = everything(client)
        client.delete("/endpoints").raise_for_status()
    with pytest.raises(StoreError, match="has a registry"):
        upkeep.restore_backup(postgresql, copy, force=False)
    upkeep.restore_backup(postgresql, copy, force=True)
    with served(postgresql) as client:
        assert everything(client) == before
        client.put("/endpoints/later", json={}).raise_for_status()


def test_without_the_tools_of_postgresql_the_error_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "registry.yaml"
    config.write_text("open: true\nstore: {url: postgresql://me@localhost/none}\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_command_line(["registry", "backup", str(config), str(tmp_path / "copy")]) != 0
    told = capsys.readouterr().err
    assert "pg_dump is missing" in told and "postgresql-client" in told
    assert not list(tmp_path.glob("*copy*"))


SHELVES = {"shelves": {"singular": "shelf", "resources": {"books": {"singular": "book", "hasdocument": True}}}}


def full(client: httpx.Client) -> None:
    """Give a registry what a document can lose: its own attributes, a type of groups, bytes, epochs and an xref."""
    source = client.get("/modelsource").json()
    groups = {**source["groups"], **SHELVES}
    client.patch("/", json={"name": "ours", "labels": {"a": "1"}, "modelsource": {**source, "groups": groups}})
    client.patch("/capabilities", json={"flags": ["doc", "inline", "filter"]}).raise_for_status()
    for version in ("1", "2"):
        path = f"/shelves/a/books/b/versions/{version}"
        client.put(path, content=b"\x00\xff" + version.encode()).raise_for_status()
    client.patch("/shelves/a/books/b/meta", json={"defaultversionid": "1", "defaultversionsticky": True})
    client.put("/shelves/a/books/x/meta", json={"xref": "/shelves/a/books/b"}).raise_for_status()
    for name in ("one", "two", "three"):
        client.put("/endpoints/e", json={"name": name}).raise_for_status()


@pytest.mark.slow
def test_a_document_loses_nothing_when_it_is_asked_not_to(tmp_path: Path, config: Path) -> None:
    with served(tmp_path) as client:
        full(client)
        before = everything(client)[0]
        book = client.get("/shelves/a/books/b").content
    document = tmp_path / "all.xreg.json"
    assert run_command_line(["registry", "export", str(config), str(document)]) == 0
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "registry.yaml"
    other.write_text("open: true\n")
    importing = ["registry", "import", str(other), str(document)]
    assert run_command_line([*importing, "--model", "--exact"]) == 0
    with served(tmp_path / "other") as client:
        after = everything(client)[0]
        # The reference has nothing of its own but the time that it was made.
        for each in (before, after):
            del each["shelves"]["a"]["books"]["x"]
        assert after == before
        assert client.get("/shelves/a/books/b").content == book == b"\x00\xff1"
    again = tmp_path / "again.xreg.json"
    assert run_command_line(["registry", "export", str(other), str(again)]) == 0
    one, two = (json.loads(each.read_text()) for each in (document, again))
    assert one == two
    assert run_command_line([*importing, "--exact"]) == 1  # it has groups by now
    assert run_command_line(importing) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "options", "told"),
    [
        ({}, [], "different capabilities and modelsource than this registry"),
        ({}, ["--no-model"], "shelves"),
        ({"nonsense": {"a": {}}}, ["--model"], "nonsense"),
    ],
)
def test_what_a_registry_cannot_take_of_a_document_is_an_error(
    change: dict[str, Any],
    options: list[str],
    told: str,
    tmp_path: Path,
    config: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with served(tmp_path) as client:
        full(client)
    document = tmp_path / "all.xreg.json"
    assert run_command_line(["registry", "export", str(config), str(document)]) == 0
    document.write_text(json.dumps({**json.loads(document.read_text()), **change}))
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "registry.yaml"
    other.write_text("open: true\n")
    assert run_command_line(["registry", "import", str(other), str(document), *options]) != 0
    assert told in capsys.readouterr().err
    with served(tmp_path / "other") as client:
        found = client.get("/").json()
        assert found["epoch"] == 1 and found["endpointscount"] == 0 and "name" not in found
