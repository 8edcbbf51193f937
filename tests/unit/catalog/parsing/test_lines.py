"""Lines of pointers, in JSON and YAML of any layout."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.model import Finding
from catalog.parsing.pointers import lines_of, lines_of_findings
from catalog.parsing.texts import parse_text
from tests.support.cases import read_cases

CASES = read_cases(Path(__file__).parents[3] / "cases" / "documents" / "lines.yaml")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_lines(case: dict[str, Any]) -> None:
    found = lines_of(case["text"].encode(), case["lines"])
    assert {pointer: found.get(pointer) for pointer in case["lines"]} == case["lines"]


def test_pointers_that_share_a_long_way_cost_it_once() -> None:
    name = "n" * 1000
    text = f'{{"{name}":' * 100 + ",".join(f'\n"{number}": 1' for number in range(200)).join("{}") + "}" * 100
    pointers = [f"{f'/{name}' * 100}/{number}" for number in range(200)]
    tracemalloc.start()
    lines = lines_of(text.encode(), pointers)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert list(lines.values()) == [*range(2, 202)] and most < 8 << 20


@pytest.mark.parametrize(
    "text", ["", "]", "}}", "{", '{"a', "[,,]", '{"a": ]}', "\x00", "? {a: b}\n: c", "a: *b", "- ]", "\xff{"]
)
def test_what_is_no_document_is_no_error(text: str) -> None:
    assert set(lines_of(text.encode("latin-1"), ["/a", "/0/b"])) <= {"/a", "/0/b"}


TREES = st.recursive(
    st.none() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(TREES, st.sampled_from([None, 1, 3]))
def test_each_member_stands_where_its_line_says(tree: Any, indent: int | None) -> None:
    text = json.dumps({"top": tree}, indent=indent)
    pointers = list(pointers_of({"top": tree}))
    lines = lines_of(text.encode(), pointers)
    assert set(lines) == set(pointers)
    rows = text.split("\n")
    for pointer, line in lines.items():
        key = pointer.rsplit("/", 1)[1].replace("~1", "/").replace("~0", "~")
        parent = parse_text("a.json", text.encode()).tree
        for part in pointer.split("/")[1:-1]:
            name = part.replace("~1", "/").replace("~0", "~")
            parent = parent[int(name)] if isinstance(parent, list) else parent[name]
        assert isinstance(parent, list) or json.dumps(key) in rows[line - 1]


def pointers_of(node: Any, at: str = "") -> Any:
    members = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in members:
        pointer = f"{at}/{str(key).replace('~', '~0').replace('/', '~1')}"
        yield pointer
        yield from pointers_of(value, pointer)


def test_findings_in_files_that_are_gone_or_far_have_no_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{\n"a": 1}')
    files = (str(tmp_path / "a.json"), str(tmp_path / "gone.json"), "https://example.com/a.json", "", str(tmp_path))
    findings = [Finding(file, "/a", "info", "not-a-catalog", "x") for file in files]
    assert lines_of_findings(findings) == {(files[0], "/a"): 2}
