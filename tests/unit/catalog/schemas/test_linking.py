"""Definitions find their schemas: in themselves, in the registry, in files and on the web, or say why they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalog.load import load
from catalog.model import Catalog
from catalog.schemas.validation import PayloadValidation
from tests.support.cases import read_cases
from tests.support.web import Reply, Web

GROUP = "/schemagroups/G.Data/schemas"
STRING: dict[str, Any] = {"type": "string"}
JSON = "JsonSchema/draft-07"
PLACE = "/messagegroups/g/messages/m"
CASES = read_cases(Path(__file__).parents[3] / "cases" / "schemas" / "linking.yaml")
SEVERAL = read_cases(Path(__file__).parents[3] / "cases" / "schemas" / "several.yaml")
TWO = SEVERAL["two"]


def registry(**schemas: Any) -> dict[str, Any]:
    return {"schemagroups": {"G.Data": {"schemas": schemas}}}


def catalog_of(
    folder: Path, schemas: dict[str, Any] | None = None, *, network: bool = False, **messages: Any
) -> Catalog:
    path = folder / "catalog.json"
    path.parent.mkdir(exist_ok=True)
    messages = {key: {"envelope": "CloudEvents/1.0", "basemessage": None, **each} for key, each in messages.items()}
    path.write_text(json.dumps({"messagegroups": {"g": {"messages": messages}}, **(schemas or {})}))
    return load([path], network=network)


def link_of(catalog: Catalog, name: str = "m") -> tuple[str | None, str, str]:
    definition = catalog.definitions[f"/messagegroups/g/messages/{name}"]
    return definition.schemakey, definition.schemaname, definition.schemapointer


def said(catalog: Catalog) -> list[str]:
    """Give what lint says of schemas."""
    rules = {"unresolvable-schema", "schema-unreachable", "network-off", "unknown-schema-format", "invalid-schema"}
    found = [f for f in catalog.findings if f.rule in rules or f.rule == "schema-format-conflict"]
    return [f"{f.severity} {f.rule} {f.pointer}" for f in found]


def one(**attributes: Any) -> dict[str, Any]:
    return {"dataschemaformat": JSON, **attributes}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_links(case: dict[str, Any], tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, case["schemas"], m=case["message"])
    assert said(catalog) == case.get("told", [])
    assert link_of(catalog) == tuple(case.get("link", link_of(catalog)))
    if "document" in case:
        assert catalog.schemas[case["link"][0]] == {"format": JSON, "document": case["document"]}


@pytest.mark.parametrize("name", SEVERAL["cases"])
def test_schemas_of_several_messages(name: str, tmp_path: Path) -> None:
    case = SEVERAL["cases"][name]
    for path, text in case.get("files", {}).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    messages: dict[str, Any] = {each: one(**attributes) for each, attributes in case["messages"].items()}
    catalog = catalog_of(tmp_path / "catalog", case.get("schemas"), **messages)
    assert sorted(said(catalog)) == case.get("told", [])
    assert {each: list(link_of(catalog, each)) for each in case.get("links", ())} == case.get("links", {})
    wanted = case.get("references", {})
    assert {key: catalog.schemas[key]["references"] for key in wanted} == wanted
    assert len(catalog.definitions) == len(messages)


def test_danglers_are_told_once_and_where_they_are_written(tmp_path: Path) -> None:
    derived: dict[str, Any] = {f"n{n}": {"basemessage": PLACE} for n in range(3)}
    catalog = catalog_of(tmp_path, TWO, m=one(dataschemauri="#/schemagroupsG.Data/schemas/S"), **derived)
    assert said(catalog) == [f"error unresolvable-schema {PLACE}/dataschemauri"]
    hints = [f.hint for f in catalog.findings if f.rule == "unresolvable-schema"]
    assert hints == ["a slash is missing: write #/schemagroups/G.Data/schemas/S"]
    assert link_of(catalog) == (None, "", "")
    near = catalog_of(tmp_path, TWO, m=one(dataschemaxid="/schemagroups/G.Dato/schemas/S"))
    assert [f.hint for f in near.findings if f.rule == "unresolvable-schema"] == [f"did you mean {GROUP}/S?"]


def test_the_epoch_knows_the_documents_and_not_the_folder(tmp_path: Path) -> None:
    epochs = []
    for folder, kind in (("a", "string"), ("b", "string"), ("c", "number")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "s.json").write_text(json.dumps({"type": kind}))
        epochs.append(catalog_of(tmp_path / folder, m=one(dataschemauri="s.json")).epoch)
    assert epochs[0] == epochs[1] != epochs[2]


def test_the_web(web: Web, tmp_path: Path) -> None:
    web.routes["/s.json"] = Reply({"$ref": "t.json"})
    web.routes["/t.json"] = Reply(STRING)
    uri = f"{web.url}/s.json"
    catalog = catalog_of(tmp_path, m=one(dataschemauri=uri), n=one(dataschemauri=uri), network=True)
    assert (said(catalog), catalog.pending) == ([], ())
    assert link_of(catalog) == (uri, "", "")
    assert sorted(catalog.schemas) == [uri, f"{web.url}/t.json"]
    assert [target for target, _ in web.asked] == ["/s.json", "/t.json"]
    refused = catalog_of(tmp_path, m=one(dataschemauri=uri))
    assert said(refused) == [f"warning network-off {PLACE}/dataschemauri"]
    web.routes["/s.json"] = Reply("", 404)
    assert said(catalog_of(tmp_path, m=one(dataschemauri=uri), network=True)) == [
        f"error unresolvable-schema {PLACE}/dataschemauri"
    ]


def test_what_is_unreachable_for_now_is_pending(web: Web, tmp_path: Path) -> None:
    web.routes["/s.json"] = Reply("", 503)
    document = {"$ref": f"{web.url}/s.json"}
    catalog = catalog_of(tmp_path, m=one(dataschemauri=f"{web.url}/s.json"), n=one(dataschema=document), network=True)
    assert catalog.pending == (f"{web.url}/s.json",)
    assert said(catalog) == [
        f"warning schema-unreachable {PLACE}/dataschemauri",
        "warning schema-unreachable /messagegroups/g/messages/n/dataschema",
    ]
    web.routes["/s.json"] = Reply(STRING)
    fixed = catalog_of(tmp_path, m=one(dataschemauri=f"{web.url}/s.json"), n=one(dataschema=document), network=True)
    assert (said(fixed), fixed.pending) == ([], ())
    assert fixed.epoch != catalog.epoch


ODD: list[Any] = [7, [], True, {"$ref": 7}, {"properties": 7}, {"$id": 7}, "", "x", {"a": [[[]]]}]
ODD += [
    {"$ref": "http://[x"},
    {"$id": "http://[", "$ref": "y"},
    {"$ref": "\0"},
    {"$import": "\x01"},
    "http://[x",
    "a:" * 9999,
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("form", [JSON, "JsonStructure/draft-02"])
def test_odd_documents_are_findings(tmp_path: Path, odd: Any, form: str) -> None:
    for where in ({"schema": odd}, {"versions": {"1": odd}}, {"versions": odd, "schema": odd}, {"schemauri": odd}):
        catalog = catalog_of(
            tmp_path,
            registry(S=where),
            m={"dataschemaformat": form, "dataschemauri": f"{GROUP}/S"},
            n={"dataschemaformat": form, "dataschema": odd},
        )
        assert len(catalog.definitions) == 2


TWO_ELEMENTS = (
    '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="One" type="xs:int"/>'
    '<xs:element name="Two" type="xs:date"/><xs:complexType name="T"/></xs:schema>'
)


@pytest.mark.parametrize(
    ("link", "found"),
    [
        ("#/xs:schema/xs:element[@name='Two']", []),
        ('#//element[ @name = "Two" ]', []),
        ("#/*/xs:element%5B@name='Two'%5D", []),
        (":Two", []),
        ("#/xs:schema/xs:element[@name='Three']", [f"error unresolvable-schema {PLACE}/dataschemauri"]),
        ("#/xs:schema/xs:complexType[@name='T']", [f"error unresolvable-schema {PLACE}/dataschemauri"]),
        ("#/xs:schema/xs:element[position()=2]", [f"error unresolvable-schema {PLACE}/dataschemauri"]),
    ],
)
@pytest.mark.parametrize("where", ["registry", "file"])
def test_an_xpath_leads_to_an_element_of_an_xml_schema(link: str, found: list[str], where: str, tmp_path: Path) -> None:
    (tmp_path / "s.xsd").write_text(TWO_ELEMENTS)
    schemas = registry(S={"versions": {"1": {"format": "XSD/1.0", "schema": TWO_ELEMENTS}}})
    reference = f"{GROUP}/S" if where == "registry" else "s.xsd"
    catalog = catalog_of(tmp_path, schemas, m={"dataschemaformat": "XSD/1.0", "dataschemauri": f"{reference}{link}"})
    assert said(catalog) == found
    if not found:
        payloads = PayloadValidation(catalog)
        assert payloads.faults(PLACE, [b"<Two>2026-01-02</Two>"], [None])[0] is None
        assert payloads.faults(PLACE, [b"<One>1</One>"], [None])[0] is not None
