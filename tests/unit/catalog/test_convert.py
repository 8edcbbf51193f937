"""Converting loses nothing: what is read from the 1.0-rc4 document is what was read from the sources."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.convert import ConvertedCatalog, convert, to_json_text, to_yaml_text
from catalog.explaining import explain
from catalog.findings import CatalogError, Declarations, DocumentError
from catalog.linting.attributes import rejecting_errors
from catalog.load import load
from catalog.model import Catalog, Definition
from catalog.schemas.library import SchemaRegistry
from tests.support.cases import read_cases, samples
from tests.support.corpora import CORPORA

DOCUMENTS = sorted(
    path for path in [*CORPORA.rglob("*"), *samples()] if path.is_file() and path.suffix in (".json", ".yaml", ".cereg")
)
OLD_RULES = {"unusual-name", "deprecated-dialect", "duplicate-key"}


def converted(path: Path, *, flatten: bool = False) -> tuple[Catalog, ConvertedCatalog]:
    declarations = Declarations()
    catalog = load([path], declarations=declarations)
    return catalog, convert(catalog, declarations, flatten=flatten)


def reread(done: ConvertedCatalog, folder: Path, *, yaml: bool = False) -> Catalog:
    target = folder / ("again.yaml" if yaml else "again.json")
    target.write_text(to_yaml_text(done.document) if yaml else to_json_text(done.document), "utf-8")
    return load([target])


def schemas_of(path: Path) -> set[str]:
    declarations = Declarations()
    load([path], declarations=declarations)
    entries = SchemaRegistry(declarations).entries()
    return {repr((each.key, each.format, each.document, each.address)) for each in entries}


def written(folder: Path, document: Any) -> Path:
    path = folder / "source.json"
    path.write_text(json.dumps(document), "utf-8")
    return path


def portable(definition: Definition) -> Definition:
    """The definition without a schema that lies in a file beside its source, which the copy elsewhere does not find."""
    beside = (definition.dataschemauri or "#")[0] not in "#/"
    return replace(definition, schemakey=None, schemaname="", schemapointer="") if beside else definition


def meaning(catalog: Catalog) -> Any:
    """All that matters; among options, the order of those of one name does."""
    definitions = {
        xid: replace(portable(each), protocoloptions=tuple(sorted(each.protocoloptions, key=lambda prop: prop.name)))
        for xid, each in catalog.definitions.items()
    }
    return definitions, catalog.endpoints, catalog.groups


def same(one: Catalog, other: Catalog) -> bool:
    return bool(meaning(one) == meaning(other))


@pytest.mark.slow
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_real_documents_mean_the_same_when_converted(path: Path, tmp_path: Path) -> None:
    try:
        catalog, done = converted(path)
    except DocumentError:
        return
    if not (catalog.definitions or catalog.endpoints or catalog.schemas):
        return
    again = reread(done, tmp_path)
    assert same(again, catalog)
    assert schemas_of(tmp_path / "again.json") == schemas_of(path)
    assert not done.left_out
    known = {finding.rule for finding in catalog.findings if finding.severity == "error"}
    assert {finding.rule for finding in rejecting_errors(again.findings)} <= known
    assert not OLD_RULES & {finding.rule for finding in again.findings}
    assert same(reread(done, tmp_path, yaml=True), catalog)


@pytest.mark.slow
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_flattened_definitions_are_the_effective_ones(path: Path, tmp_path: Path) -> None:
    try:
        catalog, done = converted(path, flatten=True)
    except DocumentError:
        return
    if catalog.definitions:
        alone = {xid: replace(portable(each), base=(), schemakey=None) for xid, each in catalog.definitions.items()}
        again = reread(done, tmp_path).definitions
        assert {xid: replace(portable(each), schemakey=None) for xid, each in again.items()} == alone
        assert not done.not_flat


HARD: Any = read_cases(Path(__file__).parents[2] / "cases" / "documents" / "convert.yaml")


@pytest.mark.parametrize("yaml", [False, True])
def test_what_only_older_dialects_can_say_is_said_in_1_0(tmp_path: Path, yaml: bool) -> None:
    catalog, done = converted(written(tmp_path, HARD))
    again = reread(done, tmp_path, yaml=yaml)
    assert same(again, catalog)
    assert schemas_of(tmp_path / ("again.yaml" if yaml else "again.json")) == schemas_of(tmp_path / "source.json")
    assert done.left_out == ("/messagegroups/h/messages/a", "/messagegroups/h/messages/b")
    assert not rejecting_errors(again.findings)
    assert not OLD_RULES & {finding.rule for finding in again.findings}


def test_flattening_keeps_the_base_where_nothing_else_says_a_default_protocol(tmp_path: Path) -> None:
    catalog, done = converted(written(tmp_path, HARD), flatten=True)
    again = reread(done, tmp_path)
    assert done.not_flat == ("/messagegroups/h/messages/by-default",)
    for xid, definition in catalog.definitions.items():
        if xid not in done.not_flat:
            assert again.definitions[xid] == replace(definition, base=(), schemakey=again.definitions[xid].schemakey)


def test_ids_and_unknown_attributes_are_written(tmp_path: Path) -> None:
    expected = read_cases(Path(__file__).parents[2] / "cases" / "documents" / "converted.yaml")
    assert json.loads(to_json_text(converted(written(tmp_path, HARD))[1].document)) == expected


def test_what_is_another_has_nothing_of_its_own(tmp_path: Path) -> None:
    of = {"meta": {"xref": "/messagegroups/g/messages/base"}}
    messages = {"base": {"protocol": "KAFKA"}, "plain": of, "named": {**of, "name": "Mine", "labels": {"a": "b"}}}
    catalog, done = converted(written(tmp_path, {"messagegroups": {"g": {"messages": messages}}}))
    found = done.document["messagegroups"]["g"]["messages"]
    xid = "/messagegroups/g/messages/plain"
    assert found["plain"] == {"messageid": "plain", "xid": xid, "meta": of["meta"]}
    assert found["named"]["basemessage"] == "/messagegroups/g/messages/base" and "meta" not in found["named"]
    assert (found["named"]["name"], found["named"]["labels"]) == ("Mine", {"a": "b"})
    assert same(reread(done, tmp_path), catalog)


TEXTS = (
    "1e3",
    "1.5",
    "yes",
    "null",
    "~",
    "0x1f",
    "2026-01-02",
    "- a",
    "a: b",
    "{x}",
    "# no",
    " pad ",
    "*a",
    "ü\n\u2028",
    "",
)


def test_yaml_keeps_every_text_a_text(tmp_path: Path) -> None:
    extra = {f"t{number}": text for number, text in enumerate(TEXTS)} | {"n": [1, 1.5, True]}
    document = {"messagegroups": {"g": {"messages": {"m": {"protocol": "HTTP", "extra": extra}}}}}
    done = converted(written(tmp_path, document))[1]
    target = tmp_path / "again.yaml"
    target.write_text(to_yaml_text(done.document), "utf-8")
    assert converted(target)[1].document == done.document
    assert not re.search(r"[&*]id\d", to_yaml_text({"a": extra, "b": extra}))


def test_what_a_text_cannot_hold_is_an_error() -> None:
    with pytest.raises(CatalogError, match="convert it to JSON"):
        to_yaml_text({"a": "\ud800"})
    assert json.loads(to_json_text({"a": "\ud800"})) == {"a": "\ud800"}
    with pytest.raises(CatalogError, match="number"):
        to_json_text({"a": float("inf")})


SCALARS = st.sampled_from(["a", "{x}", "", 1, True, None, "0000-01-01T00:00:00Z"])
BODIES = SCALARS | st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "uri", "datetime", "var", "nonsense", None]),
        "value": SCALARS,
        "required": st.sampled_from([True, False, "true", None]),
        "description": st.just("d"),
    },
)
NAMED = st.lists(
    st.builds(
        lambda name, body: {"name": name, **(body if isinstance(body, dict) else {"value": body})},
        st.sampled_from(["h", "X-H", "x_h", "content-type"]),
        BODIES,
    ),
    max_size=3,
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "topic": BODIES,
        "topic_name": BODIES,
        "key": BODIES,
        "headers": NAMED,
        "user_properties": NAMED,
        "properties": st.dictionaries(st.sampled_from(["subject", "reply_to", "qos", "none"]), BODIES, max_size=2),
        "application_properties": st.dictionaries(st.sampled_from(["a", "b"]), BODIES, max_size=2),
    },
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "basemessage": st.sampled_from([f"/messagegroups/{g}/messages/m{n}" for g in "gh" for n in range(3)]),
        "envelope": st.sampled_from(["cloudevents/1.0", "Other/1.0", "None"]),
        "envelopemetadata": st.dictionaries(st.sampled_from(["id", "type", "source", "time", "x"]), BODIES, max_size=3),
        "protocol": st.sampled_from(["kafka", "MQTT", "amqp", "HTTP/2", "NATS", "Odd/1"]),
        "protocoloptions": OPTIONS,
        "dataschema": st.sampled_from(["s", {"type": "object"}]),
        "dataschemauri": st.just("#/schemagroups/none/schemas/s"),
        "envelopeoptions": st.fixed_dictionaries(
            {},
            optional={
                "mode": st.sampled_from(["x", "y"]),
                "format": st.sampled_from(["x", "y"]),
                "attributes": st.dictionaries(st.sampled_from(["type", "x"]), BODIES, max_size=2),
            },
        ),
        "xref": st.sampled_from(["/messagegroups/g/messages/m1", "/messagegroups/z/messages/m1"]),
    },
)
GROUPS = st.fixed_dictionaries(
    {"messages": st.dictionaries(st.sampled_from(["m0", "m1", "m2"]), MESSAGES, min_size=1)},
    optional={"envelope": st.just("cloudevents"), "protocol": st.sampled_from(["kafka", "MQTT/5.0", "AMQP/1.0"])},
)


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(groups=st.dictionaries(st.sampled_from(["g", "h"]), GROUPS, min_size=1))
def test_any_mixture_of_levels_means_the_same(tmp_path: Path, groups: dict[str, Any]) -> None:
    declarations = Declarations()
    catalog = load([written(tmp_path, {"messagegroups": groups})], declarations=declarations)
    assert same(reread(convert(catalog, declarations), tmp_path), catalog)
    for definition in catalog.definitions.values():
        told = explain(definition, catalog, declarations)
        assert {name: each["value"] for name, each in told["envelopeoptions"].items()} == definition.envelopeoptions


def test_what_is_in_another_document_stays_there(tmp_path: Path) -> None:
    other = {"protocol": "KAFKA", "messages": {"b": {"protocoloptions": {"topic": "a"}}}}
    (tmp_path / "other.json").write_text(json.dumps({"messagegroups": {"b": other}}), "utf-8")
    base = "other.json#/messagegroups/b/messages/b"
    messages = {"m": {"basemessage": base, "protocoloptions": {"key": "k"}}, "n": {"uri": base}}
    endpoint = {"messagegroups": ["#/messagegroups/m", "other.json#/messagegroups/b"]}
    document = {"messagegroups": {"m": {"messages": messages}}, "endpoints": {"e": endpoint}}
    catalog, done = converted(written(tmp_path, document))
    assert len(catalog.endpoints["/endpoints/e"].candidates) == 3
    assert same(reread(done, tmp_path), catalog)
    assert done.document["messagegroups"].keys() == {"m"}
    declarations = Declarations()
    again = load([tmp_path / "source.json"], declarations=declarations)
    told = explain(again.definitions["/messagegroups/m/messages/m"], again, declarations)
    assert told["protocol"]["source"] == "group"
    assert (told["protocol"]["file"], told["protocol"]["pointer"]) == (str(tmp_path / "other.json"), "/messagegroups/b")
