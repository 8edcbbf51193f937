"""The dialects before 1.0: how they are told apart, mixed, and read when they are malformed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalog.dialects import Dialect, detect, registry
from catalog.dialects.detection import DEFINITION_GROUPS, MESSAGE_CATALOG, XREGISTRY
from catalog.documents.documents import Document
from catalog.findings import Declarations, Findings, SourceLocation
from catalog.load import build_catalog, load
from tests.support.cases import read_cases

SAMPLES = Path(__file__).parents[4] / "catalog" / "samples"
ODD: tuple[Any, ...] = (None, 7, True, "", "x", [], [7], [None, {}], {}, {"value": []}, {"x": {"x": 7}})


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


@pytest.mark.parametrize("name", ["harbour.cereg.yaml", "orchard.messages.json"])
def test_samples_are_clean_but_for_their_age(name: str) -> None:
    catalog = load([SAMPLES / name])
    assert [(f.severity, f.rule) for f in catalog.findings] == [("info", "deprecated-dialect")]
    assert len(catalog.definitions) == 2


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


def test_a_document_half_renamed_keeps_all_of_its_groups(tmp_path: Path) -> None:
    endpoint = {"messagegroups": ["/messagegroups/new"], "definitionGroups": ["#/definitionGroups/old", "#/gone"]}
    document = {
        "endpoints": {"e": endpoint},
        "messagegroups": {"new": {"messages": {"m": {}}}},
        "definitionGroups": {"old": {"definitions": {"m": {}}}},
    }
    (tmp_path / "a.json").write_text(json.dumps(document))
    catalog = load([tmp_path])
    found = catalog.endpoints["/endpoints/e"].candidates
    assert found == ("/messagegroups/new/messages/m", "/messagegroups/old/messages/m")
    assert [f.pointer for f in catalog.findings if f.rule == "dangling-group"] == ["/endpoints/e/definitionGroups/1"]


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


def spoilt(tree: Any) -> Iterator[Any]:
    """Give *tree* once for each of its places and each odd value there."""
    for path in paths(tree):
        for odd in ODD:
            copy = deepcopy(tree)
            holder = copy
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = odd
            yield copy


def paths(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    members = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in members:
        yield (*at, key)
        yield from paths(value, (*at, key))


def malformed_documents() -> Iterator[Any]:
    for file in ("dialects", "hybrids"):
        cases = read_cases(Path(__file__).parents[3] / "cases" / "catalog" / f"{file}.yaml")
        for case in cases.values():
            yield from spoilt(case["document"])


@pytest.mark.slow
def test_wrong_types_at_every_place_give_findings() -> None:
    for tree in malformed_documents():
        findings = Findings()
        registry.read(tree, SourceLocation("a.json"), Declarations(), findings)
        new = detect(tree) in (XREGISTRY, None)
        assert new or any(f.rule == "deprecated-dialect" for f in findings.sorted())
        build_catalog([Document("a.json", tree)], Findings())
