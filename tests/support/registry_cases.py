"""Cases of the registry's HTTP API, as ``tests/cases/registry`` has them, and how one is run.

A case names its ``section`` of the specification and has ``steps``: ``do`` is method and path; ``json``, ``text``,
bytes as ``hex``, and ``headers`` are sent. What is expected: ``status`` (without it any success), ``error`` (the type's
name), ``has`` (a part of the JSON answer), ``keys`` (all names at its top, in any order), ``order`` (the same, in this
order), ``items`` (a list, each compared as ``has``), ``lacks`` (names that are not at its top), ``body`` (the text),
``shows`` (headers) and ``hides`` (headers that are not there).

In what is expected ``*`` is any value and ``~...`` a regular expression. ``save`` keeps parts of the answer, by the
path to them ([] is its whole text), and ``${name}`` puts them into later steps, ``#${name}`` as numbers.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from sqlalchemy import delete

from registry.model.attributes import model_source
from registry.store.engine import MARKS, Database

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

    Of the rest only what is not as it began is written: each write waits for the disk.
    """
    assert client.put("/capabilities", json={}).status_code == 200
    left = empty(client)
    if left or client.get("/modelsource").json() != model_source():
        assert client.put("/", json={"modelsource": model_source()}).status_code == 200
    with database.writing() as connection:
        connection.execute(delete(MARKS))


def empty(client: httpx.Client) -> set[str]:
    """Delete all groups there are; return the names of what else the registry was given."""
    found: dict[str, Any] = client.get("/").json()
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
