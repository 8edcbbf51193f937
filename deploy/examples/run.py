"""Runs an example against a broker on this machine: ``python deploy/examples/run.py mqtt``.

The router is a process of its own, started as you would start it. Its state is in a folder that is removed afterwards,
and what it writes (``path: "-"``, standard output) is shown line by line.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.request import urlopen

HERE = Path(__file__).resolve().parent
NAMES = sorted(path.parent.name for path in HERE.glob("*/send.py"))
START_SECONDS = 300.0
ARRIVE_SECONDS = 120.0
STOP_SECONDS = 120.0


def main() -> int:
    """Run the example that the command line names."""
    if len(sys.argv) != 2 or sys.argv[1] not in NAMES:
        sys.stderr.write(f"which one? python {sys.argv[0]} {'|'.join(NAMES)}\n")
        return 2
    folder = HERE / sys.argv[1]
    sender = _sender(folder)
    try:
        sender.prepare()
    except Exception as error:  # each client has its own
        sys.stderr.write(
            f"no broker at {sender.BROKER}: {error}\nstart one (README.md says how), or name it: BROKER=...\n"
        )
        return 1
    with tempfile.TemporaryDirectory() as state, _router(folder, state, sender) as (process, lines):
        sys.stdout.write("The router starts, which takes a while ...\n")
        ready = f"http://127.0.0.1:{os.environ.get('XROUTER_METRICS__PORT', '9464')}/readyz"
        if not _ready(process, ready):
            sys.stderr.write(Path(state, "log").read_text())
            return 1
        sent = sender.send()
        sys.stdout.write(f"{sent} messages sent to {sender.BROKER}. What became of them:\n")
        try:
            for _ in range(sent):
                sys.stdout.write(f"  {_shown(lines.get(timeout=ARRIVE_SECONDS))}\n")
        except queue.Empty:
            sys.stderr.write(f"the rest did not come out; the router says:\n{Path(state, 'log').read_text()}")
            return 1
    return 0


def _sender(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("send", folder / "send.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _router(folder: Path, state: str, sender: Any) -> Iterator[tuple[subprocess.Popen[str], queue.Queue[str]]]:
    addresses = dict.fromkeys(sender.VARIABLES, sender.BROKER) if "BROKER" in os.environ else {}
    command = [sys.executable, "-m", "xrouter", "run", str(folder / "router.yaml")]
    with Path(state, "log").open("w") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "XROUTER_STATE": f"{state}/state", **addresses},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    lines: queue.Queue[str] = queue.Queue()
    assert process.stdout is not None
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        yield process, lines
    finally:
        process.send_signal(signal.SIGTERM)  # it drains
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(STOP_SECONDS)
        process.stdout.close()


def _read(output: IO[str], lines: queue.Queue[str]) -> None:
    for line in output:
        if line.startswith("{"):
            lines.put(line)


def _ready(process: subprocess.Popen[str], address: str) -> bool:
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            with urlopen(address, timeout=5):
                return True
        except OSError:
            time.sleep(0.5)
    return False


def _shown(line: str) -> str:
    """Return one line for a reader of what the router wrote for a program."""
    written = json.loads(line)
    if "letter" in written:
        return f"dead letter  {written['reason']}: {written['detail']}"
    event = written["cloudevent"]
    told = {name: event[name] for name in ("source", "subject", "data") if name in event}
    return f"event        {event['type']}  {json.dumps(told, ensure_ascii=False)}"


if __name__ == "__main__":
    sys.exit(main())
