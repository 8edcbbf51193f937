"""Data schemas in matching, from data files: with each setting of ``validate``, by the matcher and the reference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from catalog.load import load
from catalog.model import Catalog
from router.matching.records import RecordMatcher
from router.matching.schema_validation import Validation
from tests.support.cases import read_cases
from tests.support.reference import Reference
from tests.support.rule_ways import decide_both

CASES = Path(__file__).resolve().parents[3] / "cases" / "matching" / "schemas.yaml"


def cases() -> Iterator[Any]:
    for case in read_cases(CASES):
        for number, record in enumerate(case["records"]):
            for validation in get_args(Validation):
                yield pytest.param(case, record, validation, id=f"{case['title']}-{number}-{validation}")


def catalog_of(case: dict[str, Any], folder: Path) -> tuple[Catalog, str]:
    path = folder / "catalog.json"
    path.write_text(json.dumps(case["catalog"]), encoding="utf-8")
    catalog = load([path])
    (endpoint,) = catalog.endpoints
    if "group" in case:
        known = catalog.endpoints[endpoint]
        chosen = tuple(xid for xid in known.candidates if xid.rsplit("/", 1)[-1] in case["group"])
        catalog = replace(catalog, endpoints={endpoint: replace(known, candidates=chosen)})
    return catalog, endpoint


@pytest.mark.parametrize(("case", "record", "validation"), list(cases()))
def test_a_schema_decides_where_it_should(
    case: dict[str, Any], record: dict[str, Any], validation: Validation, tmp_path: Path
) -> None:
    catalog, endpoint = catalog_of(case, tmp_path)
    line = {"endpoint": endpoint, "protocol": "KAFKA", "native": record.get("native", case["native"])}
    line |= {"body": record["body"]} if "body" in record else {}
    found = decide_both(RecordMatcher(catalog, validation=validation), json.dumps(line))
    expected = Reference(catalog, validation=validation).outcome(json.dumps(line))
    assert found.get("reason") == expected.get("reason") and found.get("message") == expected.get("message")
    assert record[validation] == (found.get("reason") or found["message"].rsplit("/", 1)[-1]), found
    if found.get("reason") == "schema-violation":
        assert all(xid in found["detail"] for xid in (each["message"] for each in found["nearest"]))
        assert {each["property"] for near in found["nearest"] for each in near["mismatches"]} == {"data"}
