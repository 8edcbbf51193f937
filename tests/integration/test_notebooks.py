"""The notebooks run, and show what the repository and the site have of them."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import NOTEBOOKS, run_notebook, shown_by

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("path", PATHS, ids=[each.stem for each in PATHS])
def test_a_notebook_shows_what_is_written(path: Path) -> None:
    assert shown_by(run_notebook(path)) == shown_by(nbformat.read(path, 4))  # type: ignore[no-untyped-call]
