"""A point that would never be met is refused when it is set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cases import read_cases
from tests.support.kill_points import NoSuchPoint, Point

CASES: Final[Mapping[str, Any]] = read_cases(Path(__file__).parents[2] / "cases" / "kill_points.yaml")


@pytest.mark.parametrize(("name", "why"), CASES["refused"])
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
