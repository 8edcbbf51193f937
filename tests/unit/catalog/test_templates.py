"""Templates: which values fit, what is taken, and that hostile input costs its length."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.errors import TemplateError
from catalog.templates import Placeholder, parse

MATCHES = [
    ("{a}{b}{c}x", "1234x", {"a": "1", "b": "2", "c": "34"}),
    ("{a}x{b}x", "1x2x3x", {"a": "1", "b": "2x3"}),
    ("{a}-{b}/{a}", "1-2/1", {"a": "1", "b": "2"}),
    ("{a}-{b}/{a}", "1-2/3", None),
    ("{a}", "any/\nthing", {"a": "any/\nthing"}),
    ("{a}", "", None),
    ("a/{a}", "a/", None),
    ("a/{a}", "a/b/c", None),
    ("{a}/", "b", None),
    ("x{a}x", "xx", None),
    ("xx{a}xx", "xxx", None),
    ("{{a}}", "{1}", {"a": "1"}),
    ("{a b}", "{a b}", {}),
    ("a", "a\n", None),
    ("{a.b-c_1}/", "v/", {"a.b-c_1": "v"}),
]


@pytest.mark.parametrize(("template", "value", "taken"), MATCHES)
def test_match(template: str, value: str, taken: dict[str, str] | None) -> None:
    assert parse(template).match(value) == taken


def test_dots_end_placeholders_of_subjects() -> None:
    assert parse("s.{a}.{b}", dots=True).match("s.1.2") == {"a": "1", "b": "2"}
    assert parse("s.{a}", dots=True).match("s.1.2") is None
    assert parse("s.{a}").match("s.1.2") == {"a": "1.2"}


def test_repeats_are_equal_after_decoding() -> None:
    assert parse("{a}/{a}").match("%41/A") is None
    assert parse("{a}/{a}").match("%41/A", decode=True) == {"a": "%41"}


def test_parts() -> None:
    template = parse("a/{x}{y}-{x}")
    assert template.parts == ("a/", Placeholder("x"), Placeholder("y"), "-", Placeholder("x"))
    assert template.names == ("x", "y", "x")
    assert (template.is_literal, template.is_bare, template.literal_characters) == (False, False, 3)
    assert parse("{x}").is_bare
    assert parse("").is_literal


def test_expansion_names_all_that_is_missing() -> None:
    with pytest.raises(TemplateError) as error:
        parse("{a}/{b}/{a}/{c}").expand({"b": "1"}, encode=True)
    assert error.value.missing == ("a", "c")


tokens = st.lists(st.one_of(st.sampled_from(["{a}", "{b}", "{c}"]), st.text("x/.-", max_size=2)), max_size=6)


@given(tokens, st.text("x/.-12", max_size=12), st.booleans())
def test_agrees_with_a_backtracking_expression(parts: list[str], value: str, dots: bool) -> None:
    template = parse("".join(parts), dots=dots)
    if template.is_bare:
        return
    gap = "([^/.]+?)" if dots else "([^/]+?)"
    expression = "".join(gap if isinstance(part, Placeholder) else re.escape(part) for part in template.parts)
    found = re.fullmatch(expression, value)
    pairs = list(zip(template.names, found.groups(), strict=True)) if found else []
    taken = dict(pairs) if found and all(dict(pairs)[name] == text for name, text in pairs) else None
    assert template.match(value) == taken


@given(
    st.dictionaries(st.sampled_from("abc"), st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=3)
)
def test_what_is_expanded_matches(context: dict[str, str]) -> None:
    template = parse("p/{a}/{b}/{c}/{a}")
    expanded = template.expand(context, encode=True)
    assert template.match(expanded, decode=True) == {
        name: parse("{v}").expand({"v": context[name]}, encode=True) for name in "abc"
    }


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{a}{b}{c}x", "y" * 500_000),
        ("{a}x{b}x{c}x{d}xy", "x" * 500_000),
        ("{a}" * 50 + "!", "-" * 500_000),
        ("{a}/" * 2000, "a/" * 2000),
    ],
)
def test_hostile_input_takes_linear_time(template: str, value: str) -> None:
    compiled = parse(template)
    started = time.perf_counter()
    compiled.match(value)
    assert time.perf_counter() - started < 1.0
