"""Real catalogs, where they are at hand: none may crash, all survive being written down, and big ones load fast."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from catalog.listing import catalog_from_json, catalog_to_json, listing
from catalog.load import load

CORPORA = Path(__file__).parents[4] / "shared" / "corpora"
DOCUMENTS = sorted(p for p in CORPORA.rglob("*") if p.is_file() and p.suffix in (".json", ".yaml"))


@pytest.mark.skipif(not DOCUMENTS, reason="the corpora are not beside the repository")
def test_every_real_document() -> None:
    for path in DOCUMENTS:
        catalog = load([path])
        assert {f.rule for f in catalog.findings if f.severity == "error"} <= {"not-a-catalog"}
        for definition in catalog.definitions.values():
            json.dumps(listing(definition, catalog))
        assert catalog_from_json(json.loads(json.dumps(catalog_to_json(catalog)))) == catalog


def test_ten_thousand_definitions(tmp_path: Path) -> None:
    messages = {
        f"m{n}": {
            "basemessage": f"/messagegroups/g/messages/m{n - 1}" if n % 2 else None,
            "envelope": "CloudEvents/1.0",
            "envelopemetadata": {"type": {"value": f"t{n}"}, "source": {"type": "uritemplate", "value": "/{a}/{b}"}},
            "protocol": "MQTT/5.0",
            "protocoloptions": {"topic_name": f"a/{n}/{{a}}/{{b}}", "user_properties": [{"name": "x", "value": "1"}]},
        }
        for n in range(10_000)
    }
    path = tmp_path / "big.json"
    path.write_text(json.dumps({"messagegroups": {"g": {"messages": messages}}}))
    started = time.perf_counter()
    catalog = load([path])
    assert len(catalog.definitions) == 10_000
    assert time.perf_counter() - started < 10.0  # about 1.5 s on an idle core; the limit is for shared ones
