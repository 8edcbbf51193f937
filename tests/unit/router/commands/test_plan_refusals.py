"""What ``xrouter plan`` does not do: log in where the router would not, or judge by half a catalog."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from router.cli import run_command_line
from tests.support.ports import free_ports
from tests.support.spark_cluster import RECORDS, catalog, lines, messages, settings


def test_credentials_follow_no_catalog_that_the_router_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANT_PASSWORD", "a password of the operator")
    (tmp_path / "catalog.json").write_text(json.dumps(catalog()))
    login = {"username": "u", "password": "${PLANT_PASSWORD}", "allow_plaintext_password": True}
    config = settings(tmp_path, sources=[{"endpoint": "/endpoints/plant", **login}])
    (tmp_path / "state").mkdir()
    pinned = {"format": 1, "addresses": {"source /endpoints/plant": ["kafka-a.example:9092"]}}
    (tmp_path / "state" / "addresses.json").write_text(json.dumps(pinned))
    arguments = ["plan", str(config), "--new", str(tmp_path / "catalog.json")]
    assert run_command_line(arguments) == 3
    err = capsys.readouterr().err
    assert "its credentials are for" in err and "127.0.0.1:1" in err
    # Records of files are judged without asking anybody.
    records = lines(tmp_path / "records.jsonl", RECORDS)
    assert run_command_line([*arguments, "--records", str(records)]) == 0


def test_a_catalog_that_is_not_whole_is_not_judged_by(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "catalog.json").write_text(json.dumps(catalog()))
    away = copy.deepcopy(catalog())
    (port,) = free_ports(1)
    messages(away)["Door"] = {"basemessage": f"http://127.0.0.1:{port}/b.json#/messagegroups/B/messages/b"}
    (tmp_path / "new.json").write_text(json.dumps(away))
    config = settings(tmp_path, catalog={"source": "catalog.json", "network": True, "allow_addresses": ["127.0.0.1"]})
    records = lines(tmp_path / "records.jsonl", RECORDS)
    arguments = ["plan", str(config), "--new", str(tmp_path / "new.json"), "--records", str(records)]
    assert run_command_line(arguments) not in (0, 1)
    assert "cannot be reached" in capsys.readouterr().err
