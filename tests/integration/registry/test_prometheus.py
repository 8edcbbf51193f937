"""A real Prometheus scrapes two registries that replicate: the dashboard has data, and alerts fire and clear."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.ports import free_ports
from tests.support.prometheus import Prometheus, rules
from tests.support.registry import Served
from tests.support.status_page import queries
from tests.support.waiting import repeating
from tests.support.watched import alert_that_clears, have_data, quiet
from tests.support.web import Webhook

pytestmark = [pytest.mark.timeout(1800)]
FASTER = 60
"""A minute is a second."""
ALERTS = frozenset(rule["alert"] for rule in rules("alert") if rule["alert"].startswith("Xregistry"))


@dataclass(frozen=True, slots=True)
class Pair:
    """A registry with a subscriber, its peer, and what watches both. The peer takes from it what is in ``open``."""

    one: Served
    peer: Served
    hook: Webhook
    prometheus: Prometheus

    def write(self, group: str, name: str) -> None:
        """Write a version of a definition to the first one."""
        url = f"http://127.0.0.1:{self.one.port}/messagegroups/{group}/messages/{name}"
        answer = httpx.post(url, json={"name": "x", "protocol": "NATS"}, timeout=120)
        assert answer.status_code == 201, answer.text

    def writes(self) -> AbstractContextManager[None]:
        """Write for the time of the block."""
        return repeating(lambda number: self.write("open", f"m{number % 5}"), 0.3)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("PEER_TOKEN", "token-of-the-first-one")
    ports, watched = free_ports(2), free_ports(2)
    url = f"http://127.0.0.1:{ports[1]}/messagecatalog"
    both = "authority: urn:corp\nfaces: {messagecatalog: /messagecatalog}\nmetrics: {port: %d}\n"
    with ExitStack() as stack:
        hook = stack.enter_context(Webhook())
        to = f"to: {{type: http, url: '{hook.url}/hook'}}"
        more = f"events: {{subscribers: {{audit: {{{to}}}}}, max_waiting: 40, max_pause: 1s}}\n"
        login = "bearer: '${PEER_TOKEN}', allow_plaintext_password: true"
        more += f"replication: [{{url: '{url}', interval: 200ms, {login}}}]"
        roles = "roles: {anonymous: true, writers: {one: ['/messagegroups/open*']}}"
        auth = "auth: {bearer: {one: '${PEER_TOKEN}'}}"
        peer = Served(tmp_path, "path: ./peer.db", both % watched[1] + roles, ports[1], "peer", auth)
        stack.callback(peer.end)
        one = Served(tmp_path, "path: ./one.db", both % watched[0] + more, ports[0], "one")
        stack.callback(one.end)
        targets = {"xregistry": [f"127.0.0.1:{port}" for port in watched]}
        prometheus = stack.enter_context(Prometheus(tmp_path / "prometheus", targets, faster=FASTER))
        yield Pair(one, peer, hook, prometheus)


def test_every_query_has_data_and_every_alert_fires_and_clears(pair: Pair) -> None:
    prometheus = pair.prometheus
    with pair.writes():
        have_data(prometheus, [query for query in queries() if query.dashboard == "registry"])
        quiet(prometheus)
        # Alerts of the one failure clear while the other lasts.
        waits = "XregistrySubscriberWaits", "XregistryEventsDropped", "XregistryReplicationRefuses"
        down = "XregistryDown", "XregistryReplicationStands"
        with alert_that_clears(prometheus, *waits) as fires:
            pair.hook.close()
            pair.write("closed", "m")
            fires(subscriber="audit", direction="push")
            pair.hook.open()
            with alert_that_clears(prometheus, *down) as falls:
                assert pair.peer.stop() == 0
                falls()
                pair.peer.start()
        assert {*waits, *down} == ALERTS
        assert not prometheus.unhealthy_rules()
