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

JSON = """
{"a": {"b": [1,
        2, {"c": "}{][,:\\"\\\\"}
      ], "x/y": {
  "z~": null}},
 "d"
 : 7}
"""
YAML = """\
# a comment
a:
  b: [1, 2,
      {c: d}]
  x/y: &anchor
    z~: "}{"
e: *anchor
f:
- g: |
    text: not a key
  h: 1
-
  i: 2
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            JSON,
            {
                "/a": 2,
                "/a/b": 2,
                "/a/b/0": 2,
                "/a/b/1": 3,
                "/a/b/2": 3,
                "/a/b/2/c": 3,
                "/a/x~1y": 4,
                "/a/x~1y/z~0": 5,
                "/d": 6,
            },
        ),
        (YAML, {"/a": 2, "/a/b/1": 3, "/a/b/2/c": 4, "/a/x~1y/z~0": 6, "/e": 7, "/f/0/h": 11, "/f/1/i": 13}),
        (JSON, {"/a/gone/deeper": 2, "/a/b/7": 2, "/a/b/2/gone": 3, "/d/e": 6}),
        ("? {x: 1}\n: y\nx: 2\n", {"/x": 3}),
        (YAML, {"/e/z~0": 7, "/f/0/g/h": 9}),
        ("[\n[],\n\n {}]", {"/0": 2, "/1": 4}),
        ('\ufeff{"k\\u0065y":\n{"\\u0041": 1}}', {"/key": 1, "/key/A": 2}),
        (YAML, {"/f": 8}),
    ],
)
def test_lines(text: str, expected: dict[str, int]) -> None:
    assert lines_of(text.encode(), expected) == expected


def test_pointers_that_share_a_long_way_cost_it_once() -> None:
    name = "n" * 1000
    text = f'{{"{name}":' * 100 + ",".join(f'\n"{number}": 1' for number in range(200)).join("{}") + "}" * 100
    pointers = [f"{f'/{name}' * 100}/{number}" for number in range(200)]
    tracemalloc.start()
    lines = lines_of(text.encode(), pointers)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert list(lines.values()) == [*range(2, 202)] and most < 8 << 20


def test_what_is_nowhere_has_no_line() -> None:
    assert lines_of(JSON.encode(), ["", "/gone", "/gone/a"]) == {}


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
