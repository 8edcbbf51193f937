"""A point that would never be met is refused when it is set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.kill_points import NoSuchPoint, Point


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
