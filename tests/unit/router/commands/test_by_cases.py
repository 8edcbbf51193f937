"""Each case of ``tests/cases/commands``: a command line gives what it is to give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import command_cases, run_case


@pytest.mark.parametrize(("case", "files"), [*command_cases()])
def test_a_command_gives_what_its_case_says(
    case: dict[str, Any],
    files: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_case(case, files, tmp_path, capsys, monkeypatch)
