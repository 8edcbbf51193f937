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
