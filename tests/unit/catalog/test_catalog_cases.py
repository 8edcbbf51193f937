"""Catalogs as text, and what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalog.convert import convert, to_yaml_text
from catalog.findings import Declarations
from catalog.linting.attributes import rejecting_errors
from catalog.load import catalog_from_json, catalog_to_json, listing_to_json, load
from catalog.model import Catalog
from tests.support.cases import read_cases

CASES = Path(__file__).parents[2] / "cases" / "catalog"


def cases() -> list[Any]:
    found = []
    for path in sorted(CASES.glob("*.yaml")):
        for name, case in read_cases(path).items():
            found.append(pytest.param(case, id=f"{path.stem}-{name}"))
    return found


def written(tmp_path: Path, *documents: Any) -> Path:
    """Write documents as JSON; a text is one as it is, JSON or YAML."""
    for number, document in enumerate(documents):
        is_yaml = isinstance(document, str) and not document.startswith("{")
        text = document if isinstance(document, str) else json.dumps(document)
        (tmp_path / f"{number}.{'yaml' if is_yaml else 'json'}").write_text(text, "utf-8")
    return tmp_path


@pytest.mark.parametrize("case", cases())
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    catalog = load([written(tmp_path, case["document"])])

    listed = {xid: listing_to_json(definition, catalog) for xid, definition in catalog.definitions.items()}
    assert {f"{f.severity} {f.rule} {f.pointer}" for f in catalog.findings} == set(case["findings"])
    for xid, expected in case["definitions"].items():
        assert {name: listed[xid][name] for name in expected} == expected
    for xid in {f.pointer for f in rejecting_errors(catalog.findings)}:
        assert xid not in catalog.definitions
    assert through_json(catalog) == catalog


def through_json(catalog: Catalog) -> Catalog:
    return catalog_from_json(json.loads(json.dumps(catalog_to_json(catalog))))


def test_endpoint_of_many_spellings(tmp_path: Path) -> None:
    case = read_cases(CASES / "inheritance.yaml")["endpoint-candidates-and-defaults"]
    endpoint = load([written(tmp_path, case["document"])]).endpoints["/endpoints/e"]

    assert endpoint.usage == ("consumer",)
    assert endpoint.protocol == "KAFKA"
    assert endpoint.uris == ("h:1", "i:2")
    assert endpoint.options == {"topic": "t", "consumer-group": "c"}
    assert endpoint.candidates == ("/endpoints/e/messages/own", "/messagegroups/g/messages/m")


def test_options_of_endpoints_stand_as_written(tmp_path: Path) -> None:
    case = read_cases(CASES / "scalars.yaml")["what-is-a-text-stands-as-it-is-written"]
    endpoint = load([written(tmp_path, case["document"])]).endpoints["/endpoints/e"]

    assert endpoint.options == {"topic": "0123", "consumer-group": "1.10", "keep": 1.1}
    assert {type(value) for value in endpoint.options.values()} == {str, float}


def test_what_is_converted_stands_as_it_was_written(tmp_path: Path) -> None:
    text = """
    messagegroups:
      g:
        protocol: KAFKA
        messages:
          m:
            labels: {version: 1.10}
            mine: 1.10
            versionid: 0123
            envelopemetadata: {subject: 1.10, n: {type: number, value: 1.10}}
            protocoloptions: {topic: 007}
            dataschemaformat: JsonStructure/draft-02
            dataschema: {type: string, maxLength: 010}
    """
    declarations = Declarations()
    catalog = load([written(tmp_path, text)], declarations=declarations)
    document = convert(catalog, declarations).document
    message = document["messagegroups"]["g"]["messages"]["m"]
    assert message["versionid"] == "0123" and message["labels"] == {"version": "1.10"}
    assert message["envelopemetadata"]["subject"]["value"] == "1.10"
    assert message["protocoloptions"]["topic"]["value"] == "007"
    assert message["dataschema"] == {"type": "string", "maxLength": 10}
    (tmp_path / "0.yaml").write_text(to_yaml_text(document), "utf-8")
    assert load([tmp_path]).definitions == catalog.definitions


def test_a_chain_of_any_length_ends(tmp_path: Path) -> None:
    messages = {f"m{n}": {"basemessage": f"/messagegroups/g/messages/m{n - 1}"} for n in range(1, 5000)}
    catalog = load([written(tmp_path, {"messagegroups": {"g": {"messages": {"m0": {}, **messages}}}})])

    assert "/messagegroups/g/messages/m60" in catalog.definitions
    assert {finding.rule for finding in catalog.findings} == {"base-too-deep", "base-error", "takes-everything"}


def test_epoch_is_of_the_meaning(tmp_path: Path) -> None:
    one = {"messagegroups": {"g": {"messages": {"a": {"protocol": "kafka"}}}}}
    two = {"messagegroups": {"g": {"messages": {"b": {"basemessage": "/messagegroups/g/messages/a"}}}}}
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "c.yaml").write_text(
        "messagegroups: {g: {messages: {b: {basemessage: /messagegroups/g/messages/a}}}}"
    )
    (tmp_path / "y" / "d.json").write_text(
        json.dumps({"messagegroups": {"g": {"messages": {"a": {"protocol": "KAFKA/3"}}}}})
    )

    first, second = load([written(tmp_path / "x", one, two)]), load([tmp_path / "y"])

    assert first.definitions == second.definitions
    assert first.epoch == second.epoch != load([written(tmp_path / "x", one, {**two, "endpoints": {"e": {}}})]).epoch
