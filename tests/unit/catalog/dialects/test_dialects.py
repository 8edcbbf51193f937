"""The dialects before 1.0: how they are told apart, mixed, and read when they are malformed."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalog.convert import convert
from catalog.dialects import Dialect, detect
from catalog.documents.documents import Document
from catalog.explaining import explain
from catalog.findings import Declarations, Findings
from catalog.linting.attributes import rejecting_errors
from catalog.load import build_catalog, listing_to_json, load
from catalog.model import Catalog
from catalog.parsing.pointers import resolve_pointer
from catalog.values import is_any_timestamp
from tests.support.cases import read_cases
from tests.support.hybrids import DEFINITIONS, DIALECTS, LEVELS, NEW, document, pairs

CASES = read_cases(Path(__file__).parents[3] / "cases" / "dialects.yaml")

SAMPLES = Path(__file__).parents[4] / "catalog" / "samples"


@pytest.mark.parametrize(("document", "title"), CASES["documents"])
def test_told_apart_by_content(document: dict[str, Any], title: str | None) -> None:
    dialect = detect(document)
    assert (dialect and dialect.title) == title


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


# Every pair of dialects mixed in one document: it loads, with warnings, and means the same as in 1.0 alone.


def built(tree: dict[str, Any]) -> Catalog:
    return build_catalog([Document("a.json", tree)], Findings())


def meaning(catalog: Catalog) -> dict[str, Any]:
    return {xid: listing_to_json(definition, catalog) for xid, definition in catalog.definitions.items()}


PURE = meaning(built(document(NEW, NEW)))


def told(catalog: Catalog) -> set[str]:
    return {finding.rule for finding in catalog.findings if finding.severity == "warning"}


def test_the_definitions_are_all_there() -> None:
    assert list(PURE) == sorted(f"/messagegroups/g/messages/{name}" for name in DEFINITIONS)
    assert PURE["/messagegroups/g/messages/derived"]["envelopemetadata"]["type"]["value"] == "t.1"
    assert PURE["/messagegroups/g/messages/nats"]["protocoloptions"]["subject"]["value"] == "a.{plant}"


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.title)
def test_a_document_of_one_dialect_is_not_remarked_upon(dialect: Dialect) -> None:
    catalog = built(document(dialect, dialect, ()))
    assert meaning(catalog) == PURE
    foreign = {"dataschemaformat", "dataschemauri", "basemessage"}  # which these dialects have no names for
    names = {each.pointer.rpartition("/")[2] for each in catalog.findings if each.rule == "unusual-name"}
    assert names <= foreign


@pytest.mark.parametrize(("own", "other"), list(permutations(DIALECTS, 2)), ids=lambda dialect: dialect.title)
def test_names_of_another_dialect_mean_the_same(own: Dialect, other: Dialect) -> None:
    for _, _, levels in (each for each in pairs() if each[:2] == (own, other)):
        catalog = built(document(own, other, levels))
        assert meaning(catalog) == PURE, levels
        assert not rejecting_errors(catalog.findings), levels
    assert "unusual-name" in told(built(document(own, other, LEVELS)))


@pytest.mark.parametrize(("own", "other"), list(permutations(DIALECTS, 2)), ids=lambda dialect: dialect.title)
def test_what_is_shown_of_a_mixed_document_stands_in_it(own: Dialect, other: Dialect) -> None:
    for levels in ((), LEVELS):
        tree = document(own, other, levels)
        declarations = Declarations()
        catalog = build_catalog([Document("a.json", tree)], Findings(), declarations)
        for definition in catalog.definitions.values():
            form = explain(definition, catalog, declarations)
            for prop in form["properties"]:
                for part in prop["from"].values():
                    assert part["source"] in TABLES or stands(tree, part["pointer"], part["value"]), (levels, part)


@pytest.mark.parametrize(("own", "other"), list(permutations(DIALECTS, 2)), ids=lambda dialect: dialect.title)
def test_a_mixed_document_is_converted_to_1_0_alone(own: Dialect, other: Dialect) -> None:
    declarations = Declarations()
    catalog = build_catalog([Document("a.json", document(own, other, LEVELS))], Findings(), declarations)
    again = built(dict(convert(catalog, declarations).document))
    assert meaning(again) == PURE
    assert not told(again) & {"unusual-name", "unknown-attribute"}


TABLES = {"cloudevents", "protocol", "default"}


def stands(tree: Any, pointer: str, value: Any) -> bool:
    """Whether *value* is what stands at *pointer*; \"now\" has several spellings."""
    found = resolve_pointer(tree, pointer)
    return bool(found == value or is_any_timestamp(found))
