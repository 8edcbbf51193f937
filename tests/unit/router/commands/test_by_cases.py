"""Command lines give what their cases say, and pages say what the code does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router.commands.test.runner import iter_differences
from tests.support.cases import read_cases
from tests.support.commands import CASES, command_cases, run_case
from tests.support.readme import COMMANDS, SETTINGS, made


@pytest.mark.parametrize(("case", "files"), [*command_cases()])
def test_a_command_gives_what_its_case_says(
    case: dict[str, Any],
    files: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_case(case, files, tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize("case", read_cases(CASES.with_name("compared.yaml")), ids=lambda case: case["case"])
def test_outcomes_differ_from_those_of_a_case_as_it_says(case: dict[str, Any]) -> None:
    assert [each["pointer"] for each in iter_differences(case["expected"], case["found"], "")] == case["differs"]


@pytest.mark.parametrize("page", [SETTINGS, COMMANDS], ids=lambda page: page.name)
def test_the_tables_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == made(text), f"{page.name} has drifted: run `python -m tests.support.readme`"
