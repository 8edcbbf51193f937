"""A point that would never be met is refused when it is set, and every point that the tests name is met."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.kill_points import NoSuchPoint, Point, read_points

TESTS = Path(__file__).parents[2]
NAMED = re.compile(r"(?:catalog|bindings|router|os|pathlib)[a-z_.]*:[A-Za-z_.]+(?:~[^~]+)?")
THIS_FILE = Path(__file__)


@cache
def named_in_tests() -> frozenset[str]:
    """Return every text of the tests that names a point."""
    return frozenset(_named())


def _named() -> Iterator[str]:
    yield from (point for points in read_points().values() for point, _ in points)
    for path in TESTS.rglob("*.py"):
        if path == THIS_FILE:
            continue
        text = path.read_text(encoding="utf-8")
        if NAMED.search(text) is None:
            continue  # To take a file apart costs much more, and most name none.
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAMED.fullmatch(node.value):
                yield node.value


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(named_in_tests()))
def test_points_of_the_tests_are_met(name: str) -> None:
    Point.of(name)


def test_the_points_of_the_tests_are_seen() -> None:
    assert {"router.state.state:BatchStore.pin", "os:replace~generation.json"} <= named_in_tests()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("router.reading.streams:start_query", "imported by name in router.running.queries"),
        ("router.intake.intake:open_local_store", "imported by name in router.running.service"),
        ("router.reading.streams:Source", "no function or method"),
        ("router.sinks:check_endpoints", "imported by name in router.commands"),
        ("router.state.state:StateFolder.open", "classmethod, no function"),
        ("router.state.state:_keep", "there is no _keep"),
        ("router.state.state:StateFolder.gone", "there is no StateFolder.gone"),
        ("router.state.state:Gone.pin", "there is no Gone.pin"),
        ("router.state.gone:State.pin", "No module named"),
        ("router.batches.plans:PlanCache.active", "property, no function"),
        ("router.running.queries:FIRST_PAUSE", "float, no function"),
        ("router.watching.batches:_SparkJobs._stage_progress", "staticmethod, no function"),
    ],
)
def test_a_point_that_is_not_met_is_refused(name: str, why: str) -> None:
    with pytest.raises(NoSuchPoint, match=re.escape(why)):
        Point.of(name)


def test_what_is_asked_for_is_called_around_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(Path, "unlink", Path.unlink)
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.touch()
    point = Point.of("pathlib:Path.unlink~/first")
    point.wrap(before=lambda: calls.append(f"{first.exists()}"), after=lambda: calls.append(f"{first.exists()}"))
    second.unlink()
    assert not calls
    first.unlink()
    assert calls == ["True", "False"]
