"""Constraints of attributes hold as the matcher has them, also for those who ask without one."""

from __future__ import annotations

from catalog.definitions.constraints import attribute_constraint
from catalog.model import Property


def test_a_declared_attribute_holds_as_the_matcher_has_it() -> None:
    content = attribute_constraint(Property("datacontenttype", "string", "application/json"))
    assert content.satisfied("application/json; charset=utf-8", present=True)
    needed = attribute_constraint(Property("count", "integer", required=True))
    assert [needed.satisfied(text, present=text is not None) for text in ("7", "seven", None)] == [True, False, False]
    source = attribute_constraint(Property("source", "uritemplate", "/plants/{plant}"))
    assert source.placeholder_values("/plants/a%20b") == {"plant": "a b"}
    assert (
        source.placeholder_values("/other") == source.placeholder_values(None) == content.placeholder_values("x") == {}
    )
