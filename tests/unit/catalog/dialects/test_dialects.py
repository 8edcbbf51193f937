"""The dialects before 1.0: how they are told apart, mixed, and read when they are malformed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalog.dialects import Dialect, detect
from catalog.dialects.detection import DEFINITION_GROUPS, MESSAGE_CATALOG, XREGISTRY
from catalog.load import load

SAMPLES = Path(__file__).parents[4] / "catalog" / "samples"


@pytest.mark.parametrize(
    ("document", "dialect"),
    [
        ({"definitionGroups": {}}, DEFINITION_GROUPS),
        ({"definitiongroups": {}, "messagegroups": {}}, DEFINITION_GROUPS),
        ({"schemaGroups": {}}, DEFINITION_GROUPS),
        ({"endpoints": {"e": {"definitions": {}}}}, DEFINITION_GROUPS),
        ({"endpoints": {"e": {"definitionGroups": []}}}, DEFINITION_GROUPS),
        ({"endpoints": {"e": {"messages": {}}}}, XREGISTRY),
        ({"specversion": "1.0-rc4"}, XREGISTRY),
        ({"id": "g", "specversion": "0.1", "format": "NATS", "definitions": []}, MESSAGE_CATALOG),
        ({"id": "g", "specversion": 0.1, "definitions": {}}, MESSAGE_CATALOG),
        ({"id": "g", "messagedefinitions": {}}, MESSAGE_CATALOG),
        ({"groups": [{"id": "g", "definitions": []}]}, MESSAGE_CATALOG),
        ({"$schema": "http://json-schema.org/draft-07/schema", "definitions": {}}, None),
        ({"groups": 7}, None),
    ],
)
def test_told_apart_by_content(document: dict[str, Any], dialect: Dialect | None) -> None:
    assert detect(document) is dialect


def test_endpoints_and_schemas_of_cereg() -> None:
    catalog = load([SAMPLES / "harbour.cereg.yaml"])
    arrivals, cranes = catalog.endpoints["/endpoints/Harbour.Arrivals"], catalog.endpoints["/endpoints/Harbour.Cranes"]
    assert (arrivals.envelope, arrivals.protocol) == ("CloudEvents/1.0", "HTTP")
    assert arrivals.uris == ("https://harbour.example.com/arrivals",)
    assert arrivals.options == {"method": "POST"}
    assert arrivals.candidates == ("/messagegroups/Harbour.Events/messages/Harbour.ShipArrived",)
    assert (cranes.envelope, cranes.protocol) == (None, "MQTT/5.0")
    assert list(catalog.schemas) == ["/schemagroups/Harbour.Data/schemas/shipArrived/versions/1.0"]


def test_an_endpoint_without_config_has_its_options_beside_the_rest(tmp_path: Path) -> None:
    endpoint = {"protocol": "HTTP/1.1", "options": {"method": "PUT"}, "format": "CloudEvents/1.0", "definitions": {}}
    (tmp_path / "a.cereg").write_text(json.dumps({"endpoints": {"e": endpoint}}))
    read = load([tmp_path]).endpoints["/endpoints/e"]
    assert (read.protocol, read.envelope, read.options) == ("HTTP", "CloudEvents/1.0", {"method": "PUT"})


def test_all_dialects_mix_in_one_folder(tmp_path: Path) -> None:
    event = {"format": "CloudEvents/1.0", "metadata": {"attributes": {"type": {"value": "t"}}}}
    (tmp_path / "old.cereg").write_text(json.dumps({"definitionGroups": {"g": {"definitions": {"m": event}}}}))
    older = {"id": "h", "specversion": "0.1", "format": "NATS", "definitions": [{"id": "m", "definition": {}}]}
    (tmp_path / "older.json").write_text(json.dumps(older))
    new = {
        "endpoints": {
            "e": {"usage": "consumer", "messagegroups": ["old.cereg#/definitionGroups/g", "/messagegroups/h"]}
        },
        "messagegroups": {"n": {"messages": {"m": {"basemessage": "#/definitionGroups/g/definitions/m"}}}},
    }
    (tmp_path / "new.yaml").write_text(yaml.safe_dump(new))
    catalog = load([tmp_path])
    assert {f.rule for f in catalog.findings} == {"deprecated-dialect", "unreachable-group", "takes-everything"}
    assert catalog.endpoints["/endpoints/e"].candidates == (
        "/messagegroups/g/messages/m",
        "/messagegroups/h/messages/m",
    )
    assert catalog.definitions["/messagegroups/n/messages/m"].base == ("/messagegroups/g/messages/m",)


def test_the_same_definition_in_two_documents_counts_once(tmp_path: Path) -> None:
    for name, kind in (("a", "one"), ("b", "one"), ("c", "two")):
        group = {"definitions": {"m": {"format": "CloudEvents", "metadata": {"attributes": {"type": kind}}}}}
        (tmp_path / f"{name}.cereg").write_text(json.dumps({"definitionGroups": {"g": group}}))
    found = [(f.rule, Path(f.file).name) for f in load([tmp_path]).findings if f.severity != "info"]
    assert found == [("duplicate-xid", "c.cereg")]
