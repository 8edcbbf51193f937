"""The benchmark beside programs written by hand: all do the same, and its figures are those of what was sent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.benchmarks import peers
from tests.benchmarks.peers import Sample
from tests.support.code_lines import code_lines_of


@pytest.mark.full
@pytest.mark.broker
def test_all_contestants_send_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    peers.main("--records 2000 --rounds 1 --warm 1 --definitions 20 --limit 600".split())
    told = capfd.readouterr().out
    outcomes = dict(re.findall(r"^\| (\S+ \S+).* 20 \|.*\| ([^|]+) \|$", told, re.MULTILINE))
    assert len(outcomes) == len(peers.KINDS), told
    assert set(outcomes.values()) == {"the same"}, told


def test_a_figure_is_the_median_of_whole_rounds_after_the_first() -> None:
    samples = [Sample(at, sent, at / 10) for at, sent in ((0, 0), (9, 90), (10, 100), (12, 200), (13, 300), (20, 400))]
    assert peers.rates(samples, 100, 1, 3) == pytest.approx((50, 0.002))


def test_a_figure_of_what_was_stopped_is_of_its_later_half() -> None:
    samples = [Sample(at, sent, at) for at, sent in ((0, 0), (10, 10), (20, 50), (30, 90), (40, 90))]
    assert peers.rates(samples, 100, 1, 3) == (4, 0.25)
    assert peers.rates(samples[:1], 100, 1, 3) is None
    assert peers.rates([*samples[:1], Sample(1, 5, 1)], 100, 1, 3) is None


def test_lines_with_code_are_counted(tmp_path: Path) -> None:
    programs = {
        "a.py": '"""Says.\n\nMore."""\n\nA = (\n    1,  # why\n)\n# not\n',
        "a.java": "/** Says. */\n// not\nclass A {\n  /* not\n   * more */\n\n  int a; // why\n}\n",
        "a.yaml": "# not\n\na:\n  b: 1  # why\nc: 2\n",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
    assert [code_lines_of(tmp_path / name) for name in programs] == [3, 3, 3]
