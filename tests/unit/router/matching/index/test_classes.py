"""Classes of whole columns against the constraints they stand for, asked one value at a time."""

from __future__ import annotations

import pickle

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from catalog.definitions.constraints import Constraint
from router.matching.index.classes import PropertyClasses, SplitColumn

VALUES = st.one_of(
    st.none(),
    st.text("ab./-", max_size=7),
    st.sampled_from(["a.b", "a/b", "a.b.a", "a/b/a", "a.b/a", "1", "1.0", "2024-02-29T00:00:00Z"]),
)
LITERALS = st.text("ab./-", max_size=3)


@st.composite
def templates(draw: st.DrawFn) -> str:
    """Texts with placeholders between; a name never occurs twice, for that is not decided by classes."""
    parts = [draw(LITERALS)]
    for number in range(draw(st.integers(0, 3))):
        parts += ["{n" + str(number) + "}", draw(st.one_of(st.sampled_from(["/", ".", "", "-"]), LITERALS))]
    return "".join(parts)


CONSTRAINTS = st.one_of(
    st.builds(
        Constraint, st.just("literal"), st.sampled_from(["string", "number"]), st.sampled_from(["a", "a.b", "1"])
    ),
    st.builds(
        Constraint, st.sampled_from(["present", "optional"]), st.sampled_from(["string", "timestamp", "integer"])
    ),
    st.builds(
        Constraint, st.just("template"), st.sampled_from(["string", "timestamp"]), templates(), dots=st.booleans()
    ),
)


@given(st.lists(CONSTRAINTS, min_size=1, max_size=8, unique=True), st.lists(st.lists(VALUES, max_size=8), max_size=3))
def test_a_class_satisfies_what_each_of_its_values_does(
    constraints: list[Constraint], batches: list[list[str | None]]
) -> None:
    classes: PropertyClasses = pickle.loads(pickle.dumps(PropertyClasses(constraints)))
    for values in batches:
        numbers = classes.classify(SplitColumn(pa.array(values, pa.string()))).tolist()
        for value, number in zip(values, numbers, strict=True):
            satisfied = [each.satisfied(value, present=value is not None) for each in constraints]
            found = [bool(classes.bits[number] >> place & 1) for place in range(len(constraints))]
            assert found == satisfied, value
            assert classes.class_of([] if value is None else [value]) == number
