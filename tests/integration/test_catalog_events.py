"""A registry's change events make the router look at once: a change is in force long before the next poll."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from catalog.load import load
from router.evaluation.plan import Plan
from router.intake.intake import Intake, open_local_store
from router.running.reload import BackgroundReloader, Reloader
from router.settings import Settings
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support import plain
from tests.support.registry import Registry
from tests.support.waiting import wait_until
from tests.support.web import Web, serving

AT_ONCE = 60.0
"""Seconds that a loaded machine may take; the next poll is an hour away."""
CHANGES = "/endpoints/changes"
UPDATED = "io.xregistry.message.updated"


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as server:
        yield server


def endpoint(path: str, messages: dict[str, Any]) -> dict[str, Any]:
    return {**plain.endpoint("HTTP", {}, uri=f"http://127.0.0.1{path}"), "messages": messages}


def post(port: int, path: str, kind: str) -> None:
    plain.post(port, path, b"", **plain.http_headers(kind))


def catalog_of() -> dict[str, Any]:
    """Return a registry's tree with a channel of data, and one of the registry's own change events."""
    updated = {"updated": plain.event(UPDATED)}
    return {"endpoints": {"data": endpoint("/data", plain.events("one")), "changes": endpoint("/changes", updated)}}


def settings(url: str, folder: Path, port: int) -> dict[str, Any]:
    sources = [{"endpoint": "/endpoints/data"}, {"endpoint": CHANGES}]
    told = plain.routed(folder, plain.lines(folder, "out", "dead"), sources=sources, http={"port": port})
    return {**told, "catalog": {"source": url, "poll": "1h", "events": CHANGES}}


def test_an_event_that_a_gateway_takes_makes_the_router_look(tmp_path: Path, web: Web) -> None:
    tree = catalog_of()
    registry = Registry(web, tree).open()
    given = Settings.model_validate(settings(registry.url, tmp_path, 0))
    metrics, status = Metrics(), RouterStatus()
    plan = Plan(load([registry.url], network=True), given)
    with StateFolder.open(tmp_path / "state") as state:
        intake = Intake(given, metrics, status, lambda: open_local_store(given, state))
        reloads = BackgroundReloader(Reloader(given, plan, metrics, status))
        try:
            intake.receive_for_plan(plan)
            assert intake._http is not None
            for number in range(3):
                tree["endpoints"]["data"]["messages"][f"new{number}"] = plain.event(f"new{number}")
                post(intake._http.port, "/changes", UPDATED)
                found = wait_until(reloads.poll, AT_ONCE, "the changed catalog")
                assert f"/endpoints/data/messages/new{number}" in found.catalog.definitions
        finally:
            intake.close()
