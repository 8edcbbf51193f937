"""Commands that take catalogs by URL log in by settings or by the environment alone."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.cli import run_command_line
from tests.support.registry import Registry
from tests.support.web import Reply, Request, serving

TREE: dict[str, Any] = {"messagegroups": {"G": {"messages": {"m": {"protocol": "KAFKA"}}}}}
M = "/messagegroups/G/messages/m"
COMMANDS = [
    ["catalog", "list", "URL"],
    ["catalog", "show", M, "URL"],
    ["catalog", "convert", "URL"],
    ["catalog", "pull", "URL"],
    ["catalog", "diff", "URL", "URL"],
    ["check", "URL"],
    ["match", "--catalog", "URL"],
    ["emit", "--catalog", "URL", "--message", M],
]


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as web:
        registry = Registry(web, TREE).open()
        served = registry.answer

        def answer(request: Request) -> Reply:
            return served(request) if request.headers.get("authorization") == "Bearer t0ken" else Reply("who?", 401)

        for path in list(web.routes):
            web.routes[path] = answer
        yield registry


@pytest.fixture
def config(tmp_path: Path, registry: Registry) -> Path:
    """Settings whose other references lead nowhere here."""
    file = tmp_path / "router.yaml"
    login = f"{{url: '{registry.web.url}', bearer_file: token}}"
    file.write_text(
        f"catalog: {{source: '{registry.url}', allow_plaintext_password: true, logins: [{login}]}}\n"
        "sources: [{endpoint: /endpoints/e, password: '${NOT_SET_HERE}', username: u}]\n"
    )
    (tmp_path / "token").write_text("t0ken\n")
    return file


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_commands_log_in(
    command: list[str], registry: Registry, config: Path, capfd: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    named = [registry.url if each == "URL" else each for each in command]
    assert run_command_line(named) in (2, 4)
    assert "401" in capfd.readouterr().err
    assert run_command_line([*named, "--logins", str(config)]) == 0
    assert "t0ken" not in "".join(capfd.readouterr())


def test_the_environment_alone_is_enough(
    registry: Registry, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XROUTER_CATALOG__LOGINS__0__URL", registry.web.url)
    monkeypatch.setenv("XROUTER_CATALOG__LOGINS__0__BEARER", "t0ken")
    assert run_command_line(["catalog", "list", registry.url]) == 3
    assert "plain text" in capfd.readouterr().err
    monkeypatch.setenv("XROUTER_CATALOG__ALLOW_PLAINTEXT_PASSWORD", "true")
    assert run_command_line(["catalog", "list", registry.url]) == 0
    assert M in capfd.readouterr().out


def test_check_logs_in_by_the_settings_it_checks(
    registry: Registry, config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_command_line(["check", registry.url, "--config", str(config), "--format", "json"])
    found = json.loads(capfd.readouterr().out)
    assert "unreadable-document" not in {each["rule"] for each in found}
    assert any("NOT_SET_HERE" in each["message"] for each in found)


def test_logins_that_are_no_good(registry: Registry, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("catalog: {logins: [{url: 'https://r', berer: x}]}")
    assert run_command_line(["catalog", "list", registry.url, "--logins", str(file)]) == 3
    assert "did you mean bearer?" in capfd.readouterr().err
