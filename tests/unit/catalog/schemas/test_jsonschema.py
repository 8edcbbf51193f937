"""JSON schemas: drafts, references, deep links, and bodies that mean harm."""

from __future__ import annotations

import time
from typing import Any

import pytest

from catalog.schemas.contract import SchemaError, SchemaSource, Validator
from catalog.schemas.jsonschema.validating import compile_schema, draft_of
from tests.support.schemas import NOTHING

DRAFT = "http://json-schema.org/draft-{}/schema#"


def compiled(
    document: Any, *, library: Any = NOTHING, version: str = "", name: str = "", pointer: str = ""
) -> Validator:
    source = SchemaSource("JsonSchema", version, document, name, pointer, "/schemagroups/g/schemas/s/versions/1")
    return compile_schema(source, library)


@pytest.mark.parametrize(
    ("said", "version", "draft"),
    [
        (DRAFT.format("04"), "draft-07", "04"),
        (DRAFT.format("06"), "", "06"),
        ("https://json-schema.org/draft/2019-09/schema", "", "2019-09"),
        (None, "draft-07", "07"),
        (None, "draft-07version", "07"),
        (None, "draft/2019-09", "2019-09"),
        (None, "4", "04"),
        (None, "unknown", "2020-12"),
        ("https://example.com/own", "draft-06", "06"),
    ],
)
def test_which_draft(said: str | None, version: str, draft: str) -> None:
    assert draft_of({"$schema": said}, version) == draft


def test_hostile_content_ends() -> None:
    started = time.process_time()
    looking = compiled({"pattern": "^(?=(a+)+$)(a|aa)+b\\1"})
    assert looking.fault(b'"' + b"a" * 5000 + b'!"', None) is not None
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"not": deep}
    with pytest.raises(SchemaError):
        compiled(deep)
    node = {"$defs": {"n": {"allOf": [{"items": {"$ref": "#/$defs/n"}}] * 2}}, "$ref": "#/$defs/n"}
    assert compiled(node).fault(b"[" * 500 + b"]" * 500, None, at_any_cost=True) is None
    assert compiled({"$ref": "#"}).fault(b"1", None, at_any_cost=True) is None
    assert time.process_time() - started < 20
