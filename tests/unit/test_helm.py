"""The Helm chart, rendered and linted by Helm itself, held against Kubernetes' schemas and against the router."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml

from bindings.http.server import HttpServer
from catalog.load import load
from registry.http.server import create_metrics_server
from router.cli import run_command_line
from router.commands.registry.settings import load_registry, require_access
from router.evaluation.plan import Plan
from router.running.monitoring import MonitorServer
from router.settings import Settings, load_settings
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support.cases import read_cases
from tests.support.helm import CHART, NEWEST, PLACE, HelmError, conforms, environment, helm, of_kind, pods, rendered

# Helm is built by whoever asks for it first.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2000)]

CASES: Final = read_cases(Path(__file__).parents[1] / "cases" / "helm.yaml")
VALUES: Final = sorted((CHART / "ci").glob("*.yaml"))
ROUTER, EVERYTHING, REGISTRY = (CHART / "ci" / f"{name}-values.yaml" for name in ("router", "everything", "registry"))
OLDEST: Final = "1.25"
SECRETS: Final = {
    "MQTT_PASSWORD": "m",
    "DATABASE_PASSWORD": "d",
    "ADMIN_PASSWORD": "a",
    "CI_TOKEN": "c" * 20,
    "ROUTER_TOKEN": "r" * 20,
}
TOPIC: Final = {"inbox": {"kafka": {"bootstrap_servers": "kafka:9092", "topic": "inbox"}}}

Objects = list[dict[str, Any]]


@pytest.fixture(scope="module")
def alone() -> Objects:
    return rendered(ROUTER)


@pytest.fixture(scope="module")
def everything() -> Objects:
    return rendered(EVERYTHING)


@pytest.fixture(scope="module")
def beside() -> Objects:
    return rendered(REGISTRY)


@pytest.fixture(scope="module", params=VALUES, ids=lambda path: path.stem)
def objects(request: pytest.FixtureRequest) -> Objects:
    return rendered(request.param)


def container(objects: Objects, name: str) -> dict[str, Any]:
    [found] = [pod["spec"]["containers"][0] for workload, pod in pods(objects) if workload == name]
    return dict(found)


def settings_of(objects: Objects, workload: str, folder: Path) -> Settings:
    """Load what a container would: its file, its variables, and secrets in their folder."""
    text = of_kind(objects, "ConfigMap")["garden-xrouter-config"]["data"]["router.yaml"]
    secrets = folder / "kafka"
    secrets.mkdir(parents=True, exist_ok=True)
    for name in ("password", "ca.crt"):
        (secrets / name).write_text("secret")
    (folder / "router.yaml").write_text(text.replace("/etc/xrouter-secrets", str(folder)))
    return load_settings(folder / "router.yaml", {**environment(container(objects, workload)), **SECRETS})


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_helm_has_nothing_to_say_about_it(values: Path) -> None:
    told = helm("lint", "--strict", CHART, "--values", values)
    assert "1 chart(s) linted, 0 chart(s) failed" in told and "[WARNING]" not in told and "[ERROR]" not in told


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_takes_what_it_makes(objects: Objects, version: str) -> None:
    conforms(objects, version)


def test_the_package_has_all_that_the_folder_has(tmp_path: Path, everything: Objects) -> None:
    helm("package", CHART, "--destination", tmp_path)
    [package] = tmp_path.glob("xrouter-*.tgz")
    packed = helm("template", "garden", package, *PLACE, "--values", EVERYTHING)
    assert [each for each in yaml.safe_load_all(packed) if each] == everything


def test_pods_may_do_nothing_but_their_work(objects: Objects) -> None:
    found = list(pods(objects))
    assert found
    for name, pod in found:
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in spec["containers"]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert each["resources"]["limits"]["memory"] and each["resources"]["requests"]["cpu"], name
            mounts = {mount["name"]: mount for mount in each["volumeMounts"]}
            assert set(mounts) == {volume["name"] for volume in spec["volumes"]} | claims(objects, name)
            writable = {mount["mountPath"] for mount in mounts.values() if not mount.get("readOnly")}
            assert writable == {"/tmp", "/var/lib/xrouter"}


def claims(objects: Objects, name: str) -> set[str]:
    """Return the names of the claims that a StatefulSet makes for its pods."""
    made = of_kind(objects, "StatefulSet").get(name, {"spec": {}})["spec"].get("volumeClaimTemplates", ())
    return {each["metadata"]["name"] for each in made}


def test_the_user_of_pods_is_that_of_the_image(alone: Objects) -> None:
    dockerfile = (CHART.parents[1] / "Dockerfile").read_text()
    [(_, pod)] = pods(alone)
    assert f"--uid {pod['spec']['securityContext']['runAsUser']} " in dockerfile
    assert f"--home-dir {container(alone, 'garden-xrouter')['volumeMounts'][-1]['mountPath']} " in dockerfile


@pytest.fixture(params=["router", "registry"])
def watch(request: pytest.FixtureRequest) -> Iterator[str]:
    """The real server that probes ask, of a process that is ready."""
    status = RouterStatus(routes=False)
    status.set_catalog("e", 1)
    status.note_heartbeat()
    server: HttpServer
    if request.param == "router":
        server = MonitorServer("127.0.0.1", 0, Metrics(), status)
    else:
        server = create_metrics_server("127.0.0.1", 0, (), lambda: True)
    server.start()
    yield f"http://127.0.0.1:{server.port}"
    server.stop()


def test_probes_ask_for_what_is_served(watch: str, everything: Objects) -> None:
    for _, pod in pods(everything):
        [each] = pod["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in each["ports"]}
        assert each["startupProbe"]["httpGet"]["path"] == each["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert each["readinessProbe"]["httpGet"]["path"] == "/readyz"
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = each[kind]["httpGet"]
            assert ports[probe["port"]] == 9464
            assert httpx.get(watch + probe["path"], timeout=30).status_code == 200


@pytest.mark.parametrize(("values", "workloads"), [(ROUTER, 1), (EVERYTHING, 2)], ids=["router", "everything"])
def test_the_router_takes_its_settings(values: Path, workloads: int, tmp_path: Path) -> None:
    made = rendered(values)
    named = [name for name, _ in pods(made) if not name.endswith("-registry")]
    assert len(named) == workloads
    for name in named:
        settings = settings_of(made, name, tmp_path)
        assert settings.http.host == settings.metrics.host == "0.0.0.0"
        assert settings.state == "/var/lib/xrouter/state" and settings.log.format == "json"
        ports = {port["name"]: port["containerPort"] for port in container(made, name)["ports"]}
        assert ports.get("http", 8080) == settings.http.port and ports["metrics"] == settings.metrics.port
        [grace] = [pod["spec"]["terminationGracePeriodSeconds"] for other, pod in pods(made) if other == name]
        assert grace >= settings.drain_grace.total_seconds() + 30
        assert (settings.inbox.kafka is not None) == (workloads == 2)


def test_the_registry_takes_its_settings(everything: Objects, beside: Objects, tmp_path: Path) -> None:
    for made, name, store in (
        (everything, "garden-xrouter-registry", "postgresql+psycopg://registry:d@postgres.example/registry"),
        (beside, "garden-catalog-router-registry", "sqlite:////var/lib/xrouter/registry.db"),
    ):
        path = tmp_path / "registry.yaml"
        path.write_text(of_kind(made, "ConfigMap")[name]["data"]["registry.yaml"])
        given, settings = load_registry(path, {**environment(container(made, name)), **SECRETS})
        require_access(given, path)
        assert (settings.host, settings.port) == ("0.0.0.0", 8090) and settings.metrics == ("0.0.0.0", 9464)
        assert settings.store == store


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_what_containers_run_are_commands_of_the_router(values: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _, pod in pods(rendered(values)):
        *command, config = pod["spec"]["containers"][0]["args"]
        assert config in ("/etc/xrouter/router.yaml", "/etc/xregistry/registry.yaml")
        assert run_command_line([*command, "--help"]) == 0
        assert "CONFIG" in capsys.readouterr().out


def test_documents_of_a_config_map_are_a_catalog(alone: Objects, tmp_path: Path) -> None:
    """As kubelet lays them out: links to links to files in a hidden folder that changes its name."""
    [mounted] = [each for each in of_kind(alone, "ConfigMap").values() if "garden.xreg.json" in each["data"]]
    hidden = tmp_path / "..2026_11_23"
    hidden.mkdir()
    (tmp_path / "..data").symlink_to(hidden.name)
    for name, text in mounted["data"].items():
        (hidden / name).write_text(text)
        (tmp_path / name).symlink_to(f"..data/{name}")
    catalog = load([tmp_path])
    assert list(catalog.definitions) == ["/messagegroups/Garden/messages/Garden.Moisture"]
    assert not catalog.findings
    settings = settings_of(alone, "garden-xrouter", tmp_path / "settings")
    assert [source.endpoint for source in Plan(catalog, settings).sources] == ["/endpoints/garden"]


def test_state_outlives_the_pod(alone: Objects, everything: Objects, beside: Objects) -> None:
    for made in (alone, everything):
        [claim] = of_kind(made, "StatefulSet")["garden-xrouter"]["spec"]["volumeClaimTemplates"]
        assert claim["spec"]["resources"]["requests"]["storage"] == "20Gi"
    spec = of_kind(beside, "StatefulSet")["garden-catalog-router"]["spec"]
    assert "volumeClaimTemplates" not in spec
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "router-state"}} in spec["template"]["spec"][
        "volumes"
    ]
    registry = of_kind(beside, "Deployment")["garden-catalog-router-registry"]["spec"]
    assert registry["strategy"] == {"type": "Recreate"} and registry["replicas"] == 1
    assert "garden-catalog-router-registry" in of_kind(beside, "PersistentVolumeClaim")


def test_secrets_are_only_referred_to(objects: Objects) -> None:
    assert not of_kind(objects, "Secret")
    assert not any(secret in json.dumps(objects) for secret in SECRETS.values() if len(secret) > 1)


def test_secrets_reach_router_and_gateways(everything: Objects) -> None:
    for name in ("garden-xrouter", "garden-xrouter-gateway"):
        each = container(everything, name)
        assert each["envFrom"] == [{"secretRef": {"name": "router-passwords"}}]
        assert {"name": "secret-kafka", "mountPath": "/etc/xrouter-secrets/kafka", "readOnly": True} in each[
            "volumeMounts"
        ]
        [token] = [each for each in each["env"] if "valueFrom" in each]
        assert token["name"] == "XROUTER_METRICS__TOKEN"
    assert container(everything, "garden-xrouter-registry")["envFrom"] == [{"secretRef": {"name": "registry-secrets"}}]


def test_what_points_to_pods_finds_them(objects: Objects) -> None:
    labels = {name: (pod["metadata"]["labels"], pod["spec"]["containers"][0]) for name, pod in pods(objects)}

    def chosen(selector: dict[str, str]) -> list[dict[str, Any]]:
        return [each for marks, each in labels.values() if selector.items() <= marks.items()]

    for service in of_kind(objects, "Service").values():
        [found] = chosen(service["spec"]["selector"])
        ports = {port["name"] for port in found["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        for each in of_kind(objects, kind).values():
            selector = each["spec"].get("selector") or each["spec"]["podSelector"]
            [found] = chosen(selector["matchLabels"])
            for rule in each["spec"].get("ingress", ()):
                assert {port["port"] for port in rule["ports"]} <= {port["name"] for port in found["ports"]}
    for each in of_kind(objects, "Ingress").values():
        for rule in each["spec"]["rules"]:
            for backend in (path["backend"]["service"] for path in rule["http"]["paths"]):
                service = of_kind(objects, "Service")[backend["name"]]
                assert backend["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}
    for each in of_kind(objects, "HorizontalPodAutoscaler").values():
        target = each["spec"]["scaleTargetRef"]
        assert "replicas" not in of_kind(objects, target["kind"])[target["name"]]["spec"]
    for each in of_kind(objects, "StatefulSet").values():
        assert each["spec"]["serviceName"] in of_kind(objects, "Service")
        assert of_kind(objects, "Service")[each["spec"]["serviceName"]]["spec"]["clusterIP"] == "None"


def test_a_router_that_is_not_ready_does_not_keep_its_own_upgrade_out(objects: Objects) -> None:
    for each in of_kind(objects, "StatefulSet").values():
        assert each["spec"]["podManagementPolicy"] == "Parallel"


def test_what_comes_from_outside_reaches_the_services(everything: Objects, alone: Objects) -> None:
    assert not of_kind(alone, "Ingress")
    made = of_kind(everything, "Ingress")
    assert set(made) == {"garden-xrouter", "garden-xrouter-registry"}
    spec = made["garden-xrouter"]["spec"]
    assert spec["ingressClassName"] == "nginx" and spec["tls"] == [
        {"hosts": ["events.example"], "secretName": "events-tls"}
    ]
    [rule] = spec["rules"]
    assert rule["host"] == "events.example"
    assert [(path["path"], path["pathType"]) for path in rule["http"]["paths"]] == [
        ("/garden", "Prefix"),
        ("/house", "Prefix"),
    ]
    everywhere = rendered(ROUTER, ingress={"enabled": True, "hosts": [{"host": "", "paths": ["/"]}]})
    [rule] = of_kind(everywhere, "Ingress")["garden-xrouter"]["spec"]["rules"]
    assert "host" not in rule
    conforms(everywhere, NEWEST)


def test_helm_test_waits_for_all_that_is_installed(objects: Objects, tmp_path: Path) -> None:
    [pod] = of_kind(objects, "Pod").values()
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    spec = pod["spec"]
    assert spec["restartPolicy"] == "Never" and spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    services = {f"http://{name}.flows:9464": each for name, each in of_kind(objects, "Service").items()}
    asked = []
    for each in spec["containers"]:
        assert each["securityContext"]["readOnlyRootFilesystem"] is True
        command, url, *limit = each["args"]
        address, path = url.rsplit("/", 1)
        assert command == "wait" and path == "readyz" and limit == ["--timeout", "300"]
        asked.append(services[address]["spec"]["selector"]["app.kubernetes.io/component"])
    running = {each["metadata"]["labels"]["app.kubernetes.io/component"] for _, each in pods(objects)}
    assert set(asked) == running and len(asked) == len(running)
    for each in of_kind(objects, "NetworkPolicy").values():
        watching = each["spec"]["ingress"][0]
        chosen = [peer["podSelector"]["matchLabels"] for peer in watching["from"] if "podSelector" in peer]
        assert any(labels.items() <= pod["metadata"]["labels"].items() for labels in chosen)


def test_what_helm_test_runs_says_whether_a_router_is_ready(watch: str) -> None:
    assert run_command_line(["wait", f"{watch}/readyz", "--timeout", "60"]) == 0
    assert run_command_line(["wait", "http://127.0.0.1:9/readyz", "--timeout", "0"]) == 5


def test_containers_of_ones_own_run_beside_and_before(tmp_path: Path) -> None:
    beside, before = {"name": "relay", "image": "relay:1"}, {"name": "fetch", "image": "fetch:1"}
    more: dict[str, Any] = {"extraContainers": [beside], "extraInitContainers": [before]}
    volume = {"name": "shared", "emptyDir": {}}
    mounted = {"name": "shared", "mountPath": "/shared"}
    volumes: dict[str, Any] = {"extraVolumes": [volume], "extraVolumeMounts": [mounted]}
    made = rendered(EVERYTHING, router=more, gateways=more, registry={**more, **volumes}, **volumes)
    found = list(pods(made))
    assert len(found) == 3
    for _, pod in found:
        own, other = pod["spec"]["containers"]
        assert other == beside and pod["spec"]["initContainers"] == [before]
        assert volume in pod["spec"]["volumes"] and mounted in own["volumeMounts"]
    conforms(made, NEWEST)


def test_gateways_scale_with_the_inbox(everything: Objects) -> None:
    spec = of_kind(everything, "HorizontalPodAutoscaler")["garden-xrouter-gateway"]["spec"]
    processor, lag = spec["metrics"]
    assert processor["resource"]["target"] == {"type": "Utilization", "averageUtilization": 70}
    assert lag["external"] == {
        "metric": {
            "name": "xrouter_inbox_records",
            "selector": {"matchLabels": {"namespace": "flows", "job": "xrouter", "cluster": "north"}},
        },
        "target": {"type": "AverageValue", "averageValue": "50000"},
    }


def test_gateways_are_a_deployment_unless_brokers_know_them_by_name(everything: Objects) -> None:
    assert "garden-xrouter-gateway" in of_kind(everything, "StatefulSet")
    made = rendered(ROUTER, config=TOPIC, gateways={"enabled": True})
    assert of_kind(made, "Deployment")["garden-xrouter-gateway"]["spec"]["replicas"] == 2
    assert of_kind(made, "Service")["garden-xrouter"]["spec"]["selector"]["app.kubernetes.io/component"] == "gateway"
    assert "http" not in {port["name"] for port in container(made, "garden-xrouter")["ports"]}
    conforms(made, NEWEST)


def test_a_router_that_holds_a_batch_still_gets_messages(alone: Objects, everything: Objects) -> None:
    assert of_kind(alone, "Service")["garden-xrouter"]["spec"]["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in of_kind(everything, "Service")["garden-xrouter"]["spec"]


def test_prometheus_finds_each_of_them_under_the_job_of_the_alerts(everything: Objects) -> None:
    [monitor] = of_kind(everything, "ServiceMonitor").values()
    spec = monitor["spec"]
    assert spec["namespaceSelector"] == {"matchNames": ["flows"]}
    jobs = {}
    for name, service in of_kind(everything, "Service").items():
        labels = service["metadata"]["labels"]
        wanted = spec["selector"]["matchLabels"].items() <= labels.items()
        if wanted and all(each["key"] in labels for each in spec["selector"]["matchExpressions"]):
            jobs[name] = labels[spec["jobLabel"]]
            assert {each["port"] for each in spec["endpoints"]} <= {port["name"] for port in service["spec"]["ports"]}
    assert jobs == {
        "garden-xrouter-metrics": "xrouter",
        "garden-xrouter-gateway-metrics": "xrouter",
        "garden-xrouter-registry-metrics": "xregistry",
    }


def test_rules_and_dashboards_are_those_of_the_project(everything: Objects) -> None:
    [rules] = of_kind(everything, "PrometheusRule").values()
    assert rules["spec"] == yaml.safe_load((CHART.parents[1] / "prometheus-rules.yml").read_text())
    shown: dict[str, str] = {}
    for each in of_kind(everything, "ConfigMap").values():
        if each["metadata"]["labels"].get("grafana_dashboard") == "1":
            shown |= each["data"]
    files = (CHART.parents[1] / "grafana" / "dashboards").glob("*.json")
    assert {name: json.loads(text) for name, text in shown.items()} == {
        path.name: json.loads(path.read_text()) for path in files
    }


def test_what_may_come_in_can_be_named(everything: Objects) -> None:
    policies = of_kind(everything, "NetworkPolicy")
    assert set(policies) == {f"garden-xrouter-{name}" for name in ("router", "gateway", "registry")}
    watching, sending = policies["garden-xrouter-gateway"]["spec"]["ingress"]
    assert [port["port"] for port in (*watching["ports"], *sending["ports"])] == ["metrics", "http"]
    assert sending["from"] == [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
    assert len(policies["garden-xrouter-router"]["spec"]["ingress"]) == 1
    everybody = rendered(ROUTER, networkPolicy={"enabled": True})
    for rule in of_kind(everybody, "NetworkPolicy")["garden-xrouter-router"]["spec"]["ingress"]:
        assert "from" not in rule


@pytest.mark.parametrize(("name", "given", "told"), CASES["refused"])
def test_what_cannot_work_is_refused_with_a_remedy(name: str | None, given: dict[str, Any], told: str) -> None:
    with pytest.raises(HelmError) as refused:
        rendered(*([CHART / "ci" / f"{name}-values.yaml"] if name else []), **given)
    assert told in str(refused.value)
