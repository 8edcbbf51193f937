"""The project's own sample catalogs: clean, small, and together they cover what this project reads (issue 4).

The tables below say what each sample is there for; a sample that is lost, or loses what it showed, fails one of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from catalog.dialects import detect
from catalog.findings import Declarations
from catalog.load import load
from catalog.model import PROTOCOLS, Catalog, Property
from catalog.parsing.texts import parse_text
from catalog.protocols.properties import AMQP_SECTIONS, TYPES
from tests.support.cases import read_cases, samples
from tests.support.corpora import Row, declared, rows

CASES = read_cases(Path(__file__).parents[2] / "cases" / "samples.yaml")

SOURCES: Final = samples()
OPTIONS: Final = {
    *("method", "path", "query", "headers", "topic", "key", "topic_name", "qos", "retain", "content_type"),
    *("message_expiry_interval", "user_properties", "subject", "reply-to"),
    *(section for section in AMQP_SECTIONS if section != "delivery-annotations"),
}


@pytest.fixture(scope="module")
def declarations() -> Declarations:
    return Declarations()


@pytest.fixture(scope="module")
def everything(declarations: Declarations) -> Catalog:
    return load(SOURCES, declarations=declarations)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_alone(source: Path) -> None:
    catalog = load([source])
    assert catalog.definitions
    assert {f"{each.severity} {each.rule}" for each in catalog.findings} == set(CASES["told"].get(source.name, ()))
    assert catalog.pending == ()


def test_all_together(everything: Catalog) -> None:
    assert len(everything.definitions) == sum(len(load([source]).definitions) for source in SOURCES)
    assert not [each for each in everything.findings if each.severity == "error"]


def test_every_dialect() -> None:
    assert {dialect_of(source) for source in SOURCES} == set(map(tuple, CASES["dialects"]))


def dialect_of(source: Path) -> tuple[str, str, str]:
    file = source if source.is_file() else source / "index.json"
    data = file.read_bytes()
    tree = parse_text(file.name, data).tree
    form = "tree" if source.is_dir() else "json" if data.lstrip().startswith(b"{") else "yaml"
    dialect = detect(tree)
    return dialect.title if dialect else "", str(tree["specversion"]), form


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("usage", ["consumer", "producer"])
def test_every_protocol_is_received_and_sent(protocol: str, usage: str, everything: Catalog) -> None:
    found = [each for each in everything.endpoints.values() if each.protocol == protocol and usage in each.usage]
    assert any(each.candidates for each in found)


def test_every_type_and_option(everything: Catalog) -> None:
    assert {each.type for each in properties(everything)} == TYPES
    used = {each.name.partition(".")[0] for found in everything.definitions.values() for each in found.protocoloptions}
    assert used >= OPTIONS


def properties(catalog: Catalog) -> Iterator[Property]:
    for definition in catalog.definitions.values():
        yield from definition.envelopemetadata
        yield from definition.protocoloptions


# Real catalogs, else our samples: all of them load, whole, and say nothing wrong; and big ones load fast.

NO_CATALOGS: Final = {
    "doc-store-data.json",
    "doc-store-model.json",
    "formatted-doc-store-data.json",
    "formatted-doc-store-model.json",
}
"""Registries of other things than messages: the only files of which an error is true."""
TRUE_ERRORS: Final = {
    "kafka-consumer-endpoint.xreg.json": {"dangling-group": 1, "unresolvable-schema": 1},
    "nats-consumer-endpoint.xreg.json": {"unresolvable-schema": 1},
}
"""References that lead nowhere in the files of their authors: to a group that is not there, and one without a slash."""
OTHER_FORMS: Final = {"mill.messages.yaml", "orchard.messages.json", "observatory"}
"""Samples that write messages down in another way: as a Message Catalog, and split over files."""


@pytest.fixture(scope="module")
def corpora() -> list[Row]:
    return list(rows())


@pytest.mark.slow
@pytest.mark.shared
def test_no_error_that_the_author_would_call_wrong(corpora: list[Row]) -> None:
    for row in corpora:
        assert row.catalog is not None, row.error
        expected = {"not-a-catalog": 1} if row.path.name in NO_CATALOGS else TRUE_ERRORS.get(row.path.name, {})
        assert row.counts("error") == expected, row.path


@pytest.mark.slow
@pytest.mark.shared
def test_every_definition_written_is_effective(corpora: list[Row]) -> None:
    for row in corpora:
        assert row.catalog is not None
        if {row.path.name, row.path.parent.name} & OTHER_FORMS:
            continue
        effective = {(each.group.rsplit("/", 1)[-1], each.messageid) for each in row.catalog.definitions.values()}
        assert effective == declared(parse_text(row.path.name, row.path.read_bytes()).tree), row.path


@pytest.mark.shared
def test_every_schema_is_linked_or_told_of(corpora: list[Row]) -> None:
    for row in corpora:
        assert row.catalog is not None
        told = {each.rule for each in row.catalog.findings}
        for definition in row.catalog.definitions.values():
            if definition.dataschemauri and definition.schemakey is None:
                assert told & {"network-off", "unresolvable-schema"}, definition.xid


@pytest.mark.slow
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
    started = time.process_time()
    catalog = load([path])
    assert len(catalog.definitions) == 10_000
    assert time.process_time() - started < 20.0  # of our own, about 3 s; what others do on the machine is not counted
