"""A subscription manager to ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.subscriptions import Manager, managing
from tests.support.web import Webhook


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def server(manager: Manager) -> Iterator[Webhook]:
    with managing(manager) as webhook:
        yield webhook
