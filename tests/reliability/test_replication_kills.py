"""Two catalogs that replicate to and fro, one of them killed now and then, while both are written to at random."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.catalogs import state_of
from tests.support.ports import free_ports
from tests.support.registry import LIMIT_SECONDS, Served, kill_under_writes, until, whole_state_of

GROUPS = ("g0", "g1", "g2")
NAMES = ("m0", "m1", "m2", "m3")
KEPT = "kept"
"""A group in which nothing is ever deleted: all that was answered needs to be there in the end."""


class Scribe(threading.Thread):
    """Writes to one catalog by all verbs of both faces, to the same definitions as others do."""

    def __init__(self, number: int, port: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.answered = 0
        self.kept: list[str] = []
        self.kept_schemas: list[str] = []
        self._number = number
        self._chance = random.Random(number)
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20)
        self._stopping = stop

    def run(self) -> None:
        step = 0
        while not self._stopping.is_set():
            step += 1
            word = f"{self._number}-{step}"
            try:
                if self._chance.random() < 0.2:
                    self._keep(word)
                elif self._client.send(self._write(word)).is_success:
                    self.answered += 1
            except httpx.HTTPError:
                time.sleep(0.05)  # it was killed; whether it had written is not known
        self._client.close()

    def _keep(self, word: str) -> None:
        if self._chance.random() < 0.5:
            path = f"/schemagroups/{KEPT}/schemas/{self._chance.choice(NAMES)}$details"
            if self._client.post(path, json={"schema": {"title": word}}).status_code == 201:
                self.kept_schemas.append(word)
                self.answered += 1
            return
        path = f"/messagegroups/{KEPT}/messages/{self._chance.choice(NAMES)}"
        if self._client.post(path, json={"name": word, "protocol": "NATS"}).status_code == 201:
            self.kept.append(word)
            self.answered += 1

    def _write(self, word: str) -> httpx.Request:
        group, name = self._chance.choice(GROUPS), self._chance.choice(NAMES)
        old, core = f"/messagecatalog/{group}", f"/messagegroups/{group}"
        definition, message = f"{old}/messagedefinitions/{name}", f"{core}/messages/{name}"
        version = self._chance.randrange(1, 6)
        content = {"id": name, "tags": word, "definition": {"pub": {"subject": {"value": word}}}}
        schemas = f"/schemagroups/{group}/schemas/{name}"
        kind = self._chance.choices(range(19), (3, 8, 2, 1, 2, 1, 4, 4, 4, 2, 2, 1, 4, 3, 2, 1, 1, 1, 2))[0]
        writes: list[tuple[str, str, Any]] = [
            ("PUT", old, {"format": "NATS", "description": word}),
            ("POST", f"{old}/messagedefinitions", content),
            ("PUT", definition, {**content, "version": version}),
            ("DELETE", definition, None),
            ("DELETE", f"{definition}/versions/{version}", None),
            ("DELETE", old, None),
            ("PUT", message, {"name": word, "protocol": "NATS"}),
            ("PATCH", message, {"description": word}),
            ("POST", message, {"name": word}),
            ("PUT", f"{message}/versions/v{version}", {"name": word}),
            ("PATCH", core, {"labels": {"word": word}}),
            ("DELETE", f"{old}/messagedefinitions", None),
            ("POST", f"{schemas}$details", {"schema": {"title": word}}),
            ("PUT", f"{schemas}/versions/{version}$details", {"schema": {"title": word}}),
            ("PATCH", f"{schemas}/meta", {"defaultversionid": str(version), "defaultversionsticky": True}),
            ("DELETE", f"{schemas}/versions/{version}", None),
            ("DELETE", schemas, None),
            ("DELETE", f"/schemagroups/{group}", None),
            ("PUT", f"/endpoints/{name}", {"usage": ["consumer"], "description": word}),
        ]
        method, path, body = writes[kind]
        return self._client.build_request(method, path, json=body)


def endure(folder: Path, *, writes: int, kills: int) -> None:
    """Write, kill, wait until both are alike, and look for what was answered."""
    ports = free_ports(2)
    sides = []
    for number, port in enumerate(ports):
        (folder / str(number)).mkdir()
        peer = f"http://127.0.0.1:{ports[1 - number]}/messagecatalog"
        direction = ("both", "pull")[number]
        more = "authority: urn:corp\nlint: report\nfaces: {messagecatalog: /messagecatalog}\n"
        more += f"replication: [{{url: '{peer}', direction: {direction}, interval: 200ms}}]"
        sides.append(Served(folder / str(number), "path: ./r.db", more, port))
    stop = threading.Event()
    scribes = [Scribe(number, ports[number % 2], stop) for number in range(4)]
    kill_under_writes(sides[0], scribes, lambda: sum(each.answered for each in scribes), writes=writes, kills=kills)
    stop.set()
    for each in scribes:
        each.join(LIMIT_SECONDS)
    _compare(
        ports,
        {word for each in scribes for word in each.kept},
        {word for each in scribes for word in each.kept_schemas},
    )
    assert [each.stop() for each in sides] == [0, 0]


def _compare(ports: tuple[int, ...], kept: set[str], kept_schemas: set[str]) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{ports[0]}", timeout=30) as one:
        with httpx.Client(base_url=f"http://127.0.0.1:{ports[1]}", timeout=30) as other:
            until(lambda: state_of(one) == state_of(other), "they stay different", 10 * LIMIT_SECONDS)
            until(lambda: whole_state_of(one) == whole_state_of(other), partial(_differing, one, other), LIMIT_SECONDS)
            state, whole = state_of(one), whole_state_of(one)
            assert state == state_of(other)
    written = [each.get("name") for each in state[KEPT]["versions"].values()]
    assert kept <= set(written) and len(written) == len(set(written))
    assert len(state) > 1
    below = f"/schemagroups/{KEPT}/"
    assert kept_schemas <= {
        each["schema"]["title"] for xid, each in whole.items() if xid.startswith(below) and "schema" in each
    }


def _differing(one: httpx.Client, other: httpx.Client) -> str:
    left, right = whole_state_of(one), whole_state_of(other)
    differing = {xid: (left.get(xid), right.get(xid)) for xid in left | right if left.get(xid) != right.get(xid)}
    return f"the catalogs to be alike: {differing}"


def test_one_is_killed(tmp_path: Path) -> None:
    endure(tmp_path, writes=60, kills=1)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_one_is_killed_five_times_in_a_thousand_writes(tmp_path: Path) -> None:
    endure(tmp_path, writes=1000, kills=5)
