"""The brokers of docker-compose.yml and those of the tests run on the same settings files; the router on its own."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from router.cli import app
from router.spark.connectors import read_pins
from tests.support import composed, deployed
from tests.support import mqtt as mosquitto
from tests.support import nats as natsserver
from tests.support.brokers import KafkaBroker
from tests.support.mqtt import Mosquitto
from tests.support.nats import NatsServer
from tests.support.qpid import QPID_PINS, QpidBroker

ROOT = Path(__file__).resolve().parents[2]
SERVICES = {"mqtt": deployed.MOSQUITTO, "nats": deployed.NATS_PLACE, "kafka": deployed.KAFKA, "amqp": deployed.QPID}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return found


def inside(service: dict[str, Any], file: Path) -> str:
    """Return where a container sees a file of ours; fails when it does not."""
    for volume in service["volumes"]:
        source, place, *mode = volume.split(":")
        mounted = (ROOT / source).resolve()
        if source.startswith(".") and (mounted == file or mounted in file.parents):
            assert mode == ["ro"], f"{volume} can be written to"
            return str(place / file.relative_to(mounted)) if mounted != file else place
    raise AssertionError(f"{file} is not mounted by {service['image']}")


@pytest.mark.parametrize("name", SERVICES)
def test_each_broker_is_started_with_its_file(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    place = inside(service, SERVICES[name])
    if name == "kafka":  # where the image looks for a file by itself
        assert place == "/mnt/shared/config/server.properties"
    else:
        assert place in service["command"]
    if name == "amqp":
        logging = inside(service, deployed.QPID_LOGGING)
        assert f"-Dlogback.configurationFile={logging}" in service["entrypoint"]
    if name == "mqtt":
        assert inside(service, deployed.MOSQUITTO_PLACE).startswith(service["working_dir"])
        assert inside(service, deployed.MOSQUITTO_USERS) in service["entrypoint"]
        assert f"password_file {service['entrypoint'][-1]}" in deployed.MOSQUITTO_PLACE.read_text().splitlines()
    if name == "nats":
        assert inside(service, deployed.NATS) == f"{place.rpartition('/')[0]}/nats.conf"


def test_the_tools_of_kafka_log_in(compose: dict[str, Any]) -> None:
    broker, topics = compose["services"]["kafka"], compose["services"]["topics"]
    for service, command in ((broker, broker["healthcheck"]["test"]), (topics, topics["command"][0].split())):
        assert command[command.index("--command-config") + 1] == inside(service, deployed.KAFKA_CLIENT)
        assert "PASSWORD_KAFKA" in service["environment"]


@pytest.mark.parametrize("name", [*SERVICES, "router", "topics"])
def test_no_password_has_a_default_or_is_written_out(compose: dict[str, Any], name: str) -> None:
    given = {key: value for key, value in compose["services"][name]["environment"].items() if "PASSWORD" in key}
    for variable, value in given.items():
        assert re.fullmatch(r'"?\$\{' + variable + r':\?has to be in [.]env, [^}]+\}"?', value), value
    expected = {"router": set(composed.PASSWORDS), "topics": {"PASSWORD_KAFKA"}}
    assert set(given) == expected.get(name, {f"PASSWORD_{name.upper()}"})


def test_the_documented_command_writes_every_password(tmp_path: Path) -> None:
    (line,) = (line for line in (ROOT / "docker-compose.yml").read_text().splitlines() if "openssl rand" in line)
    subprocess.run(["/bin/sh", "-c", line.removeprefix("# ").strip()], cwd=tmp_path, check=True, timeout=60)
    written = dict(each.split("=", 1) for each in (tmp_path / ".env").read_text().splitlines())
    assert set(written) == set(composed.PASSWORDS)
    assert all(re.fullmatch("[0-9a-f]{48}", value) for value in written.values()) and len(set(written.values())) == 4
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    assert line.removeprefix("# ").strip() in (ROOT / "README.md").read_text()
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_every_file_of_a_broker_is_there_and_used() -> None:
    kept = {path for path in deployed.COMPOSE.rglob("*") if path.is_file()}
    router = {deployed.COMPOSE / "router.yaml", deployed.COMPOSE / "catalog.xreg.json"}
    assert kept == {*deployed.ALL, *router}


def test_the_brokers_of_tests_take_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, program in ((mosquitto, "mosquitto_program"), (natsserver, "nats_server")):
        monkeypatch.setattr(module, program, lambda: "/bin/false")  # none is started here, and none need be there
    assert str(deployed.MOSQUITTO) in Mosquitto(tmp_path / "mqtt")._command()
    server = NatsServer(tmp_path / "nats")
    [line] = (tmp_path / "nats" / "server.conf").read_text().splitlines()
    assert (tmp_path / "nats" / line.split('"')[1]).resolve() == deployed.NATS
    assert str(tmp_path / "nats" / "server.conf") in server._command()
    qpid = QpidBroker(tmp_path / "amqp")
    (tmp_path / "amqp").mkdir()
    taken, kept = json.loads(qpid._initial().read_text()), json.loads(deployed.QPID.read_text())
    assert {**taken, "authenticationproviders": kept["authenticationproviders"]} == kept
    kafka = KafkaBroker(tmp_path / "kafka")
    assert kafka._properties().startswith(deployed.KAFKA.read_text())


def test_a_kafka_container_adds_only_what_the_place_decides(compose: dict[str, Any]) -> None:
    lines = [line for line in deployed.KAFKA.read_text().splitlines() if line and not line.startswith("#")]
    settled = {line.split("=", 1)[0] for line in lines}
    environment = compose["services"]["kafka"]["environment"]
    added = {name.removeprefix("KAFKA_").lower().replace("_", ".") for name in environment if name.startswith("KAFKA_")}
    assert not added & settled
    assert {"listeners", "log.dirs", "controller.quorum.voters"} <= added


def test_qpid_is_told_every_value_that_its_file_leaves_open(compose: dict[str, Any], tmp_path: Path) -> None:
    text = deployed.QPID.read_text()
    assert json.loads(json.loads(text)["virtualhostnodes"][0]["virtualHostInitialConfiguration"])["type"] == "DERBY"
    told = " ".join(compose["services"]["amqp"]["command"])
    for name in ("qpid.amqp_port", "xrouter.amqp_address"):
        assert f"${{{name}}}" in text
        assert f" -prop {name}=" in told
    # The image has another patch release than the jars of the tests, of the same feature release.
    version = compose["services"]["amqp"]["image"].split(":")[1].removesuffix("-alpine")
    tested = next(path.split("/")[-2] for path in read_pins(QPID_PINS) if "/qpid-broker/" in path)
    assert version.split(".")[:2] == tested.split(".")[:2]


def test_the_catalog_and_the_settings_are_clean() -> None:
    catalog, settings = deployed.COMPOSE / "catalog.xreg.json", deployed.COMPOSE / "router.yaml"
    done = CliRunner().invoke(
        app, ["check", str(catalog), "--config", str(settings), "--format", "json"], env=composed.PASSWORDS
    )
    assert done.exit_code == 0
    assert {(each["severity"], each["rule"]) for each in json.loads(done.stdout)} == {("info", "unkeyed-events")}


def test_the_catalog_has_an_endpoint_of_every_protocol() -> None:
    catalog = json.loads((deployed.COMPOSE / "catalog.xreg.json").read_text())
    protocols = {endpoint["protocol"] for endpoint in catalog["endpoints"].values()}
    assert protocols == {"KAFKA", "MQTT/5.0", "AMQP/1.0", "NATS", "HTTP"}
