"""Each case of ``tests/cases/watching/status.yaml``: what a router says of itself after what happened to it."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from prometheus_client import generate_latest

from catalog.model import Finding
from router.evaluation.outputs import Tally
from router.watching.backlogs import Backlog
from router.watching.metrics import Metrics, StatusCollector
from router.watching.shadow import EpochPair
from router.watching.status import RouterStatus
from tests.support.cases import read_cases
from tests.support.commands import fits

CASES: Final = Path(__file__).resolve().parents[3] / "cases" / "watching" / "status.yaml"


def _decode(value: Any) -> Any:
    """Return what a case calls with: counts, backlogs, epochs and findings are maps with one member."""
    match value:
        case {"tally": counts}:
            return Tally.from_json({**Tally().to_json(), **counts})
        case {"backlog": figures}:
            return Backlog(*figures)
        case {"pair": epochs}:
            return EpochPair(*epochs)
        case {"finding": members}:
            return Finding(*members)
        case dict():
            return {key: _decode(each) for key, each in value.items()}
        case list():
            return [_decode(each) for each in value]
    return value


@pytest.mark.parametrize("case", read_cases(CASES), ids=lambda case: case["case"])
def test_a_router_says_what_its_case_says(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    metrics, status = Metrics(**case.get("metrics", {})), RouterStatus(clock=lambda: now[0])
    monkeypatch.setattr(metrics.backlogs, "clock", lambda: now[0])
    monkeypatch.setattr(metrics.backlogs, "now", lambda: 1_000.0)
    metrics.registry.register(StatusCollector(status))
    if case.get("up"):
        status.set_catalog("e1", 3)
        status.query("kafka-1", "running", batch=4)
        status.gateway("http", True)
    for name, *arguments in case.get("does", ()):
        named = arguments.pop() if arguments and isinstance(arguments[-1], dict) and "status" in name else {}
        owner, _, method = name.rpartition(".")
        parent = attrgetter(owner)(SimpleNamespace(metrics=metrics, status=status))
        member, given = getattr(parent, method), _decode(arguments)
        member(*given, **named) if callable(member) else setattr(parent, method, *given)
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
    if "shadow" in case:
        assert fits(case["shadow"], metrics.shadow.to_json()), metrics.shadow.to_json()
