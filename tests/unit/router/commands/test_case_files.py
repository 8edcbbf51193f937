"""Each case of ``tests/cases/compared.yaml``: how outcomes differ from what a case of ``xrouter test`` expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from router.commands.test.runner import iter_differences
from tests.support.cases import read_cases

CASES: Final = Path(__file__).resolve().parents[3] / "cases" / "compared.yaml"


@pytest.mark.parametrize("case", read_cases(CASES), ids=lambda case: case["case"])
def test_what_is_compared(case: dict[str, Any]) -> None:
    assert [each["pointer"] for each in iter_differences(case["expected"], case["found"], "")] == case["differs"]
