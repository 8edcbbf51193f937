"""Each command block of the README and the page on catalogs, pasted into a fresh shell in order, does what it shows."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.ports import free_ports
from tests.support.processes import below
from tests.support.readme import CATALOGS, README, block, consoles
from tests.support.router import submit_options
from tests.support.waiting import wait_until

LIMIT: Final = 300.0
ELSEWHERE: Final = {"make demo": "test_demo.py"}
"""Blocks that other tests run, by their command."""
EVENTS: Final[dict[str, list[dict[str, Any]]]] = {
    "xrouter run router.yaml &": [{"type": "com.example.garden.moisture", "data": {"percent": 41}}],
    "xrouter registry serve registry.yaml &": [
        {"type": "com.example.garden.moisture", "data": {"percent": 41}},
        {"type": "com.example.garden.water", "data": {"percent": 42}},
    ],
}
"""The events that a block with this command produces; the pages say so in words."""


class Shell:
    """An interactive bash in a terminal of its own."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._master, slave = os.openpty()
        command = ["setsid", "--ctty", "bash", "--noprofile", "--norc", "--noediting", "-i"]
        self._process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=environ)
        os.close(slave)
        self.output = ""
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def paste(self, text: str) -> None:
        """Paste text, all at once, and wait until the shell has done all of it."""
        os.write(self._master, f"{text}echo all $((6 * 7)) done\n".encode())
        wait_until(lambda: "all 42 done" in self.output, LIMIT, lambda: self.output[-3000:])

    def lines(self) -> list[str]:
        """Return what was shown so far."""
        return self.output.replace("\r\n", "\n").split("\n")

    def events(self, number: int) -> list[dict[str, Any]]:
        """Return the events among what is shown, once there are so many."""
        wait_until(lambda: len(events(self.lines())) >= number, LIMIT, lambda: f"{number} in\n{self.output[-5000:]}")
        return events(self.lines())

    def close(self) -> None:
        """Close the terminal, and wait until all that was started in it has ended."""
        started = below(self._process.pid)
        self._closing.set()
        self._reader.join()
        os.close(self._master)
        try:
            wait_until(lambda: not any(map(_runs, started)), LIMIT, lambda: f"the end; so far\n{self.output[-3000:]}")
        finally:
            for each in filter(_runs, started):
                os.kill(each, signal.SIGKILL)
            self._process.wait()

    def _read(self) -> None:
        # One that is being read from is not closed before there is something to read.
        while not self._closing.is_set():
            if not select.select([self._master], [], [], 0.1)[0]:
                continue
            try:
                read = os.read(self._master, 65536)
            except OSError:  # the other end is closed
                return
            self.output += read.decode("utf-8", "replace")


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def shell(folder: Path, environ: dict[str, str]) -> Iterator[Shell]:
    """Open a shell and close it, both as a terminal does, also where these tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        opened = Shell(folder, environ)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        yield opened
    finally:
        opened.close()


def events(lines: list[str]) -> list[dict[str, Any]]:
    """Return the events among what a shell shows."""
    found = [line[line.find('{"cloudevent"') :] for line in lines if '{"cloudevent"' in line and line.endswith("}")]
    return [json.loads(line)["cloudevent"] for line in found]


@pytest.mark.timeout(1800)
def test_each_block_works_when_it_is_pasted_in_one_go(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    (tmp_path / "garden.xreg.json").write_text(block(text, "catalog"))
    (tmp_path / "router.yaml").write_text(block(text, "settings"))
    ports = dict(zip(("8080", "8090", "9464"), map(str, free_ports(3)), strict=True))
    environ = {
        **{name: value for name, value in os.environ.items() if name != "PROMPT_COMMAND"},
        **submit_options(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TERM": "dumb",
        "PS1": "",
        "PS2": "",
        # The tests of other processes have the ports that it names.
        "XROUTER_HTTP__PORT": ports["8080"],
        "XREGISTRY_HTTP__PORT": ports["8090"],
        "XROUTER_METRICS__PORT": ports["9464"],
    }
    left = dict(ELSEWHERE)
    met = dict(EVENTS)
    for commands, shown in [*consoles(text), *consoles(CATALOGS.read_text(encoding="utf-8"))]:
        if left.pop(commands[0].partition("#")[0].strip(), None):
            continue
        pasted = "".join(f"{command}\n" for command in commands)
        for port, free in ports.items():
            pasted = pasted.replace(f"localhost:{port}", f"localhost:{free}")
        with shell(tmp_path, environ) as opened:
            opened.paste(pasted)
            due = next((met.pop(command) for command in commands if command in met), [])
            found = opened.events(len(due))
            for event, expected in zip(found, due, strict=True):
                assert expected.items() <= event.items() and event["source"] == "/beds/7"
            lines = opened.lines()
            for line in shown:
                assert line in lines, opened.output
            assert "xrouter: error" not in opened.output and "curl:" not in opened.output, opened.output
            if any("xrouter match" in command for command in commands):
                assert '"outcome":"routed","message":"/messagegroups/Garden/messages/Garden.Moisture"' in opened.output
    assert not left and not met, "blocks that are expected are not there"
