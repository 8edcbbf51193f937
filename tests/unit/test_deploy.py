"""What is in ``deploy/`` fits together and fits the code, as far as can be told without a container engine."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalog.dialects import registry
from catalog.documents.documents import read_documents
from catalog.findings import Declarations, Findings
from router.cli import run_command_line
from router.errors import EXIT_CODES
from router.settings import KafkaSink, Settings, load_settings
from tests.support.composed import PASSWORDS
from tests.support.prometheus import rules
from tests.support.status_page import families

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
SERVICES = sorted(DEPLOY.glob("*.service"))
YAMLS = sorted([ROOT / "docker-compose.yml", *DEPLOY.rglob("*.yml"), *DEPLOY.rglob("*.yaml")])
YAMLS = [path for path in YAMLS if "templates" not in path.parts]  # those of Helm are YAML once they are rendered
TARGET = {"instance", "job", "namespace"}
"""Labels that Prometheus adds, the last in Kubernetes."""
UNITS = {"s": 1, "min": 60, "m": 60}


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def seconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)(s|min|m)", text)
    assert found, f"{text} is no time"
    return int(found[1]) * UNITS[found[2]]


def promtool(*arguments: str) -> None:
    tool = shutil.which("promtool")
    if tool is None and "CI" not in os.environ:
        pytest.skip("promtool is missing: install Prometheus (on Debian or Ubuntu: apt-get install prometheus)")
    assert tool, "promtool is missing, and CI runs every test"
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def dashboard_expressions() -> Iterator[tuple[str, str]]:
    for dashboard in DASHBOARDS:
        told = json.loads(dashboard.read_text())
        yield from panel_expressions(told)
        yield from ((note["name"], note["expr"]) for note in told["annotations"]["list"])


def panel_expressions(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for panel in told["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", ()))


RECORDS, ALERTS = tuple(rules("record")), tuple(rules("alert"))
ALERT_NAMES = {rule["alert"] for rule in ALERTS}


def known_samples() -> dict[str, set[str]]:
    """Every sample that a router or a registry can give, with its labels."""
    samples = [sample for family in families() for sample in family.samples]
    return {sample.name: set(sample.labels) | TARGET for sample in samples}


EXPRESSIONS = [
    *dashboard_expressions(),
    *((rule.get("alert") or rule["record"], rule["expr"]) for rule in (*RECORDS, *ALERTS)),
]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = read_yaml(ROOT / "docker-compose.yml")
    return found


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load_settings(DEPLOY / "compose/router.yaml", PASSWORDS)


def test_prometheus_takes_its_configuration_and_the_rules() -> None:
    promtool("check", "config", str(DEPLOY / "prometheus.yml"))


@pytest.mark.slow
def test_each_alert_fires_when_it_should_and_not_before() -> None:
    cases = Path(__file__).with_name("prometheus-rules.test.yaml")
    tested = {case["alertname"] for test in read_yaml(cases)["tests"] for case in test["alert_rule_test"]}
    assert tested == ALERT_NAMES
    promtool("test", "rules", str(cases))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS, ids=[name for name, _ in EXPRESSIONS])
def test_queries_use_only_metrics_and_labels_that_there_are(name: str, expression: str) -> None:
    known = known_samples()
    recorded = {rule["record"] for rule in RECORDS}
    for metric, matchers in re.findall(r"((?:\w+:)?\b(?:xrouter|process)_[\w:]+)\s*(?:\{([^}]*)\})?", expression):
        if ":" in metric:
            assert metric in recorded, f"{name}: no rule records {metric}"
            continue
        assert metric in known, f"{name}: no metric {metric}"
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        assert used <= known[metric] - {"le"}, f"{name}: {metric} has no labels {used - known[metric]}"
    labels = {each for names in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression) for each in names.split(",")}
    everywhere = set().union(*known.values())
    assert {label.strip() for label in labels} <= everywhere


def test_every_metric_is_on_the_dashboard_and_explained() -> None:
    shown = " ".join(expression for _, expression in dashboard_expressions())
    pages = ("deploy/docs/reference/metrics.md", "deploy/docs/howto/registry-events.md")
    explained = " ".join((ROOT / page).read_text(encoding="utf-8") for page in pages)
    for family in families():
        assert family.name in shown, f"{family.name} is on no panel"
        assert f"`{family.name}" in explained, f"{family.name} is not explained"


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_the_dashboard_asks_the_source_that_is_chosen(dashboard: Path) -> None:
    (source,) = read_yaml(DEPLOY / "grafana/provisioning/datasources/prometheus.yml")["datasources"]
    told = json.loads(dashboard.read_text())
    first, *others = told["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", source["type"])
    assert (first["current"]["text"], first["current"]["value"]) == (source["name"], source["uid"])
    asked = set(re.findall(r'"uid": "([^"]+)"', dashboard.read_text())) - {told["uid"]}
    assert asked == {"${datasource}"}
    assert [each["name"] for each in others[:3]] == ["job", "namespace", "instance"]
    for _, expression in panel_expressions(told):
        for matchers in re.findall(r"\{([^}]*)\}", expression):
            assert {"job", "namespace", "instance"} <= set(re.findall(r"(\w+)=~", matchers)), expression


def test_each_alert_leads_to_its_runbook() -> None:
    for rule in ALERTS:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert anchor == rule["alert"].lower()
        text = (ROOT / page).read_text(encoding="utf-8")
        assert f"\n## {rule['alert']}\n" in text, f"{page} has no {anchor}"
        section = text.split(f"## {rule['alert']}\n")[1].split("\n## ")[0]
        for part in ("Means", "Check", "Fix"):
            assert f"\n**{part}**: " in section or f"\n**{part}**:\n" in section, f"{rule['alert']} has no {part}"


def test_every_alert_is_listed_and_every_exit_code_explained() -> None:
    listed = (ROOT / "deploy/docs/runbooks/index.md").read_text(encoding="utf-8")
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in ALERTS}
    for name, severity in severities.items():
        assert re.search(rf"^\| \[{name}\].*\| {severity} \|$", listed, re.MULTILINE), f"{name} is not listed"
    explained = (ROOT / "deploy/docs/howto/run.md").read_text(encoding="utf-8")
    for kind, code in EXIT_CODES.items():
        assert re.search(rf"^\| {code} \|", explained, re.MULTILINE), f"exit code {code} of {kind} is not explained"


def test_compose_mounts_what_exists(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), f"{name} mounts {source}, which is not there"
            else:
                assert source in compose["volumes"]


def test_compose_pins_images_and_checks_health(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+(-alpine)?", service["image"]), (
            f"{name}: {service['image']} is not pinned"
        )
        assert "healthcheck" in service or service["restart"] == "no", f"{name} has no health check"
    for service in compose["services"].values():
        for needed, how in service.get("depends_on", {}).items():
            other = compose["services"][needed]
            assert ("healthcheck" in other) == (how["condition"] == "service_healthy")


def test_compose_settings_load_and_fit_the_services(compose: dict[str, Any], settings: Settings) -> None:
    router = compose["services"]["router"]
    inside = {port.rsplit(":", 1)[1] for port in router["ports"]}
    assert inside == {str(settings.http.port), str(settings.metrics.port)}
    assert settings.http.host == settings.metrics.host == "0.0.0.0"
    assert timedelta(seconds=seconds(router["stop_grace_period"])) > settings.drain_grace
    scrape, of_registries = read_yaml(DEPLOY / "prometheus.yml")["scrape_configs"]
    assert scrape["static_configs"][0]["targets"] == [f"router:{settings.metrics.port}"]
    mounted = {volume.split(":")[0] for volume in compose["services"]["prometheus"]["volumes"]}
    for file in (*of_registries["file_sd_configs"][0]["files"], "prometheus-rules.yml"):
        assert f"./deploy/{file}" in mounted
    assert f":{settings.metrics.port}/healthz" in (DEPLOY / "Dockerfile").read_text()
    assert f":{settings.metrics.port}/readyz" in str(router["healthcheck"])
    assert settings.state.startswith("/var/lib/xrouter/")


def test_compose_catalog_is_clean_and_its_topics_are_made(compose: dict[str, Any], settings: Settings) -> None:
    findings, declared = Findings(), Declarations()
    for document in read_documents(settings.catalog.source, findings, network=False):
        registry.read(document.tree, document.root, declared, findings)
    assert not findings.sorted()
    assert {source.endpoint for source in settings.sources} == set(declared.endpoints)
    groups = {group for endpoint in declared.endpoints.values() for group in endpoint.messagegroups}
    assert groups == set(declared.groups)
    made = set(compose["services"]["topics"]["environment"]["TOPICS"].split())
    needed = {endpoint.options["topic"] for endpoint in declared.endpoints.values() if endpoint.protocol == "KAFKA"}
    for sink in settings.sinks.values():
        if isinstance(sink, KafkaSink):
            names = [group.rsplit("/", 1)[1] for group in groups]
            needed |= {sink.topic.replace("{messagegroup}", name) for name in names}
            assert sink.bootstrap_servers in compose["services"]["topics"]["command"][0]
    assert made == needed
    wanted = {group for route in settings.routes for group in route.when.messagegroup}
    assert wanted <= {group.rsplit("/", 1)[1] for group in groups}


def test_the_image_is_made_of_what_exists() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    base = next(line.split("=", 1)[1] for line in lines if line.startswith("ARG BASE="))
    assert re.fullmatch(r"eclipse-temurin:(17|21)\.[\d.]+_\d+-jre-\w+", base), f"{base} is not pinned"
    copied = [
        name
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for name in line.removeprefix("COPY ").split()[:-1]
    ]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for name in copied:
        assert (ROOT / name).exists(), f"the image wants {name}, which is not there"
        assert f"!{name}" in ignored, f"{name} does not reach the builder"
    assert [line for line in lines if line.startswith("USER ")] == ["USER xrouter"]
    assert any(line.startswith("HEALTHCHECK ") for line in lines)


def test_every_container_is_confined(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["cap_drop"] == ["ALL"] and not service.get("cap_add"), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"] and service["pids_limit"], name
        assert not service.get("privileged") and service.get("network_mode") != "host", name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert not any("docker.sock" in volume for volume in service.get("volumes", ())), name
    router = compose["services"]["router"]
    assert router["read_only"] and any(place.startswith("/tmp") for place in router["tmpfs"])


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_systemd_takes_the_unit_and_calls_it_confined(path: Path, tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None and "CI" not in os.environ:
        pytest.skip("systemd-analyze is missing: install systemd")
    assert tool, "systemd-analyze is missing, and CI runs every test"
    # The command is not installed here; everything else is as shipped.
    (tmp_path / path.name).write_text(path.read_text().replace("/opt/xrouter/bin/xrouter", "/bin/true"))
    for arguments in (("verify", "--recursive-errors=no"), ("security", "--offline=true", "--threshold=30")):
        command = [tool, *arguments, str(tmp_path / path.name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Unknown key" not in done.stderr and "Failed to parse" not in done.stderr, done.stderr


def service_of(path: Path) -> configparser.SectionProxy:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text())
    return unit["Service"]


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_units_give_a_drain_time_and_do_not_repeat_hopeless_starts(path: Path) -> None:
    service = service_of(path)
    assert service["KillMode"] == "mixed"
    drains = timedelta(seconds=10) if path.stem == "xregistry" else Settings.model_fields["drain_grace"].default
    assert timedelta(seconds=seconds(service["TimeoutStopSec"])) >= drains + timedelta(seconds=20)
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} <= {2, *EXIT_CODES.values()}


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_units_run_commands_that_there_are(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, *command, config = service_of(path)["ExecStart"].split()
    assert program == "/opt/xrouter/bin/xrouter" and config.startswith("/etc/xrouter/")
    assert run_command_line([*command, "--help"]) == 0
    assert "CONFIG" in capsys.readouterr().out


def test_units_confine_alike() -> None:
    begins = tuple("Protect Private Restrict SystemCall Capability Ambient NoNew Lock Device RemoveIPC".split())
    kept = [
        {name: value for name, value in service_of(path).items() if name.startswith(begins) and "Exit" not in name}
        for path in SERVICES
    ]
    assert len(kept) == 3 and len(kept[0]) > 20
    assert kept[0] == kept[1] == kept[2]
