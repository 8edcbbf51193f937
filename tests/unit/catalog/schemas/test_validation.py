"""Batches of bodies against definitions, and what travels to the workers."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from catalog.model import Catalog, Definition
from catalog.schemas import families, validation
from catalog.schemas.contract import MAX_BODY_BYTES, SchemaError, SchemaSource
from catalog.schemas.families import compile_schema, fingerprint
from catalog.schemas.ids.deciding import Begin
from catalog.schemas.library import CatalogLibrary
from catalog.schemas.validation import PayloadValidation

SCHEMAS: dict[str, Any] = {
    "text": {"format": "JsonSchema/draft-07", "document": {"type": "string"}},
    "far": {"format": None, "document": {"$ref": "other#/definitions/a"}, "references": {"other": "near"}},
    "near": {"format": None, "document": {"definitions": {"a": {"type": "string"}}}},
    "bad": {"format": "JsonSchema", "document": {"type": "strin"}},
    "odd": {"format": "JTD/1", "document": {"type": "string"}},
}


def catalog_of(**keys: str | None) -> Catalog:
    definitions = {xid: Definition(xid, "g", schemakey=key) for xid, key in keys.items()}
    definitions["declared"] = Definition("declared", "g", dataschemaformat="JSONSCHEMA", schemakey="far")
    return Catalog(definitions, schemas=SCHEMAS)


CATALOG = catalog_of(text="text", far="far", bad="bad", odd="odd", none=None, lost="gone")


def test_verdicts_of_a_batch_are_in_its_order() -> None:
    bodies = (b'"a"', b"1", None, b'"b"', b"x", b"")
    types = (None, "application/json", "text/plain", "", None, None)
    faults = PayloadValidation(CATALOG).faults("text", bodies, types)
    assert [fault is None for fault in faults] == [True, False, True, True, False, False]
    framed = PayloadValidation(CATALOG).faults(
        "text", (None, b""), (None, None), (Begin("confluent"), Begin("confluent"))
    )
    assert [fault is None for fault in framed] == [True, False]


@pytest.mark.parametrize("xid", ["bad", "odd", "none", "lost", "unheard-of", "far"])
def test_without_a_usable_schema_there_is_no_verdict(xid: str) -> None:
    assert PayloadValidation(CATALOG).faults(xid, (b"1", None), (None, None)) == [None, None]


def test_a_body_too_large_gets_no_verdict() -> None:
    payloads = PayloadValidation(CATALOG)
    assert payloads.faults("text", [b"1" * (MAX_BODY_BYTES + 1)], [None])[0] is None
    assert payloads.faults("text", [b"1"], [None])[0] is not None


def test_validators_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MAX_COMPILED", 2)
    payloads = PayloadValidation(catalog_of(a="text", b="text", c="text", d=None))
    for xid in "abcdabcd":
        assert (payloads.faults(xid, [b"1"], [None])[0] is None) == (xid == "d")
    assert payloads._validator.cache_info().currsize == 2


def test_failures_are_remembered_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "MAX_COMPILED", 3)
    monkeypatch.setattr(families, "_thread", threading.local())
    library = CatalogLibrary({})
    for n in range(5):
        for _ in range(2):
            with pytest.raises(SchemaError):
                compile_schema(SchemaSource("JsonSchema", "", {"type": f"strin{n}"}), library)
    assert len(families._thread.outcomes) == 3


def test_a_fingerprint_covers_what_is_referred_to() -> None:
    source = SchemaSource("JsonSchema", "", SCHEMAS["far"]["document"], uri="far")
    changed = {**SCHEMAS, "near": {"format": None, "document": {"definitions": {"a": {"type": "number"}}}}}
    prints = {fingerprint(source, CatalogLibrary(each)) for each in (SCHEMAS, changed, {})}
    assert len(prints) == 3


@pytest.mark.slow
def test_families_are_imported_when_they_are_met() -> None:
    script = (
        "import sys\nfrom catalog.model import Catalog, Definition\n"
        "from catalog.schemas.validation import PayloadValidation\n"
        "schemas = {'s': {'format': 'JsonSchema', 'document': {'type': 'string'}}}\n"
        "catalog = Catalog({'m': Definition('m', 'g', schemakey='s')}, schemas=schemas)\n"
        "assert PayloadValidation(catalog).faults('m', [b'1'], [None])[0] is not None\n"
        "loaded = {'google.protobuf', 'grpc_tools', 'lxml', 'fastavro', 'json_structure', 'httpx'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
