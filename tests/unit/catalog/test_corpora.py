"""Real catalogs, else our samples: all of them load, whole, and say nothing wrong; and big ones load fast."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

import pytest

from catalog.load import load
from catalog.parsing.texts import parse_text
from tests.support.corpora import Row, declared, rows

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
