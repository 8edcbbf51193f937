"""AsyncAPI: documents in, with records through ``match``; every catalog out and back; and documents that are wrong."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from catalog.asyncapi import AsyncApiCatalog, write_asyncapi
from catalog.convert import to_json_text, to_yaml_text
from catalog.documents.connecting import ConnectionPolicy
from catalog.documents.fetching import Fetcher
from catalog.findings import Declarations, DocumentError
from catalog.linting.attributes import rejecting_errors
from catalog.load import load
from catalog.model import Catalog
from router.matching.records import RecordMatcher
from tests.support.asyncapi import find_faults, validator
from tests.support.cases import read_cases, samples
from tests.support.corpora import CORPORA

ADDRESSES: dict[str, Any] = read_cases(Path(__file__).parents[1] / "cases" / "values" / "addresses.yaml")

CASES: Final = {
    f"{path.stem}-{name}": case
    for path in sorted((Path(__file__).parents[1] / "cases" / "asyncapi").glob("*.yaml"))
    for name, case in read_cases(path).items()
}
CATALOGS: Final = sorted(
    path for path in [*CORPORA.rglob("*"), *samples()] if path.is_file() and path.suffix in (".json", ".yaml", ".cereg")
)
Tree = dict[str, Any]


def loaded(folder: Path, tree: Any, name: str = "document.yaml") -> Catalog:
    (folder / name).write_text(tree if isinstance(tree, str) else json.dumps(tree), "utf-8")
    return load([folder / name])


def asyncapi_findings(catalog: Catalog) -> set[str]:
    return {f"{each.severity} {each.rule} {each.pointer}" for each in catalog.findings if "asyncapi" in each.rule}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_records_under_a_document(case: Tree, tmp_path: Path) -> None:
    catalog = loaded(tmp_path, case["document"])
    assert asyncapi_findings(catalog) == set(case["findings"])
    assert not rejecting_errors(catalog.findings)
    for xid, wanted in case.get("endpoints", {}).items():
        told = {name: getattr(catalog.endpoints[xid], name) for name in wanted}
        assert {name: list(each) if isinstance(each, tuple) else each for name, each in told.items()} == wanted
    matcher = RecordMatcher(catalog, validation=case.get("validate", "ambiguous"))
    for match in case["matches"]:
        (outcome,) = matcher.decide([json.dumps(match["record"]).encode()])
        message = "/".join(outcome.get("message", "").split("/")[2:]).replace("messages/", "")
        assert message == match.get("message", "") and outcome.get("reason") == match.get("reason"), outcome
        assert match.get("context", {}) == outcome.get("context", {})


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_document_comes_back_as_it_is(case: Tree, tmp_path: Path) -> None:
    declarations = Declarations()
    path = tmp_path / "document.yaml"
    path.write_text(json.dumps(case["document"]), "utf-8")
    catalog = load([path], declarations=declarations)
    done = write_asyncapi(catalog, declarations)
    assert find_faults(done.document) == []
    again = loaded(tmp_path, to_yaml_text(done.document), "again.yaml")
    assert meaning(again) == meaning(catalog)


# Catalogs as AsyncAPI, and back.


def meaning(catalog: Catalog) -> Any:
    """All that matters; among properties, the order of those of one name does."""
    definitions = {}
    for xid, each in catalog.definitions.items():
        if (each.dataschemauri or "#")[0] not in "#/":  # a file beside the source, which the copy does not find
            each = replace(each, schemakey=None, schemaname="", schemapointer="")
        definitions[xid] = replace(
            each,
            envelopemetadata=tuple(sorted(each.envelopemetadata, key=lambda one: one.name)),
            protocoloptions=tuple(sorted(each.protocoloptions, key=lambda one: one.name)),
        )
    return definitions, catalog.endpoints, catalog.groups


def written(path: Path, *, flatten: bool = False) -> tuple[Catalog, AsyncApiCatalog]:
    declarations = Declarations()
    catalog = load([path], declarations=declarations)
    return catalog, write_asyncapi(catalog, declarations, flatten=flatten)


@pytest.mark.slow
@pytest.mark.parametrize("path", CATALOGS, ids=lambda path: path.name)
def test_a_catalog_comes_back_whole(path: Path, tmp_path: Path) -> None:
    try:
        catalog, done = written(path)
    except DocumentError:
        return
    if not (catalog.definitions or catalog.endpoints or catalog.schemas):
        return
    again = loaded(tmp_path, to_json_text(done.document), "again.json")
    assert meaning(again) == meaning(catalog)
    assert find_faults(done.document) == []
    embedded = {key: each["document"] for key, each in catalog.schemas.items() if key.startswith("/schemagroups/")}
    assert {key: again.schemas[key]["document"] for key in embedded} == embedded
    known = {finding.rule for finding in catalog.findings if finding.severity == "error"}
    assert {finding.rule for finding in rejecting_errors(again.findings)} <= known


@pytest.mark.full
def test_written_documents_are_valid_by_the_schema_of_asyncapi() -> None:
    check = validator()
    for path in CATALOGS:
        try:
            _, done = written(path)
        except DocumentError:
            continue
        assert check(done.document) == [], path
    declared = {"asyncapi": "3.0.0", "info": {"title": "a", "version": "1"}, "channels": {"c": {"adress": "typo"}}}
    assert check(declared) and find_faults(declared)  # both see what is wrong


def test_what_asyncapi_cannot_say_is_named(tmp_path: Path) -> None:
    tree = {
        "messagegroups": {
            "g": {
                "labels": {"a": "b"},
                "messages": {
                    "m": {
                        "protocol": "KAFKA",
                        "protocoloptions": {"topic": {"value": "t"}, "key": {"value": "k-{k}"}},
                        "labels": {"c": "d"},
                    },
                    "n": {"basemessage": "/messagegroups/g/messages/m", "protocoloptions": {"topic": {"value": "u"}}},
                },
            }
        }
    }
    (tmp_path / "c.json").write_text(json.dumps(tree))
    _, done = written(tmp_path / "c.json")
    unsaid = {each.xid: set(each.members) for each in done.unsaid}
    assert unsaid["/messagegroups/g/messages/m"] == {"labels", "protocoloptions.key"}
    assert "basemessage" in unsaid["/messagegroups/g/messages/n"]
    assert unsaid["/messagegroups/g"] == {"labels"}
    assert {each["address"] for each in done.document["channels"].values()} == {"t", "u"}
    key = done.document["components"]["messages"]["m"]["bindings"]["kafka"]["key"]
    assert key == {"type": "string", "pattern": "^k\\-[^/]+$"}
    _, flat = written(tmp_path / "c.json", flatten=True)
    assert "basemessage" not in json.dumps(flat.document)


# Documents in several files, and such as are wrong.

BASE: Final = {"asyncapi": "3.0.0", "info": {"title": "T", "version": "1"}}


def with_channel(messages: Any, /, **components: Any) -> Tree:
    channels = {"c": {"address": "t", "bindings": {"kafka": {}}, "messages": messages}}
    return {**BASE, "channels": channels, "components": components}


def test_other_documents_are_read(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "level.json").write_text(json.dumps({"type": "object", "required": ["level"]}))
    common: Tree = {
        "messages": {
            "Level": {
                "traits": [{"$ref": "traits.yaml#/known"}],
                "headers": {"$ref": "#/headers"},
                "payload": {"$ref": "../schemas/level.json"},
            },
            "Depth": {"payload": {"type": "object", "properties": {"next": {"$ref": "#/depths/Deep"}}}},
        },
        "headers": {"type": "object", "properties": {"x": {"const": "1"}}},
        "depths": {"Deep": {"type": "integer"}},
    }
    (tmp_path / "parts" / "common.yaml").write_text(json.dumps(common))
    (tmp_path / "parts" / "traits.yaml").write_text(json.dumps({"known": {"contentType": "application/json"}}))
    messages = {name: {"$ref": f"./parts/common.yaml#/messages/{name}"} for name in common["messages"]}
    catalog = loaded(tmp_path, with_channel(messages))
    assert not rejecting_errors(catalog.findings)
    level, depth = (catalog.definitions[f"/messagegroups/T.c/messages/{name}"] for name in messages)
    assert (level.datacontenttype, level.dataschemauri) == ("application/json", "schemas/level.json")
    assert "headers.x" in {each.name for each in level.protocoloptions}
    assert catalog.schemas[level.schemakey or ""]["document"] == {"type": "object", "required": ["level"]}
    matcher = RecordMatcher(catalog, validation="always")
    (outcome,) = matcher.decide([json.dumps({"protocol": "KAFKA", "native": {"topic": "t"}, "body": '{"next": "x"}'})])
    assert outcome["reason"] == "schema-violation" and depth.dataschemaformat == "JsonSchema/draft-07"


def test_findings_are_where_things_are_written(tmp_path: Path) -> None:
    (tmp_path / "common.yaml").write_text(json.dumps({"M": {"tags": [], "contentType": "no type"}}))
    catalog = loaded(tmp_path, with_channel({"M": {"$ref": "common.yaml#/M"}}))
    found = {(Path(each.file).name, each.pointer, each.rule) for each in catalog.findings}
    assert ("common.yaml", "/M/tags", "asyncapi-no-place") in found
    assert ("common.yaml", "/M/datacontenttype", "media-type") in found


def deep(levels: int) -> Tree:
    return {"properties": {"a": deep(levels - 1)}} if levels else {}


LONG: Final = {f"r{n}": {"$ref": f"#/components/messages/r{n + 1}"} for n in range(200)}
DOUBLING: Final = {f"v{n}": {"default": f"{{v{n + 1}}}" * 2} for n in range(40)}
OPERATION: Final = {"action": "receive", "channel": {"$ref": "#/channels/c"}}
WRONG: Final = [
    *read_cases(Path(__file__).parents[1] / "cases" / "asyncapi_faults.yaml"),
    {
        "name": "long chain",
        "messages": {"M": {"$ref": "#/components/messages/r0"}},
        "components": {"messages": LONG},
        "finding": "error asyncapi-reference /channels/c/messages/M",
    },
    {"name": "many traits", "messages": {"M": {"traits": [1] * 50_000}}},
    {
        "name": "variables that double",
        "document": {"servers": {"s": {"host": "{v0}", "protocol": "kafka", "variables": DOUBLING}}},
        "finding": "error wrong-shape /servers/s/variables/v13",
    },
    {
        "name": "parameter too long",
        "document": {"channels": {"c": {"address": "{a}" * 99, "parameters": {"a": {"enum": ["x" * 999]}}}}},
        "finding": "error wrong-shape /channels/c/parameters/a",
    },
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case["name"])
def test_what_is_wrong_is_named(case: Tree, tmp_path: Path) -> None:
    whole = with_channel(case["messages"], **case.get("components", {})) if "messages" in case else BASE
    catalog = loaded(tmp_path, {**whole, **case.get("document", {})})
    found = {f"{each.severity} {each.rule} {each.pointer}" for each in catalog.findings}
    assert case.get("finding") in (None, *found), found


@pytest.mark.parametrize(
    ("protocol", "host", "uri"),
    ADDRESSES["asyncapi"],
)
def test_a_server_with_tls_is_read_as_one(protocol: str, host: str, uri: str, tmp_path: Path) -> None:
    server = {"host": host, "protocol": protocol, "variables": {"scheme": {"default": "mqtts"}}}
    tree = {**BASE, "servers": {"s": server}, "channels": {"c": {"address": "t"}}, "operations": {"o": OPERATION}}
    (endpoint,) = loaded(tmp_path, tree).endpoints.values()
    assert endpoint.uris == (uri,)


@pytest.mark.slow
def test_nothing_multiplies(tmp_path: Path) -> None:
    """References and traits can make a small document stand for a huge one; reading it ends, and says so."""
    began = time.process_time()
    headers = {f"h{n}": {"type": "string"} for n in range(2_000)}
    messages = {f"m{n}": {"$ref": "#/components/messages/M"} for n in range(2_000)}
    wide = with_channel(messages, messages={"M": {"headers": {"type": "object", "properties": headers}}})
    catalog = loaded(tmp_path, wide)
    assert "too-many" in {each.rule for each in catalog.findings}
    prefix, schemas = "#/components/messages/M/payload", {}
    for n in range(100):
        schemas[f"s{n}"] = {"$ref": prefix + "/properties/a" * n}
    payload = deep(60) | {"description": ["x"] * 30_000}
    catalog = loaded(tmp_path, with_channel({}, messages={"M": {"payload": payload}}, schemas=schemas))
    assert catalog.findings is not None
    chain = {f"s{n}": {"items": {"$ref": f"#/components/schemas/s{n + 1}"}} for n in range(5_000)}
    catalog = loaded(tmp_path, with_channel({"M": {"payload": {"$ref": "#/components/schemas/s0"}}}, schemas=chain))
    assert len(catalog.schemas) == 5_000
    fan = {"allOf": [{"$ref": "#/components/schemas/fan"}] * 500}
    catalog = loaded(
        tmp_path, with_channel({"M": {"headers": {"$ref": "#/components/schemas/fan"}}}, schemas={"fan": fan})
    )
    assert "too-many" in {each.rule for each in catalog.findings}
    rings = {name: {"headers": {"a": {"$ref": f"#/components/messages/{name}/headers"}}} for name in ("X", "Y")}
    ringed = {"traits": [{"$ref": "#/components/messages/X"}], "headers": {"$ref": "#/components/messages/Y/headers"}}
    assert loaded(tmp_path, with_channel({"M": ringed}, messages=rings)).definitions
    servers = {f"s{n}": {"host": f"h{n}", "protocol": "kafka"} for n in range(1_000)}
    crowd = {**BASE, "servers": servers, "channels": {f"c{n}é": {"address": f"t{n}"} for n in range(3_000)}}
    assert "too-many" in {each.rule for each in loaded(tmp_path, crowd).findings}
    with pytest.raises(DocumentError, match="nests deeper"):
        loaded(tmp_path, with_channel({"M": {"payload": deep(100)}}))
    assert time.process_time() - began < 60


def test_documents_of_the_network_read_no_local_files(tmp_path: Path) -> None:
    fetcher = Fetcher(network=False, reach=ConnectionPolicy())
    (tmp_path / "d.yaml").write_text(json.dumps(with_channel({"M": {"$ref": "https://example.com/m.yaml#/M"}})))
    catalog = load([tmp_path / "d.yaml"], fetcher=fetcher)
    assert "network-off" in {each.rule for each in catalog.findings}
