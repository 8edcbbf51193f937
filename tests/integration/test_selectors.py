"""Every selector gives the same through Spark and through Arrow, for header lists that no sane client sends."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bindings.kafka.conditions import (
    All_,
    Any_,
    BytesContain,
    Equals,
    KeysContain,
    KeysMatch,
    KeysRepeat,
    Matches,
    Missing,
    Not,
    NotEmpty,
    NotText,
    OneOf,
    Unusable,
    ValuesAreText,
)
from bindings.kafka.facts import ENTRIES, SOURCE_SCHEMA, selector
from bindings.kafka.layouts import learned
from bindings.kafka.selectors import Base64, Expression, Field, FirstBytes, Layout, Rows, Text
from router.judging.stages import HEADERS_TYPE
from router.matching.kafka_facts import RAW, KafkaSelection, plain_layouts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ROWS = 4_000
NAMES = [
    "a",
    "A",
    "",
    "content-type",
    "Content-Type",
    "ce_specversion",
    "ce_id",
    "ce_source",
    "ce_type",
    "ce_Odd",
    "ce_",
]
NAMES += ["a\nb", "\n", "xrouter-x", "x-xrouter-", "ce_a b", "contenT-type", "äöü", "a.b", "'\"\\"]
BYTES = [
    None,
    b"",
    b"1.0",
    b"1",
    b"a",
    b"\xff",
    b"a\xc3",
    b"\xa9",
    b"\xed\xa0\x80",
    "ä€😀".encode(),
    b"\x00",
    b"a\n",
    b"x" * 3000,
]
BYTES += [
    b"application/json",
    b" application/JSON ; a=b",
    b"application/cloudevents+json",
    b"\xc2\xa0application/cloudevents",
]
BYTES += [
    b'{"specversion":"1.0"}',
    b'{"\\u0073pecversion":"1.0"}',
    b"\x0bapplication/json;\n",
    bytes(range(256)),
    b"\r\n",
]
SCHEMA = f"key binary, value binary, topic string, partition int, offset long, timestamp long, headers {HEADERS_TYPE}"

names = st.one_of(st.sampled_from(NAMES), st.text(max_size=6), st.none())
contents = st.one_of(st.sampled_from(BYTES), st.binary(max_size=90))
header_lists = st.one_of(st.none(), st.lists(st.tuples(names, contents), max_size=8))
times = st.sampled_from([0, 1, 999, 1_700_000_000_123, -1, 2**31])


@st.composite
def rows(draw: st.DrawFn) -> tuple[Any, ...]:
    return (
        draw(contents),
        draw(contents),
        draw(st.sampled_from(["in", "", "a.b", "ä"])),
        draw(st.sampled_from([0, 7, 2**31 - 1])),
        draw(st.sampled_from([0, 2**63 - 1])),
        draw(times),
        draw(header_lists),
    )


def drawn(count: int) -> list[tuple[Any, ...]]:
    """Rows that hypothesis makes, gathered so that one Spark job serves them all; the same in every run."""
    found: list[tuple[Any, ...]] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(rows())
    def gather(row: tuple[Any, ...]) -> None:
        found.append(row)

    gather()
    return found


def plenty(count: int) -> list[tuple[Any, ...]]:
    """The drawn rows and as many mixtures of their headers as make up the count."""
    base = drawn(500)
    rng = Random(7)
    entries = [header for row in base for header in row[-1] or ()]
    mixed = [
        (*rng.choice(base)[:-1], [rng.choice(entries) for _ in range(rng.randrange(7))])
        for _ in range(count - len(base))
    ]
    return base + mixed


def expressions() -> Iterator[Expression]:
    for name in ("a", "content-type", "", "ce_id", "a\nb", "äöü", "'\"\\"):
        first = FirstBytes(ENTRIES, name)
        yield from (
            first,
            Text(first),
            Base64(first),
            NotText(ENTRIES, name),
            Missing(first),
            KeysRepeat(ENTRIES),
            Unusable(ENTRIES, name, Text(first)),
            NotEmpty(Text(first)),
            OneOf(Text(first), frozenset({"1.0", "a"})),
        )
        yield from (Equals(Text(first), "1.0"), Matches(Text(first), r"(?s)."))
    yield Layout(ENTRIES)
    yield from (Field("topic"), Text(Field("key")), Base64(Field("key")), Text(Field("partition")))
    yield from (BytesContain(Field("value"), "specversion"), BytesContain(Field("value"), "\\u"))
    yield from (
        KeysMatch(ENTRIES, r"\nce_\n|\n[A-Z]"),
        KeysContain(ENTRIES, "\n"),
        KeysContain(ENTRIES, "or-"),
        ValuesAreText(ENTRIES),
    )
    one, other = Missing(Field("key")), ValuesAreText(ENTRIES)
    yield from (Not(one), Any_((one, other)), All_((one, other)), All_((Not(one), Not(other), one)))
    keys = ("p.headers.a", "p.headers.content-type", "p.key", "p.key_base64", "e.id", "p.topic", "p.partition", "d")
    yield from (found for found in map(selector, keys) if found is not None)


def batch_of(made: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*made, strict=True))
    headers = [None if h is None else [{"key": name, "value": value} for name, value in h] for h in columns[-1]]
    arrays = [
        pa.array(values, field.type) for values, field in zip((*columns[:-1], headers), SOURCE_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SOURCE_SCHEMA)


def test_every_selector_says_the_same_twice(spark: SparkSession) -> None:
    made, wanted = plenty(ROWS), list(expressions())
    columns = [expression.column().alias(f"c{number}") for number, expression in enumerate(wanted)]
    by_spark = spark.createDataFrame(made, SCHEMA).select(*columns).toArrow()
    batch = batch_of(made)
    arrow_rows = Rows(batch, ENTRIES)
    for number, expression in enumerate(wanted):
        through_spark = by_spark.column(number).to_pylist()
        through_arrow = expression.arrow(arrow_rows).to_pylist()
        for row, one, two in zip(made, through_spark, through_arrow, strict=True):
            assert one == two, f"{expression} of {row}: Spark {one!r}, Arrow {two!r}"


def test_the_selection_of_a_plan_says_the_same_twice(spark: SparkSession) -> None:
    made = plenty(ROWS // 2)
    keys = ("e.id", "e.type", "p.headers.a", "p.key", "p.topic", "d")
    known: frozenset[str] = frozenset()
    for _ in range(2):
        selection = KafkaSelection(keys, sniffs=True, known=known)
        rows = spark.createDataFrame(made, SCHEMA)
        columns = [column.alias(name) for name, column in zip(selection.names, selection.columns(), strict=True)]
        by_spark = rows.select("*", *selection.first()).select(*columns).toArrow()
        by_arrow = selection.arrow(batch_of(made))
        assert by_spark.column_names == by_arrow.schema.names
        for name in by_spark.column_names:
            assert by_spark.column(name).to_pylist() == by_arrow.column(name).to_pylist(), name
        settled = by_spark.column(RAW).null_count / len(made)
        assert 0.01 < settled < 0.99, "the rows should be both odd and plain"
        known = learned(known, plain_layouts(by_arrow, keys))
        assert known, "some layouts should be plain"


def test_slices_of_a_batch_select_alike() -> None:
    batch = batch_of(drawn(100))
    for expression in expressions():
        whole = expression.arrow(Rows(batch, ENTRIES)).to_pylist()
        parts = [expression.arrow(Rows(batch.slice(at, 10), ENTRIES)).to_pylist() for at in range(0, 100, 10)]
        assert [value for part in parts for value in part] == whole[: 10 * len(parts)], expression
