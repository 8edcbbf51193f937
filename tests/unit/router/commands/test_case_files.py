"""Files of cases: what is compared, and what is refused with its line."""

from __future__ import annotations

from typing import Any

import pytest

from router.commands.test.runner import iter_differences

COMPARED: list[tuple[str, Any, Any, list[str]]] = [
    ("only what is written counts", {"message": "m"}, {"message": "m", "context": {"a": "1"}}, []),
    ("members of maps", {"context": {"a": "1"}}, {"context": {"a": "1", "b": "2"}}, []),
    ("another value", {"context": {"a/b": "1"}}, {"context": {"a/b": "2"}}, ["/context/a~1b"]),
    ("a value that is missing", {"context": {"a": "1"}}, {"reason": "no-match"}, ["/context/a"]),
    ("null is absent", {"context": {"a": None}, "reason": None}, {"context": {}}, []),
    ("null is not there", {"context": {"a": None}}, {"context": {"a": "1"}}, ["/context/a"]),
    (
        "numbers and booleans are texts",
        {"context": {"a": 7, "b": True, "c": 1.5}},
        {"context": {"a": "7", "b": "true", "c": "1.5"}},
        [],
    ),
    ("no sloppiness in texts", {"context": {"a": "07"}}, {"context": {"a": "7"}}, ["/context/a"]),
    (
        "events one by one",
        {"events": [{}, {"message": "m"}]},
        {"events": [{"x": 1}, {"message": "n"}]},
        ["/events/1/message"],
    ),
    ("fewer events", {"events": [{}]}, {"events": [{}, {}]}, ["/events"]),
    ("no events", {"events": [{}]}, {"message": "m"}, ["/events"]),
    ("all sinks", {"sinks": ["a", "b"]}, {"sinks": ["b", "a"]}, ["/sinks/0", "/sinks/1"]),
]


@pytest.mark.parametrize(
    ("expected", "found", "pointers"), [case[1:] for case in COMPARED], ids=[c[0] for c in COMPARED]
)
def test_what_is_compared(expected: Any, found: Any, pointers: list[str]) -> None:
    assert [each["pointer"] for each in iter_differences(expected, found, "")] == pointers
