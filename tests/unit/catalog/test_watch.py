"""The watcher: each change once, good or refused, and never before its time."""

from __future__ import annotations

import json
from pathlib import Path

from catalog.load import load
from catalog.model import Catalog
from catalog.watch import CatalogWatcher, Refusal


def write(path: Path, content_type: str, base: str | None = None) -> None:
    message = {"datacontenttype": content_type, "basemessage": base}
    path.write_text(json.dumps({"messagegroups": {"g": {"messages": {"m": message}}}}))


def test_each_change_is_told_once(tmp_path: Path) -> None:
    path, now = tmp_path / "c.json", [0.0]
    write(path, "a/b")
    watcher = CatalogWatcher([path], 5.0, current=load([path]), clock=lambda: now[0])
    assert watcher.poll() is None

    write(path, "c/d")
    assert watcher.poll() is None
    now[0] = 5.0
    changed = watcher.poll()
    assert isinstance(changed, Catalog)
    assert changed.definitions["/messagegroups/g/messages/m"].datacontenttype == "c/d"

    path.write_text(json.dumps(json.loads(path.read_text()), indent=2))
    now[0] = 10.0
    assert watcher.poll() is None

    write(path, "e/f", base="/messagegroups/g/messages/m")
    now[0] = 15.0
    refused = watcher.poll()
    assert isinstance(refused, Refusal)
    assert [finding.rule for finding in refused.errors] == ["base-cycle"]
    now[0] = 20.0
    assert watcher.poll() is None

    path.unlink()
    now[0] = 25.0
    assert isinstance(watcher.poll(), Refusal)
    now[0] = 30.0
    assert watcher.poll() is None
    write(path, "g/h")
    now[0] = 35.0
    assert isinstance(watcher.poll(), Catalog)
