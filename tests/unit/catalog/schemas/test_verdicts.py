"""Verdicts of every schema family by the cases of ``tests/cases/schemas``: what is valid, what is not and why."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from catalog.schemas.contract import SchemaError, SchemaSource
from catalog.schemas.families import FAMILIES, compile_schema, family_of
from tests.support.cases import read_cases
from tests.support.schemas import Documents

FOLDER: Final = Path(__file__).parents[3] / "cases" / "schemas"


def cases() -> Iterator[Any]:
    for family in FAMILIES:
        for case in read_cases(FOLDER / f"{family.name}.yaml"):
            yield pytest.param(family.name, case, id=f"{family.name}: {case['name']}")


def body_of(family: str, written: Any) -> tuple[bytes | None, str | None]:
    """Return a body as a case writes it, and its content type."""
    if isinstance(written, dict):
        body = bytes.fromhex(written["hex"]) if "hex" in written else written["body"].encode()
        return body, written.get("type")
    return None if written is None else written.encode(), None if family == "XSD" else "application/json; charset=utf-8"


@pytest.mark.parametrize(("family", "case"), list(cases()))
def test_verdicts(family: str, case: dict[str, Any]) -> None:
    source = SchemaSource(
        family, case.get("version", ""), case["schema"], case.get("type", ""), case.get("pointer", ""), "main.xsd"
    )
    if "references" in case:
        assert list(family_of(source.family).references_of(source)) == case["references"]
    library = Documents(case.get("documents", {}))
    if "error" in case:
        with pytest.raises(SchemaError) as caught:
            compile_schema(source, library)
        assert case["error"] in f"{caught.value} {caught.value.hint}" and len(str(caught.value)) < 400
        assert caught.value.pointer == case.get("at", caught.value.pointer)
        assert caught.value.hint or family.startswith("Json")
        assert tempfile.gettempdir() not in f"{caught.value}{caught.value.hint}"
        return
    assert [each.path for each in family_of(family).find_ignored_parts(source)] == case.get("ignored", [])
    validator = compile_schema(source, library)
    for written in case.get("valid", ()):
        assert validator.fault(*body_of(family, written), at_any_cost=True) is None, written
    for written, told in case.get("invalid", ()):
        body = body_of(family, written)
        fault = validator.fault(*body, at_any_cost=True)
        assert fault is not None and told in str(fault), (written, fault)
        assert len(fault.message) <= 300 and "\n" not in str(fault)
        assert fault in (*validator.faults(*body), fault)
