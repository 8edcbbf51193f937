"""A real Prometheus scrapes routers under traffic: each query of the dashboard and each recording rule has data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from tests.conftest import Kafka, TopicFactory
from tests.integration.test_relations import catalog_of, events
from tests.support import load, plain, shop
from tests.support.kafka import produce
from tests.support.ports import Authority, free_ports
from tests.support.prometheus import Prometheus
from tests.support.router import RouterProcess
from tests.support.status_page import queries
from tests.support.subscriptions import PATH, Manager, managing
from tests.support.waiting import repeating
from tests.support.watched import LIMIT, are_recorded, have_data

DEFINITIONS = 20
REST = "xrouter_rest_"
"""How metrics begin that only a router in real time has."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fast", [False, pytest.param(True, marks=pytest.mark.full)], ids=["batches", "all"])
def test_every_query_and_every_recording_rule_has_data(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, tmp_path: Path, fast: bool
) -> None:
    """What only routers in real time have is for the full run, which has two routers."""
    topics = {name: topic_factory(name) for name in ("asks", "answers", "in", "rest", "out", "dead")}
    (port,) = free_ports(1)
    routers = [router]
    if fast:
        routers.append(RouterProcess(tmp_path / "fast", in_real_time(kafka.bootstrap, tmp_path, topics)))
    asked = [query for query in queries() if query.dashboard != "registry" and (fast or REST not in str(query))]
    with managing(Manager()) as manager:
        router.configure(of_all_kinds(kafka.bootstrap, router.folder, topics, manager.url, port))
        try:
            for each in routers:
                each.start()
            watched = {"xrouter": [f"127.0.0.1:{each.port}" for each in routers]}
            with Prometheus(tmp_path / "prometheus", watched, interval="2s") as prometheus:
                with traffic(kafka.bootstrap, topics, port):
                    have_data(prometheus, asked)
                    are_recorded(prometheus)
                assert not prometheus.unhealthy_rules()
            for each in routers:
                assert each.stop() == 0, each.log[-3000:]
        finally:
            for each in routers:
                each.end()


def of_all_kinds(bootstrap: str, folder: Path, topics: dict[str, str], manager: str, port: int) -> dict[str, Any]:
    """Write a catalog and return settings: pairs, a gateway, a subscription, and what is ambiguous."""
    document = catalog_of(bootstrap, (topics["asks"], topics["answers"]))
    more = shop.catalog(fixed=False)
    news = plain.endpoint("HTTP", {}, "G", uri=f"{manager}{PATH}", usage="subscriber")
    document["endpoints"] |= {**more["endpoints"], "news": news}
    document["messagegroups"] |= more["messagegroups"]
    # Bodies of this one begin with the id of a schema.
    framed = plain.event("framed", dataschemaformat="JsonSchema", dataschema={})
    document["messagegroups"]["orders"]["messages"]["framed"] = framed
    # Numbers of this one are past their column.
    number = {"type": "object", "properties": {"n": {"type": "integer"}}}
    document["messagegroups"]["G"]["messages"]["huge"] = plain.event(
        "huge", dataschemaformat="JsonSchema/draft-07", dataschema=number
    )
    (folder / "catalog.json").write_text(json.dumps(document))
    del document["messagegroups"]["G"]["messages"]["good"]  # What the shadow would change.
    (folder / "next.json").write_text(json.dumps(document))
    subscription = {"sink": f"http://127.0.0.1:{port}/news"}
    sources = [{"endpoint": f"/endpoints/{name}"} for name in ("asks", "answers", "shop", "empty")]
    pair = Authority(folder / "ca").sign("us")
    login = {"url": "https://registry.example", "tls": {"cert": str(pair.certificate), "key": str(pair.key)}}
    return {
        "catalog": {
            "source": str(folder / "catalog.json"),
            "shadow": str(folder / "next.json"),
            "shadow_share": 10,
            "logins": [login],
        },
        "sources": [*sources, {"endpoint": "/endpoints/news", "subscription": subscription}],
        "match": {"ambiguous": "first"},
        "sinks": {
            **plain.tables(folder, "lake", "dead", "pairs"),
            **plain.tables(folder, "typed", layout="definition"),
        },
        "routes": [{"when": {"message": "/messagegroups/G/messages/huge"}, "to": ["typed"]}, {"to": ["lake"]}],
        "dead_letters": {"sinks": ["dead"]},
        "relations": {"to": "pairs", "wait": "5s"},
        "http": {"port": port},
        "trigger": "200ms",
    }


def in_real_time(bootstrap: str, folder: Path, topics: dict[str, str]) -> dict[str, Any]:
    path = plain.write(folder, load.catalog(DEFINITIONS, topic=topics["in"]), "load.json")
    return load.settings(
        bootstrap,
        path,
        plain.topics(bootstrap, bus=topics["out"], dead=topics["dead"]),
        trigger="realtime",
        realtime={"rest": topics["rest"], "checkpoint": "5s"},
        spark={"master": "local[2]"},
    )


@contextmanager
def traffic(bootstrap: str, topics: dict[str, str], port: int) -> Iterator[None]:
    """Send for the time of the block: questions in transactions, answers to most, requests of all kinds, a load."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topics["asks"]})
    producer.init_transactions(LIMIT)

    def send(turn: int) -> None:
        number = 4 * turn
        producer.begin_transaction()
        for key, value, headers in events("placed", range(number, number + 4)):
            producer.produce(topics["asks"], value, key, headers=list(headers))
        producer.commit_transaction(LIMIT)
        answers = range(number + 1, number + 5)
        produce(bootstrap, topics["answers"], events("accepted", answers[:2], orderid="placed-{}"))
        framed = ((key, b"\0\0\0\0\7{}", headers) for key, _, headers in events("framed", answers))
        produce(bootstrap, topics["answers"], framed)
        produce(bootstrap, topics["in"], load.records(10, DEFINITIONS, start=number, bad=2))
        for kind in ("good", "twin", "late", "huge"):
            body = {"n": 2**70 if kind == "huge" else 1, "price": 1}
            with suppress(httpx.TransportError):
                client.post("/shop", json=body, headers=plain.http_headers(kind, f"id-{number}"))

    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT) as client, repeating(send, 0.5):
        yield
