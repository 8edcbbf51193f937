"""Reading documents: bad ones get one clear error, and nothing outside is trusted with memory or time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from catalog.findings import DocumentError
from catalog.load import load
from catalog.parsing.texts import parse_text

BOMB = b"a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.yaml", BOMB, "stands for more than"),
        ("a.json", b"[" * 200_000, "nests deeper"),
        ("a.json", b'{"a":' * 200 + b"1" + b"}" * 200, "nests deeper"),
        ("a.yaml", b"[" * 2000, "nests deeper"),
        ("a.json", b'{"a":NaN}', "NaN"),
        ("a.json", b'{"a":1', "not JSON"),
        ("a.json", b"\xff", "not UTF-8"),
        ("a.json", b"", "empty"),
        ("a.yaml", b"a: *b", "stands for nothing"),
        ("a.yaml", b"a: 1\n---\nb: 2", "several"),
        ("a.json", b'{"a":' + b"9" * 5000 + b"}", "not JSON"),
        ("a.json", b"[1]", "not contain a JSON or YAML object"),
    ],
)
def test_bad_documents_are_one_clear_error(name: str, data: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DocumentError, match=says) as error:
        load([tmp_path / name])
    assert error.value.file == str(tmp_path / name)


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
