"""A router that follows a registry under load: each change is soon in force, and no record is lost or misjudged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Kafka
from tests.support.following import Following

AT_ONCE = 60.0
"""Seconds that a busy machine may take; the next poll is an hour away."""
LIMIT = 2.0
WARM = 10
"""Changes that are not timed: HotSpot compiles during the first minute of a router that is to run for years."""


def follow(folder: Path, kafka: Kafka, changes: int, rate: int, *, warm: int = 0) -> list[float]:
    """Change definitions under load, hold all records against the versions that were served, and return the waits."""
    with Following(folder, kafka.bootstrap, types=10, rate=rate) as following:
        following.start()
        for number in range(warm + changes):
            following.change(number)
        sent = following.finish()
        following.hold(sent)
        assert following.rate_sent > 0.9 * rate
        assert len(following.served) == warm + changes + 1
        return following.waits[warm:]


@pytest.mark.spark
@pytest.mark.broker
def test_changes_come_into_force_under_load(tmp_path: Path, kafka: Kafka) -> None:
    assert max(follow(tmp_path, kafka, 2, 100)) < AT_ONCE


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.spark
@pytest.mark.broker
def test_no_record_is_lost_or_misjudged_in_twenty_kills(tmp_path: Path, kafka: Kafka) -> None:
    """The router dies with each change, and with every third the registry as well."""
    kills = 20
    with Following(tmp_path, kafka.bootstrap, types=10, rate=100) as following:
        following.start()
        for number in range(kills):
            following.change_and_kill(number, registry=number % 3 == 2)
        account = following.hold(following.finish(), repeats=True)
        assert len(following.served) == kills + 1
    print(account, {"kills": kills})  # noqa: T201


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.broker
def test_fifty_changes_are_each_in_force_within_two_seconds(tmp_path: Path, kafka: Kafka) -> None:
    waits = sorted(follow(tmp_path, kafka, 50, 2_000, warm=WARM))
    figures = {f"p{share}": round(waits[len(waits) * share // 100], 2) for share in (50, 90, 98)}
    print(figures, "most", round(waits[-1], 2))  # noqa: T201
    assert waits[-1] < LIMIT, figures
