"""The command line as a process: pipes, signals, and what it sends to real servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from router.cli import run_command_line
from tests.conftest import Kafka
from tests.support.kafka import read_all
from tests.support.web import Reply, Request, serving

ROOT = Path(__file__).resolve().parents[2]
MARKET = str(ROOT / "catalog" / "samples" / "market.xreg.json")
SALE = "/messagegroups/Market.Tills/messages/Market.Tills.Sale"
READING = "/messagegroups/Market.ColdChain/messages/Market.ColdChain.Reading"
EMIT = ["emit", "--catalog", MARKET, "--message"]
TILL = ["--mode", "native", "--context", "store=7", "--context", "till=2", "--context", "receipt=R{n}"]
LIMIT_SECONDS = 300.0


def start(*arguments: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-m", "xrouter", *arguments], stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT
    )


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "xrouter", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, cwd=ROOT, timeout=LIMIT_SECONDS, check=False)


def test_match_keeps_order_over_many_chunks() -> None:
    records = run(*EMIT, SALE, *TILL, "--count", "12000").stdout
    done = run("match", "--catalog", MARKET, stdin=records)
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, b"")
    assert [each["context"]["receipt"] for each in outcomes] == [f"R{number}" for number in range(1, 12001)]


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    with start(*EMIT, SALE, *TILL, "--count", "1000000") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(LIMIT_SECONDS) != 0
        assert process.stderr.read() == b""


def test_ctrl_c_ends_it_quietly() -> None:
    line = run(*EMIT, SALE, *TILL).stdout
    answered = threading.Event()
    with start("match", "--catalog", MARKET) as process:
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
        assert stdin is not None and stdout is not None and stderr is not None

        def drain() -> None:
            for _ in stdout:
                answered.set()

        reader = threading.Thread(target=drain)
        reader.start()
        # More than one chunk: outcomes of the first come out, and then it waits for the rest of the second.
        stdin.write(line * 9_000)
        stdin.flush()
        assert answered.wait(LIMIT_SECONDS)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(LIMIT_SECONDS) == 130
        assert stderr.read() == b""
        reader.join()


def test_emit_posts_to_its_own_path_and_asks_again_after_503(capsys: pytest.CaptureFixture[str]) -> None:
    taken: list[Request] = []

    def answer(request: Request) -> Reply:
        taken.append(request)
        return Reply("", 503 if len(taken) == 2 else 202, {"retry-after": "0"})

    with serving() as web:
        web.routes = {"/stores/7/tills/2/sales": answer, "/in": Reply("", 202), "/none": Reply("", 404)}
        assert run_command_line([*EMIT, SALE, *TILL, "--count", "2", "--to", web.url]) == 0
        assert run_command_line([*EMIT, SALE, *TILL, "--to", f"{web.url}/in?via=proxy"]) == 0
        assert web.asked[-1] == ("/in?via=proxy", 202)
        assert capsys.readouterr() == ("", "")
        assert run_command_line([*EMIT, SALE, *TILL, "--to", f"{web.url}/none"]) == 1
        assert "answers 404" in capsys.readouterr().err
    assert [each.headers["x-receipt"] for each in taken] == ["R1", "R2", "R2"]
    assert taken[0].headers["content-type"] == "application/json"
    assert set(json.loads(taken[0].body)) == {"product", "price"}


@pytest.mark.broker
def test_emit_produces_to_kafka(kafka: Kafka, topic_factory: Callable[..., str]) -> None:
    topic = topic_factory()
    context = ["--context", "store=7", "--context", "fridge=f{n}", "--mode", "binary"]
    to = f"kafka://{kafka.bootstrap}/{topic}/"
    assert run_command_line([*EMIT, READING, *context, "--count", "5", "--to", to]) == 0
    taken = read_all(kafka.bootstrap, topic)
    assert [message.key for message in taken] == [f"7/f{number}".encode() for number in range(1, 6)]
    assert (taken[0].header("kind"), taken[0].header("ce_type")) == ("reading", "com.example.market.fridge.reading")
