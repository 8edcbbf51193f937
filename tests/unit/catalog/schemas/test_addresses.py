"""Where data schemas are for those who take events: an absolute address, or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from catalog.load import load
from tests.support.web import Reply, Web

GROUP = "/schemagroups/G/schemas"
PLACE = "/messagegroups/g/messages/m"
SCHEMAS = {"schemagroups": {"G": {"schemas": {"S": {"format": "JsonSchema/draft-07", "schema": {"type": "object"}}}}}}


def one(**attributes: str) -> dict[str, str]:
    return {"dataschemaformat": "JsonSchema/draft-07", **attributes}


@pytest.mark.parametrize(
    ("own", "base_uri", "reference", "address"),
    [
        ("", "", f"{GROUP}/S", None),
        ("", "", "s.json", None),
        ("", "", "http://x/{y}", None),
        ("", "https://set.example/x", "a b", None),
        ("", "", " https://elsewhere.example/s.json ", "https://elsewhere.example/s.json"),
        ("https://own.example/x/", "https://set.example", f"#{GROUP}/S", f"https://own.example/x{GROUP}/S"),
        ("", "https://set.example/x", f"{GROUP}/S/versions/1:N", f"https://set.example/x{GROUP}/S/versions/1:N"),
        ("", "https://set.example/c.json", f"{GROUP}/S", f"https://set.example/c.json#{GROUP}/S"),
        ("", "https://set.example/c.json", "s.json:N", "https://set.example/s.json:N"),
        ("", "https://set.example/x", "../s.json#/definitions/N", "https://set.example/s.json#/definitions/N"),
    ],
)
def test_the_address_of_a_schema_is_absolute_or_none(
    own: str, base_uri: str, reference: str, address: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "catalog.json"
    tree = {"messagegroups": {"g": {"messages": {"m": one(dataschemauri=reference)}}}, **SCHEMAS}
    path.write_text(json.dumps(tree | ({"self": own} if own else {})))
    assert load([path], base_uri=base_uri).definitions[PLACE].schemauri == address


def test_a_document_of_the_network_has_the_address_it_was_read_from(web: Web, tmp_path: Path) -> None:
    messages = {"m": one(dataschemauri=f"{GROUP}/S"), "n": one(dataschemauri="s.json")}
    web.routes["/c/catalog.json"] = Reply({"messagegroups": {"g": {"messages": messages}}, **SCHEMAS})
    derived = {"d": {"basemessage": f"{web.url}/c/catalog.json#/messagegroups/g/messages/n"}}
    (tmp_path / "own.json").write_text(json.dumps({"messagegroups": {"h": {"messages": derived}}}))
    sources = [f"{web.url}/c/catalog.json", str(tmp_path / "own.json")]
    found = load(sources, network=True, allow=["*"]).definitions
    assert found[PLACE].schemauri == f"{web.url}/c/catalog.json#{GROUP}/S"
    assert found["/messagegroups/g/messages/n"].schemauri == f"{web.url}/c/s.json"
    assert found["/messagegroups/h/messages/d"].schemauri == f"{web.url}/c/s.json"
