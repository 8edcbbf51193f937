"""Every value of a definition has an origin, and what is traced is what is in effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalog.explaining import MASK, entity_to_json, explain, known_xids, mask_secrets
from catalog.findings import Declarations, DocumentError
from catalog.load import load
from catalog.parsing.pointers import resolve_pointer
from catalog.parsing.texts import parse_text
from tests.support.cases import samples, spread
from tests.support.corpora import CORPORA

DOCUMENTS = sorted(
    path for path in [*CORPORA.rglob("*"), *samples()] if path.is_file() and path.suffix in (".json", ".yaml", ".cereg")
)
DOCUMENT = Path(__file__).parents[3] / "cases" / "documents" / "provenance.yaml"
BASE, MESSAGE = "/messagegroups/g/messages/base", "/messagegroups/g/messages/m"


def read(path: Path) -> tuple[Any, Declarations]:
    declarations = Declarations()
    return load([path], declarations=declarations), declarations


@pytest.fixture
def shown() -> Any:
    catalog, declarations = read(DOCUMENT)
    return lambda xid: entity_to_json(xid, catalog, declarations)


def at(form: dict[str, Any]) -> Any:
    """What stands at the place of an origin."""
    return resolve_pointer(parse_text(form["file"], Path(form["file"]).read_bytes()).tree, form["pointer"])


def test_each_member_of_a_property_has_its_own_origin(shown: Any) -> None:
    form = shown(MESSAGE)
    properties = {each["name"]: each for each in form["properties"]}
    kind = properties["type"]
    assert (kind["type"], kind["value"], kind["required"]) == ("uri", "u", True)
    assert kind["from"]["type"]["source"] == "message"
    assert kind["from"]["required"]["source"] == "cloudevents"
    assert at(kind["from"]["value"]) == "u"
    (over,) = kind["from"]["value"]["overrides"]
    assert (over["source"], over["xid"], over["value"], at(over)) == ("base", BASE, "t", "t")
    assert properties["time"]["from"]["type"]["source"] == "cloudevents"
    assert at(properties["time"]["from"]["required"]) is True
    assert properties["id"]["from"]["required"]["source"] == "cloudevents"
    assert [each["value"] for each in properties["x"]["from"]["value"]["overrides"]] == ["1"]
    assert properties["subject"]["from"]["type"]["source"] == "protocol"
    header = properties["headers.h"]
    assert (header["from"]["value"]["xid"], header["from"]["required"]["xid"]) == (BASE, MESSAGE)
    assert header["from"]["type"]["source"] == "default"


def test_selectors_and_attributes(shown: Any) -> None:
    form = shown(MESSAGE)
    assert (form["envelope"]["source"], form["envelope"]["xid"]) == ("group", "/messagegroups/g")
    assert form["protocol"]["declared"] is False
    assert form["base"] == [BASE]
    assert form["attributes"].keys() == {"dataschema"}  # the inline one excludes the inherited URI
    assert at(form["envelopeoptions"]["mode"]) == "binary"
    assert form["schema"]["inline"] is True
    inline = shown("/endpoints/e/messages/inline")
    (endpoint,) = inline["endpoints"]
    assert (inline["protocol"], endpoint["protocol"]["value"], endpoint["protocol"]["source"]) == (
        None,
        "KAFKA",
        "endpoint",
    )


def test_other_things(shown: Any) -> None:
    endpoint = shown("/endpoints/e")
    assert endpoint["uris"] == [f"kafka://{MASK}@host:9092"] and endpoint["options"]["sasl-password"] == MASK
    assert endpoint["candidates"] == ["/endpoints/e/messages/inline"]
    assert shown("/messagegroups/g")["messages"] == [BASE, MESSAGE]
    assert shown("/schemagroups/s")["schemas"] == ["/schemagroups/s/schemas/v"]
    versions = shown("/schemagroups/s/schemas/v")["versions"]
    assert [(each["versionid"], each["default"], each["embedded"]) for each in versions] == [
        ("1", False, True),
        ("2", True, False),
    ]
    assert shown("/schemagroups/s/schemas/v/versions/1")["versions"] == versions[:1]
    assert shown("/schemagroups/s/schemas/v/versions/9") is None and shown("/messagegroups/x") is None


def test_masking() -> None:
    assert mask_secrets({"token": "x", "a": ["amqp://u:p@h/n", "u@h"], "n": 1, "secret": ""}) == {
        "token": MASK,
        "a": [f"amqp://{MASK}@h/n", "u@h"],
        "n": 1,
        "secret": "",
    }


@pytest.mark.slow
@pytest.mark.parametrize("path", spread(DOCUMENTS, quick=24), ids=lambda path: path.name)
def test_what_is_traced_is_what_is_in_effect_and_stands_at_its_place(path: Path) -> None:
    try:
        catalog, declarations = read(path)
    except DocumentError:
        return
    tree = parse_text(str(path), path.read_bytes()).tree
    for definition in catalog.definitions.values():
        told = explain(definition, catalog, declarations)
        for origin in (each["from"].get("value", {"file": ""}) for each in told["properties"]):
            if origin["file"]:
                found = resolve_pointer(tree, origin["pointer"])
                assert found in (origin["value"], "01-01-0000T00:00:00Z") or found == {"value": origin["value"]}
        traced = [
            (each["name"], *(each["from"].get(part, {}).get("value") for part in ("type", "value", "required")))
            for each in told["properties"]
        ]
        properties = (*definition.envelopemetadata, *definition.protocoloptions)
        assert traced == [(each.name, each.type, each.value, each.required) for each in properties]
        assert (told["envelope"] or {}).get("value") == definition.envelope
        assert (told["protocol"] or {}).get("value") == definition.protocol
        attributes = {name: each["value"] for name, each in told["attributes"].items()}
        assert attributes.get("dataschemauri") == definition.dataschemauri
        assert attributes.get("datacontenttype") == definition.datacontenttype
    for xid in known_xids(catalog, declarations):
        json.dumps(entity_to_json(xid, catalog, declarations))
