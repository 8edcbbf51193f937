"""Trees of index.json are one registry, and each thing keeps the place where it is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from catalog.documents.documents import Document, read_documents
from catalog.findings import Findings
from catalog.load import load

ENVELOPE = {"envelope": "CloudEvents/1.0"}


def write(top: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return top


FILES = {
    "index.json": {
        "specversion": "1.0-rc4",
        "messagegroups": {"G": {"protocol": "KAFKA", "messages": {"a": ENVELOPE}}},
    },
    "messagegroups/G/messages/m/index.json": {"basemessage": "/messagegroups/G/messages/a", "datacontenttype": "x/y"},
    "messagegroups/H/index.json": {"protocol": "HTTP"},
    "messagegroups/H/messages/index.json": {"m": {"basemessage": "/messagegroups/H/messages/none"}},
    "endpoints/index.json": {"E": {"messagegroups": ["/messagegroups/G"], "usage": ["consumer"]}},
    "schemagroups/S/schemas/s/index.json": {"type": "object"},
    "schemagroups/S/schemas/s$details/index.json": {"format": "JsonSchema", "schemaid": "s"},
    "schemagroups/S/schemas/s/versions/1/index.json": {"versions": {"1": {"schema": {"type": "array"}}}},
}


def only(source: Path) -> Document:
    documents = read_documents([source], Findings())
    assert len(documents) == 1
    return documents[0]


@pytest.mark.parametrize("source", ["", "index.json"])
def test_a_tree_is_one_document(tmp_path: Path, source: str) -> None:
    write(tmp_path, FILES)
    document = only(tmp_path / source)
    assert document.file == str(tmp_path / "index.json")
    assert document.tree["messagegroups"]["G"]["messages"] == {
        "a": ENVELOPE,
        "m": {"basemessage": "/messagegroups/G/messages/a", "datacontenttype": "x/y"},
    }
    assert document.tree["schemagroups"]["S"]["schemas"]["s"] == {
        "format": "JsonSchema",
        "schemaid": "s",
        "schema": {"type": "object"},
        "versions": {"1": {"schema": {"type": "array"}}},
    }
    catalog = load([tmp_path / source])
    assert catalog.definitions["/messagegroups/G/messages/m"].envelope == "CloudEvents/1.0"
    assert len(catalog.endpoints["/endpoints/E"].candidates) == 2
    assert not [f for f in catalog.findings if f.rule == "not-a-catalog"]
    dangling = [(f.file, f.pointer) for f in catalog.findings if f.rule == "dangling-base"]
    assert dangling == [(str(tmp_path / "messagegroups" / "H" / "messages" / "index.json"), "/m")]


def test_a_tree_without_a_root_file(tmp_path: Path) -> None:
    write(tmp_path, {name: content for name, content in FILES.items() if name != "index.json"})
    assert set(load([tmp_path]).definitions) == {"/messagegroups/G/messages/m", "/messagegroups/H/messages/m"}


def test_trees_stand_beside_other_documents(tmp_path: Path) -> None:
    write(tmp_path / "one", FILES)
    write(
        tmp_path / "two", {"index.json": {"registryid": "two"}, "messagegroups/T/index.json": {"messages": {"t": {}}}}
    )
    write(tmp_path, {"three.json": {"messagegroups": {"U": {"messages": {"u": {}}}}}, "one/other.json": {"x": 1}})
    documents = read_documents([tmp_path], Findings())
    assert sorted(str(Path(each.file).relative_to(tmp_path)) for each in documents) == [
        "one/index.json",
        "one/other.json",
        "three.json",
        "two/index.json",
    ]
    assert len(load([tmp_path]).definitions) == 5


def test_a_part_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    bad = tmp_path / "messagegroups" / "H" / "messages" / "index.json"
    bad.write_text("{")
    catalog = load([tmp_path])
    assert [f.file for f in catalog.findings if f.rule == "unreadable-document"] == [str(bad)]
    assert len(catalog.definitions) == 2


def test_a_root_that_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path / "tree", FILES)
    shutil.copy(tmp_path / "tree" / "endpoints" / "index.json", tmp_path / "e.json")
    (tmp_path / "tree" / "index.json").write_text("[]")
    catalog = load([tmp_path])
    assert [f.file for f in catalog.findings if f.rule == "unreadable-document"] == [
        str(tmp_path / "tree" / "index.json")
    ]
