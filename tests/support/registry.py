"""A small xRegistry server over a tree of collections: inlining, pages and entity tags as in the specification."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

import httpx
import yaml
from sqlalchemy import delete

from registry.apis.apis import APIS, apis_by_path
from registry.core.responses import effective_capabilities
from registry.http.server import RegistryServer, RegistrySettings
from registry.model.attributes import model_source
from registry.store.engine import MARKS, Database
from tests.support.ports import free_ports
from tests.support.waiting import wait_until
from tests.support.web import Reply, Request, Web

_BELOW: Final = {
    0: ("messagegroups", "endpoints", "schemagroups"),
    2: ("messages", "schemas"),
    4: ("versions",),
}


@dataclass(slots=True)
class Registry:
    """Serves *tree* below ``/reg``. *inline* says which values of that flag are known; others are refused, or ignored.

    ``origin`` is what the server believes its own address to be.
    """

    web: Web
    tree: dict[str, Any]
    inline: tuple[str, ...] = ("*",)
    refuses: bool = False
    page: int = 1000
    origin: str = ""

    def __post_init__(self) -> None:
        self.origin = self.origin or self.web.url

    @property
    def url(self) -> str:
        """The address of the root."""
        return f"{self.web.url}/reg"

    def open(self) -> Registry:
        """Answer every path of the tree."""
        self.web.routes["/reg"] = self.answer
        paths: list[list[str]] = [[]]
        while paths:
            path = paths.pop()
            node = self._at(path)
            self.web.routes["/".join(["/reg", *map(quote, path)])] = self.answer
            names = [name for name in _BELOW.get(len(path), ()) if name in node] if len(path) % 2 == 0 else list(node)
            paths.extend([*path, name] for name in names)
        return self

    def answer(self, request: Request) -> Reply:
        """Answer for one entity or one page of a collection."""
        parts = urlsplit(request.target)
        query = parse_qs(parts.query)
        path = [unquote(step) for step in parts.path.removeprefix("/reg").split("/") if step]
        asked = query.get("inline", [""])[0]
        if asked and asked not in self.inline and self.refuses:
            return Reply({"title": "bad_inline"}, 400)
        depth = 100 if asked in self.inline and asked else 0
        if len(path) % 2 == 0:
            return Reply(self._entity(path, depth), etag="auto")
        start = int(query.get("offset", ["0"])[0])
        node = self._at(path)
        keys = sorted(node)[start : start + self.page]
        headers = {}
        if start + self.page < len(node):
            inline = f"&inline={asked}" if asked else ""
            target = f"{self._url(path)}?offset={start + self.page}{inline}"
            headers["Link"] = f'<{self._url(path)}>; rel="first", <{target}>;rel=next;count={len(node)}'
        return Reply({key: self._entity([*path, key], depth) for key in keys}, 200, headers, etag="auto")

    def _at(self, path: list[str]) -> Any:
        node: Any = self.tree
        for step in path:
            node = node[step]
        return node

    def _url(self, path: list[str]) -> str:
        return "/".join([f"{self.origin}/reg", *map(quote, path)])

    def _entity(self, path: list[str], depth: int) -> dict[str, Any]:
        node = self._at(path)
        below = [name for name in _BELOW.get(len(path), ()) if name in node]
        shown = {name: value for name, value in node.items() if name not in below}
        shown |= {"self": self._url(path) or "/", "xid": "/" + "/".join(path), "epoch": 1}
        for name in below:
            shown |= {f"{name}url": self._url([*path, name]), f"{name}count": len(node[name])}
            if depth:
                shown[name] = {key: self._entity([*path, name, key], depth - 1) for key in node[name]}
        return shown


# Cases of the registry's HTTP API, as ``tests/cases/registry`` has them, and how one is run.
#
# A case names its ``section`` of the specification and has ``steps``: ``do`` is method and path; ``json``, ``text``,
# bytes as ``hex``, and ``headers`` are sent. What is expected: ``status`` (without it any success), ``error`` (the
# type's name), ``has`` (a part of the JSON answer), ``keys`` (all names at its top, in any order), ``order`` (the same,
# in this order), ``items`` (a list, each compared as ``has``), ``lacks`` (names that are not at its top), ``body`` (the
# text), ``shows`` (headers) and ``hides`` (headers that are not there).
#
# In what is expected ``*`` is any value and ``~...`` a regular expression. ``save`` keeps parts of the answer, by the
# path to them ([] is its whole text), and ``${name}`` puts them into later steps, ``#${name}`` as numbers.

FOLDER: Final = Path(__file__).parents[1] / "cases" / "registry"
_ALWAYS: Final = ("specversion", "registryid", "self", "xid", "epoch", "createdat", "modifiedat")
_SAVED: Final = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Case:
    """One case; ``id`` is its file and name."""

    id: str
    section: str
    steps: tuple[dict[str, Any], ...]


def cases() -> list[Case]:
    """Read all cases."""
    found: list[Case] = []
    for file in sorted(FOLDER.glob("*.yaml")):
        for each in yaml.load(file.read_text("utf-8"), Loader=yaml.CSafeLoader):
            found.append(Case(f"{file.stem}: {each['name']}", each["section"], tuple(each["steps"])))
    return found


def clean(client: httpx.Client, database: Database) -> None:
    """Bring a registry back to where it began, but for its epoch; numbers of versions are given out anew.

    Only what is not as it began is written: each write waits for the disk.
    """
    asked = {"inline": "capabilities,modelsource"}
    found = client.get("/", params=asked)
    if not found.is_success or found.json().get("capabilities") != effective_capabilities({}):
        assert client.put("/capabilities", json={}).status_code == 200
        found = client.get("/", params=asked)
    left = delete_groups(client, found.json()) - {"capabilities", "modelsource"}
    if left or found.json()["modelsource"] != model_source():
        assert client.put("/", json={"modelsource": model_source()}).status_code == 200
    with database.writing() as connection:
        connection.execute(delete(MARKS))


def empty(client: httpx.Client) -> None:
    """Delete all groups there are."""
    delete_groups(client, client.get("/").json())


def delete_groups(client: httpx.Client, found: dict[str, Any]) -> set[str]:
    """Delete all groups of a registry that is as it was found; return the names of what else it was given."""
    for name, count in found.items():
        if name.endswith("count") and count:
            assert client.delete(f"/{name.removesuffix('count')}").status_code == 204
    return {name for name in found if name not in _ALWAYS and not name.endswith(("url", "count"))}


def run(case: Case, client: httpx.Client) -> None:
    """Run a case in a registry that is clean."""
    saved: dict[str, str] = {}
    for number, step in enumerate(case.steps, 1):
        _step(f"step {number}", _filled(step, saved), client, saved)


def _step(where: str, step: dict[str, Any], client: httpx.Client, saved: dict[str, str]) -> None:
    method, path = step["do"].split(" ", 1)
    sent: dict[str, Any] = {"headers": {name: str(value) for name, value in step.get("headers", {}).items()}}
    if "json" in step:
        sent["json"] = step["json"]
    if "text" in step:
        sent["content"] = step["text"].encode("utf-8")
    if "hex" in step:
        sent["content"] = bytes.fromhex(step["hex"])
    answer = client.request(method, path, **sent)
    told = f"{where} ({step['do']}) got {answer.status_code}: {answer.text[:2000]}\n{dict(answer.headers)}"
    if "error" in step:
        problem = answer.json()
        assert "type" in problem, told
        assert problem["type"].endswith(f"#{step['error']}") or problem["type"].endswith(f":{step['error']}"), told
        assert problem["status"] == answer.status_code and problem["title"], told
        assert not re.search(r"<[a-z_]+>", problem["title"]), told
        assert 400 <= answer.status_code, told
    if "status" in step:
        assert answer.status_code == step["status"], told
    elif "error" not in step:
        assert answer.is_success or answer.status_code in (303, 307), told
    _check_body(step, answer, told)
    for name, expected in step.get("shows", {}).items():
        assert _fits(expected, answer.headers.get(name), f"{where} {name}", told)
    for name in step.get("hides", ()):
        assert name not in answer.headers, f"{name} is there\n{told}"
    for name, parts in step.get("save", {}).items():
        of_headers = parts[:1] == ["headers"]
        value: Any = answer.headers if of_headers else answer.json()
        for part in parts[1:] if of_headers else parts:
            value = value[part]
        saved[name] = str(value) if parts else answer.text


def _check_body(step: dict[str, Any], answer: httpx.Response, told: str) -> None:
    if "has" in step:
        _fits(step["has"], answer.json(), "$", told)
    if "keys" in step:
        assert sorted(answer.json()) == sorted(step["keys"]), told
    if "order" in step:
        assert list(answer.json()) == step["order"], told
    if "items" in step:
        found = answer.json()
        assert len(found) == len(step["items"]), told
        for number, expected in enumerate(step["items"]):
            _fits(expected, found[number], f"$[{number}]", told)
    for name in step.get("lacks", ()):
        assert name not in answer.json(), f"{name} is there\n{told}"
    if "body" in step:
        _fits(step["body"], answer.text, "body", told)


def _fits(expected: Any, found: Any, where: str, told: str) -> bool:
    """Compare: of objects the members that are expected, all else as a whole."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name, value in expected.items():
            assert name in found, f"{where}.{name} is missing\n{told}"
            _fits(value, found[name], f"{where}.{name}", told)
    elif expected == "*":
        assert found is not None, f"{where} is missing\n{told}"
    elif isinstance(expected, str) and expected.startswith("~"):
        assert re.fullmatch(expected[1:], str(found)), f"{where} is {found!r}, expected {expected}\n{told}"
    else:
        assert expected == found, f"{where} is {found!r}, expected {expected!r}\n{told}"
    return True


def _filled(value: Any, saved: dict[str, str]) -> Any:
    """Put what was saved into a step; a number stands alone as a number."""
    if not saved:
        return value
    text = _SAVED.sub(lambda hit: json.dumps(saved.get(hit[1], hit[0]))[1:-1], json.dumps(value))
    return json.loads(re.sub(r'"#(\d+)"', r"\1", text))


# A registry in a process of its own, which tests can kill.

LIMIT_SECONDS = 180.0
"""A machine that does much beside this gives a new process some seconds of its processors in a minute."""


class Served:
    """A registry in a process of its own, which can be killed and begun again."""

    def __init__(
        self, folder: Path, store: str, more: str = "", port: int = 0, name: str = "registry", http: str = ""
    ) -> None:
        """Serve what *store* says, with *more* settings, and those of *http* beside the port."""
        self.port = port or free_ports(1)[0]
        self.config = folder / f"{name}.yaml"
        pace = "writes_per_second: 100000\nwrite_burst: 100000"
        self.config.write_text(
            f"open: true\nstore: {{{store}}}\nhttp: {{port: {self.port}{http and f', {http}'}}}\n{pace}\n{more}\n"
        )
        self._log = folder / f"{name}.log"
        self.process = self._start()

    def kill(self) -> None:
        """End it at once, and begin it again."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT_SECONDS)
        self.process = self._start()

    def start(self) -> None:
        """Begin it again after its end."""
        self.process = self._start()

    def end(self) -> None:
        """Make sure that nothing of it is left."""
        self.process.kill()
        self.process.wait(LIMIT_SECONDS)

    def stop(self) -> int:
        """End it as an operator does; return its exit code."""
        self.process.terminate()
        return self.process.wait(LIMIT_SECONDS)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "xrouter", "registry", "serve", str(self.config)]
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        try:
            until(lambda: process.poll() is not None or _answers(self.port), self._log.read_text)
            assert process.poll() is None, self._log.read_text()
        except BaseException:
            process.kill()
            process.wait(LIMIT_SECONDS)
            raise
        return process


def kill_under_writes(
    served: Served, writers: Sequence[threading.Thread], answered: Callable[[], int], *, writes: int, kills: int
) -> None:
    """Start writers, and kill the registry now and then until so many writes were answered; they are to end then."""
    for writer in writers:
        writer.start()
    chance = random.Random(7)
    for number in range(1, kills + 1):
        goal = writes * number // (kills + 1)
        until(lambda goal=goal: answered() >= goal, "writes stand still")  # type: ignore[misc]
        time.sleep(chance.random() * 0.1)
        served.kill()
    until(lambda: answered() >= writes, "writes stand still")


def until(holds: Callable[[], bool], told: str | Callable[[], str], seconds: float = LIMIT_SECONDS) -> None:
    """Wait for a condition."""
    wait_until(lambda: holds() or None, seconds, told)


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/capabilities", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


# A registry that a test starts in its own process, and a client of it.


@contextmanager
def served(store: str | Path, **given: Any) -> Iterator[httpx.Client]:
    """Serve the registry in *store*, a URL or a folder for SQLite, as fast as it can unless *given* says otherwise.

    Each face is at the path that is its name.
    """
    given.setdefault("apis", apis_by_path({name: f"/{name}" for name in APIS}))
    url = store if isinstance(store, str) else f"sqlite:///{store}/registry.db"
    settings = RegistrySettings(url, **{"port": 0, "writes_per_second": 1e6, "write_burst": 10**6, **given})
    with client_of(settings) as client:
        yield client


@contextmanager
def client_of(settings: RegistrySettings, timeout: float = 30) -> Iterator[httpx.Client]:
    """Serve a registry by its settings; the client waits so many seconds for an answer."""
    server = RegistryServer(settings)
    server.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=timeout) as client:
            yield client
    finally:
        server.stop()


# A small registry of a shop for tests of its pages: messages with a base, schemas of two versions, a type of ours.

SCHEMA: Final = "/schemagroups/shop/schemas/order"
PLACED: Final = "/messagegroups/shop/messages/order.placed"


def fill(client: httpx.Client, **headers: str) -> None:
    """Write all of it."""

    def put(path: str, body: Any, **more: str) -> None:
        client.request("PUT", path, json=body, headers={**headers, **more}).raise_for_status()

    source = model_source()
    source["groups"]["robots"] = {
        "singular": "robot",
        "attributes": {"arms": {"type": "uinteger"}},
        "resources": {"programs": {"singular": "program", "hasdocument": False}},
    }
    put("/modelsource", source)
    put("/schemagroups/shop", {"description": "What orders look like."})
    properties: dict[str, Any] = {"id": {"type": "string"}, "price": {"type": "number"}}
    for version in (1, 2):
        schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": properties}
        attributes = {"format": "JsonSchema/draft-07", "contenttype": "application/json", "schema": schema}
        put(f"{SCHEMA}/versions/{version}$details", attributes)
        properties["currency"] = {"enum": ["EUR", "USD"]}
    put("/messagegroups/shop", {"envelope": "CloudEvents/1.0", "name": "The shop", "protocol": "HTTP"})
    base = {"type": {"value": "order"}, "source": {"value": "/shops/{shop}", "type": "uritemplate"}}
    put("/messagegroups/shop/messages/order", {"envelope": "CloudEvents/1.0", "envelopemetadata": base})
    placed = {
        "envelope": "CloudEvents/1.0",
        "name": "An order was placed",
        "description": "Sent once for each order.",
        "basemessage": "/messagegroups/shop/messages/order",
        "envelopemetadata": {"type": {"value": "order.placed"}, "subject": {"required": True}},
        "dataschemaformat": "JsonSchema/draft-07",
        "dataschemauri": SCHEMA,
    }
    put(PLACED, placed)
    endpoint: dict[str, Any] = {"usage": ["consumer"], "protocol": "HTTP", "envelope": "CloudEvents/1.0"}
    endpoint |= {"messagegroups": ["/messagegroups/shop"], "deprecated": {}}
    put("/endpoints/web", endpoint)
    put("/robots/r2", {"arms": 2})
    put("/robots/r2/programs/wash", {"name": "Washing"})


# What a registry has of everything, as far as replication keeps it alike in two of them.

_OWN: Final = ("self", "xid", "epoch", "modifiedat", "formatvalidated", "compatibilityvalidated")
_OF_ENTITIES: Final = ("createdat",)


def whole_state_of(client: httpx.Client) -> dict[str, Any]:
    """Return model, groups, resources with their versions, documents, ancestors and default versions.

    Times of groups and resources, epochs and URLs are each registry's own, and messages of message groups are compared
    by :func:`tests.support.catalogs.state_of`.
    """
    answer = client.get("/", params={"inline": "*,modelsource"})
    answer.raise_for_status()
    tree = answer.json()
    source = tree["modelsource"]
    state: dict[str, Any] = {"modelsource": source}
    for plural, kind in source["groups"].items():
        for name, group in tree.get(plural, {}).items():
            xid = f"/{plural}/{name}"
            below = kind.get("resources", {})
            state[xid] = _plain(group, {*_OF_ENTITIES, *below})
            for resources in below if plural != "messagegroups" else ():
                for resource, body in group.get(resources, {}).items():
                    where = f"{xid}/{resources}/{resource}"
                    state[where] = _plain(body["meta"], _OF_ENTITIES)
                    for version, each in body.get("versions", {}).items():
                        state[f"{where}/versions/{version}"] = _plain(each, ())
    return state


def _plain(body: dict[str, Any], left_out: Any) -> dict[str, Any]:
    kept = {name: value for name, value in body.items() if name not in _OWN and name not in left_out}
    return {name: value for name, value in kept.items() if not name.endswith(("url", "count")) or name == "schemaurl"}
