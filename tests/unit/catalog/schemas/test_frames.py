"""Frames of bodies: one by one and whole columns say the same, and nothing is unpacked past the limit."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, get_args

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from catalog.schemas.contract import MAX_BODY_BYTES, SchemaFault
from catalog.schemas.ids.client import Framing
from catalog.schemas.ids.deciding import HEAD_BYTES, find_frame_ids, read_frame, read_message_place
from tests.support.cases import examples, read_cases
from tests.support.schemas import apicurio, confluent, glue

CASES = read_cases(Path(__file__).parents[3] / "cases" / "schemas" / "formats.yaml")
UUID = "b1946ac9-2492-4d23-8b1c-0a1b2c3d4e5f"
BODIES = st.one_of(
    st.none(),
    st.binary(max_size=24),
    st.builds(
        lambda begin, rest: begin + rest, st.sampled_from([b"\0", b"\3\0", b"\3\5", b"\3\1"]), st.binary(max_size=24)
    ),
    st.sampled_from([confluent(7, b"x"), apicurio(7, b"x"), glue(UUID, b"x"), confluent(2**32 - 1, b"")]),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(BODIES, max_size=12), st.sampled_from(get_args(Framing)), st.integers(0, 3), st.booleans())
def test_columns_say_what_each_body_says(bodies: list[bytes | None], framing: Framing, cut: int, heads: bool) -> None:
    given = [body[:HEAD_BYTES] if heads and body is not None else body for body in bodies]
    found = find_frame_ids(pa.array([b"zz"] * cut + given, pa.binary()).slice(cut), framing)
    told = [found.names[code] if code >= 0 else None for code in found.codes.tolist()]
    frames = [None if body is None else read_frame(body, framing) for body in bodies]
    assert told == [None if frame is None else frame.id for frame in frames]
    assert len(set(found.names)) == len(found.names)


def test_ids_are_told_as_registries_have_them() -> None:
    for body, framing, due in (
        (confluent(7, b"x"), "auto", "7"),
        (confluent(2**32 - 1, b""), "confluent", "4294967295"),
        (apicurio(2**40, b"x"), "apicurio", "1099511627776"),
        (glue(UUID, b"x"), "glue", UUID),
    ):
        frame = read_frame(body, framing)  # type: ignore[arg-type]
        assert frame is not None and frame.id == due
        assert read_frame(body, "none") is None


def test_what_is_packed_is_unpacked_within_limits() -> None:
    for data in (b"", b"abc", b"x" * 100_000):
        body = glue(UUID, data, packed=True)
        frame = read_frame(body, "glue")
        assert frame is not None and frame.unpack(body) == data
    bomb = glue(UUID, b"", packed=False)[:1] + b"\5" + glue(UUID, zlib.compress(b"\0" * (MAX_BODY_BYTES + 1)))[2:]
    frame = read_frame(bomb, "glue")
    assert frame is not None and frame.unpack(bomb) is None
    for wrong in (zlib.compress(b"abc")[:-3], zlib.compress(b"abc") + b"more", b"no zlib"):
        body = bomb[:HEAD_BYTES] + wrong
        frame = read_frame(body, "glue")
        assert frame is not None and isinstance(frame.unpack(body), SchemaFault)


@pytest.mark.parametrize(("data", "framing", "due"), CASES["places"])
def test_the_place_of_a_message_is_read(data: str, framing: Any, due: Any) -> None:
    found = read_message_place(bytes.fromhex(data), framing)
    assert json.loads(json.dumps(found)) == due


@given(st.binary(max_size=30), st.sampled_from(["confluent", "apicurio", "glue"]))
def test_any_bytes_have_a_place_or_none(data: bytes, framing: Any) -> None:
    found = read_message_place(data, framing)
    assert found is None or found[1] <= len(data)
