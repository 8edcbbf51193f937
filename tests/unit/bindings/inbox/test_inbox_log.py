"""The writing side: durable before acknowledged, torn tails cut, limits kept, and recovery from both."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from bindings.background import fault_counts
from bindings.inbox import log
from bindings.inbox.format import InboxPosition, iter_frames, list_segments, map_segment, segment_path
from bindings.inbox.log import Inbox, compact_segment
from bindings.inbox.source import InboxView
from bindings.inbox.space import InboxClosed, InboxDamaged, InboxFormatError, InboxFull, InboxLimits, InboxRowError
from bindings.parts import InboxRow, Part

FREE = InboxLimits(min_free_bytes=0)
SECONDS = 120


def row(number: int, path: bytes = b"/a", size: int = 0) -> InboxRow:
    """Return a row that can be told apart."""
    return InboxRow("/endpoints/e", "HTTP", number, [Part("path", path)], b"%d" % number + b"x" * size)


def bodies(path: Path) -> list[str]:
    """Return every visible row's body, in order of partition and position; positions must be unique."""
    view = InboxView(path)
    rows = [
        (form["position"], form["body"].rstrip(b"x").decode())
        for each in view.partitions
        for batch in view.read_spans(each, view.plan_spans(each, view.first_position(each), view.end_position(each)))
        for form in batch.to_pylist()
    ]
    assert len({position for position, _ in rows}) == len(rows)
    return [body for _, body in rows]


def filled(path: Path, numbers: range) -> Path:
    """Make an inbox with one partition and one frame for each number; return its first segment."""
    inbox = Inbox(path, partitions=1, limits=FREE)
    for number in numbers:
        inbox.append_many([row(number)]).result(SECONDS)
    inbox.close()
    return segment_path(path / "0", 0)


def test_rows_are_visible_once_acknowledged(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, limits=FREE)
    inbox.append_many([row(number, b"/%d" % number) for number in range(50)]).result(SECONDS)
    assert sorted(map(int, bodies(tmp_path))) == list(range(50))
    inbox.append_many([]).result(SECONDS)
    inbox.close()
    with pytest.raises(InboxClosed):
        inbox.append_many([row(1)]).result(SECONDS)


def test_rows_of_one_path_keep_their_order(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, limits=FREE)
    futures = [inbox.append_many([row(number, b"/one")]) for number in range(300)]
    for future in futures:
        future.result(SECONDS)
    inbox.close()
    assert bodies(tmp_path) == [str(number) for number in range(300)]


@pytest.mark.slow
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.full)])
def test_a_tail_torn_at_any_byte_is_cut_and_the_rest_kept(tmp_path: Path, every: int) -> None:
    source = tmp_path / "source"
    segment = filled(source, range(2))
    data = map_segment(segment)
    ends = [frame.end for frame in iter_frames(data, 0, data.size)]
    content = segment.read_bytes()
    for length in range(ends[0], ends[1], every):
        torn = tmp_path / f"torn{length}"
        shutil.copytree(source, torn)
        (torn / "0" / "durable").unlink()  # as after a power cut: not yet published, or lost
        segment_path(torn / "0", 0).write_bytes(content[:length] + b"\xff" * (length % 3))
        inbox = Inbox(torn, partitions=1, limits=FREE)
        inbox.append_many([row(9)]).result(SECONDS)
        inbox.close()
        assert bodies(torn) == ["0", "9"], length
        shutil.rmtree(torn)


def test_an_intact_frame_that_was_not_published_is_kept(tmp_path: Path) -> None:
    filled(tmp_path, range(2))
    (tmp_path / "0" / "durable").unlink()
    filled(tmp_path, range(2, 3))
    assert bodies(tmp_path) == ["0", "1", "2"]


@pytest.mark.parametrize("where", ["before an intact frame", "published"])
def test_damage_to_acknowledged_rows_is_an_error_and_changes_nothing(tmp_path: Path, where: str) -> None:
    segment = filled(tmp_path, range(3))
    content = bytearray(segment.read_bytes())
    content[40 if where == "before an intact frame" else -40] ^= 1
    segment.write_bytes(content)
    if where == "before an intact frame":
        (tmp_path / "0" / "durable").unlink()
    with pytest.raises(InboxDamaged, match="row"):
        Inbox(tmp_path, partitions=1, limits=FREE)
    assert segment.read_bytes() == content


def test_a_missing_segment_is_an_error(tmp_path: Path) -> None:
    filled(tmp_path, range(1)).unlink()
    with pytest.raises(InboxDamaged):
        Inbox(tmp_path, partitions=1, limits=FREE)


def test_segments_roll_and_are_compacted_with_the_same_numbers(tmp_path: Path) -> None:
    limits = InboxLimits(segment_bytes=4000, min_free_bytes=0)
    inbox = Inbox(tmp_path, partitions=1, limits=limits)
    for number in range(60):
        inbox.append_many([row(number)]).result(SECONDS)
    inbox.close()
    directory = tmp_path / "0"
    sealed = list_segments(directory)[:-1]
    assert len(sealed) > 1
    view = InboxView(tmp_path)
    before = [
        batch.to_pylist()
        for batch in view.read_spans(0, view.plan_spans(0, view.first_position(0), view.end_position(0)))
    ]
    for segment in sealed:
        compact_segment(directory, view.layout.inbox, 0, segment)
        data = map_segment(segment_path(directory, segment))
        assert len(list(iter_frames(data, 0, data.size))) == 1
        assert not compact_segment(directory, view.layout.inbox, 0, segment)
    after = [
        batch.to_pylist()
        for batch in view.read_spans(0, view.plan_spans(0, view.first_position(0), view.end_position(0)))
    ]
    assert list(itertools.chain(*after)) == list(itertools.chain(*before))
    assert bodies(tmp_path) == [str(number) for number in range(60)]


def test_what_a_reader_has_counted_past_is_forgotten(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, partitions=1, limits=InboxLimits(segment_bytes=4000, min_free_bytes=0))
    for number in range(60):
        inbox.append_many([row(number)]).result(SECONDS)
    inbox.close()
    view = InboxView(tmp_path)
    first, end = view.first_position(0), view.end_position(0)
    assert view.count_rows(0, first, end) == 60
    assert view.count_rows(0, InboxPosition(end.segment, 0), end) == end.row
    segment_path(tmp_path / "0", first.segment).unlink()
    with pytest.raises(InboxDamaged):
        view.count_rows(0, first, end)


def test_a_full_inbox_refuses_and_recovers_when_it_was_trimmed(tmp_path: Path) -> None:
    limits = InboxLimits(segment_bytes=2000, max_bytes=100_000, min_free_bytes=0)
    inbox = Inbox(tmp_path, partitions=1, limits=limits)
    taken = 0
    while inbox.measure_size() < 93_000:
        inbox.append_many([row(taken, size=500)]).result(SECONDS)
        taken += 1
    with pytest.raises(InboxFull, match="max_bytes"):
        inbox.append_many([row(taken, size=20_000)]).result(SECONDS)
    assert inbox.max_size() == limits.max_bytes
    assert "of 100000 bytes are in use; the router must catch up, or raise max_bytes" in inbox.refusal_reason()
    # A small message still fits: that is no reason to say that all is well.
    inbox.append_many([row(taken)]).result(SECONDS)
    assert inbox.refusal_reason()
    view = InboxView(tmp_path)
    view.trim_segments(0, InboxPosition(view.end_position(0).segment, 0))
    assert not inbox.refusal_reason()
    inbox.append_many([row(taken)]).result(SECONDS)
    inbox.close()


def test_free_space_is_kept(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, limits=InboxLimits(min_free_bytes=2**62))
    # Nobody has to be refused first.
    assert f"{tmp_path}: " in inbox.refusal_reason() and "bytes free on the disk" in inbox.refusal_reason()
    assert inbox.max_size() == inbox.measure_size()
    with pytest.raises(InboxFull, match="min_free_bytes"):
        inbox.append_many([row(1)]).result(SECONDS)
    inbox.close()


def test_a_disk_that_refused_is_tried_until_it_takes_as_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox(tmp_path, partitions=1, limits=FREE)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(log, "_write_all", full)
        patched.setattr(os, "write", full)
        with pytest.raises(InboxFull, match="No space left on device"):
            inbox.append_many([row(1)]).result(SECONDS)
        for _ in range(2):
            assert (
                "No space left on device" in inbox.refusal_reason()
                and "bytes are free; free space" in inbox.refusal_reason()
            )
    assert not inbox.refusal_reason()
    assert not (tmp_path / ".probe").exists()
    inbox.append_many([row(2)]).result(SECONDS)
    inbox.close()
    assert bodies(tmp_path) == ["2"]


def test_a_failed_fsync_acknowledges_nothing_and_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox(tmp_path, partitions=1, limits=FREE)
    inbox.append_many([row(0)]).result(SECONDS)

    def failing(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(log, "_sync", failing)
        with pytest.raises(InboxFull, match="Input/output error"):
            inbox.append_many([row(1)]).result(SECONDS)
    assert bodies(tmp_path) == ["0"]
    inbox.append_many([row(2)]).result(SECONDS)
    inbox.close()
    assert bodies(tmp_path) == ["0", "2"]
    filled(tmp_path, range(3, 4))
    assert bodies(tmp_path) == ["0", "2", "3"]


def test_one_bad_row_does_not_cost_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox(tmp_path, partitions=1, limits=FREE)
    futures = held_together(inbox, monkeypatch, [row(1), InboxRow("e", "HTTP", 2**80, []), row(2)])
    futures[0].result(SECONDS)
    futures[2].result(SECONDS)
    with pytest.raises(InboxRowError):
        futures[1].result(SECONDS)
    inbox.close()
    assert bodies(tmp_path) == ["0", "1", "2"]


def held_together(
    inbox: Inbox,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[InboxRow],
) -> list[Future[None]]:
    """Append rows while the disk is busy with row 0, so that they are one group."""
    busy, go = threading.Event(), threading.Event()
    sync = log._sync

    def slow(descriptor: int) -> None:
        busy.set()
        assert go.wait(SECONDS)
        sync(descriptor)

    monkeypatch.setattr(log, "_sync", slow)
    inbox.append_many([row(0)])
    assert busy.wait(SECONDS)
    futures = [inbox.append_many([each]) for each in rows]
    go.set()
    return futures


@pytest.mark.parametrize("step", ["rows_to_batch", "_write_all", "_sync"])
def test_a_fault_of_the_writer_fails_its_group_and_the_next_is_stored(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = Inbox(tmp_path, partitions=1, limits=FREE)
    inbox.append_many([row(0)]).result(SECONDS)
    counted = fault_counts().get("inbox", 0)
    with monkeypatch.context() as broken:
        broken.setattr(log, step, lambda *_: 1 // 0)
        for number in (1, 2):
            with pytest.raises(InboxFull, match="ZeroDivisionError"):
                inbox.append_many([row(number)]).result(SECONDS)
    inbox.append_many([row(3)]).result(SECONDS)
    inbox.close()
    assert bodies(tmp_path) == ["0", "3"]
    assert fault_counts()["inbox"] == counted + 2


def test_an_inbox_of_another_version_or_shape_is_refused(tmp_path: Path) -> None:
    Inbox(tmp_path, partitions=2, limits=FREE).close()
    with pytest.raises(InboxFormatError, match="2 partitions"):
        Inbox(tmp_path, partitions=3, limits=FREE)
    file = tmp_path / "format.json"
    form = json.loads(file.read_text())
    file.write_text(json.dumps({**form, "format": 2}))
    with pytest.raises(InboxFormatError, match="format 2"):
        Inbox(tmp_path, limits=FREE)
    file.write_text("{")
    with pytest.raises(InboxFormatError, match="cannot be read"):
        Inbox(tmp_path, limits=FREE)
    os.unlink(file)
    with pytest.raises(InboxFormatError, match="is not an inbox"):
        InboxView(tmp_path)
