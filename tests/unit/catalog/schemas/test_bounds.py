"""Hostile bodies, and bodies made for hostile schemas, in every family: a verdict in bounded time and memory."""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from catalog.schemas import sandbox as sandbox
from catalog.schemas.contract import BEYOND_FAULT, CostExceeded, SchemaSource
from catalog.schemas.validation import BoundedValidation
from tests.support.hostile import HOSTILE, REPRESENTATIVE, nested, twofold, zigzag
from tests.support.schemas import NOTHING

ROOT = Path(__file__).resolve().parents[4]
MEMORY = 512 * 1024 * 1024
HANG = 60
"""Seconds by the clock for one body on a machine that has much else to do."""
CHILD = f"""
import resource, sys, time
from catalog.schemas import sandbox
sandbox.MAX_SECONDS = 0.5
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
from catalog.schemas.validation import BoundedValidation
from tests.support.hostile import HOSTILE
class Nothing:
    def document(self, reference, base):
        return None
for name in sys.argv[1:]:
    case = HOSTILE[name]
    checked = BoundedValidation(case.source, Nothing())
    body, begun = case.body(), time.monotonic()
    found = checked.fault(body, case.content_type)
    assert time.monotonic() - begun < {HANG}, name
    print(f"{{name}}\\t{{found}}", flush=True)
"""


@cache
def verdicts(*names: str) -> dict[str, str]:
    """Return what is said of these hostile bodies, by a process that has as much memory as one body may take."""
    child = [sys.executable, "-c", CHILD, *names]
    done = subprocess.run(child, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, f"{done.stdout[-300:]}\n{done.stderr[-900:]}"
    return dict(line.split("\t", 1) for line in done.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in REPRESENTATIVE else pytest.param(name, marks=pytest.mark.full) for name in HOSTILE]
)
def test_a_hostile_body_has_a_verdict(name: str) -> None:
    together = sorted(other for other in HOSTILE if (other in REPRESENTATIVE) == (name in REPRESENTATIVE))
    said, allowed = verdicts(*together)[name], HOSTILE[name].verdicts
    assert any(each in said for each in allowed), f"{said!r} is none of {allowed}"


def test_the_representative_bodies_are_of_every_family() -> None:
    families = {HOSTILE[name].source.family for name in REPRESENTATIVE}
    assert families == {case.source.family for case in HOSTILE.values()}


def test_an_ordinary_body_never_leaves_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_start_worker", None)
    member = {"type": "object", "properties": {"id": {"type": "string"}, "kind": {"enum": list("abcdefgh")}}}
    order = {
        "type": "object",
        "properties": {"lines": {"type": "array", "items": member}, "by": {"anyOf": [member, {"type": "null"}]}},
        "required": ["lines"],
    }
    checked = BoundedValidation(SchemaSource("JsonSchema", "", order), NOTHING)
    lines = [{"id": f"number {count}", "kind": "a"} for count in range(40)]
    assert checked.fault(json.dumps({"lines": lines, "by": lines[0]}).encode(), None) is None
    lines[7]["kind"] = "z"
    assert str(checked.fault(json.dumps({"lines": lines}).encode(), None)).startswith("/lines/7/kind: ")
    assert "/by" in str(checked.fault(json.dumps({"lines": [], "by": {"id": 1}}).encode(), None))


@pytest.mark.slow
def test_a_costly_body_gets_the_answer_of_an_ordinary_one() -> None:
    """The details of the helper are those of the process itself."""
    schema = {"items": {"anyOf": [{"type": "integer", "multipleOf": 3}, {"enum": [{"a": 1}, {"b": 2}]}]}}
    checked = BoundedValidation(SchemaSource("JsonSchema", "", schema), NOTHING)
    few, many = [3, 6, {"a": 1}], [3, 6, {"a": 1}] * 5000
    assert checked.fault(json.dumps(few).encode(), None) is None
    assert checked.fault(json.dumps(many).encode(), None) is None
    with pytest.raises(CostExceeded):
        checked._validator.fault(json.dumps(many).encode(), None)
    first = checked.fault(json.dumps([4, *few]).encode(), None)
    assert first is not None
    assert checked.fault(json.dumps([4, *many]).encode(), None) == first


@pytest.mark.slow
def test_a_helper_that_was_killed_is_started_again() -> None:
    checked = BoundedValidation(SchemaSource("JsonSchema", "", twofold("anyOf")), NOTHING)
    before = checked.fault(nested(11), None)
    helper = sandbox.sandbox.worker
    assert helper is not None
    helper.kill()
    helper.wait()
    assert checked.fault(nested(11), None) == before
    assert sandbox.sandbox.worker is not helper


@pytest.fixture
def large() -> Iterator[BoundedValidation]:
    """What is held against this schema by a worker of its own, because of its size."""
    sandbox.sandbox.stop()
    yield BoundedValidation(SchemaSource("JsonSchema", "", {"items": {"type": "integer"}}), NOTHING)
    sandbox.sandbox.stop()


GOOD, BAD = (b"[" + b"1," * 600_000 + last + b"]" for last in (b"1", b'"x"'))


@pytest.mark.slow
def test_a_process_with_many_open_files_gets_answers(large: BoundedValidation) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as files:
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            files.enter_context(open(os.devnull, encoding="utf-8"))
        assert large.fault(GOOD, None) is None


@pytest.mark.slow
def test_the_answer_for_a_body_that_was_interrupted_is_of_no_other(
    large: BoundedValidation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(select, "poll", interrupt)
        with pytest.raises(KeyboardInterrupt):
            large.fault(BAD, None)
    assert large.fault(GOOD, None) is None


def test_a_flood_of_costly_bodies_draws_on_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = sandbox.CpuBudget()
    assert store.allowed_seconds(100) == sandbox.MAX_SECONDS
    for _ in range(20):
        store.charge(100, sandbox.MAX_SECONDS)
    assert store.allowed_seconds(100) < 0.1
    assert store.allowed_seconds(1_000_000) >= 1.0  # what is ordinary for its size, any body may take
    store.since -= 1000.0
    assert store.allowed_seconds(100) == sandbox.MAX_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status"), [("", 0), ("import os; os.kill(os.getpid(), 9)", -9)], ids=["an exit", "a signal"]
)
def test_the_helper_ends_with_its_process(end: str, status: int) -> None:
    """An exit says nothing of it, either."""
    script = (
        "from catalog.schemas import sandbox\n"
        "from tests.support.hostile import nested, twofold\n"
        "from tests.support.schemas import NOTHING\n"
        "from catalog.schemas.contract import SchemaSource\n"
        "from catalog.schemas.validation import BoundedValidation\n"
        "BoundedValidation(SchemaSource('JsonSchema', '', twofold('anyOf')), NOTHING).fault(nested(11), None)\n"
        "print(sandbox.sandbox.worker.pid, flush=True)\n"
    )
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", script + end]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=HANG)
    assert (done.returncode, done.stderr) == (status, "")
    helper, until = Path(f"/proc/{int(done.stdout)}/stat"), time.monotonic() + HANG
    while time.monotonic() < until:
        try:
            state = helper.read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return
        if state == "Z":
            return
    pytest.fail("the helper lives on")


@pytest.mark.slow
def test_a_body_beyond_its_limits_leaves_the_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of such bodies would otherwise start a process for each."""
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.1)
    checked = BoundedValidation(SchemaSource("JsonSchema", "", twofold("anyOf")), NOTHING)
    helpers = set()
    for _ in range(3):
        assert checked.fault(nested(60), None) == BEYOND_FAULT
        assert sandbox.sandbox.worker is not None
        helpers.add(sandbox.sandbox.worker.pid)
    assert len(helpers) == 1


def test_a_helper_that_the_system_refuses_is_asked_for_again(
    large: BoundedValidation, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refusals = subprocess.Popen, [1, 1]

    def refuse(*arguments: Any, **options: Any) -> Any:
        if refusals:
            refusals.pop()
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return start(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(sandbox, "START_ATTEMPTS", 2)
    with pytest.raises(OSError, match=r"cannot start the process that .*Allow more processes"):
        large.fault(GOOD, None)
    refusals.append(1)
    assert large.fault(GOOD, None) is None


def test_a_decimal_of_more_digits_than_python_writes() -> None:
    """The message once named the digits by writing out a number that Python refuses to write."""
    kind: dict[str, Any] = {"type": "bytes", "logicalType": "decimal", "precision": 10_000, "scale": 2}
    checked = BoundedValidation(SchemaSource("Avro", "", kind), NOTHING)
    assert "more than 10000 digits" in str(checked.fault(zigzag(80_000) + b"\x7f" * 80_000, "avro/binary"))
    assert "out of the range of double" in str(
        BoundedValidation(SchemaSource("Avro", "", "double"), NOTHING).fault(b"9" * 400, "application/json")
    )
