"""Payload columns of real catalogs: every schema types or says why not, and what is emitted decodes."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from catalog.load import load
from catalog.model import Catalog, Definition
from catalog.schemas.columns import PayloadMaker, payload_column, payload_findings
from tests.support.cases import samples
from tests.support.corpora import SHARED, rows
from tests.support.schemas import NOW

PAYLOADS: Final = 4
ENCODINGS: Final = {
    "Avro": ("application/json", "application/avro", "avro/single-object"),
    "Protobuf": ("application/json", "application/protobuf"),
}


def check(catalog: Catalog) -> int:
    """Check each schema of a catalog once; return how many give a column."""
    typed = 0
    for definition in by_schema(catalog.definitions.values()):
        column = payload_column(catalog, definition.xid)
        if column is None:
            assert payload_findings(catalog, definition.xid) or definition.schemakey is None, definition.xid
            continue
        typed += 1
        maker = PayloadMaker(definition, catalog)
        for content_type in ENCODINGS.get(maker.family or "", (definition.datacontenttype or "application/json",)):
            made = [maker.make(content_type, number, random.Random(number), NOW) for number in range(PAYLOADS)]
            bodies = [each.data for each in made if not each.doubt]
            array, undecoded = column.decode(pa.array(bodies, pa.binary()), [content_type] * len(bodies))
            array.validate(full=True)
            assert array.type == column.type
            assert not undecoded, (definition.xid, undecoded[0], bodies[undecoded[0].row])
            assert array.null_count == 0
    return typed


def by_schema(definitions: Iterable[Definition]) -> Iterable[Definition]:
    found = {(each.schemakey, each.schemaname, each.schemapointer, each.dataschemaformat): each for each in definitions}
    return found.values()


@pytest.mark.parametrize("source", samples(), ids=lambda source: source.name)
def test_samples(source: Path) -> None:
    check(load([source]))


def test_the_samples_have_many_typed_definitions() -> None:
    catalog = load(samples())
    assert sum(payload_column(catalog, xid) is not None for xid in catalog.definitions) >= 20


@pytest.mark.slow
@pytest.mark.shared
def test_corpora() -> None:
    assert sum(check(row.catalog) for row in rows() if row.catalog is not None) > (100 if SHARED else 10)
