"""The inbox under SIGKILL and on a full disk: every acknowledged row is there, once by position.

Run as a script, this file is the process that gets killed: see ``append_for_ever`` and ``fill_the_disk``.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bindings.inbox.log import Inbox
from bindings.inbox.source import InboxView
from bindings.inbox.space import InboxFull, InboxLimits
from bindings.parts import InboxRow, Part

ROOT = Path(__file__).parents[2]
LIMITS = InboxLimits(segment_bytes=200_000, min_free_bytes=0)
APPENDERS = 8
SECONDS = 300


def row(text: str) -> InboxRow:
    return InboxRow("/endpoints/e", "HTTP", 1, [Part("path", text.partition(":")[0].encode())], text.encode() * 3)


def stored(path: Path) -> list[str]:
    """Return what every visible row carries; fails when a position occurs twice."""
    view = InboxView(path)
    rows = [
        (form["position"], form["body"])
        for each in view.partitions
        for batch in view.read_spans(each, view.plan_spans(each, view.first_position(each), view.end_position(each)))
        for form in batch.to_pylist()
    ]
    assert len({position for position, _ in rows}) == len(rows)
    texts = [body[: len(body) // 3].decode() for _, body in rows]
    assert all(body == text.encode() * 3 for text, (_, body) in zip(texts, rows, strict=True))
    return texts


def append_for_ever(path: Path, run: str) -> None:
    """Append from several threads; each acknowledged row is one line on standard output, written at once."""
    inbox = Inbox(path, limits=LIMITS)

    def appender(name: str) -> None:
        number = 0
        while True:
            text = f"{run}-{name}:{number}"
            inbox.append_many([row(text)]).result()
            os.write(1, f"{text}\n".encode())
            number += 1

    for index in range(APPENDERS):
        threading.Thread(target=appender, args=(str(index),), daemon=True).start()
    threading.Event().wait()


def fill_the_disk(path: Path) -> None:
    """Append until no file may grow further, then go on once it may again."""
    inbox = Inbox(path, partitions=1, limits=InboxLimits(min_free_bytes=0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_001, hard))
    number = 0
    try:
        while True:
            inbox.append_many([row(f"a:{number}")]).result(SECONDS)
            number += 1
    except InboxFull:
        assert number > 5
    with pytest.raises(InboxFull):
        inbox.append_many([row("refused:1")]).result(SECONDS)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    inbox.append_many([row("b:0")]).result(SECONDS)
    inbox.close()
    assert stored(path) == [f"a:{each}" for each in range(number)] + ["b:0"]


def child(*arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, env=environment, cwd=ROOT)


def test_acknowledged_rows_survive_sigkill(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    acknowledged: list[str] = []
    for run, wanted in enumerate((300, 900, 1500)):
        with child("append", str(inbox), str(run)) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline().decode() for _ in range(wanted)]
            process.kill()
            lines += process.stdout.read().decode().splitlines(keepends=True)
        acknowledged += [line.strip() for line in lines if line.endswith("\n")]
        Inbox(inbox, limits=LIMITS).close()
    found = stored(inbox)
    assert len(acknowledged) >= 2700
    assert set(acknowledged) <= set(found)
    # What was written but not yet acknowledged may be there too, at most one row for each appender and run.
    assert len(found) == len(set(found)) <= len(acknowledged) + 3 * APPENDERS
    for name in {text.partition(":")[0] for text in found}:
        numbers = [int(text.partition(":")[2]) for text in found if text.partition(":")[0] == name]
        assert numbers == list(range(len(numbers)))


def test_files_that_cannot_grow_refuse_and_recover(tmp_path: Path) -> None:
    with child("fill", str(tmp_path / "inbox")) as process:
        assert process.wait(SECONDS) == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system of 1 MiB, where this process may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount; the limit on file sizes is tested everywhere")
    return place


def test_a_full_disk_refuses_and_recovers(small_disk: Path) -> None:
    try:
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"x" * 700_000)
        inbox = Inbox(small_disk / "inbox", partitions=1, limits=InboxLimits(segment_bytes=50_000, min_free_bytes=0))
        taken = []
        # Nothing is to stay free, so that it is the kernel that refuses, with a frame half written.
        with pytest.raises(InboxFull, match="No space left on device"):
            for number in range(10_000):
                inbox.append_many([row(f"a:{number}")]).result(SECONDS)
                taken.append(f"a:{number}")
        assert stored(small_disk / "inbox") == taken
        ballast.unlink()
        inbox.append_many([row("b:0")]).result(SECONDS)
        inbox.close()
        Inbox(small_disk / "inbox", partitions=1, limits=InboxLimits(min_free_bytes=0)).close()
        assert stored(small_disk / "inbox") == [*taken, "b:0"]
    finally:
        subprocess.run(["umount", "-l", str(small_disk)], check=True)


if __name__ == "__main__":
    if sys.argv[1] == "append":
        append_for_ever(Path(sys.argv[2]), sys.argv[3])
    else:
        fill_the_disk(Path(sys.argv[2]))
