"""What settings say of a cluster: what executors cannot reach is refused by name, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("master", "local"),
    [
        *(("local", True), ("local[*]", True), ("local[4]", True), ("local[*,3]", True)),
        *(("spark://a:1,b_c.d:2", False), ("spark://[::1]:7077", False), ("yarn", False), ("k8s://https://h", False)),
        ("local-cluster[2,1,512]", False),
    ],
)
def test_what_spark_takes_as_a_master_is_taken(tmp_path: Path, master: str, local: bool) -> None:
    cluster = "" if local else ", driver_host: 10.0.0.5, shared_folders: ."
    assert loaded(tmp_path, f"spark: {{master: '{master}'{cluster}}}").spark.is_local is local
