"""``xrouter catalog pull``: the file means what the registry means, or nothing is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalog.load import load
from router.cli import run_command_line
from tests.support.corpora import CORPORA
from tests.support.registry import Registry
from tests.support.web import Web, serving

ROOT = Path(__file__).resolve().parents[4]
FEEDS = ("dwd", "gtfs", "jma-bosai-volcano", "wikimedia_osm_diffs")
FILES = sorted(
    path
    for path in [*CORPORA.rglob("*.xreg.json"), *(ROOT / "catalog" / "samples").glob("*.xreg.*")]
    if "feeders" not in path.parts or path.name.removesuffix(".xreg.json") in FEEDS
)
RELATIVE = {
    *("library.xreg.yaml", "sparkplug.xreg.yaml"),
    *("kafka-consumer-endpoint.xreg.json", "nats-consumer-endpoint.xreg.json"),
}
SERVED = ("self", "xid", "epoch", "versions", "versionsurl", "versionscount", "metaurl")
"""Samples with addresses beside them: a registry has nothing there, and a file has other things."""
MANY_REQUESTS = 200_000
"""Bytes of a document that is not asked for entity by entity: on a busy machine that takes longer than a load may."""


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as server:
        yield server


def served_of(path: Path) -> dict[str, Any]:
    """Return the tree of a document for a registry that says itself what its addresses are."""
    tree = yaml.safe_load(path.read_text()) if path.suffix == ".yaml" else json.loads(path.read_text())
    return {key: value for key, value in tree.items() if key not in ("self", "xid")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "inline"),
    [
        pytest.param(path, inline, id=f"{path.name}-{'inline' if inline else ''}", marks=marks)
        for number, path in enumerate(FILES)
        for inline in (("*",), ())
        if inline or path.stat().st_size < MANY_REQUESTS
        for marks in [[pytest.mark.full] if number % 3 else []]
    ],
)
def test_real_documents_come_back_as_they_are(
    web: Web, path: Path, inline: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = served_of(path)
    told = load([path])
    registry = Registry(web, tree, inline, page=3).open()
    file = tmp_path / "pulled.json"
    assert run_command_line(["catalog", "pull", registry.url, str(file)]) == 0
    live, warned = load([registry.url], network=True), "relative references" in capfd.readouterr().err
    assert (load([file]).epoch != live.epoch, path.name in RELATIVE) == (warned, warned)
    assert list(live.definitions) == list(told.definitions)
    pulled = json.loads(file.read_text())
    for group in tree.get("messagegroups", {}):
        for message, held in tree["messagegroups"][group].get("messages", {}).items():
            found = pulled["messagegroups"][group]["messages"][message]
            own = {key: value for key, value in held.items() if key not in SERVED}
            assert {key: found.get(key) for key in own} == own
