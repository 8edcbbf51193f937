"""Reading documents: bad ones get one clear error, and nothing outside is trusted with memory or time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from catalog.findings import DocumentError
from catalog.load import load
from catalog.parsing.texts import parse_text


def test_yaml_keeps_texts_and_shares_anchors() -> None:
    parsed = parse_text("a.yaml", b"a: &x {b: 1, c: 2026-01-02, d: yes, e: '1'}\nf: {<<: *x, b: 2}\n")
    assert parsed.tree["a"] == {"b": 1, "c": "2026-01-02", "d": "yes", "e": "1"}
    assert parsed.tree["f"] == {"b": 2, "c": "2026-01-02", "d": "yes", "e": "1"}
    assert parsed.duplicates == ()


@pytest.mark.parametrize(("name", "data"), [("a.json", b'{"a": {"b/": 1, "b/": 2}}'), ("a.yaml", b"a: {b/: 1, b/: 2}")])
def test_duplicate_keys_are_found(name: str, data: bytes) -> None:
    assert [place.pointer for place in parse_text(name, data).duplicates] == ["/a/b~1"]


@pytest.mark.parametrize("source", ["missing.json", "folder"])
def test_nothing_to_read(source: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(DocumentError):
        load([tmp_path / source])


def test_a_pipe_that_the_user_names_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    content = b'{"messagegroups": {"g": {"messages": {"m": {}}}}}'
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[content])
    writer.start()
    assert list(load([tmp_path / "pipe"]).definitions) == ["/messagegroups/g/messages/m"]
    writer.join()
