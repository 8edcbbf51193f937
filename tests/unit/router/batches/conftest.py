"""What outlives the processes of a test: the world outside, and a state folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from router.batches import splitting, waiting
from router.state.state import StateFolder
from router.writing import writer
from tests.support.listed import World, places, rows_within


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """What all processes of a test find."""
    made = World(forgetful={"hook"}, rejecting={"hook": {3}})
    monkeypatch.setattr(writer, "open_sink", made.open)
    monkeypatch.setattr(splitting, "extents", places)
    monkeypatch.setattr(splitting, "within", rows_within)
    monkeypatch.setattr(waiting, "RETRY_FIRST", 0.001)
    return made


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFolder]:
    """A state folder of its own."""
    with StateFolder.open(tmp_path / "state") as opened:
        yield opened
