"""What stops a start, where it takes certificates, locks or time; the rest are cases (``commands/doctor.yaml``)."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bindings.private_files import take_lock
from catalog.load import load
from router.commands.doctor import run_doctor
from router.errors import BrokerUnreachable, SinkError
from router.logs import configure_logs
from router.preflight import CheckResult, PreflightCheck, combine_errors, iter_router_checks, require_checks, run_checks
from router.settings import load_settings
from router.sources import resolve_sources
from tests.support.commands import write_set
from tests.support.ports import LOOPBACK, Authority
from tests.support.web import serving


def configured(folder: Path, **changes: object) -> Path:
    """Write the settings of a place with an HTTP endpoint and two tables, changed; return them."""
    write_set("doctor", "place", folder)
    config = folder / "router.yaml"
    told = {**yaml.safe_load(config.read_text()), "catalog": {"source": str(folder / "catalog.json")}, **changes}
    config.write_text(json.dumps({**told, "state": str(folder / "state")}))
    return config


def states(config: Path) -> dict[str, CheckResult]:
    return {each.name: each for each in run_doctor(config)}


def test_a_start_goes_on_and_logs_for_whom_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_set("doctor", "peers", tmp_path)
    settings = load_settings(tmp_path / "router.yaml")
    configure_logs(settings.log)
    catalog = load(settings.catalog.source)
    require_checks(iter_router_checks(settings, catalog, resolve_sources(catalog, settings)))
    err = capsys.readouterr().err
    assert err.count("preflight check failed") >= 7 and "the gateway connects when" in err


def test_a_certificate_of_somebody_else_is_told(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    pair = theirs.sign("localhost", alternatives="DNS:localhost,IP:127.0.0.1")
    with serving(pair) as web:
        sinks = {
            name: {"type": "http", "url": f"{web.url}/{{type}}", "tls": {"ca": str(authority.certificate)}}
            for name, authority in (("ours", ours), ("theirs", theirs))
        }
        dead = {"dead": {"type": "table", "path": str(tmp_path / "dead")}}
        found = states(configured(tmp_path, sinks={**sinks, **dead}, routes=[{"to": list(sinks)}]))
    assert found["sink theirs"].state == "ok"
    assert found["sink ours"].state == "warn" and "its certificate is invalid" in found["sink ours"].observation


def test_what_a_running_router_has_is_not_missing(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = {"port": int(server.getsockname()[1])}
        config = configured(tmp_path, http=port, metrics=port)
        assert [states(config)[name].state for name in ("http port", "metrics port")] == ["fail", "fail"]
        (tmp_path / "state").mkdir()
        with take_lock(tmp_path / "state" / "lock"):
            found = states(config)
    for name in ("http port", "metrics port"):
        assert found[name].state == "ok" and "the router that runs" in found[name].observation


def test_nobody_is_waited_for_longer_than_his_limit() -> None:
    never = threading.Event()

    def slow() -> Iterator[CheckResult]:
        never.wait()
        yield CheckResult("slow", "ok", "too late")

    def quick() -> Iterator[CheckResult]:
        yield CheckResult("quick", "ok", "there")

    began = time.monotonic()
    found = list(
        run_checks([PreflightCheck(f"slow {n}", slow, 0.5) for n in range(20)] + [PreflightCheck("quick", quick)])
    )
    never.set()
    assert time.monotonic() - began < 8, "all at once"
    assert [each.state for each in found] == ["warn"] * 20 + ["ok"]
    assert "after 0.5 s" in found[0].observation and combine_errors(found) is None


def test_a_refusal_has_the_code_of_the_first_and_names_all() -> None:
    found = [
        CheckResult("a", "warn", "waits"),
        CheckResult("sink lake", "fail", "full", "free it", SinkError),
        CheckResult("source s", "fail", "away", "start it", BrokerUnreachable),
    ]
    error = combine_errors(found)
    assert isinstance(error, SinkError) and (error.message, error.sink) == ("sink lake: full", "lake")
    assert [(each.message, each.hint, each.exit_code) for each in error.others] == [("source s: away", "start it", 5)]
