"""A router is killed in the middle of a batch, its state folder is damaged, and it is started again.

Every start either goes on with nothing lost and nothing twice, or ends at once with its exit code, the damaged file's
name and the remedy.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from router.reading.generations import Positions
from router.state.ledger import LetterLedger
from router.state.state import StateFolder
from tests.conftest import Kafka
from tests.support import plain, shop
from tests.support.damage import DAMAGES, INBOX, Damage, emptied, harmless
from tests.support.dying_router import ENDED_BY_SIGNAL
from tests.support.kafka import create_topics, produce
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

LIMIT: Final = 300.0
STARTS: Final = """
import json, sys
from router.cli import run_command_line
for config in sys.argv[1:]:
    print(json.dumps(["", "start"]), file=sys.stderr, flush=True)
    status = run_command_line(["run", "--once", config])
    print(json.dumps([config, status]), file=sys.stderr, flush=True)
"""
"""Starts, one after the other in one process, each ending before Spark would begin."""


class Killed:
    """A router that was killed with a batch of the inbox pinned and not written; nothing runs any more."""

    def __init__(self, folder: Path, servers: str, topic: str) -> None:
        self.servers, self.topic = servers, topic
        (self.port,) = free_ports(1)
        self.process = RouterProcess(folder, {})
        self.folder = folder
        self.sent = self.pending = 0
        self._stands_for: dict[str, str] = {}
        shop.write_catalog_with_lane(folder, topic)

    def run(self) -> None:
        """Bring it about: one batch of Kafka and some of the inbox are done, and one more is begun."""
        self.process.configure(self.settings(self.folder))
        self.process.module = ("tests.support.dying_router", "router.state.state:BatchStore.pin", "after", "4")
        self.process.start()
        produce(self.servers, self.topic, [(None, b"x", plain.kafka_headers("aside", "k"))])
        self._wait(1)
        while self.process.ended is None:
            event = {**plain.attributes("good", f"id-{self.sent}"), "data": {}}
            plain.post(self.port, "/shop", event, plain.STRUCTURED)
            self.sent += 1
            self._wait(1 + self.sent)
        assert self.process.wait(LIMIT) == ENDED_BY_SIGNAL, self.process.log[-2000:]
        self.process.module = ("xrouter",)
        with StateFolder.open(self.folder / "state") as opened:
            Positions(opened).keep("old", {"gone": {"0": 7}})
        with LetterLedger.open(self.folder / "state") as ledger:
            ledger.park(["letter"])
        state = self.folder / "state"
        self.pending = newest(state)
        (kafka,) = (state / "checkpoints").glob("kafka-*")
        full = next(log.parent for log in (state / "inbox").glob("*/*.log") if log.stat().st_size)
        self._stands_for = {
            "pending": str(self.pending),
            "before": str(self.pending - 1),
            "checkpoints/kafka": f"checkpoints/{kafka.name}",
            "inbox/first": f"inbox/{full.name}",
        }

    def settings(self, folder: Path) -> dict[str, Any]:
        told = shop.settings(folder, "http://127.0.0.1:9/")
        lane = {"endpoint": "/endpoints/lane", "bootstrap_servers": self.servers}
        return {
            **told,
            "catalog": {"source": str(self.folder / "catalog.json")},
            "sources": [{"endpoint": shop.SHOP}, lane],
            "sinks": {name: told["sinks"][name] for name in ("lake", "dead")},
            "routes": [{"to": ["lake"]}],
            "http": {"port": self.port},
            "state": str(folder / "state"),
        }

    def copy(self, folder: Path) -> Path:
        """Copy state and tables, write settings for the copy, and return their file."""
        shutil.copytree(self.folder / "state", folder / "state")
        shutil.copytree(self.folder / "lake", folder / "lake")
        config = folder / "router.yaml"
        (port,) = free_ports(1)
        config.write_text(yaml.safe_dump({**self.settings(folder), "metrics": {"port": port}}))
        return config

    def place(self, state: Path, file: str) -> Path:
        """Return the file that a kind of damage means."""
        for name, meant in self._stands_for.items():
            file = file.replace(name, meant)
        return state / file

    def _wait(self, routed: int) -> None:
        router = self.process
        wait_until(
            lambda: router.ended is not None or router.total("xrouter_records_total", outcome="routed") == routed,
            LIMIT,
            lambda: router.log[-3000:],
        )

    @property
    def once(self) -> Counter[str]:
        """The ids of all that was sent, each once."""
        return Counter(["k", *(f"id-{number}" for number in range(self.sent))])


@pytest.fixture(scope="module")
def killed(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    topic = f"lane-{uuid.uuid4().hex[:12]}"
    create_topics(kafka.bootstrap, [topic])
    state = Killed(tmp_path_factory.mktemp("killed"), kafka.bootstrap, topic)
    try:
        state.run()
        yield state
    finally:
        state.process.end()


def java_that_starts_nothing(home: Path) -> Path:
    """Write a Java that tells its version alone: a start that passes over the damage is not to begin its work."""
    command = home / "bin" / "java"
    command.parent.mkdir()
    command.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17.0.1"\' >&2\n')
    command.chmod(0o755)
    return home


@pytest.fixture(scope="module")
def ends(killed: Killed, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """How a start ends after each kind of damage: its exit code, and what it says."""
    configs = {}
    for number, damage in enumerate(DAMAGES):
        folder = tmp_path_factory.mktemp(f"damaged-{number}-")
        configs[damage.name] = str(killed.copy(folder))
        damage.harm(killed.place(folder / "state", damage.file))
    started = subprocess.run(
        [sys.executable, "-c", STARTS, *configs.values()],
        capture_output=True,
        text=True,
        timeout=LIMIT * 3,
        env={**os.environ, "JAVA_HOME": str(java_that_starts_nothing(tmp_path_factory.mktemp("java")))},
    )
    found, said = {}, []
    for line in started.stderr.splitlines():
        if not line.startswith("["):
            said.append(line)
            continue
        config, status = json.loads(line)
        if config:
            found[config] = (int(status), "\n".join(said))
        said = []
    assert len(found) == len(DAMAGES), started.stderr[-3000:]
    return {name: found[config] for name, config in configs.items()}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name.replace(" ", "-"))
def test_damage_ends_a_start_with_code_file_and_remedy(
    killed: Killed, ends: dict[str, tuple[int, str]], damage: Damage
) -> None:
    code, said = ends[damage.name]
    assert code == damage.code, said
    error, hint = said.splitlines()[-2:]
    assert error.startswith("xrouter: error: ")
    assert hint.startswith("hint: ")
    assert "restore" in hint or "remove" in hint or "start the router version" in hint
    file = killed.place(Path("state"), damage.file).as_posix().removeprefix("state")
    assert (damage.says or file) in error
    assert "Traceback" not in said


@pytest.mark.full
def test_what_crashes_leave_behind_is_passed_over(killed: Killed, ends: dict[str, tuple[int, str]]) -> None:
    """In its own place, for the pinned plan names the tables there; so it comes after the copies were made."""
    assert ends
    state, router = killed.folder / "state", killed.process
    noted = json.loads((state / "format.json").read_text())
    # As an earlier router left it, which noted nothing of what there is.
    (state / "format.json").write_text('{"format": 2}')
    harmless(state, killed.pending)
    router.start()
    wait_until(lambda: rows(killed).total() >= killed.once.total(), LIMIT, lambda: router.log[-3000:])
    told = json.loads((state / "format.json").read_text())
    assert (told["generations"], told["inbox"]) == (noted["generations"], noted["inbox"])
    assert router.stop() == 0, router.log[-2000:]
    assert rows(killed) == killed.once

    emptied(state / INBOX / "offsets" / str(newest(state)))
    router.launch()
    assert router.wait(LIMIT) == 6, router.log[-2000:]
    assert f"offsets/{newest(state)} is damaged: it is empty" in router.log


def rows(killed: Killed) -> Counter[str]:
    """Count the rows of the table by the id of their event."""
    return Counter(row["id"] for row in shop.rows_of(killed.folder / "lake"))


def newest(state: Path) -> int:
    """Return the newest batch of the inbox that was planned."""
    return max(int(file.name) for file in (state / INBOX / "offsets").iterdir() if file.name.isdigit())
