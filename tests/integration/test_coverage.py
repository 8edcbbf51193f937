"""Coverage over time in a router under Kafka's traffic: through a kill, a restart and a reload."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import httpx
import pytest

from router.cli import run_command_line
from tests.conftest import Kafka, TopicFactory
from tests.support.kafka import produce
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
LIMIT: Final = 240.0
BUSY, QUIET = "/endpoints/busy", "/endpoints/quiet"
UNSEEN: Final = "xrouter_source_unseen_definitions"
LAST: Final = "xrouter_source_last_record_timestamp_seconds"


def write_catalog(router: RouterProcess, kafka: Kafka, topics: dict[str, str], *names: str) -> None:
    """Write a catalog whose endpoints all expect definitions of these names."""
    messages = {name: {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": name}}} for name in names}
    endpoints = {
        name: {
            "usage": "consumer",
            "protocol": "KAFKA",
            "protocoloptions": {"endpoints": [{"uri": f"kafka://{kafka.bootstrap}"}], "options": {"topic": topic}},
            "messagegroups": ["/messagegroups/g"],
        }
        for name, topic in topics.items()
    }
    document = {"messagegroups": {"g": {"messages": messages}}, "endpoints": endpoints}
    (router.folder / "catalog.json").write_text(json.dumps(document))


def send(kafka: Kafka, topic: str, kind: str) -> None:
    headers = {"ce_specversion": "1.0", "ce_id": kind, "ce_source": "/s", "ce_type": kind}
    produce(kafka.bootstrap, topic, [(None, b"{}", [(name, value.encode()) for name, value in headers.items()])])


def routes(router: RouterProcess, capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run_command_line(["routes", str(router.config), "--format", "json", *options]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def unseen(router: RouterProcess, capsys: pytest.CaptureFixture[str]) -> set[tuple[str, str]]:
    found = routes(router, capsys, "--unseen")
    return {(each["endpoint"], each["message"].rpartition("/")[2]) for each in found if each["kind"] == "definition"}


def becomes(router: RouterProcess, endpoint: str, number: int) -> Callable[[], bool]:
    """Return what says that so many definitions of an endpoint are unseen."""
    name = f'{UNSEEN}{{endpoint="{endpoint}"}}'
    return lambda: router.metrics().get(name) == number


@pytest.mark.full
def test_what_occurred_is_known_through_a_kill_and_what_a_reload_adds_is_new(
    router: RouterProcess, kafka: Kafka, topic_factory: TopicFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = {"busy": topic_factory("busy"), "quiet": topic_factory("quiet")}
    write_catalog(router, kafka, topics, "one", "two")
    router.configure(
        {
            "catalog": {"source": str(router.folder / "catalog.json"), "poll": "1s"},
            "sinks": {"lake": {"type": "table", "path": str(router.folder / "lake")}},
            "routes": [{"to": ["lake"]}],
            "trigger": "200ms",
        }
    )
    router.start()
    wait_until(becomes(router, BUSY, 2), LIMIT, "both definitions to be expected")
    assert router.total(LAST, endpoint=BUSY) == 0
    send(kafka, topics["busy"], "one")
    wait_until(becomes(router, BUSY, 1), LIMIT, "the first record")
    router.kill()

    # What a router has noted is told while none runs, and the next one goes on from it.
    assert unseen(router, capsys) == {(BUSY, "two"), (QUIET, "one"), (QUIET, "two")}
    router.start()
    wait_until(becomes(router, QUIET, 2), LIMIT, "the other endpoint")
    assert becomes(router, BUSY, 1)() and router.total(LAST, endpoint=BUSY) > 1_700_000_000
    send(kafka, topics["quiet"], "nothing that is expected")
    wait_until(lambda: router.total(LAST, endpoint=QUIET) > 0, LIMIT, "the dead letter, which is a record as well")
    assert becomes(router, QUIET, 2)()

    # A reload takes one away and adds another.
    write_catalog(router, kafka, topics, "two", "three")
    wait_until(becomes(router, BUSY, 2), LIMIT, "the reload")
    send(kafka, topics["busy"], "three")
    wait_until(becomes(router, BUSY, 1), LIMIT, "the new definition to occur")
    told = httpx.get(f"http://127.0.0.1:{router.port}/status.json", timeout=LIMIT).json()
    assert told["coverage"]["expected"] == 4 and told["coverage"]["unseen"] == 3
    epochs = {each["definition"].rpartition("/")[2]: each["epoch"] for each in told["coverage"]["unseen_definitions"]}
    assert epochs["three"] == told["catalog"]["epoch"] != epochs["two"]
    assert router.stop() == 0
    assert unseen(router, capsys) == {(BUSY, "two"), (QUIET, "two"), (QUIET, "three")}
