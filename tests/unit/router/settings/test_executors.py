"""What settings say of a cluster: what executors cannot reach is refused by name, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.errors import ConfigError
from router.settings import Settings, load_settings
from router.settings.checks import iter_executor_warnings, iter_inbox_faults

SINKS = """
sinks:
  events: {type: table, path: lake/events}
  bus: {type: kafka, bootstrap_servers: k, topic: t, %s}
  dead: {type: table, format: parquet, path: dead}
routes: [{to: [%s]}]
dead_letters: {sinks: dead}
"""
MASTER = "spark: {master: 'spark://h:7077', driver_host: 10.0.0.5, %s}"
PLAIN = SINKS % ("", "events")


def loaded(folder: Path, text: str) -> Settings:
    file = folder / "router.yaml"
    file.write_text(text)
    return load_settings(file, {"P": "hush"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PLAIN + "spark: {master: 'spark://h:7077', shared_folders: lake}", "spark.driver_host: is required"),
        (PLAIN + MASTER % "", "sinks.events.path: is a local folder, but executors write there"),
        (PLAIN + MASTER % "shared_folders: lak", "sinks.events.path: is a local folder"),
        (PLAIN + MASTER % "conf: {spark.submit.deployMode: cluster}", "spark.conf.spark.submit.deployMode: must be"),
        (
            PLAIN + MASTER % "shared_folders: lake" + "\nschema_registries: {r: {url: 'https://r', bearer_file: t}}",
            "schema_registries.r.bearer_file: is a local file, but executors read it",
        ),
        (
            SINKS % ("options: {ssl.truststore.location: /jks}", "bus") + MASTER % "",
            "sinks.bus.options.ssl.truststore.location: is a local file",
        ),
        (
            SINKS % ("username: u, password: '${P}', allow_plaintext_password: true, sasl: oauthbearer, "
                     "token_endpoint: 'https://i/t', token_ca: i.pem", "bus") + MASTER % "",
            "sinks.bus.token_ca: is a local file",
        ),
        (SINKS % ("", "bus") + "spark: {min_partitions: 8}", "reorder records of one partition on their way to bus"),
    ],
)  # fmt: skip
def test_what_executors_cannot_reach(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    assert any(expected in problem for problem in caught.value.problems), caught.value.problems
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        PLAIN + MASTER % "shared_folders: lake",
        PLAIN.replace("lake/events", "s3://bucket/events") + MASTER % "",
        PLAIN + "spark: {master: 'local[4]', min_partitions: 8}",
        SINKS % ("tls: {ca: c.pem}", "bus") + MASTER % "",
        PLAIN.replace("lake/events", "file:///mnt/lake") + MASTER % "shared_folders: /mnt",
        PLAIN + "spark: {master: 'k8s://https://h', shared_folders: ., conf: {spark.driver.host: router}}",
    ],
)
def test_what_they_can(tmp_path: Path, text: str) -> None:
    loaded(tmp_path, text)


def test_an_inbox_on_this_disk_is_refused(tmp_path: Path) -> None:
    assert not list(iter_inbox_faults(loaded(tmp_path, PLAIN)))
    [(key, fault)] = iter_inbox_faults(loaded(tmp_path, PLAIN + MASTER % "shared_folders: lake"))
    assert key == "inbox.kafka" and "spark.shared_folders" in fault
    assert not list(iter_inbox_faults(loaded(tmp_path, PLAIN + MASTER % "shared_folders: [lake, state]")))
    [(key, _)] = iter_inbox_faults(loaded(tmp_path, PLAIN + MASTER % "shared_folders: ., python: ./env/bin/python"))
    assert key == "spark.python"
    topic = "\ninbox: {kafka: {bootstrap_servers: k, topic: t}}"
    assert not list(iter_inbox_faults(loaded(tmp_path, PLAIN + MASTER % "shared_folders: lake" + topic)))


@pytest.mark.parametrize(
    ("more", "cautioned"),
    [
        ("shared_folders: lake", True),
        ("shared_folders: lake, conf: {spark.authenticate: true}", False),
        ("shared_folders: lake, conf: {spark.driver.host: 127.0.0.1}", False),
    ],
)
def test_executors_that_nobody_asks_who_they_are(tmp_path: Path, more: str, cautioned: bool) -> None:
    assert bool(list(iter_executor_warnings(loaded(tmp_path, PLAIN + MASTER % more)))) is cautioned


def test_local_masters() -> None:
    of = Settings.model_fields["spark"].annotation
    assert of is not None
    masters = {"local": True, "local[*]": True, "local[2,4]": True, "local-cluster[2,1,512]": False, "yarn": False}
    assert {name: of(master=name).is_local for name in masters} == masters
