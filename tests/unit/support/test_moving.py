"""The tool that merges modules: imports follow, names that collide get another, variables of that name are told."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import moving

FILES = {
    "catalog/__init__.py": '"""Catalogs."""\n',
    "catalog/first.py": '"""First."""\n\nfrom __future__ import annotations\n\n_LIMIT = 1\n\n\nclass Verdict:\n'
    '    """A verdict."""\n\n\ndef first() -> int:\n    """See :class:`catalog.first.Verdict`."""\n    return _LIMIT\n',
    "catalog/second.py": '"""Second, which has a limit too."""\n\nfrom __future__ import annotations\n\n'
    "from catalog.first import Verdict, first\n\n_LIMIT = 2\n\n\ndef second() -> int:\n"
    "    verdict = Verdict\n    return first() + _LIMIT + len(verdict.__name__)\n",
    "tests/third.py": "from catalog import second\nfrom catalog.first import Verdict, first\n\n"
    "assert (first(), second.second(), second._LIMIT, Verdict) is not None\n",
    "README.md": "`catalog/second.py` and catalog.second.second, catalog.first:Verdict\n",
}
PLAN = """
catalog: joined = first second  # both
name catalog.first Verdict -> Finding
doc catalog.joined Both.
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small tree with a repository of its own."""
    monkeypatch.setattr(moving, "ROOT", tmp_path)
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def test_modules_are_merged_and_those_that_import_them_follow(tree: Path) -> None:
    notes = moving.apply(moving.read_plan(PLAN))
    assert notes == ["catalog.joined: catalog.second._LIMIT -> _SECOND_LIMIT"]
    assert not (tree / "catalog/first.py").exists() and not (tree / "catalog/second.py").exists()
    text = (tree / "catalog/joined.py").read_text()
    assert text.startswith('"""Both."""\n') and "# Second, which has a limit too." in text
    assert "class Finding:" in text and "verdict = Finding" in text and "catalog.joined.Finding" in text
    assert "return first() + _SECOND_LIMIT" in text and "return _LIMIT" in text
    third = (tree / "tests/third.py").read_text()
    assert "from catalog import joined as second" in third and "second._SECOND_LIMIT" in third
    assert "from catalog.joined import Finding\nfrom catalog.joined import first" in third
    done = subprocess.run(["python3", "-m", "tests.third"], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tree / "README.md").read_text() == "`catalog/joined.py` and catalog.joined.second, catalog.joined:Finding\n"
    assert moving.circles() == []


def test_a_module_that_is_renamed_in_has_new_names_of_others_too(tree: Path) -> None:
    plan = "name catalog.first Verdict -> Finding\nname catalog.second second -> other"
    assert moving.apply(moving.read_plan(plan)) == []
    text = (tree / "catalog/second.py").read_text()
    assert "from catalog.first import Finding\n" in text and "verdict = Finding" in text


def test_a_variable_of_the_new_name_is_told(tree: Path) -> None:
    [note] = moving.apply(moving.read_plan("name catalog.first first -> verdict"))
    assert note == "catalog.second:12: verdict is a variable here"


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("catalog: a = first other", "there is no catalog.other"),
        ("catalog: a = first\ncatalog: b = first", "catalog.first is merged twice"),
        ("name catalog.first Nothing -> More", "defines no"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_changes_nothing(tree: Path, plan: str, why: str) -> None:
    with pytest.raises(SystemExit, match=why):
        moving.apply(moving.read_plan(plan))
    assert {name: (tree / name).read_text() for name in FILES} == FILES
