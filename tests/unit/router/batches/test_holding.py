"""A batch that is held: the log's advice is what would end the hold."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
import structlog

from router.batches.holding import Draining, Holding
from router.errors import SinkError
from router.state.notes import BatchNotes
from router.writing.commits import Batch


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (SinkError("bus", "is away"), "batches park"),
        (SinkError("pairs", "9 wait", hint="mend it, or raise relations.most", of_batch=False), "relations.most"),
    ],
)
def test_only_what_a_sink_never_takes_is_to_be_set_aside(tmp_path: Path, error: SinkError, advice: str) -> None:
    draining = threading.Event()
    draining.set()
    loaded = Mock()
    loaded.writer.taken.return_value = frozenset()
    holding = Holding("kafka", BatchNotes(tmp_path), Mock(), Mock(), Mock(), draining)
    with structlog.testing.capture_logs() as logged, pytest.raises(Draining):
        holding.by_sink(loaded, Batch("kafka", "kafka", "g", 0, "2026-01-02T00:00:00+00:00"), error, 1.0, parked=False)
    (entry,) = logged
    assert advice in entry["hint"]
    assert ("park" in entry["hint"]) is (advice == "batches park")
