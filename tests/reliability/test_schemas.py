"""Payload schemas in a running router: held for at the first start, waited for at a reload, and told by."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import plain
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until
from tests.support.web import Reply, Request, Route, serving

SECONDS = 300.0
METRES = {"type": "object", "required": ["metres"]}
FEET = {"type": "object", "required": ["feet"]}


def write_catalog(folder: Path, unit: str, *schemas: str) -> Path:
    """Write two definitions that only their schemas tell apart, at these URIs."""
    message = {"protocol": "HTTP", "protocoloptions": {"method": {"value": "POST"}}, "dataschemaformat": "JsonSchema"}
    messages = {f"{unit}{number}": {**message, "dataschemauri": uri} for number, uri in enumerate(schemas)}
    endpoint = plain.endpoint("HTTP", {"path": "/lengths"}, "Lengths")
    return plain.write(folder, plain.catalog({"in": endpoint}, Lengths=messages))


def routed(folder: Path) -> list[str]:
    """Short names of the definitions that took records so far."""
    return [line["message"].rsplit("/", 1)[-1] for line in plain.lines_of(folder)]


class Silent:
    """A route whose server takes the request and does not answer; ``asked`` once it was asked."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def __call__(self, request: Request) -> None:
        self.asked.set()
        request.stopping.wait(SECONDS)


def settings(folder: Path, port: int) -> dict[str, Any]:
    catalog = {"source": str(folder / "catalog.json"), "poll": "200ms"}
    return plain.routed(folder, plain.lines(folder, "out", "dead"), catalog=catalog, http={"port": port})


def awaited(router: RouterProcess) -> list[str]:
    """Return what the catalog waits for, as the status has it; the metrics count as many."""

    def agreed() -> list[list[str]]:
        listed = [str(uri) for uri in router.readiness().get("catalog", {}).get("awaited", [])]
        return [listed] if router.total("xrouter_catalog_awaited") == len(listed) else []

    return wait_until(agreed, SECONDS, "status and metrics to agree")[0]


def test_a_router_waits_for_schemas_before_it_starts_and_before_it_changes(
    router: RouterProcess, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/lengths"
    out = tmp_path / "out"

    def send(expected: list[str], **length: int) -> None:
        assert httpx.post(url, json=length, timeout=SECONDS).status_code == 202
        wait_until(lambda: routed(out) == expected, SECONDS, lambda: f"{expected}; {routed(out)}; {router.log[-2000:]}")

    with serving() as web:
        web.routes["/metres"] = Silent()
        web.routes["/feet"] = Reply(FEET)
        write_catalog(tmp_path, "First", f"{web.url}/metres", f"{web.url}/feet")
        router.configure(settings(tmp_path, port))
        router.module = ("tests.support.hasty_router",)
        router.launch()
        wait_until(lambda: "waiting to start" in router.log and "/metres" in router.log, SECONDS, "the router to wait")
        told = router.readiness()
        assert told["ready"] is False
        # A server that leaves one request unanswered is asked for nothing more in the same look.
        assert f"no catalog is active: unreachable references: {web.url}/" in " ".join(told["reasons"])
        assert f"{web.url}/metres" in awaited(router)
        web.routes["/metres"] = Reply(METRES)
        wait_until(lambda: router.readiness().get("ready"), SECONDS, lambda: f"a start; log:\n{router.log[-2000:]}")
        assert awaited(router) == []
        send(["First0"], metres=1)

        # A changed catalog waits; the router goes on by the old one, and is ready.
        away: tuple[Route, ...] = (Silent(), Reply("busy", 503))
        for web.routes["/later"] in away:
            write_catalog(tmp_path, "Second", f"{web.url}/later", f"{web.url}/feet")
            wait_until(lambda: f"{web.url}/later" in awaited(router), SECONDS, lambda: router.log[-2000:])
            assert router.readiness()["ready"]
            send([*routed(out), "First1"], feet=1)
        assert "catalog has unreachable references" in router.log
        before = router.readiness()["catalog"]["epoch"]
        web.routes["/later"] = Reply(METRES)
        wait_until(lambda: router.readiness()["catalog"]["epoch"] != before, SECONDS, lambda: router.log[-2000:])
        assert awaited(router) == []
        send([*routed(out), "Second0"], metres=2)

        # Nor does the end of the router wait for somebody who does not answer.
        web.routes["/never"] = never = Silent()
        write_catalog(tmp_path, "Third", f"{web.url}/never", f"{web.url}/feet")
        assert never.asked.wait(SECONDS)
        assert router.stop() == 0
    assert not (tmp_path / "dead").exists()


@pytest.mark.full
def test_a_router_that_waits_for_a_silent_server_can_be_stopped(router: RouterProcess, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with serving() as web:
        web.routes["/metres"] = silent = Silent()
        write_catalog(tmp_path, "First", f"{web.url}/metres")
        router.configure(settings(tmp_path, port))
        router.launch()
        assert silent.asked.wait(SECONDS)
        assert router.stop() == 0, router.log
    assert "waiting to start" not in router.log, "it waited for the answer all the same"
