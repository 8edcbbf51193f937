"""What tests of catalogs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.web import Web, serving


@pytest.fixture
def web() -> Iterator[Web]:
    """Serve what a test says on loopback."""
    with serving() as server:
        yield server
