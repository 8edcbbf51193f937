"""Transactions of Kafka: what is aborted or open is routed nowhere, and the offsets of such records are no loss."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, Final

import pytest

from tests.conftest import Kafka, TopicFactory
from tests.reliability.test_reload_kills import DEFINITIONS, catalog, change, has, numbers, said, settings
from tests.support import load
from tests.support.kafka import Transactions, ends, produce
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
LIMIT: Final = 240.0


def of(first: int, count: int) -> list[Any]:
    """Return records with these numbers, all of which conform."""
    return list(load.records(count, DEFINITIONS, start=first, bad=0))


def at_rest(router: RouterProcess) -> bool:
    """Whether nothing waits by the broker's word, and nothing is missed by the accounts."""
    told = router.metrics()
    lag = [value for name, value in told.items() if name.startswith("xrouter_source_lag_records")]
    gap = [value for name, value in told.items() if name.startswith("xrouter_conservation_gap")]
    return bool(lag and gap) and not any(lag) and not any(gap)


def rests(router: RouterProcess) -> None:
    """Wait until the router is at rest."""
    shown = ("xrouter_source_lag", "xrouter_conservation", "xrouter_source_empty")

    def figures() -> str:
        told = {name: value for name, value in router.metrics().items() if name.startswith(shown)}
        return f"{told}; log:\n{router.log[-3000:]}"

    wait_until(lambda: at_rest(router), LIMIT, figures)


def test_what_is_aborted_or_open_is_not_routed(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    topic = topic_factory("transactions")
    router.configure(settings(kafka, router.folder))
    change(router, catalog(kafka.bootstrap, [topic]))
    one, other = (Transactions(kafka.bootstrap, f"{topic}-{name}") for name in ("one", "other"))
    wanted: set[int] = set()

    def arrives(*sent: int) -> None:
        wanted.update(sent)
        wait_until(partial(has, router, wanted), LIMIT, said(router))

    def aborted(first: int, count: int) -> None:
        one.begin(topic, of(first, count))
        one.abort()

    one.begin(topic, of(0, 10))
    one.commit()
    aborted(100, 10)
    router.start()
    arrives(*range(10))
    rests(router)

    # Open over several batches of what others commit; records behind it wait until it has ended.
    one.begin(topic, of(10, 3))
    produce(kafka.bootstrap, topic, of(20, 2))
    other.begin(topic, of(30, 2))
    other.commit()
    rests(router)
    assert set(numbers(router.folder / "wide")) == wanted
    one.commit()
    arrives(10, 11, 12, 20, 21, 30, 31)
    rests(router)

    # Many aborted in a row: batches with nothing in them end as well, and so do those of a start.
    for each in range(20):
        aborted(200 + each, 1)
    rests(router)
    one.begin(topic, of(40, 2))
    assert router.stop() == 0, router.log[-3000:]
    one.abort()
    aborted(300, 5)
    router.launch("--once")
    assert router.wait() == 0, router.log[-3000:]
    produce(kafka.bootstrap, topic, of(50, 1))
    router.start()
    arrives(50)
    rests(router)
    assert router.total("xrouter_empty_offsets_total") > 60, "aborted records, and the markers of transactions"
    assert router.stop() == 0, router.log[-3000:]
    assert numbers(router.folder / "wide") == Counter(wanted)
    assert ends(kafka.bootstrap, topic)[0] > 70
