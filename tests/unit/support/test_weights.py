"""Files of tests begin with the longest, and their weights come from a report of pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.weights import ROOT, longest_first, measured, read_weights

REPORT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.unit.support.test_weights" name="a" time="1.25"/>
<testcase classname="tests.unit.support.test_weights.TestGroup" name="b[x.y]" time="2.5"/>
<testcase classname="tests.test_architecture" name="c" time="0.04"/>
</testsuite></testsuites>"""


def test_the_longest_come_first_and_unknown_ones_in_the_middle() -> None:
    weights = {"short": 1.0, "long": 90.0, "gone": 5.0}
    assert longest_first(["short", "new", "long", "new"], weights) == ["long", "new", "short"]


def test_without_weights_the_order_stays() -> None:
    assert longest_first(["b", "a", "b"], {}) == ["b", "a"]


def test_a_report_gives_seconds_by_file(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert measured(report) == {"tests/test_architecture.py": 0.0, "tests/unit/support/test_weights.py": 3.8}


def test_a_report_of_other_tests_is_refused(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT.replace("tests.", "elsewhere."))
    with pytest.raises(ValueError, match="elsewhere"):
        measured(report)


def test_this_run_is_in_order(request: pytest.FixtureRequest) -> None:
    files = [item.path.relative_to(ROOT).as_posix() for item in request.session.items]
    assert list(dict.fromkeys(files)) == longest_first(files, read_weights())
