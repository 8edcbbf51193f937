"""Every pair of dialects mixed in one document: it loads, with warnings, and means the same as in 1.0 alone."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from catalog.convert import convert
from catalog.dialects import Dialect
from catalog.documents.documents import Document
from catalog.explaining import explain
from catalog.findings import Declarations, Findings
from catalog.linting.attributes import rejecting_errors
from catalog.load import build_catalog, listing_to_json
from catalog.model import Catalog
from catalog.values import is_any_timestamp
from tests.support.hybrids import DEFINITIONS, DIALECTS, LEVELS, NEW, document, pairs


def built(tree: dict[str, Any]) -> Catalog:
    return build_catalog([Document("a.json", tree)], Findings())


def meaning(catalog: Catalog) -> dict[str, Any]:
    return {xid: listing_to_json(definition, catalog) for xid, definition in catalog.definitions.items()}


PURE = meaning(built(document(NEW, NEW)))


def told(catalog: Catalog) -> set[str]:
    return {finding.rule for finding in catalog.findings if finding.severity == "warning"}


def test_the_definitions_are_all_there() -> None:
    assert list(PURE) == sorted(f"/messagegroups/g/messages/{name}" for name in DEFINITIONS)
    assert PURE["/messagegroups/g/messages/derived"]["envelopemetadata"]["type"]["value"] == "t.1"
    assert PURE["/messagegroups/g/messages/nats"]["protocoloptions"]["subject"]["value"] == "a.{plant}"


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.title)
def test_a_document_of_one_dialect_is_not_remarked_upon(dialect: Dialect) -> None:
    catalog = built(document(dialect, dialect, ()))
    assert meaning(catalog) == PURE
    foreign = {"dataschemaformat", "dataschemauri", "basemessage"}  # which these dialects have no names for
    names = {each.pointer.rpartition("/")[2] for each in catalog.findings if each.rule == "unusual-name"}
    assert names <= foreign


@pytest.mark.parametrize(("own", "other"), list(permutations(DIALECTS, 2)), ids=lambda dialect: dialect.title)
def test_names_of_another_dialect_mean_the_same(own: Dialect, other: Dialect) -> None:
    for _, _, levels in (each for each in pairs() if each[:2] == (own, other)):
        catalog = built(document(own, other, levels))
        assert meaning(catalog) == PURE, levels
        assert not rejecting_errors(catalog.findings), levels
    assert "unusual-name" in told(built(document(own, other, LEVELS)))


@pytest.mark.parametrize(("own", "other"), list(permutations(DIALECTS, 2)), ids=lambda dialect: dialect.title)
def test_what_is_shown_of_a_mixed_document_stands_in_it(own: Dialect, other: Dialect) -> None:
    for levels in ((), LEVELS):
        tree = document(own, other, levels)
        declarations = Declarations()
        catalog = build_catalog([Document("a.json", tree)], Findings(), declarations)
        for definition in catalog.definitions.values():
            form = explain(definition, catalog, declarations)
            for prop in form["properties"]:
                for part in prop["from"].values():
                    assert part["source"] in TABLES or stands(tree, part["pointer"], part["value"]), (levels, part)


@pytest.mark.parametrize(("own", "other"), list(permutations(DIALECTS, 2)), ids=lambda dialect: dialect.title)
def test_a_mixed_document_is_converted_to_1_0_alone(own: Dialect, other: Dialect) -> None:
    declarations = Declarations()
    catalog = build_catalog([Document("a.json", document(own, other, LEVELS))], Findings(), declarations)
    again = built(dict(convert(catalog, declarations).document))
    assert meaning(again) == PURE
    assert not told(again) & {"unusual-name", "unknown-attribute"}


TABLES = {"cloudevents", "protocol", "default"}


def stands(tree: Any, pointer: str, value: Any) -> bool:
    """Tell whether *value* is what stands at *pointer*; \"now\" has several spellings."""
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        tree = tree[int(key)] if isinstance(tree, list) else tree[key]
    return bool(tree == value or is_any_timestamp(tree))
