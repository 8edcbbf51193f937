"""Tables of typed payloads through changes of their schemas: no value is lost, bent or mixed up."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.rendering.payloads import conform_rows, evolve_schema


def grown(*tables: pa.Table) -> pa.Table:
    """Return all rows in one table that grew with them."""
    schema, rows = tables[0].schema, [tables[0]]
    for table in tables[1:]:
        schema = evolve_schema(schema, table.schema)
        rows = [conform_rows(each, schema) for each in (*rows, table)]
    return pa.concat_tables(rows)


def table(kind: pa.DataType, *values: Any) -> pa.Table:
    return pa.table({"v": pa.array(values, kind)})


@pytest.mark.parametrize(
    ("old", "new", "columns"),
    [
        (table(pa.int64(), 1), table(pa.int32(), 2, None), {"v": [1, 2, None]}),
        (table(pa.int32(), 1), table(pa.int64(), 2**40), {"v": [1, None], "v_int64": [None, 2**40]}),
        (table(pa.float64(), 0.5), table(pa.float32(), 0.25), {"v": [0.5, 0.25]}),
        (table(pa.float64(), 0.5), table(pa.int64(), 2**60 + 1), {"v": [0.5, None], "v_int64": [None, 2**60 + 1]}),
        (table(pa.string(), "x"), table(pa.bool_(), True), {"v": ["x", None], "v_bool": [None, True]}),
        (
            table(pa.struct([("a", pa.int64())]), {"a": 1}, None),
            table(pa.struct([("b", pa.string())]), {"b": "x"}, None),
            {"v": [{"a": 1, "b": None}, None, {"a": None, "b": "x"}, None]},
        ),
        (
            table(pa.list_(pa.struct([("a", pa.int64())])), [{"a": 1}], None, []),
            table(pa.list_(pa.struct([("a", pa.string())])), [{"a": "x"}, None], []),
            {
                "v": [
                    [{"a": 1, "a_string": None}],
                    None,
                    [],
                    [{"a": None, "a_string": "x"}, None],
                    [],
                ]
            },
        ),
        (
            table(pa.map_(pa.string(), pa.struct([("a", pa.int64())])), [("k", {"a": 1})], None),
            table(pa.map_(pa.string(), pa.struct([("b", pa.int64())])), [("k", {"b": 2}), ("l", None)]),
            {"v": [[("k", {"a": 1, "b": None})], None, [("k", {"a": None, "b": 2}), ("l", None)]]},
        ),
    ],
)
def test_columns_grow(old: pa.Table, new: pa.Table, columns: dict[str, list[Any]]) -> None:
    assert grown(old, new).to_pydict() == columns
    assert grown(old, new.slice(0, 0), new).to_pydict() == columns


def test_names_that_differ_in_case_alone_are_one_column() -> None:
    old, new = pa.table({"Level": [1]}), pa.table({"level": [2]})
    assert grown(old, new).to_pydict() == {"Level": [1, 2]}


def test_a_member_that_has_the_name_of_a_column_beside_keeps_it() -> None:
    old = pa.table({"level": [1]})
    new = pa.table({"level": ["high"], "level_string": ["own"]})
    assert grown(old, new).to_pydict() == {
        "level": [1, None],
        "level_string": [None, "own"],
        "level_string_2": [None, "high"],
    }


def test_a_type_that_comes_back_finds_its_column() -> None:
    made = grown(table(pa.int64(), 1), table(pa.string(), "x"), table(pa.int64(), 2), table(pa.string(), "y"))
    assert made.to_pydict() == {"v": [1, None, 2, None], "v_string": [None, "x", None, "y"]}


def test_slices_conform() -> None:
    kind = pa.list_(pa.struct([("a", pa.int32())]))
    old = table(pa.list_(pa.struct([("a", pa.int64())])), [{"a": 1}])
    rows = table(kind, [{"a": 7}], None, [{"a": 8}, {"a": 9}], []).slice(1, 2)
    assert grown(old, rows).to_pydict() == {"v": [[{"a": 1}], None, [{"a": 8}, {"a": 9}]]}


_leaf = st.sampled_from([pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.date32()])
_kinds = st.recursive(
    _leaf,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.dictionaries(st.sampled_from("abcAB"), inner, min_size=1, max_size=3)
        .filter(lambda fields: len({name.lower() for name in fields}) == len(fields))
        .map(lambda fields: pa.struct(fields.items())),
    ),
    max_leaves=6,
)


def a_value(kind: pa.DataType, number: int) -> Any:
    """A value of the type that tells which row it belongs to where the type can."""
    if pa.types.is_struct(kind):
        return {field.name: a_value(field.type, number) for field in kind}
    if pa.types.is_list(kind):
        return [a_value(kind.value_type, number)] * 2
    if pa.types.is_map(kind):
        return [("k", a_value(kind.item_type, number))]
    if pa.types.is_string(kind):
        return f"{number}"
    return bool(number % 2) if pa.types.is_boolean(kind) else number


def leaves(value: Any) -> list[Any]:
    """All that is not null in a value, however deep."""
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in leaves(each)]
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in leaves(each)]
    if isinstance(value, int) and not isinstance(value, bool):
        return [float(value)]  # A column of doubles holds it as exactly.
    return [] if value is None else [value]


@given(st.lists(_kinds, min_size=2, max_size=4))
def test_every_value_is_in_its_row(kinds: list[pa.DataType]) -> None:
    made = grown(*(table(kind, a_value(kind, number), None) for number, kind in enumerate(kinds)))
    rows = made.to_pylist()
    for number, kind in enumerate(kinds):
        first = table(kind, a_value(kind, number)).to_pylist()[0]
        assert sorted(map(str, leaves(rows[2 * number]))) == sorted(map(str, leaves(first)))
        assert leaves(rows[2 * number + 1]) == []
