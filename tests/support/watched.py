"""What a Prometheus is to see: data for each query, and alerts that fire in a failure and clear after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from tests.support.dashboards import Query, filled_in
from tests.support.prometheus import Prometheus, rules
from tests.support.waiting import wait_until

Fires = Callable[..., None]
"""Waits until alerts fire that have the labels which it is given."""
LIMIT: Final = 600.0
"""A machine that does much beside this needs minutes for what it does in seconds else."""


def have_data(prometheus: Prometheus, asked: Iterable[Query], limit: float = LIMIT) -> None:
    """Wait until each of the queries has had data once; name those that never have.

    A query that cannot be filled in for now, since nothing has the label that a variable goes by, has none.
    """
    left = list(asked)
    assert left

    def all_had() -> bool:
        left[:] = [query for query in left if not _has_data(prometheus, query)]
        return not left

    wait_until(all_had, limit, lambda: "data of these queries:\n" + "\n".join(map(str, left)))


def are_recorded(prometheus: Prometheus, limit: float = LIMIT) -> None:
    """Wait until each recording rule has given a number."""
    left = [rule["record"] for rule in rules("record")]
    assert left

    def all_given() -> bool:
        left[:] = [name for name in left if not prometheus.query(f"{name} == {name}")]
        return not left

    wait_until(all_given, limit, lambda: f"what these rules record: {', '.join(left)}")


def quiet(prometheus: Prometheus, but: Iterable[str] = (), limit: float = LIMIT) -> None:
    """Wait until no alert fires, but those."""
    known = set(but)

    def firing() -> list[str]:
        return [str(each) for each in prometheus.alerts() if each.state == "firing" and each.name not in known]

    wait_until(lambda: not firing(), limit, lambda: f"the end of these alerts: {firing()}")


@contextmanager
def alert_that_clears(prometheus: Prometheus, *names: str, limit: float = LIMIT) -> Iterator[Fires]:
    """Hold alerts against a failure that the block makes and mends: they are to fire within it, and to clear after it.

    The block gets a function that waits until all of them fire with the labels that it is given, those that an alert
    has.
    """
    left = set(names)
    for name in names:
        assert not prometheus.firing(name), f"{name} fires before anything has failed"

    def fires(**labels: str) -> None:
        # All at a time: what tells of an event is over before what tells of a state begins.
        def all_have() -> bool:
            left.difference_update([name for name in left if _fires(prometheus, name, labels)])
            return not left

        wait_until(all_have, limit, lambda: _state(prometheus, *left))

    yield fires
    assert not left, "the block has not looked"
    for name in names:
        wait_until(partial(_is_over, prometheus, name), limit, partial(_state, prometheus, name))


def _fires(prometheus: Prometheus, name: str, labels: dict[str, str]) -> bool:
    for alert in prometheus.firing(name):
        wanted = {label: value for label, value in labels.items() if label in alert.labels}
        if wanted.items() <= alert.labels.items():
            assert alert.annotations["summary"] and "{{" not in str(alert.annotations)
            return True
    return False


def _is_over(prometheus: Prometheus, name: str) -> bool:
    return not prometheus.firing(name)


def _state(prometheus: Prometheus, *names: str) -> str:
    return f"alert {', '.join(names)} to fire, or to end; there are {[str(each) for each in prometheus.alerts()]}"


def _has_data(prometheus: Prometheus, query: Query) -> bool:
    try:
        expression = filled_in(query, prometheus)
    except LookupError:
        return False
    return any(_is_number(series["value"][1]) for series in prometheus.query(expression))


def _is_number(text: str) -> bool:
    return text not in ("NaN", "+Inf", "-Inf")
