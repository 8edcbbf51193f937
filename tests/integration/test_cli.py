"""The command line as a process: pipes, signals, and what it sends to real servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message

from tests.conftest import Kafka
from tests.support.waiting import wait_until

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
        [sys.executable, "-m", "router", *arguments], stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT
    )


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "router", *arguments]
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


@contextmanager
def http_server(statuses: list[int]) -> Iterator[tuple[str, list[tuple[str, dict[str, str], bytes]]]]:
    """A server that answers with these statuses in turn, then 202; gives its address and what it was asked."""
    asked: list[tuple[str, dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(statuses.pop(0) if statuses else 202)
            self.send_header("retry-after", "0")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_emit_posts_to_its_own_path_and_asks_again_after_503() -> None:
    with http_server([202, 503]) as (address, asked):
        done = run(*EMIT, SALE, *TILL, "--count", "2", "--to", address)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert [headers["x-receipt"] for _, headers, _ in asked] == ["R1", "R2", "R2"]
    path, headers, body = asked[0]
    assert (path, headers["content-type"]) == ("/stores/7/tills/2/sales", "application/json")
    assert set(json.loads(body)) == {"product", "price"}


@pytest.mark.full
def test_emit_posts_to_the_path_it_is_given() -> None:
    with http_server([]) as (address, asked):
        done = run(*EMIT, SALE, *TILL, "--to", f"{address}/in?via=proxy")
    assert done.returncode == 0 and asked[0][0] == "/in?via=proxy"


@pytest.mark.full
def test_emit_says_what_a_target_refuses() -> None:
    with http_server([404]) as (address, _):
        done = run(*EMIT, SALE, *TILL, "--to", address)
    assert done.returncode == 1
    assert b"returns 404" in done.stderr and b"Traceback" not in done.stderr


def test_an_unreachable_target_is_exit_code_5() -> None:
    done = run(*EMIT, SALE, *TILL, "--to", "http://127.0.0.1:1")
    assert done.returncode == 5
    assert done.stderr.startswith(b"xrouter: error: http://127.0.0.1:1/stores/7/tills/2/sales does not respond")


@pytest.mark.broker
def test_emit_produces_to_kafka(kafka: Kafka, topic_factory: Callable[..., str]) -> None:
    topic = topic_factory()
    context = ["--context", "store=7", "--context", "fridge=f{n}", "--mode", "binary"]
    done = run(*EMIT, READING, *context, "--count", "5", "--to", f"kafka://{kafka.bootstrap}/{topic}/")
    assert (done.returncode, done.stderr) == (0, b"")
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    taken: list[Message] = []

    def all_taken() -> bool:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            taken.append(message)
        return len(taken) == 5

    try:
        wait_until(all_taken, LIMIT_SECONDS, "five records")
    finally:
        consumer.close()
    assert [message.key() for message in taken] == [f"7/f{number}".encode() for number in range(1, 6)]
    headers = dict(taken[0].headers() or [])
    assert (headers["kind"], headers["ce_type"]) == (b"reading", b"com.example.market.fridge.reading")
