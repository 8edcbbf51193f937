"""Placeholders taken out of many values together are those that a template takes out of each."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from catalog.templates import parse_template
from router.matching.context import extract_placeholder

LITERALS = st.sampled_from(
    ["-", "/", ".", "a", "-a", "--", "é", "\\", "$", "^", " ", "\n", "\0", "{", "(?", "|", "[^/]"]
)
PIECES = st.one_of(LITERALS, st.sampled_from(["{x}", "{y}", "{z.1}"]))


@given(st.lists(PIECES, min_size=1, max_size=8), st.booleans(), st.data())
def test_captured_is_what_the_template_takes(pieces: list[str], dots: bool, data: st.DataObject) -> None:
    template = parse_template("".join(pieces), dots=dots)
    if template.is_literal or template.is_bare:
        return
    filled = st.tuples(*(LITERALS if piece.endswith("}") else st.just(piece) for piece in pieces)).map("".join)
    texts = data.draw(st.lists(st.one_of(filled, st.lists(LITERALS, max_size=8).map("".join), st.none()), max_size=20))
    expected = [None if text is None else template.match(text) for text in texts]
    for name in dict.fromkeys(template.names):
        taken = extract_placeholder(template, name, pa.array(texts, pa.string()))
        if len(set(template.names)) < len(template.names):
            assert taken is None
        else:
            assert taken is not None
            assert taken.to_pylist() == [None if each is None else each[name] for each in expected]
