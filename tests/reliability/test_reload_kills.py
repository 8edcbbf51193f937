"""The router is killed around reloads: plans outlive what names them, positions outlive the router.

"Latest" is where a topic ended when the router said that it reads it, whatever comes between that and its first batch.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from bindings.inbox.log import Inbox
from bindings.parts import InboxRow, Part
from tests.conftest import Kafka, TopicFactory
from tests.support import load, plain
from tests.support.dying_router import ENDED_BY_SIGNAL, JUDGED, PINNED
from tests.support.kafka import create_topics, produce
from tests.support.kill_points import read_points
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.tables import column_of
from tests.support.waiting import wait_until

DEFINITIONS: Final = 10
RECORDS: Final = 10
LIMIT: Final = 240.0
STARTED: Final = "[router.running.service] metrics="
RELOADED: Final = "catalog reloaded"
PLAN_REMOVED: Final = "router.state.state:store_plan"
POINTS: Final = read_points()["reload"]
"""Each step of a reload that adds a topic, from the look at the catalog to the first batch of the new generation.

Plans are removed before there is an inbox. Its pins would keep the plan that the reload takes from the other query.
"""


def settings(kafka: Kafka, folder: Path, **more: Any) -> dict[str, Any]:
    """Every consumer endpoint of the catalog as a source, and tables, which take each batch exactly once."""
    told = {"catalog": {"source": str(folder / "catalog.json"), "poll": "200ms"}, "http": {"port": 0}, **more}
    return plain.routed(folder, plain.tables(folder, "wide", "dead"), **told)


def catalog(bootstrap: str, topics: Sequence[str], *, latest: Sequence[str] = (), http: bool = False) -> dict[str, Any]:
    """An endpoint for each topic, all with the same definitions; of *latest* those that begin at their end."""
    document = load.catalog(DEFINITIONS, topic="")
    endpoint = document["endpoints"].pop("plant")
    for number, topic in enumerate(topics):
        options = {"topic": topic, "autooffsetreset": "latest" if topic in latest else "earliest"}
        told = {"endpoints": [{"uri": f"kafka://{bootstrap}"}], "options": options}
        document["endpoints"][f"plant{number}-{topic}"] = {**endpoint, "protocoloptions": told}
    if http:
        document["endpoints"]["door"] = {**endpoint, "protocol": "HTTP", "protocoloptions": {"options": {"path": "/"}}}
    return document


def numbers(folder: Path) -> Counter[int]:
    """Count the records of the table of events by the number in their body."""
    return load.numbers(column_of(folder))


def said(router: RouterProcess) -> Callable[[], str]:
    """Return what shows the router's log when a wait fails."""
    return lambda: f"the router; log:\n{router.log[-3000:]}"


def has(router: RouterProcess, wanted: set[int]) -> bool:
    """Whether the table has these records."""
    return wanted <= set(numbers(router.folder / "wide"))


def change(router: RouterProcess, document: dict[str, Any]) -> None:
    """Give the router another catalog, whole."""
    plain.write(router.folder, document)


@pytest.mark.full
@pytest.mark.parametrize("reloads", [1, 2, 3])
def test_a_batch_is_finished_by_the_plan_that_a_reload_took_from_it(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, reloads: int
) -> None:
    source = topic_factory("in")
    router.configure(settings(kafka, router.folder))
    change(router, catalog(kafka.bootstrap, [source]))
    produce(kafka.bootstrap, source, load.records(RECORDS, DEFINITIONS, bad=0))
    router.module = ("tests.support.dying_router", PINNED, "after", f"judging:{reloads}")
    router.launch()
    for number in range(reloads):
        wait_until(lambda: JUDGED in router.log, LIMIT, said(router))
        wait_until(lambda n=number: router.log.count(RELOADED) >= n, LIMIT, said(router))  # type: ignore[misc]
        changed = catalog(kafka.bootstrap, [source])
        changed["messagegroups"]["plant.0"]["messages"]["plant.event0"]["description"] = f"change {number}"
        changed["messagegroups"]["plant.0"]["messages"][f"plant.new{number}"] = {"envelope": "CloudEvents/1.0"}
        change(router, changed)
    assert router.wait(LIMIT) == ENDED_BY_SIGNAL, router.log[-3000:]
    router.module = ("xrouter",)
    router.start()
    wait_until(partial(has, router, set(range(RECORDS))), LIMIT, said(router))
    assert router.stop() == 0, router.log[-2000:]
    assert numbers(router.folder / "wide") == Counter(range(RECORDS))


@pytest.mark.full
def test_latest_is_where_topics_ended_when_they_were_first_to_be_read(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    """Three generations begin before the first commit, by reloads and by a restart; one topic comes late."""
    first, second = topic_factory("first"), topic_factory("second", 2)
    late = f"{second}-late"
    topics = [first, second, late]

    def send(topic: str, start: int) -> None:
        produce(kafka.bootstrap, topic, load.records(RECORDS, DEFINITIONS, start=start, bad=0))

    for topic in (first, second):
        send(topic, 1_000)
    # No sink can be written, so that nothing is ever committed before it can.
    (router.folder / "wide").write_text("in the way")
    router.configure(settings(kafka, router.folder, start="latest"))
    change(router, catalog(kafka.bootstrap, [first], latest=topics))
    router.start()
    send(first, 0)
    wait_until(lambda: "batch blocked" in router.log, LIMIT, said(router))
    change(router, catalog(kafka.bootstrap, [first, second], latest=topics))
    wait_until(lambda: RELOADED in router.log and topics_active(router), LIMIT, said(router))
    send(second, 10)
    send(first, 20)
    router.kill()
    change(router, catalog(kafka.bootstrap, topics, latest=topics))
    router.launch()
    wait_until(lambda: router.log.count(STARTED) >= 2, LIMIT, said(router))
    create_topics(kafka.bootstrap, [late])
    send(late, 30)
    send(second, 40)
    router.kill()
    (router.folder / "wide").unlink()
    router.start()
    wait_until(partial(has, router, set(range(50))), LIMIT, said(router))
    assert router.stop() == 0, router.log[-2000:]
    assert numbers(router.folder / "wide") == Counter(range(50))


@pytest.mark.full
def test_what_was_begun_is_finished_though_no_source_is_left_of_it(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    """A topic moves to a lane of its own and HTTP is given up, while a batch of either is in hand."""
    source = topic_factory("in")
    plant, door = f"/endpoints/plant0-{source}", "/endpoints/door"
    change(router, catalog(kafka.bootstrap, [source], http=True))
    router.configure(settings(kafka, router.folder, sources=[{"endpoint": plant}, {"endpoint": door}]))
    produce(kafka.bootstrap, source, load.records(RECORDS, DEFINITIONS, bad=0))
    inbox = Inbox(router.folder / "state" / "inbox", partitions=4)
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-type": "plant.event0", "ce-source": "/plant/p/lines/l"}
    parts = [Part("method", b"POST"), *(Part(f"headers.{name}", text.encode()) for name, text in headers.items())]
    inbox.append_many([InboxRow(door, "HTTP", 1, parts, b'{"n": 100}')]).result(LIMIT)
    inbox.close()
    router.module = ("tests.support.dying_router", f"{PINNED}~kafka", "after", "0")
    router.launch()
    assert router.wait(LIMIT) == ENDED_BY_SIGNAL, router.log[-3000:]
    router.module = ("xrouter",)
    router.configure(settings(kafka, router.folder, sources=[{"endpoint": plant, "lane": "own", "start": "latest"}]))
    router.start()
    produce(kafka.bootstrap, source, load.records(RECORDS, DEFINITIONS, start=RECORDS, bad=0))
    wait_until(partial(has, router, set(range(2 * RECORDS))), LIMIT, said(router))
    # Its row came from nowhere that is known now, if it was not yet routed.
    wait_until(lambda: has(router, {100}) or (router.folder / "dead" / "_delta_log").exists(), LIMIT, said(router))
    assert router.stop() == 0, router.log[-2000:]
    assert numbers(router.folder / "wide") - Counter([100]) == Counter(range(2 * RECORDS))


def settled(step: int) -> bool:
    """Whether a reload comes when all is written; else it meets batches that are not yet begun, or in the middle."""
    return step % 2 == 1


def topics_active(router: RouterProcess) -> bool:
    """Whether the metrics name the endpoint of the second topic, which they do once the catalog is active."""
    return any("plant1-" in name for name in router.metrics())


class Chain:
    """Routers that die one after the other, each in a reload of its own, over one state.

    Every catalog has one topic more than the one before, which begins at its end; another topic comes and goes. HTTP
    comes once no more plans are to be removed. What is sent to a topic that some ready router was to read must arrive.
    """

    def __init__(self, bootstrap: str, router: RouterProcess, points: Sequence[tuple[str, str]]) -> None:
        self._bootstrap = bootstrap
        self._router = router
        removals = [step for step, (point, _) in enumerate(points) if point == PLAN_REMOVED]
        assert all(map(settled, removals)), "a plan that no batch was written by is not there to be removed"
        self._without_http = max(removals, default=-1) + 1
        name = uuid.uuid4().hex[:8]
        self._base, self._flip = f"base-{name}", f"flip-{name}"
        self._added = [f"added-{name}-{number}" for number in range(len(points) + 1)]
        create_topics(bootstrap, [self._base, self._flip, *self._added])
        self._door = free_ports(1)[0]
        self.sent = 0
        self.wanted: set[int] = set()
        router.configure(settings(Kafka(bootstrap), router.folder, http={"port": self._door}))
        self.catalog(0)

    def catalog(self, step: int, *, last: bool = False) -> None:
        """Give the router the catalog of a step."""
        topics = [self._base, *self._added[: step + 1], *([self._flip] if step % 2 or last else [])]
        http = step > self._without_http
        change(self._router, catalog(self._bootstrap, topics, latest=self._added, http=http))

    def send(self, step: int, *, ready: bool) -> None:
        """Send to all topics up to a step; what is sent to the newest counts only if a router was *ready* for it."""
        self._produce(self._base)
        self._produce(self._flip)
        self._produce(self._added[step], wanted=ready)
        if step:
            self._produce(self._added[step - 1])
        if ready and step > self._without_http:
            self._post()

    def die(self, step: int, point: tuple[str, str]) -> None:
        """Start a router on the catalog of a step, give it the next, and have it die at a point of this reload."""
        router = self._router
        router.module = ("tests.support.dying_router", *point, "reload")
        router.start()
        self.send(step, ready=True)
        if settled(step):
            wait_until(partial(has, router, set(self.wanted)), LIMIT, said(router))
        seen = router.log.count(RELOADED)
        self.catalog(step + 1)
        wait_until(lambda: router.ended is not None or router.log.count(RELOADED) > seen, LIMIT, said(router))
        self.send(step + 1, ready=False)
        assert router.wait(LIMIT) == ENDED_BY_SIGNAL, f"it did not die {point[1]} {point[0]}: {router.log[-2000:]}"

    def end(self, step: int) -> None:
        """Start a router that does not die, and check that everything has arrived once."""
        router = self._router
        router.module = ("xrouter",)
        self.catalog(step, last=True)
        router.start()
        self.send(step, ready=True)
        wait_until(partial(has, router, self.wanted), LIMIT, said(router))
        assert router.stop() == 0, router.log[-2000:]
        found = numbers(router.folder / "wide")
        assert set(found.values()) == {1}
        assert self.wanted <= set(found) <= set(range(self.sent))
        assert not (router.folder / "dead" / "_delta_log").exists()

    def _produce(self, topic: str, *, wanted: bool = True) -> None:
        produce(self._bootstrap, topic, load.records(2, DEFINITIONS, start=self.sent, bad=0))
        self._note(2, wanted=wanted)

    def _post(self) -> None:
        headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-type": "plant.event0", "ce-source": "/plant/p/lines/l"}
        body = json.dumps({"n": self.sent}).encode()
        answer = httpx.post(f"http://127.0.0.1:{self._door}/", content=body, headers=headers, timeout=LIMIT)
        assert answer.status_code == 202, answer.text
        self._note(1, wanted=True)

    def _note(self, count: int, *, wanted: bool) -> None:
        if wanted:
            self.wanted.update(range(self.sent, self.sent + count))
        self.sent += count


def step_through(kafka: Kafka, router: RouterProcess, points: Sequence[tuple[str, str]]) -> None:
    chain = Chain(kafka.bootstrap, router, points)
    for step, point in enumerate(points):
        chain.die(step, point)
    chain.end(len(points))


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_killed_at_every_point_of_a_reload(kafka: Kafka, router: RouterProcess) -> None:
    step_through(kafka, router, POINTS)
