"""Message catalogs that are served within a test, and what replicates them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from registry.core.ancestry import Linter
from registry.core.service import RegistryService
from registry.replication.peers import Peer, PeerExchange, ReplicationRound
from registry.store.engine import open_database
from tests.support.catalog_states import state_of
from tests.support.registry_server import served


@dataclass
class Side:
    """A catalog that is served, with what replicates it."""

    client: httpx.Client
    exchange: PeerExchange
    url: str

    def pull(self, other: Side) -> ReplicationRound:
        return self.exchange.run(Peer(other.url), "pull")

    def push(self, other: Side) -> ReplicationRound:
        return self.exchange.run(Peer(other.url), "push")

    def post(self, group: str, name: str, subject: str, **more: Any) -> httpx.Response:
        body = {"id": name, "definition": {"pub": {"subject": {"value": subject}}}, **more}
        self.client.put(f"/messagecatalog/{group}", json={"format": "NATS"}).raise_for_status()
        return self.client.post(f"/messagecatalog/{group}/messagedefinitions", json=body).raise_for_status()

    def subjects(self, group: str, name: str) -> dict[Any, str]:
        listed = self.client.get(f"/messagecatalog/{group}/messagedefinitions/{name}/versions").json()
        return {each["version"]: each["definition"]["pub"]["subject"]["value"] for each in listed}


@contextmanager
def side(folder: Path, authority: str = "urn:corp", **given: Any) -> Iterator[Side]:
    folder.mkdir()
    with served(folder, authority=authority, **given) as client:
        database = open_database(f"sqlite:///{folder}/registry.db")
        service = RegistryService(database, Linter(), lambda *_: {}, authority)
        yield Side(client, PeerExchange(service), f"{client.base_url}/messagecatalog")
        database.close()


def settle(one: Side, other: Side) -> None:
    """Pull to and fro until nothing changes, and compare."""
    for _ in range(10):
        if not one.pull(other).applied + other.pull(one).applied:
            break
    else:
        raise AssertionError("they go on for ever")
    assert state_of(one.client) == state_of(other.client)
