"""A status page that is served for a router with a catalog and dead letters, and without Spark."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from catalog.comparing import compare
from catalog.load import load
from router.evaluation.outputs import Tally
from router.evaluation.plan import Plan
from router.overview.overview import Overview
from router.replay.replay import SingleReplays
from router.settings import load_settings
from router.watching.metrics import Metrics
from router.watching.monitor import MonitorServer
from router.watching.status import RouterStatus
from tests.support.letters import CATALOG, row, settings_file

SECONDS: Final = 30.0
TOKEN: Final = "a token of sixteen and more"
HOSTILE: Final = "</script><img src=x onerror=alert(1)>\u202e\x00"
TILL: Final = "/endpoints/till"
SALE: Final = "/messagegroups/G/messages/Sale"
JSON: Final = {"content-type": "application/json"}


class Served:
    """The page of a router that has a catalog and dead letters, and no Spark."""

    def __init__(self, folder: Path, **metrics: Any) -> None:
        told = yaml.safe_load(settings_file(folder).read_text())
        told["metrics"] = {"port": 0, **metrics}
        (folder / "router.yaml").write_text(yaml.safe_dump(told))
        self.settings = load_settings(folder / "router.yaml")
        self.metrics, self.status = Metrics(self.settings.sinks), RouterStatus()
        self.overview = Overview(self.settings, self.metrics, self.status, SingleReplays(folder))
        self.server = MonitorServer("127.0.0.1", 0, self.metrics, self.status, self.overview)
        self.folder = folder
        self.plan: Plan | None = None

    def activate(self) -> None:
        """Let the catalog as it is take effect, as a start or a reload does."""
        plan = Plan(load([str(self.folder / "catalog.json")]), self.settings)
        self.metrics.expect(endpoints=[source.endpoint for source in plan.sources])
        self.status.catalog(plan.epoch, len(plan.catalog.definitions))
        if self.plan is not None:
            self.status.compared(compare(self.plan.catalog, plan.catalog))
        self.metrics.coverage.follow(plan)
        self.overview.follow(plan)
        self.plan = plan

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"{self.server.address}{path}", headers=headers, timeout=SECONDS)

    def post(self, path: str, body: bytes, **headers: str) -> httpx.Response:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(f"{self.server.address}{path}", content=body, headers={**JSON, **headers}, timeout=SECONDS)

    def told(self) -> dict[str, Any]:
        answer = self.get("/status.json")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def __enter__(self) -> Served:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        self.overview.close()


def changed(**messages: Any) -> dict[str, Any]:
    """Return the catalog with more messages."""
    catalog: dict[str, Any] = json.loads(json.dumps(CATALOG))
    catalog["messagegroups"]["G"]["messages"] |= messages
    return catalog


def event(kind: str) -> dict[str, Any]:
    """Return a definition of events of one type."""
    return {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": kind}}}


def tally(routed: int, dead: int) -> Tally:
    """Return the counts of a batch of the till."""
    records = Counter({(TILL, "routed", ""): routed, (TILL, "dead-letter", "no-match"): dead})
    return Tally(records=records, definitions=Counter({(TILL, SALE): routed}))


def record(kind: str, subject: str = "shop/7") -> bytes:
    """Return a record of the till, in the form of ``match``."""
    native = json.loads(row(1)["native"])
    for header in native["headers"]:
        header["value"] = {"ce-type": kind, "ce-subject": subject}.get(header["name"], header["value"])
    return json.dumps({"endpoint": TILL, "protocol": "HTTP", "native": native, "body": "{}"}).encode()
