"""The docstrings of the package: examples that run."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
MODULES: Final = sorted(f"xrouter.{path.stem}" for path in (ROOT / "xrouter").glob("[!_]*.py"))


@pytest.mark.parametrize("name", ["xrouter", *MODULES])
def test_the_examples_of_docstrings_are_true(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0
    undocumented = [
        each.name
        for each in doctest.DocTestFinder(exclude_empty=False).find(module)
        if not any(part.startswith("_") for part in each.name.split(".")) and not each.docstring
    ]
    assert not undocumented
