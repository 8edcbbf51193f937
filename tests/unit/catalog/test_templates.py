"""Templates: which values fit, what is taken, and that hostile input costs its length."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.findings import TemplateError
from catalog.templates import Placeholder, parse_template
from catalog.values import percent_decode, percent_encode
from tests.support.cases import read_cases
from tests.support.watched import LINEAR, growth

CASES: Final[dict[str, list[Any]]] = read_cases(Path(__file__).parents[2] / "cases" / "values" / "templates.yaml")


@pytest.mark.parametrize(("template", "value", "taken"), CASES["matches"])
def test_match(template: str, value: str, taken: dict[str, str] | None) -> None:
    assert parse_template(template).match(value) == taken


def test_dots_end_placeholders_of_subjects() -> None:
    assert parse_template("s.{a}.{b}", dots=True).match("s.1.2") == {"a": "1", "b": "2"}
    assert parse_template("s.{a}", dots=True).match("s.1.2") is None
    assert parse_template("s.{a}").match("s.1.2") == {"a": "1.2"}


def test_repeats_are_equal_after_decoding() -> None:
    assert parse_template("{a}/{a}").match("%41/A") is None
    assert parse_template("{a}/{a}").match("%41/A", decode=True) == {"a": "%41"}


def test_parts() -> None:
    template = parse_template("a/{x}{y}-{x}")
    assert template.parts == ("a/", Placeholder("x"), Placeholder("y"), "-", Placeholder("x"))
    assert template.names == ("x", "y", "x")
    assert (template.is_literal, template.is_bare, template.literal_characters) == (False, False, 3)
    assert parse_template("{x}").is_bare
    assert parse_template("").is_literal


def test_expansion_names_all_that_is_missing() -> None:
    with pytest.raises(TemplateError) as error:
        parse_template("{a}/{b}/{a}/{c}").expand({"b": "1"}, encode=True)
    assert error.value.missing == ("a", "c")


tokens = st.lists(st.one_of(st.sampled_from(["{a}", "{b}", "{c}"]), st.text("x/.-", max_size=2)), max_size=6)


@given(tokens, st.text("x/.-12", max_size=12), st.booleans())
def test_agrees_with_a_backtracking_expression(parts: list[str], value: str, dots: bool) -> None:
    template = parse_template("".join(parts), dots=dots)
    if template.is_bare:
        return
    gap = "([^/.]+?)" if dots else "([^/]+?)"
    expression = "".join(gap if isinstance(part, Placeholder) else re.escape(part) for part in template.parts)
    found = re.fullmatch(expression, value)
    pairs = list(zip(template.names, found.groups(), strict=True)) if found else []
    taken = dict(pairs) if found and all(dict(pairs)[name] == text for name, text in pairs) else None
    assert template.match(value) == taken


names = st.text("abcXYZ019_.-", min_size=1, max_size=4)
literals = st.text(st.characters(exclude_characters="{}", codec="utf-8"), max_size=4)
values = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@given(st.lists(names, min_size=1, max_size=5, unique=True), st.data(), st.booleans())
def test_expansion_is_taken_apart_again(found: list[str], data: st.DataObject, dots: bool) -> None:
    """Separated by what encoding leaves no value with, each placeholder takes back just what was put into it."""
    template = parse_template("~".join(["p", *(f"/{{{name}}}/" for name in found)]), dots=dots)
    context = {name: data.draw(values) for name in found}
    expanded = template.expand(context, encode=True)
    taken = template.match(expanded, decode=True)
    if dots and any("." in value for value in context.values()):
        assert taken is None  # a dot is not escaped, and ends a placeholder of a NATS subject
    else:
        assert taken is not None
        assert {name: percent_decode(value) for name, value in taken.items()} == context


@given(st.text("{}ab/.-_ ", max_size=40), st.text("{}ab/.-_ ", max_size=40), st.booleans())
def test_any_text_is_a_template(text: str, value: str, dots: bool) -> None:
    template = parse_template(text, dots=dots)
    taken = template.match(value)
    if template.is_literal:
        assert (taken is not None) == (value == text)
    if taken is not None:
        assert template.expand(taken, encode=False) == value
        assert all(taken.values())


@pytest.mark.parametrize("length", [1, 1_000_000])
def test_long_values(length: int) -> None:
    template = parse_template("a/{x}-{y}/{x}")
    long = "é" * length
    expanded = template.expand({"x": long, "y": "1"}, encode=True)
    assert template.match(expanded, decode=True) == {"x": percent_encode(long), "y": "1"}
    assert template.match(f"a/{long}-1/{long}-", decode=True) is None


@pytest.mark.parametrize("text", CASES["literal"])
def test_other_braces_are_literal(text: str) -> None:
    template = parse_template(text * 3)
    assert template.is_literal
    assert template.match(text * 3) == {}
    assert template.expand({}, encode=True) == text * 3


HOSTILE: Final[dict[str, Callable[[int], tuple[str, str]]]] = {
    "a last literal that is not there": lambda n: ("{a}{b}{c}x", "y" * n),
    "a literal that is everywhere": lambda n: ("{a}x{b}x{c}x{d}xy", "x" * n),
    "gaps without literals": lambda n: ("{a}" * 50 + "!", "-" * n),
    "as many gaps as characters": lambda n: ("{a}" * n + "!", "-" * n),
    "as many literals as characters": lambda n: ("{a}x" * n + "y", "ax" * n),
    "as many names as stretches": lambda n: ("".join(f"{{a{k}}}/" for k in range(n)), "a/" * n),
    "one name as many times": lambda n: ("{a}/" * n, "%41/" * n),
    "separators only": lambda n: ("{a}", "/" * n),
    "a literal that nearly fits": lambda n: ("{a}" + "x" * (n // 2) + "y{b}", "x" * n),
    "open braces": lambda n: ("{" * n, "{" * n),
    "open names": lambda n: ("{a" * n, "{a" * n),
    "one open name": lambda n: ("{" + "a" * n, "a" * n),
    "closed braces": lambda n: ("}{" * n, "}{" * n),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_input_takes_linear_time(make: Callable[[int], tuple[str, str]]) -> None:
    def matching(size: int) -> Callable[[], object]:
        template, value = make(size)
        return lambda: parse_template(template).match(value, decode=True)

    assert growth(matching, 4_000) < LINEAR
