"""The face of Message Catalog 0.1 as our reader meets it; requests are cases (``tests/cases/registry``)."""

from __future__ import annotations

import json
from pathlib import Path

from catalog.documents.fetching import Fetcher
from catalog.load import load
from registry.http.access import PageSizes
from registry.http.application import RequestLimits
from tests.support.registry import served

SAMPLE = Path(__file__).parents[3] / "catalog" / "samples" / "orchard.messages.json"


def test_the_projects_reader_of_message_catalogs_loads_what_was_imported(tmp_path: Path) -> None:
    sample = json.loads(SAMPLE.read_text())
    with served(tmp_path, limits=RequestLimits(pages=PageSizes(1, 1))) as client:
        for group in sample.get("groups", [sample]):
            client.put(f"/messagecatalog/{group['id']}", json=group).raise_for_status()
        read = load([f"{client.base_url}/messagecatalog"], fetcher=Fetcher(network=True))
        core = load([f"{client.base_url}/"], fetcher=Fetcher(network=True))
    assert [each for each in read.findings if each.severity == "error"] == []
    wanted = load([SAMPLE]).definitions
    assert read.definitions.keys() == core.definitions.keys() == wanted.keys()
    for xid, definition in wanted.items():
        assert read.definitions[xid] == core.definitions[xid] == definition
