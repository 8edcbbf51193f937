"""What outlives the processes of a test: the world outside, and a state folder."""

from __future__ import annotations

import pytest

from router.batches import splitting, waiting
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
