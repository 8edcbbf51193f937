"""Sinks that are down: the batch is held, and nothing is lost or becomes a dead letter.

Status, metrics and log name what is in the way. Schemas that cannot be reached are in
:mod:`tests.reliability.test_schemas`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest

from tests.conftest import Kafka, TopicFactory
from tests.support import plain, shop
from tests.support.kafka import produce
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until
from tests.support.web import Answer, Taken, Webhook

LIMIT: Final = 300.0
RECORDS: Final = 20
BUSY: Final = "answers 503"


class Router:
    """The shop's router with two queries: the inbox for HTTP, and a lane for a topic whose records go elsewhere."""

    def __init__(self, process: RouterProcess, kafka: Kafka, topic: str) -> None:
        self.process = process
        self.folder = process.folder
        self.topic = topic
        self.servers = kafka.bootstrap
        (self.port,) = free_ports(1)
        self.sent = 0
        self.in_lane = 0

    def settings(self, hook: str) -> dict[str, Any]:
        """Return the settings: what comes by HTTP goes to table, lines, webhook and another table; the lane to one."""
        told = shop.settings(self.folder, hook)
        lane = {"endpoint": "/endpoints/lane", "bootstrap_servers": self.servers, "lane": "own"}
        sinks = {
            **told["sinks"],
            **plain.lines(self.folder, "lines"),
            **plain.tables(self.folder, "other", "apart"),
        }
        routes = [{"when": {"message": "*/aside"}, "to": ["apart"]}, {"to": ["lake", "lines", "hook", "other"]}]
        return {
            **told,
            "sources": [{"endpoint": shop.SHOP}, lane],
            "http": {"port": self.port},
            "sinks": sinks,
            "routes": routes,
            "dead_letters": {"sinks": ["dead"]},
        }

    def post(self) -> None:
        """Send events by HTTP, in one request, so that they are one batch of the router's."""
        numbers = range(self.sent, self.sent + RECORDS)
        events = [{**plain.attributes("good", f"id-{n}"), "data": {"n": n}} for n in numbers]
        plain.post(self.port, "/shop", events, plain.BATCH)
        self.sent += len(events)

    def lane_goes_on(self) -> None:
        """Send some by the lane, and see them in its table."""
        numbers = range(self.in_lane, self.in_lane + 5)
        produce(self.servers, self.topic, [(None, b"x", plain.kafka_headers("aside", n)) for n in numbers])
        self.in_lane += 5
        apart = self.folder / "apart"
        self.wait(lambda: len(shop.rows_of(apart)) == self.in_lane)

    def held(self, *signs: str) -> dict[str, Any]:
        """Wait until the inbox's query alone is held, for a reason with all these signs; return what is said of it."""
        self.wait(lambda: all(sign in self.reason for sign in signs))
        told = self.process.readiness()
        assert told["ready"] is False
        assert [reason.partition(":")[0] for reason in told["reasons"]] == ["query inbox is held"]
        assert told["queries"]["inbox"]["batch"] is not None
        (other,) = (query for name, query in told["queries"].items() if name != "inbox")
        assert other["state"] == "running"
        return dict(told["queries"]["inbox"])

    @property
    def reason(self) -> str:
        """Why the inbox's query is held; '' when it is not."""
        query = self.process.readiness().get("queries", {}).get("inbox", {})
        return str(query.get("reason", "")) if query.get("state") == "held" else ""

    def gauge(self) -> dict[str, float]:
        """Return which sinks hold the inbox's query, as the metrics have it."""
        start = 'xrouter_query_held{query="inbox",sink="'
        return {
            name.removeprefix(start).removesuffix('"}'): value
            for name, value in self.process.metrics().items()
            if name.startswith(start)
        }

    def errors(self, sink: str) -> float:
        return self.process.total("xrouter_sink_writes_total", sink=sink, result="error")

    def counted(self) -> Counter[str]:
        """Return how many records of the shop have which outcome."""
        return Counter(
            {
                outcome: int(self.process.total("xrouter_records_total", endpoint=shop.SHOP, outcome=outcome))
                for outcome in ("routed", "dead-letter")
            }
        )

    def wait(self, condition: Any) -> None:
        wait_until(condition, LIMIT, lambda: f"{self.reason!r}; log:\n{self.process.log[-3000:]}")

    def ids(self, table: str) -> Counter[str]:
        return Counter(row["id"] for row in shop.rows_of(self.folder / table))

    def line_ids(self) -> Counter[str]:
        return Counter(line["cloudevent"]["id"] for line in plain.lines_of(self.folder / "lines"))


@pytest.fixture
def shop_router(kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess) -> Router:
    return Router(router, kafka, topic_factory("lane"))


def ids_of(requests: list[Taken]) -> Counter[str]:
    return Counter(request.attributes()["id"] for request in requests)


def test_sinks_that_are_down_hold_their_query_and_no_other(shop_router: Router) -> None:
    router, busy = shop_router, True

    def answer(_: Taken) -> Answer:
        return Answer(503 if busy else 202)

    shop.write_catalog_with_lane(router.folder, router.topic)
    other = router.folder / "other"
    with Webhook(answer) as hook:
        router.process.configure(router.settings(hook.url))
        router.process.start()
        router.post()
        told = router.held("sink hook", BUSY)
        router.wait(lambda: router.errors("hook") >= 2)
        # In the order of the route: what stands before the webhook has the batch, what comes after it not.
        once = Counter({f"id-{n}": 1 for n in range(RECORDS)})
        assert router.ids("lake") == router.line_ids() == once
        assert not other.exists()
        assert router.gauge() == {"": 0, "hook": 1}
        assert router.errors("lake") == router.errors("other") == 0
        assert f"batch={told['batch']}" in last_line(router.process.log, "batch blocked")
        router.lane_goes_on()
        assert router.counted() == {"routed": 0, "dead-letter": 0}

        # The webhook comes back, and the next in the row is away: something else lies where the table is to be.
        other.write_text("in the way")
        busy = False
        router.held("sink other", str(other))
        assert router.gauge() == {"": 0, "hook": 0, "other": 1}
        assert ids_of(hook.taken) == once
        router.lane_goes_on()
        other.unlink()
        router.wait(lambda: router.process.readiness()["ready"])
        assert router.gauge() == {"": 0, "hook": 0, "other": 0}

        # The next batch is as any other: held no more, and in its order.
        router.post()
        router.wait(lambda: router.counted()["routed"] == router.sent)
        router.lane_goes_on()
        taken = ids_of(hook.taken)
        assert router.process.stop() == 0, router.process.log[-2000:]
    once = Counter({f"id-{n}": 1 for n in range(2 * RECORDS)})
    for table in ("lake", "other"):
        assert router.ids(table) == Counter({f"id-{n}": 1 for n in range(router.sent)})
    assert router.ids("lake") == router.line_ids()
    assert taken == once
    assert not (router.folder / "dead").exists()


def last_line(log: str, sign: str) -> str:
    return next(line for line in reversed(log.splitlines()) if sign in line)
