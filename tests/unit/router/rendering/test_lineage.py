"""The context attributes in a header are JSON."""

from __future__ import annotations

import json

import pyarrow as pa

from router.rendering.lineage import context_json


def test_context_in_a_header_is_json_with_members_in_order() -> None:
    odd = "".join(chr(code) for code in range(0x21)) + '"\\/\x7f\u2028é😀'
    contexts: list[dict[str, str | None]] = [{}, {"a": "b"}, {odd: odd, "b": ""}, {"x": "1", "y": None}, {}, {"n": odd}]
    without_null = [each for each in contexts if None not in each.values()]
    for given in (contexts, without_null, without_null[:2]):
        maps = pa.array([[("z", "1")], *(list(each.items()) for each in given)], pa.map_(pa.string(), pa.string()))
        texts = context_json(maps.slice(1)).to_pylist()
        assert [list(json.loads(text).items()) for text in texts] == [list(each.items()) for each in given]
    assert texts == ["{}", '{"a":"b"}']
