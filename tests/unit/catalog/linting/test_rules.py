"""The table of rules: complete, as the code reports them, and shown as it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from catalog.linting.attributes import explain_rule, load_rules
from catalog.model import Severity
from tests.support.rules_page import PAGE, render_rules_page

ROOT = Path(__file__).parents[4]
SOURCES = [path for room in ("catalog", "router") for path in sorted((ROOT / room).rglob("*.py"))]
RULE_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
COLLECTORS = ("findings", "_findings", "report", "_report")
"""What findings are reported to, by the last part of its name; logs have methods of the same names."""


@cache
def nodes() -> dict[Path, list[ast.AST]]:
    """Return the syntax of every source."""
    return {path: list(ast.walk(ast.parse(path.read_text("utf-8")))) for path in SOURCES}


def reported() -> Iterator[tuple[str, str | None, str]]:
    """Rule, severity (None when only known at run time) and place of every call that reports a finding."""
    for path, found in nodes().items():
        for node in found:
            given = node.value if isinstance(node, (ast.Yield, ast.Return)) else None
            if isinstance(given, ast.Tuple) and len(given.elts) == 4:  # a report on its way to the findings
                severity, rule = (each.value if isinstance(each, ast.Constant) else None for each in given.elts[:2])
                if severity in get_args(Severity) and isinstance(rule, str):
                    yield rule, str(severity), f"{path.name}:{given.lineno}"
            if not isinstance(node, ast.Call):
                continue
            place = f"{path.name}:{node.lineno}"
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name != "Finding" and method not in (*get_args(Severity), "add"):
                continue  # To write a node out takes most of the time.
            holder = ast.unparse(node.func.value).split(".")[-1] if isinstance(node.func, ast.Attribute) else ""
            texts = [each.value if isinstance(each, ast.Constant) else None for each in node.args]
            if name == "Finding" and len(texts) > 3 and isinstance(texts[3], str):
                yield texts[3], texts[2] if isinstance(texts[2], str) else None, place
            elif method in get_args(Severity) and holder in COLLECTORS:
                rule = next((text for text in texts[:2] if isinstance(text, str)), None)
                if rule is not None:
                    yield rule, method, place
            elif method == "add" and holder in COLLECTORS and len(texts) > 2 and isinstance(texts[2], str):
                yield texts[2], texts[1] if isinstance(texts[1], str) else None, place


@pytest.mark.slow
def test_whatever_is_reported_is_in_the_table() -> None:
    found = list(reported())
    assert len({rule for rule, _, _ in found}) > 40
    for rule, severity, place in found:
        assert rule in load_rules(), f"{place} reports {rule}, which catalog/linting/rules.yaml lacks"
        assert severity is None or severity in load_rules()[rule].severities, f"{place}: {rule} is no {severity}"


@pytest.mark.slow
def test_whatever_is_in_the_table_is_reported() -> None:
    texts = {
        node.value
        for found in nodes().values()
        for node in found
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(load_rules()) <= texts


def test_rules_are_told_in_whole_sentences() -> None:
    for rule in load_rules().values():
        assert RULE_ID.fullmatch(rule.id)
        assert set(rule.severities) <= set(get_args(Severity))
        assert rule.doc.endswith(".") and rule.doc.count(". ") == 0
        assert rule.why.endswith(".") and rule.basis and not rule.basis.endswith(".")
        assert all(part in explain_rule(rule) for part in (rule.id, rule.doc, rule.why, rule.basis))


def test_the_page_is_that_of_the_table() -> None:
    written = PAGE.read_text("utf-8")
    assert written == render_rules_page(), "catalog/RULES.md has drifted: run `python -m tests.support.rules_page`"
    assert all(f"| `{rule}` |" in written for rule in load_rules())
