"""A real Prometheus on the project's own rules, which scrapes what a test runs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from tests.support.ports import LOOPBACK, free_ports
from tests.support.processes import BrokerFailed, BrokerProcess

DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy"
RULES: Final = DEPLOY / "prometheus-rules.yml"
CONFIGURATION: Final = DEPLOY / "prometheus.yml"
_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_RANGE: Final = re.compile(r"\[[^\]]*\]|\boffset\s+\w+")


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that is pending or firing."""

    name: str
    state: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class Prometheus(BrokerProcess):
    """Scrapes *targets*, addresses by the name of their job, with the jobs and rules of ``deploy/``.

    All times of the rules are divided by *faster*, their expressions and limits stay; see :func:`faster_rules`.
    """

    def __init__(
        self, folder: Path, targets: Mapping[str, Sequence[str]], *, faster: int = 1, interval: str = "1s"
    ) -> None:
        super().__init__(folder)
        (self._port,) = free_ports(1)
        self._targets = targets
        self._faster = faster
        self.interval = timedelta(milliseconds=_milliseconds(interval))
        """The time between two scrapes."""
        self._client = httpx.Client(base_url=f"http://{LOOPBACK}:{self._port}/api/v1", timeout=60)

    @property
    def title(self) -> str:
        return f"Prometheus on port {self._port}"

    def __exit__(self, *raised: object) -> None:
        super().__exit__()
        self._client.close()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression has now."""
        answer = self._client.post("/query", data={"query": expression})
        told = answer.json()
        assert told["status"] == "success", f"{expression}: {told['error']}"
        found: list[dict[str, Any]] = told["data"]["result"]
        return found

    def label_values(self, metric: str, label: str) -> list[str]:
        """Return what Grafana's ``label_values(metric, label)`` gives."""
        told = self._client.get(f"/label/{label}/values", params={"match[]": metric}).json()
        found: list[str] = told["data"]
        return found

    def alerts(self) -> list[Alert]:
        """Return the alerts that are pending or firing."""
        told = self._client.get("/alerts").json()["data"]["alerts"]
        return [
            Alert(each["labels"].pop("alertname"), each["state"], each["labels"], each["annotations"]) for each in told
        ]

    def firing(self, name: str) -> list[Alert]:
        """Return the alerts of that name that fire."""
        return [each for each in self.alerts() if (each.name, each.state) == (name, "firing")]

    def unhealthy_rules(self) -> dict[str, str]:
        """Return the rules that Prometheus cannot evaluate, with what it says of them."""
        groups = self._client.get("/rules").json()["data"]["groups"]
        return {each["name"]: each.get("lastError", "") for group in groups for each in group["rules"] if _bad(each)}

    def _command(self) -> Sequence[str]:
        program = shutil.which("prometheus")
        if program is None:
            raise BrokerFailed("prometheus cannot be run: install the Debian package prometheus")
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "rules.yml").write_text(faster_rules(RULES.read_text(encoding="utf-8"), self._faster))
        (self._folder / "prometheus.yml").write_text(self._configuration())
        return [
            program,
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={LOOPBACK}:{self._port}",
            "--log.level=warn",
        ]

    def _environment(self) -> Mapping[str, str]:
        return {"GOMAXPROCS": "2"} if "GOMAXPROCS" not in os.environ else {}

    def _configuration(self) -> str:
        told = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))
        jobs = {each["job_name"]: each for each in told["scrape_configs"]}
        assert self._targets.keys() <= jobs.keys(), f"{CONFIGURATION.name} has the jobs {', '.join(jobs)}"
        pace = f"{self.interval // timedelta(milliseconds=1)}ms"
        told["global"] = {"scrape_interval": pace, "scrape_timeout": pace, "evaluation_interval": pace}
        told["rule_files"] = ["rules.yml"]
        told["scrape_configs"] = [
            {**_without_places(jobs[job]), "static_configs": [{"targets": list(addresses)}]}
            for job, addresses in self._targets.items()
        ]
        return yaml.safe_dump(told)

    def _ready(self) -> bool:
        try:
            return httpx.get(f"http://{LOOPBACK}:{self._port}/-/ready", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False


def faster_rules(text: str, factor: int) -> str:
    """Return rules with all their times divided by *factor*: ``for``, ranges, offsets and steps of subqueries.

    A test cannot wait for half an hour. Nothing else of an expression changes, and no limit does.
    """
    told = yaml.safe_load(text)
    for group in told["groups"]:
        for rule in group["rules"]:
            rule["expr"] = _RANGE.sub(lambda found: _divided(found[0], factor), rule["expr"])
            for key in ("for", "keep_firing_for"):
                if key in rule:
                    rule[key] = _divided(rule[key], factor)
    return yaml.safe_dump(told, sort_keys=False)


def rules(kind: str) -> Iterator[dict[str, Any]]:
    """Yield the rules of a kind, ``alert`` or ``record``, as they are written."""
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        yield from (rule for rule in group["rules"] if kind in rule)


def _divided(text: str, factor: int) -> str:
    return _DURATION.sub(lambda found: f"{int(found[1]) * _UNITS[found[2]] // factor}ms", text)


def _milliseconds(text: str) -> int:
    found = _DURATION.fullmatch(text)
    assert found, f"{text} is no time"
    return int(found[1]) * _UNITS[found[2]]


def _without_places(job: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in job.items() if not key.endswith("_sd_configs")}


def _bad(rule: Mapping[str, Any]) -> bool:
    return bool(rule["health"] == "err")
