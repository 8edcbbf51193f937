"""Data from outside never meets a pattern that may backtrack far: every regular expression of the sources is looked at.

A pattern of Python's is a literal, or stands in a list with the reason why it may be none. Literals are searched for
repetitions within repetitions, which take exponential time where the inner one may be read in several ways.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.cases import read_cases

CASES: Final[Mapping[str, Any]] = read_cases(Path(__file__).parents[1] / "cases" / "patterns.yaml")

# The standard library has no public parser of patterns.
sre: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")
ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    path for room in ("catalog", "bindings", "registry", "router") for path in sorted((ROOT / room).rglob("*.py"))
]
PYTHON: Final = {"compile", "match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
JAVA: Final = {
    "rlike",
    "regexp",
    "regexp_like",
    "regexp_replace",
    "regexp_extract",
    "regexp_extract_all",
    "regexp_count",
}
BUILT: Final = CASES["built"]
"""Modules with patterns that are no literals, and what they are put together from."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def calls_of(path: Path) -> tuple[tuple[str, ast.Call], ...]:
    """Return the calls of methods and of functions of modules, by their names."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return tuple((n.func.attr, n) for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))


def uses_of(path: Path, module: set[str]) -> Iterator[ast.Call]:
    return (call for name, call in calls_of(path) if name in module)


def of_re(call: ast.Call) -> bool:
    assert isinstance(call.func, ast.Attribute)
    return isinstance(call.func.value, ast.Name) and call.func.value.id == "re"


def literal(call: ast.Call) -> str | bytes | None:
    value = call.args[0] if call.args else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, (str, bytes)) else None


def nested(tree: Any, within: bool = False) -> bool:
    """Whether an unbounded repetition stands in another with nothing around it that ends it for certain.

    Possessive repetitions and atomic groups are never tried again, and what begins or ends with a literal that is
    outside of the inner class can only be parted in one way.
    """
    for kind, value in tree:
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            low, high, inner = value
            unbounded = high is sre.MAXREPEAT and low != high
            if unbounded and within:
                return True
            if nested(inner, within=unbounded and not ends_for_certain(inner)):
                return True
        elif kind is sre.SUBPATTERN:
            if nested(value[-1], within):
                return True
        elif kind is sre.BRANCH:
            if any(nested(each, within) for each in value[1]):
                return True
        elif kind in (sre.ASSERT, sre.ASSERT_NOT) and nested(value[1]):
            return True
    return False


def ends_for_certain(tree: Any) -> bool:
    """Whether a repeated group begins or ends with a character that none of its repetitions takes."""
    items = list(tree)
    while len(items) == 1 and items[0][0] is sre.SUBPATTERN:
        items = list(items[0][1][-1])
    if len(items) == 1 and items[0][0] is sre.BRANCH:
        return all(ends_for_certain(each) for each in items[0][1][1])
    repeated = [value[2] for kind, value in items if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT)]
    if not repeated:
        return True
    marks = [value for kind, value in (items[0], items[-1]) if kind is sre.LITERAL]
    return any(all(not takes(inner, mark) for inner in repeated) for mark in marks)


def takes(tree: Any, character: int) -> bool:
    """Whether some single item of a repetition takes a character; what is not understood does."""
    for kind, value in tree:
        if kind is sre.LITERAL:
            if value == character:
                return True
        elif kind is sre.IN:
            if re.fullmatch(written(value), chr(character)):
                return True
        elif kind is sre.NOT_LITERAL:
            if value != character:
                return True
        elif kind is sre.SUBPATTERN:
            if takes(value[-1], character):
                return True
        else:
            return True
    return False


def written(items: Any) -> str:
    """Write a class of characters anew."""
    negated, text = "", ""
    for kind, value in items:
        if kind is sre.NEGATE:
            negated = "^"
        elif kind is sre.LITERAL:
            text += re.escape(chr(value))
        elif kind is sre.RANGE:
            text += f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
        elif kind is sre.CATEGORY:
            text += {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}.get(str(value).rpartition("_")[2], r"\s\S")
    return f"[{negated}{text}]"


@pytest.mark.slow
def test_no_pattern_backtracks_far() -> None:
    far = [
        f"{name_of(path)}:{call.lineno}: {pattern!r}"
        for path in SOURCES
        for call in uses_of(path, PYTHON)
        if of_re(call) and (pattern := literal(call)) is not None and nested(parser.parse(pattern))
    ]
    noise = ROOT / "router/commands/dead_letters/noise.yaml"
    names = yaml.safe_load(noise.read_text(encoding="utf-8"))["names"]
    far += [f"{name_of(noise)}: {pattern!r}" for pattern in names if nested(parser.parse(pattern))]
    assert names and not far, "\n".join(far)


@pytest.mark.slow
def test_no_pattern_is_built_but_for_a_reason() -> None:
    built = {
        name_of(path): call.lineno
        for path in SOURCES
        for call in uses_of(path, PYTHON)
        if of_re(call) and literal(call) is None
    }
    unknown = {name: line for name, line in built.items() if name not in BUILT}
    assert not unknown, (
        f"patterns that are no literals, by line: {unknown}; write them out, or say why they are harmless"
    )
    assert BUILT.keys() == built.keys(), "these have none any more; take them out of BUILT"


@pytest.mark.slow
def test_javas_engine_is_given_no_data() -> None:
    """Java backtracks as Python does: these modules give it patterns that are written out in the sources."""
    used = {name_of(path) for path in SOURCES for _ in uses_of(path, JAVA)}
    assert used <= {"router/reading/backlogs.py", "router/realtime.py"}, used


@pytest.mark.parametrize("pattern", ["(a+)+$", "(?:a*b*)*c", "(?:[^/]+/?)*x", "(?:(?:ab)*c?)*"])
def test_the_search_knows_a_pattern_that_backtracks(pattern: str) -> None:
    assert nested(parser.parse(pattern))


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern", ["(?:[a-z]+/)*x", r"(?:\.[0-9]+)*", "(?:[^x]++|y)*+", "a+b+", '"(?:[^"\\\\]|\\\\.)*"']
)
def test_the_search_lets_one_pass_that_does_not(pattern: str) -> None:
    assert not nested(parser.parse(pattern))
