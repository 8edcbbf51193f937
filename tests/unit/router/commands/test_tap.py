"""``xrouter tap`` and ``top``: a live sample of records beside the router, and what it says of itself."""

from __future__ import annotations

import fcntl
import io
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import pytest
import yaml

from bindings.inbox.log import Inbox
from bindings.parts import InboxRow, Part
from router.cli import run_command_line
from router.commands.tap import ROUND_ROWS
from router.dead_letters.redaction import HIDDEN
from tests.support.letters import CATALOG, settings_file
from tests.support.status_page import SALE, TILL, Served, tally
from tests.support.waiting import wait_until

SECONDS: Final = 240.0
CARD: Final = "4000-1234-5678"
KINDS: Final = ("sale", "sale", "sold")
"""What is sent, again and again; no definition takes the last."""
SHOPS: Final = ("east", "west")
Rows = Callable[[int], InboxRow]


def row_of(number: int) -> InboxRow:
    """Return record *number* of the traffic."""
    headers = {
        "ce-specversion": "1.0",
        "ce-id": f"id-{number}",
        "ce-source": "/tills/1",
        "ce-type": KINDS[number % 3],
        "ce-subject": f"shop/{SHOPS[number % 2]}",
        "ce-card": CARD,
        "x-lane": "a\x1b[31mb",
        "content-type": "application/json",
    }
    parts = [Part("method", b"POST"), Part("path", b"/till")]
    parts += [Part(f"headers.{name}", value.encode()) for name, value in headers.items()]
    body = json.dumps({"amount": number % 5, "card": CARD, "lines": [{"sku": f"s{number % 2}"}]})
    return InboxRow(TILL, "HTTP", 1_767_323_045_123_456 + number, parts, body.encode())


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings whose catalog marks an attribute as sensitive, and which hide a member of bodies."""
    catalog = json.loads(json.dumps(CATALOG))
    sale = catalog["messagegroups"]["G"]["messages"]["Sale"]
    sale["envelopemetadata"]["card"] = {"type": "string", "sensitive": True}
    (tmp_path / "catalog.json").write_text(json.dumps(catalog))
    path = settings_file(tmp_path, redact=["/card"])
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "state": str(tmp_path / "state")}))
    Inbox(tmp_path / "state" / "inbox", partitions=2).close()
    return path


@contextmanager
def traffic(config: Path, row: Rows = row_of, *, burst: int = 1) -> Iterator[None]:
    """Store records in the inbox while the block runs, so many at a time."""
    over = threading.Event()
    inbox = Inbox(config.parent / "state" / "inbox", partitions=2)

    def send() -> None:
        number = 0
        while not over.wait(min(0.02 * burst, 1.0)):
            inbox.append_many([row(number + at) for at in range(burst)]).result(SECONDS)
            number += burst

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(SECONDS)
        inbox.close()


@contextmanager
def limited() -> Iterator[None]:
    """Let Ctrl-C end a tap that finds nothing."""
    watch = threading.Timer(SECONDS, os.kill, (os.getpid(), signal.SIGINT))
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def tapped(config: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    """Tap until there are as many samples as asked for, and return them."""
    with traffic(config), limited():
        assert run_command_line(["tap", str(config), "--format", "json", "--rate", "1000", *options]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_records_are_shown_before_and_after_with_their_verdicts(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tapped(config, capsys, "-n", "40")
    assert len(found) == 40 and {each["outcome"] for each in found} == {"routed", "dead-letter"}
    sale = next(each for each in found if each["outcome"] == "routed")
    assert (sale["endpoint"], sale["message"], sale["reason"], sale["sinks"]) == (TILL, SALE, None, ["events"])
    native = dict(sale["before"]["native"])
    assert native["headers.ce-type"] == "sale" and native["path"] == "/till"
    assert sale["after"]["attributes"]["type"] == "sale"
    assert sale["after"]["context"] == {"shop": sale["after"]["attributes"]["subject"].removeprefix("shop/")}
    assert sale["before"]["body_bytes"] > 40 and sale["before"]["body_cut"] is False
    letter = next(each for each in found if each["outcome"] == "dead-letter")
    assert (letter["reason"], letter["after"], letter["sinks"]) == ("no-match", None, ["delta"])
    assert letter["nearest"][0]["message"] == SALE
    assert {"property": "type", "expected": "sale", "found": "sold"} in [
        {**each, "property": each["property"].rpartition(".")[2]} for each in letter["nearest"][0]["mismatches"]
    ]
    # What catalog or settings mark is hidden wherever it stands, and cannot be asked for.
    assert CARD not in json.dumps(found)
    assert native["headers.ce-card"] == HIDDEN == sale["after"]["attributes"]["card"]
    assert json.loads(sale["before"]["body"])["card"] == HIDDEN
    (shown,) = tapped(config, capsys, "-n", "1", "--reveal", "--where", f"attributes.card={CARD}")
    assert shown["after"]["attributes"]["card"] == CARD and json.loads(shown["before"]["body"])["card"] == CARD


def test_live_traffic_makes_cases(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with traffic(config), limited():
        assert (
            run_command_line(["tap", str(config), "--format", "record", "--reveal", "--rate", "1000", "-n", "8"]) == 0
        )
    lines = capsys.readouterr().out
    assert CARD in lines
    for each in map(json.loads, lines.splitlines()):
        assert each["time"].endswith("Z") and each["endpoint"] == TILL
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    cases = config.parent / "live.cases.yaml"
    assert run_command_line(["test", str(cases), "--config", str(config), "--record", "-"]) == 0
    assert "8 cases recorded" in capsys.readouterr().out
    assert CARD not in cases.read_text()
    assert run_command_line(["test", str(cases)]) == 0
    assert "8 of 8 cases passed" in capsys.readouterr().out


@pytest.mark.slow
def test_what_is_shown_is_chosen(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conditions = [
        "attributes.subject=shop/west",
        "context.shop=w?st",
        "/lines/0/sku=s1",
        "/amount!=3",
        "native.path=/t*",
    ]
    told = [word for each in conditions for word in ("--where", each)]
    found = tapped(config, capsys, "-n", "4", "--outcome", "routed", "--message", "*/Sale", *told)
    assert len(found) == 4
    for each in found:
        body = json.loads(each["before"]["body"])
        assert each["after"]["attributes"]["subject"] == "shop/west" and body["amount"] != 3
    letters = tapped(config, capsys, "-n", "2", "--reason", "no-match", "--endpoint", "*/till")
    assert [each["reason"] for each in letters] == ["no-match"] * 2


@pytest.mark.slow
def test_people_get_lines_that_no_terminal_acts_upon(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with traffic(config), limited():
        assert run_command_line(["tap", str(config), "-n", "40", "--rate", "1000"]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out and r"a\x1b[31mb" in out
    assert f"routed {SALE}" in out and "dead letter no-match" in out
    assert f"at {TILL} to events" in out and "    context.shop " in out
    assert f"nearest {SALE}: " in out and CARD not in out
    assert "tapping 1 source, epoch " in err


@pytest.mark.slow
def test_what_comes_faster_than_it_is_read_is_passed_over(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with traffic(config, burst=10 * ROUND_ROWS), limited():
        assert run_command_line(["tap", str(config), "--format", "json", "-n", "3", "--rate", "2"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    told = err.splitlines()[-1]
    judged, passed = (int(word) for word in told.split() if word.isdigit())
    assert told.endswith("passed over") and passed >= 9 * ROUND_ROWS > 0
    assert judged <= 60 * ROUND_ROWS


def test_without_an_inbox_there_is_nothing_to_tap(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**told, "state": str(config.parent / "elsewhere")}))
    assert run_command_line(["tap", str(config)]) > 0
    assert "nothing to tap" in capsys.readouterr().err
    assert not (config.parent / "elsewhere").exists()


def lines_read(stream: IO[bytes], count: int) -> list[bytes]:
    return [stream.readline() for _ in range(count)]


def waits_to_write(process: int) -> bool:
    """Whether the process's main thread waits for a pipe that nobody reads."""
    return "pipe_w" in Path(f"/proc/{process}/wchan").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "end", ["reader goes", pytest.param("Ctrl-C", marks=pytest.mark.full), "Ctrl-C while nobody reads"]
)
def test_it_ends_quietly(config: Path, end: str) -> None:
    quiet = ["--format", "json", "--where", "attributes.id=id-0"]
    command = [sys.executable, "-m", "xrouter", "tap", str(config), "--rate", "1000"]
    with subprocess.Popen(
        [*command, *(quiet if end == "reader goes" else ["--format", "json"])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert b"tapping 1 source" in process.stderr.readline()
        if end == "reader goes":
            # Nothing is shown, so that no write tells it.
            process.stdout.close()
        else:
            with traffic(config, burst=1 if end == "Ctrl-C" else 20):
                assert all(json.loads(line)["endpoint"] == TILL for line in lines_read(process.stdout, 3))
                if end != "Ctrl-C":
                    wait_until(lambda: waits_to_write(process.pid), SECONDS, "the pipe to be full")
            process.send_signal(signal.SIGINT)
        status = wait_until(lambda: None if (code := process.poll()) is None else (code,), SECONDS, "its end")
        said = process.stderr.read().decode()
        assert status == ((1,) if end == "reader goes" else (0,))
        assert "Traceback" not in said and "error" not in said


# ``xrouter top`` asks a router's own port: rows for programs, the document as it is, and a live screen.


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
def watched(served: Served) -> Path:
    """Settings that look for the router at its port."""
    watched = served.folder / "router.yaml"
    told = yaml.safe_load(watched.read_text())
    told["metrics"] = {"port": int(served.server.base_url.rpartition(":")[2])}
    watched.write_text(yaml.safe_dump(told))
    return watched


def test_rows_for_programs(watched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["top", str(watched)]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows[0][:2] == ["router", "ready"]
    by_kind = {row[0]: row[1:] for row in rows}
    assert by_kind["endpoint"][:2] == [TILL, "HTTP"]
    assert (by_kind["definition"][0], by_kind["definition"][2]) == (SALE, "7")
    assert by_kind["query"][:3] == ["inbox", "running", "4"] and by_kind["query"][3].startswith("sink events for ")
    assert {row[1] for row in rows if row[0] == "sink"} == {"events", "delta"}


def test_the_document_as_it_is(watched: Path, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["top", str(watched), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["flow"]["definitions"] == served.told()["flow"]["definitions"]


def test_why_it_is_not_ready(watched: Path, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.status.query("inbox", "held", reason="sink \x1b[31mevents is away")
    assert run_command_line(["top", str(watched), "--once"]) == 0
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
def test_a_screen_that_lives_until_it_is_interrupted(watched: Path, served: Served) -> None:
    screen = Screen("top", str(watched), "--every", "0.5")
    try:
        wait_until(lambda: SALE in screen.text and "sink events for" in screen.text, SECONDS, lambda: screen.text)
        served.server.stop()
        wait_until(lambda: "does not respond" in screen.text, SECONDS, lambda: screen.text[-2000:])
        screen.process.send_signal(signal.SIGINT)
        assert screen.process.wait(SECONDS) == 0
        assert "Traceback" not in screen.text
    finally:
        screen.close()
