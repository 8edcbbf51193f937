"""``xrouter wait`` returns when what was just started takes what it is sent, and says why not before."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from router.cli import run_command_line
from tests.support.ports import Authority, free_ports
from tests.support.web import Reply, serving

ROUTER = """
catalog: {source: ./c.xreg.json}
sinks: {out: {type: jsonl, path: "-"}}
routes: [{to: [out]}]
dead_letters: {sinks: [out]}
"""


def port_of(url: str) -> str:
    return url.rpartition(":")[2]


def test_a_router_is_waited_for_until_it_is_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replies = [Reply({"ready": False, "reasons": ["no catalog is active"]}, 503)] * 2 + [
        Reply({"ready": False, "reasons": ["query inbox is starting", "gateway http is down"]}, 503),
        Reply({"ready": True, "reasons": []}),
    ]
    config = tmp_path / "router.yaml"
    with serving() as web:
        web.routes["/readyz"] = lambda _: replies.pop(0)
        config.write_text(f"{ROUTER}metrics: {{port: {port_of(web.url)}, host: 0.0.0.0}}\n")
        assert run_command_line(["wait", str(config)]) == 0
        assert web.statuses() == [503, 503, 503, 200]
    told = capsys.readouterr()
    assert told.out == ""
    assert [line.partition("returns 503: ")[2] for line in told.err.splitlines()] == [
        "no catalog is active",
        "query inbox is starting; gateway http is down",
    ]


def test_the_limit_ends_it_with_what_is_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    config = tmp_path / "router.yaml"
    config.write_text(f"{ROUTER}metrics: {{port: {port}}}\n")
    assert run_command_line(["wait", str(config), "--timeout", "0.3"]) == 5
    first, last, hint = capsys.readouterr().err.splitlines()
    assert first.startswith(f"waiting: http://127.0.0.1:{port}/readyz does not respond: ")
    assert last.startswith(f"xrouter: error: not ready after 0.3 s: http://127.0.0.1:{port}/readyz does not respond: ")
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("status", [200, 401, 404])
@pytest.mark.parametrize(
    ("settings", "path"),
    [("open: true\nhttp: {{port: {port}}}\n", "/"), ("open: true\nmetrics: {{port: {port}}}\n", "/readyz")],
    ids=["by its own port", "by its metrics"],
)
def test_a_registry_is_waited_for_until_it_answers(tmp_path: Path, settings: str, path: str, status: int) -> None:
    config = tmp_path / "registry.yaml"
    with serving() as web:
        web.routes[path] = Reply("", status)
        config.write_text(settings.format(port=port_of(web.url)))
        assert run_command_line(["wait", str(config), "--timeout", "0"]) == 0
        assert web.asked == [(path, status)]


def test_an_address_is_waited_for_whoever_signed_its_certificate(tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("c", alternatives="IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    with serving(context) as web:
        web.routes["/there"] = Reply("yes")
        assert run_command_line(["wait", f"{web.url}/there", "--timeout", "0"]) == 0
