"""Files of cases for ``xrouter test``, and how tests run it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from router.cli import status_of
from tests.support.samples import FOLDER

GREENHOUSE: Final = FOLDER / "greenhouse.xreg.yaml"
VALVE: Final = "/messagegroups/Greenhouse.Plain/messages/Greenhouse.Plain.Valve"
XRouter = Callable[..., tuple[int, str, str]]


def runner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> XRouter:
    """Return what runs ``test`` with arguments, and gives exit code, standard output and standard error."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        status = status_of(["test", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert "fault of xrouter" not in err, err
        return status, out, err

    return run


def valve(subject: str = "valves.3.roof", turn: str = "0.75") -> dict[str, Any]:
    """Return a record of the greenhouse, which is no CloudEvent."""
    return {"protocol": "NATS", "native": {"subject": subject, "headers": [{"name": "turn", "value": turn}]}}


def written(path: Path, cases: list[dict[str, Any]], **head: Any) -> Path:
    """Write a file of cases for the greenhouse, or with a head of its own, in the form that its name says."""
    head = head or {"catalog": str(GREENHOUSE)}
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(form)}\n" for form in (head, *cases)))
    else:
        path.write_text(yaml.safe_dump({**head, "cases": cases}, sort_keys=False))
    return path


def reported(xrouter: XRouter, *arguments: object) -> dict[str, Any]:
    """Return the report in JSON."""
    _, out, err = xrouter(*arguments, "--format", "json")
    assert not err
    report: dict[str, Any] = json.loads(out)
    return report
