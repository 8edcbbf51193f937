"""A status page that is served for a router with a catalog and dead letters, and without Spark."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import certifi
import httpx
import yaml
from playwright.sync_api import Page, sync_playwright
from prometheus_client.metrics_core import Metric

from bindings.certificates import CertificateCollector
from catalog.comparing import compare_catalogs
from catalog.load import load
from registry.backup import HistoryKeeper, HistoryLimits
from registry.core.ancestry import Linter
from registry.core.service import RegistryService
from registry.delivery.service import SubscriptionApi
from registry.delivery.subscriber_worker import Dispatch
from registry.delivery.subscriptions import DeliveryLimits, DeliverySettings, SubscriberTally, sources_of
from registry.http.server import RegistryCollector
from registry.replication.peers import Peer, Replication
from registry.store.engine import open_database
from router.evaluation.outputs import Tally
from router.evaluation.plan import Plan
from router.overview.overview import Overview
from router.replay.replay import SingleReplays
from router.running.monitoring import MonitorServer
from router.settings import load_settings
from router.watching.backlogs import INBOX, REST, Backlog
from router.watching.metrics import (
    DiskCollector,
    Metrics,
    RelationMetrics,
    StatusCollector,
    SubscriptionMetrics,
    add_jvm_metrics,
)
from router.watching.shadow import EpochPair
from router.watching.status import RouterStatus
from tests.support.letters import CATALOG, row, settings_file
from tests.support.prometheus import DEPLOY, Prometheus
from tests.support.shop import plan

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
        self.metrics.init_series(endpoints=[source.endpoint for source in plan.sources])
        self.status.set_catalog(plan.epoch, len(plan.catalog.definitions))
        if self.plan is not None:
            self.status.add_difference(compare_catalogs(self.plan.catalog, plan.catalog))
        self.metrics.coverage.follow(plan)
        self.overview.show_plan(plan)
        self.plan = plan

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"{self.server.base_url}{path}", headers=headers, timeout=SECONDS)

    def post(self, path: str, body: bytes, **headers: str) -> httpx.Response:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(f"{self.server.base_url}{path}", content=body, headers={**JSON, **headers}, timeout=SECONDS)

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


# A real browser, Debian's Chromium without a window, and what it finds hard to use on a page.

PAGE_SECONDS: Final = 120.0
SERIOUS: Final = ("serious", "critical")
PHONE: Final = (390, 844)
DESK: Final = (1200, 900)


@contextmanager
def browser_page(size: tuple[int, int] = DESK, *, dark: bool = False) -> Iterator[tuple[Page, list[str]]]:
    """Open an empty page; the list has all that its console says, and errors of its script."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "Chromium is missing: apt-get install chromium"
    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        try:
            page = browser.new_page(
                viewport={"width": size[0], "height": size[1]},
                color_scheme="dark" if dark else "light",
                reduced_motion="reduce",
            )
            page.set_default_timeout(PAGE_SECONDS * 1000)
            page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: said.append(f"error: {error}"))
            yield page, said
        finally:
            browser.close()


def hard_to_use(page: Page) -> list[str]:
    """Return what axe-core finds on a page as it is that keeps people from using it."""
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8") + "\n;0")
    found: list[dict[str, Any]] = page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{each['id']} ({each['impact']}): {[node['html'] for node in each['nodes']]}"
        for each in found
        if each["impact"] in SERIOUS
    ]


# The queries of the dashboards in ``deploy/``, filled in as Grafana fills them in.

DASHBOARDS: Final = tuple(sorted((DEPLOY / "grafana/dashboards").glob("*.json")))
KUBERNETES: Final = "namespace"
"""The variable that has values in Kubernetes only; "All" takes series without the label as well."""
_LABEL_VALUES: Final = re.compile(r"label_values\((.+), (\w+)\)")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel."""

    dashboard: str
    panel: str
    legend: str
    expression: str

    def __str__(self) -> str:
        return f"{self.dashboard}, {self.panel}, {self.legend}: {self.expression}"


def panels(dashboard: Path) -> Iterator[dict[str, Any]]:
    """Yield all panels of a dashboard, those inside of rows too."""
    for panel in json.loads(dashboard.read_text(encoding="utf-8"))["panels"]:
        yield panel
        yield from panel.get("panels", ())


def queries() -> Iterator[Query]:
    """Yield all queries as they are written."""
    for dashboard in DASHBOARDS:
        for panel in panels(dashboard):
            for target in panel.get("targets", ()):
                yield Query(dashboard.stem, panel["title"], target.get("legendFormat", ""), target["expr"])


def filled_in(query: Query, prometheus: Prometheus) -> str:
    """Return a query's expression with the variables of its dashboard, all of which stand at "All".

    Grafana's ``$__rate_interval`` is four scrapes at least.

    Raises:
        LookupError: a variable has no values; Grafana's list would be empty, and each panel that goes by it.
    """
    values = {name: _value(variable, prometheus) for name, variable in _variables(query.dashboard).items()}
    values["__rate_interval"] = f"{4 * prometheus.interval // timedelta(milliseconds=1)}ms"
    return _VARIABLE.sub(lambda found: values[found[1] or found[2]], query.expression)


def _variables(dashboard: str) -> dict[str, dict[str, Any]]:
    (path,) = (each for each in DASHBOARDS if each.stem == dashboard)
    known = json.loads(path.read_text(encoding="utf-8"))["templating"]["list"]
    return {each["name"]: each for each in known if each["type"] != "datasource"}


def _value(variable: dict[str, Any], prometheus: Prometheus) -> str:
    asked = _LABEL_VALUES.fullmatch(variable["query"]["query"])
    assert asked, f"the variable {variable['name']} is no label_values(...)"
    found = prometheus.label_values(_VARIABLE.sub(".*", asked[1]), asked[2])
    if not found and variable["name"] != KUBERNETES:
        raise LookupError(f"the variable {variable['name']} has no values")
    return str(variable["allValue"]) if variable.get("allValue") else f"({'|'.join(map(re.escape, found))})"


# All metrics that routers and registries have, as samples of them: for dashboards, rules and the reference.

RULES: Final = Path(__file__).resolve().parents[2] / "deploy" / "prometheus-rules.yml"
"""What is recorded and alerted of them."""


@cache
def families() -> tuple[Metric, ...]:
    """Return all metrics, as they are when everything has happened once."""
    metrics, status = Metrics(["s"]), RouterStatus()
    metrics.init_series(endpoints=["/endpoints/e"])
    status.gateway("http", True)
    status.inbox("")
    status.set_catalog("e", 0)
    metrics.registry.register(StatusCollector(status))
    metrics.registry.register(DiskCollector({"state": Path.cwd()}))
    metrics.registry.register(CertificateCollector({"http.tls": Path(certifi.where())}))
    add_jvm_metrics(metrics.registry, os.getpid())
    RelationMetrics(metrics.registry, lambda result: None)
    subscriptions = SubscriptionMetrics(metrics.registry)
    subscriptions.up("/endpoints/e", up=True)
    subscriptions.request("/endpoints/e", "create", "ok")
    tally = Tally()
    tally.definitions["/endpoints/e", "/m"] = 1
    tally.ties["/endpoints/e"] = 1
    tally.ids["/m", "1", "nothing"] = 1
    tally.delivered["s", "/endpoints/e"] = 1
    metrics.count_written_batch("q", tally, 0.1, 0)
    metrics.count_unfit_values("s", {"/m": 1})
    metrics.account("q", 1, 0, 0)
    metrics.backlogs.update("q", {"/endpoints/e": Backlog(0), INBOX: Backlog(0), REST: Backlog(0)})
    metrics.backlogs.update(INBOX, {INBOX: Backlog(0), "/endpoints/pushed": Backlog(0)})
    metrics.coverage.follow(plan("m"))
    metrics.set_findings([])
    metrics.held("q", "s")
    metrics.init_query_series("q")
    metrics.shadow.init_series(["next.json"], ["/endpoints/e"])
    metrics.shadow.judging(EpochPair("e", "f"), 1)
    with tempfile.TemporaryDirectory() as folder:
        return *metrics.registry.collect(), *_families_of_a_registry(f"sqlite:///{folder}/r.db")


def _families_of_a_registry(store: str) -> Iterator[Metric]:
    database = open_database(store)
    service = RegistryService(database, Linter(), lambda *_: {})
    service.prepare("r")
    sources = sources_of("http://r", "")
    subscriptions_of = SubscriptionApi(database, sources, DeliverySettings(), lambda: None).build_delivery
    dispatch = Dispatch(database, {}, subscriptions_of, sources, DeliveryLimits())
    dispatch.tallies["subscriber"] = SubscriberTally()
    keeper = HistoryKeeper(database, HistoryLimits())
    yield from RegistryCollector(dispatch, Replication(service, [Peer("http://p")]), keeper).collect()
    database.close()
