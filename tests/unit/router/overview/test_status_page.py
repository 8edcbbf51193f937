"""The status page by its public face: what is answered over HTTP, to whom, and that nothing can fill it or get in."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.overview.overview import SCRIPTS, Overview
from router.running.monitoring import MonitorServer
from router.settings import load_settings
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support.letters import settings_file
from tests.support.status_page import SECONDS, Served, tally
from tests.support.waiting import wait_until


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        made.activate()
        yield made


def test_rates_are_those_of_the_last_minute(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.activate()
        served.overview.take_sample()
        served.metrics.count_written_batch("inbox", tally(40, 0), 0.1, 0)
        wanted = "a rate, which two samples a second apart give"
        told = wait_until(lambda: flow_with_rate(served), SECONDS, wanted)
        definition = told["definitions"][0]
        assert 0 < definition["rate"] <= 40
        assert definition["rate"] == pytest.approx(40 / told["window_seconds"], rel=0.2)


def flow_with_rate(served: Served) -> dict[str, Any] | None:
    flow: dict[str, Any] = served.told()["flow"]
    return flow if flow["definitions"][0]["rate"] is not None else None


def test_the_page_is_whole_and_browsers_are_held_to_it(served: Served) -> None:
    answer = served.get("/")
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    (style,) = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    for kind, text in (("style", style), ("script", script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", answer.text)
    assert not re.search(r"<[^>]+\s(?:on\w+|style)=", answer.text.replace(script, ""))
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in script
    assert len(SCRIPTS) == 6 and served.get("/").headers["x-content-type-options"] == "nosniff"
    assert httpx.head(served.server.base_url + "/").content == b""
    assert served.post("/", b"").status_code == 405


def test_a_process_without_letters_shows_figures_alone(tmp_path: Path) -> None:
    settings = load_settings(settings_file(tmp_path))
    metrics, status = Metrics(), RouterStatus(routes=False)
    overview = Overview(settings, metrics, status, None)
    server = MonitorServer("127.0.0.1", 0, metrics, status, overview)
    server.start()
    try:
        told = httpx.get(f"{server.base_url}/status.json").json()
        assert told["access"] == {"records": "nobody", "replay": False}
        assert httpx.get(f"{server.base_url}/letters.json").status_code == 404
    finally:
        server.stop()
        overview.close()
