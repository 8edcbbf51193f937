"""Each case of ``tests/cases/watching/status.yaml``: what a router says of itself after what happened to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import generate_latest

from router.evaluation.outputs import Tally
from router.watching.metrics import Metrics, StatusCollector
from router.watching.status import RouterStatus
from tests.support.cases import read_cases
from tests.support.commands import fits

CASES: Final = Path(__file__).resolve().parents[3] / "cases" / "watching" / "status.yaml"


def _to_tally(counts: dict[str, Any]) -> Tally:
    return Tally.from_json({**Tally().to_json(), **counts})


@pytest.mark.parametrize("case", read_cases(CASES), ids=lambda case: case["case"])
def test_a_router_says_what_its_case_says(case: dict[str, Any]) -> None:
    now = [0.0]
    metrics, status = Metrics(**case.get("metrics", {})), RouterStatus(clock=lambda: now[0])
    metrics.registry.register(StatusCollector(status))
    if case.get("up"):
        status.set_catalog("e1", 3)
        status.query("kafka-1", "running", batch=4)
        status.gateway("http", True)
    for name, *arguments in case.get("does", ()):
        part, _, method = name.partition(".")
        named = arguments.pop() if arguments and isinstance(arguments[-1], dict) and "status" in name else {}
        given = [_to_tally(each["tally"]) if fits({"tally": {}}, each) else each for each in arguments]
        owner = {"metrics": metrics, "status": status}[part]
        member = getattr(owner, method)
        member(*given, **named) if callable(member) else setattr(owner, method, *given)
    now[0] += case.get("later", 0.0)
    ready, answer = status.check_readiness()
    assert ready == answer["ready"] == (not answer["reasons"])
    assert answer["reasons"] == case.get("reasons", answer["reasons"])
    assert fits(case.get("answer", {}), answer), answer
    healthy, told = status.check_health()
    assert healthy == case.get("healthy", healthy) and case.get("why", "") in str(told["reasons"])
    lines = generate_latest(metrics.registry).decode().splitlines()
    samples = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if "#" not in name}
    for name, value in case.get("samples", {}).items():
        assert samples.get(name) == (value if value is None else pytest.approx(value)), name
