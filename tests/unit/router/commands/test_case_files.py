"""Files of cases: what is compared, and what is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from router.commands.test.cases import MAX_CASES, iter_faults, read_case_schema
from router.commands.test.runner import iter_differences
from router.settings.routes import REASONS
from tests.support.cases import FOLDER, GREENHOUSE, VALVE, XRouter, runner, valve, written

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
    assert [each.pointer for each in iter_differences(expected, found, "")] == pointers


@pytest.fixture
def xrouter(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> XRouter:
    """``xrouter(*arguments)`` runs ``test`` and gives exit code, standard output and standard error."""
    return runner(capsys, monkeypatch)


BOMB = "l0: &l0 [x, x]\n" + "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 9))
"""Aliases that stand for millions of values."""
BROKEN: list[tuple[str, str, str]] = [
    ("a.cases.yaml", "catalogue: x\ncases: []", ":1: /catalogue is unknown; did you mean catalog?"),
    (
        "a.cases.yaml",
        "cases:\n- record: {protocl: HTTP}\n  expect: {reason: x}",
        ":2: /cases/0/record/protocl is unknown; did you mean protocol?",
    ),
    (
        "a.cases.yaml",
        "cases:\n- record: {}\n  expect:\n    massage: x",
        ":4: /cases/0/expect/massage is unknown; did you mean message?",
    ),
    (
        "a.cases.yaml",
        "cases:\n- record: {}\n  expect: {context: 3}",
        "/cases/0/expect/context is not valid: 3 is not of types",
    ),
    (
        "a.cases.yaml",
        "cases:\n- record: {}\n  expect: {route: first}",
        "(With settings: the place of the route, from 0;",
    ),
    (
        "a.cases.yaml",
        "cases:\n- record: {}\n  expect: {events: [{events: []}]}",
        "/cases/0/expect/events/0/events is unknown",
    ),
    ("a.cases.yaml", "cases:\n- record: {}\n  expect: {}", "/cases/0/expect is not valid: {} has less than 1"),
    ("a.cases.yaml", "cases: [3]", "/cases/0 is not valid: 3 is not of type"),
    ("a.cases.yaml", "cases: {}", "/cases is not valid: {} is not of type"),
    ("a.cases.yaml", "cases: []\ncases: []", "/cases occurs twice"),
    ("a.cases.yaml", "catalog: 3\ncases: []", "(Path or URL of the catalog, or a list of them;"),
    ("a.cases.yaml", "- 3", "is not a map with the member cases"),
    ("a.cases.yaml", "cases: !!python/object:os.system []", "tag"),
    ("a.cases.yaml", BOMB, "stands for more than"),
    ("a.cases.yaml", "cases: [" * 200, "nests deeper"),
    ("a.cases.yaml", "cases: []", "there are no cases"),
    ("a.cases.jsonl", '{"record": {}, "expect": {"reason": "no-match"}}\nnonsense: [', ":2: is not a JSON object"),
    ("a.cases.jsonl", '{"record": {}, "expect": {"reason": "no-match"}}\n{"catalog": "x"}', ":2: /catalog is unknown"),
    ("a.cases.txt", "cases: []", "is not a case file: its name must end in one of"),
]


@pytest.mark.parametrize(("name", "text", "problem"), BROKEN, ids=[str(number) for number in range(len(BROKEN))])
def test_files_that_are_no_good_are_told_with_their_lines(
    xrouter: XRouter, tmp_path: Path, name: str, text: str, problem: str
) -> None:
    (tmp_path / name).write_text(text)
    status, out, err = xrouter(tmp_path / name, "--catalog", GREENHOUSE)
    assert status == 2
    assert not out
    assert problem in err


def test_all_faults_are_told_and_the_number_of_cases_is_bounded(
    xrouter: XRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.cases.yaml").write_text("cases:\n- 3\n- 4")
    (tmp_path / "b.cases.yaml").write_text("case: []")
    _, _, err = xrouter(tmp_path, tmp_path / "gone.cases.yaml", "--catalog", GREENHOUSE)
    assert len(err.strip().split("\n")) == 4
    assert "gone.cases.yaml cannot be read: No such file" in err
    monkeypatch.setattr("router.commands.test.cases.MAX_CASES", 2)
    assert MAX_CASES > 2
    many = written(tmp_path / "c.cases.yaml", [{"record": valve(), "expect": {"message": VALVE}}] * 3)
    assert "more than 2 cases" in xrouter(many)[2]


def test_what_a_file_needs_is_asked_for(xrouter: XRouter, tmp_path: Path) -> None:
    (tmp_path / "a.cases.yaml").write_text("cases: [{record: {}, expect: {reason: undecodable}}]")
    status, _, err = xrouter(tmp_path)
    assert (status, "a.cases.yaml has no catalog" in err) == (1, True)
    assert xrouter(tmp_path, "--catalog", GREENHOUSE)[0] == 0
    routed = written(tmp_path / "a.cases.yaml", [{"name": "n", "record": valve(), "expect": {"sinks": ["lake"]}}])
    status, _, err = xrouter(routed)
    assert (status, "n: sinks requires a router's settings; give --config" in err) == (2, True)


DECIDED = {"outcome": "routed", "context": {"a": 1, "b": None, "c": True}, "cloudevent": {"id": "1"}}
RIGHT: list[Any] = [
    {"cases": []},
    {"$schema": "./x", "catalog": ["a", "b"], "config": "r.yaml", "cases": [{"record": {}, "expect": DECIDED}]},
    {"cases": [{"record": {"protocol": 3}, "expect": {"reason": "undecodable", "message": None, "route": None}}]},
    {"cases": [{"record": {}, "expect": {"sinks": "a", "topics": {"a": "t"}, "route": 0, "endpoint": "/endpoints/e"}}]},
    {"cases": [{"name": None, "record": {"body": []}, "expect": {"outcome": "batch", "events": [{}, DECIDED]}}]},
]
WRONG_CASES: list[Any] = [
    3,
    {"record": {}},
    {"expect": DECIDED},
    {"record": {"protocl": "HTTP"}, "expect": DECIDED},
    {"record": [], "expect": DECIDED},
    {"record": {}, "expect": {}},
    {"record": {}, "expect": DECIDED, "note": ""},
    {"record": {}, "expect": DECIDED, "name": 3},
    {"record": {}, "expect": {"massage": "m"}},
    {"record": {}, "expect": {"outcome": 3}},
    {"record": {}, "expect": {"context": "a"}},
    {"record": {}, "expect": {"cloudevent": {"id": []}}},
    {"record": {}, "expect": {"topics": {"a": {}}}},
    {"record": {}, "expect": {"route": "first"}},
    {"record": {}, "expect": {"route": True}},
    {"record": {}, "expect": {"sinks": []}},
    {"record": {}, "expect": {"endpoint": 1}},
    {"record": {}, "expect": {"events": 1}},
    {"record": {}, "expect": {"events": [1]}},
    {"record": {}, "expect": {"events": [{"events": []}]}},
    {"record": {}, "expect": {"events": [{"context": 1}]}},
]
WRONG: list[Any] = [
    3,
    {"case": []},
    {"$schema": 3},
    {"catalog": []},
    {"catalog": ["a", ""]},
    {"config": ["a"]},
    {"cases": {}},
    *({"cases": [case]} for case in WRONG_CASES),
]


@pytest.mark.parametrize("document", [*RIGHT, *WRONG], ids=str)
def test_what_a_file_may_have(document: Any) -> None:
    assert bool(list(iter_faults(document))) is (document in WRONG)


def test_the_schema_knows_every_reason_and_the_samples(xrouter: XRouter) -> None:
    schema = json.loads(read_case_schema())
    assert schema["$defs"]["expected"]["properties"]["reason"]["enum"] == [*REASONS, None]
    jsonschema_rs.validator_for(schema).validate(yaml.safe_load((FOLDER / "greenhouse.cases.yaml").read_text()))
    status, out, _ = xrouter("--schema")
    assert (status, json.loads(out)) == (0, schema)
