"""``xrouter top`` asks a router's own port: rows for programs, the document as it is, and a live screen."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from router.cli import run_command_line
from tests.support.status_page import SALE, SECONDS, TILL, Served, tally
from tests.support.waiting import wait_until


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        made.activate()
        made.metrics.count_written_batch("inbox", tally(7, 2), 0.1, 0)
        made.status.query("inbox", "running", batch=4)
        made.status.steps.begin("inbox", 5)
        made.status.steps.turn("inbox", "sink events")
        yield made


@pytest.fixture
def config(served: Served) -> Path:
    """Settings that look for the router at its port."""
    config = served.folder / "router.yaml"
    told = yaml.safe_load(config.read_text())
    told["metrics"] = {"port": int(served.server.base_url.rpartition(":")[2])}
    config.write_text(yaml.safe_dump(told))
    return config


def test_rows_for_programs(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["top", str(config)]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows[0][:2] == ["router", "ready"]
    by_kind = {row[0]: row[1:] for row in rows}
    assert by_kind["endpoint"][:2] == [TILL, "HTTP"]
    assert (by_kind["definition"][0], by_kind["definition"][2]) == (SALE, "7")
    assert by_kind["query"][:3] == ["inbox", "running", "4"] and by_kind["query"][3].startswith("sink events for ")
    assert {row[1] for row in rows if row[0] == "sink"} == {"events", "delta"}


def test_the_document_as_it_is(config: Path, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["top", str(config), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["flow"]["definitions"] == served.told()["flow"]["definitions"]


def test_why_it_is_not_ready(config: Path, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.status.query("inbox", "held", reason="sink \x1b[31mevents is away")
    assert run_command_line(["top", str(config), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "reason\tquery inbox is held" in shown and "\x1b" not in shown


class Screen:
    """A process that has a terminal of 100 columns and 40 lines for its own."""

    def __init__(self, *arguments: str) -> None:
        self._end, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.written = b""
        command = [sys.executable, "-m", "xrouter", *arguments]
        surroundings = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1"}
        self.process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end, env=surroundings)
        os.close(end)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._end, 65536):
                self.written += chunk
        except OSError:
            return  # As Linux tells that the process has closed its side.

    @property
    def text(self) -> str:
        """What was written, without what moves the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.written.decode(errors="replace"))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(SECONDS)
        os.close(self._end)


@pytest.mark.slow
def test_a_screen_that_lives_until_it_is_interrupted(config: Path, served: Served) -> None:
    screen = Screen("top", str(config), "--every", "0.5")
    try:
        wait_until(lambda: SALE in screen.text and "sink events for" in screen.text, SECONDS, lambda: screen.text)
        served.server.stop()
        wait_until(lambda: "does not respond" in screen.text, SECONDS, lambda: screen.text[-2000:])
        screen.process.send_signal(signal.SIGINT)
        assert screen.process.wait(SECONDS) == 0
        assert "Traceback" not in screen.text
    finally:
        screen.close()
