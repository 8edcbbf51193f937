"""A write to a resource with many versions costs what a few cost, and comes to the same as a look at all of them."""

from __future__ import annotations

import cProfile
import pstats
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from registry.core import resource_rules as settling
from registry.core import service as serving
from registry.core import transaction as writing
from registry.core.requests import ABSENT, Flags, RegistryRequest
from registry.core.service import RegistryService
from registry.errors import Refusal
from registry.http.server import RegistrySettings, open_service

SEED = 35
MANY, FEW = 1_000, settling.MAX_LOOKUPS
FORMAT = "JsonSchema/draft-07"
MODES = ("manual", "createdat", "modifiedat", "semver")
MODEL: dict[str, Any] = {
    "groups": {
        "boxes": {
            "singular": "box",
            "attributes": {"colour": {"type": "string"}},
            "constraints": {"manualfiles.shade": {"equals": "colour"}},
            "resources": {
                f"{mode}files": {
                    "singular": f"{mode}file",
                    "versionmode": mode,
                    "singleversionroot": mode != "manual",
                    "validateformat": True,
                    "validatecompatibility": True,
                    "attributes": {
                        "format": {"type": "string", "matchversions": True},
                        "shade": {"type": "string"},
                        "owner": {"type": "string", "matchversions": True},
                    },
                }
                for mode in MODES
            },
        }
    }
}


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[str], RegistryService]]:
    """Open registries by name; each time with the default of settings but for lint, which has its own tests."""
    databases = []

    def open_one(name: str, lint: str = "off") -> RegistryService:
        database, service = open_service(RegistrySettings(f"sqlite:///{tmp_path}/{name}.db", lint=lint))  # type: ignore[arg-type]
        databases.append(database)
        return service

    yield open_one
    for each in databases:
        each.close()


def ask(service: RegistryService, verb: Any, path: str, body: Any = ABSENT, **flags: Any) -> Any:
    segments = tuple(part for part in path.split("/") if part)
    request = RegistryRequest(verb, segments, path, "", Flags(**flags), True, body, administrator=True)
    try:
        return msgspec.json.decode(msgspec.json.encode(service.perform(request).body))
    except Refusal as refusal:
        return tuple(map(str, refusal.problem_json().items()))


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["add", "patch"])
def test_a_version_written_costs_what_a_few_versions_cost(opened: Callable[..., Any], verb: str) -> None:
    costs = []
    for held in (20, MANY):
        service = opened(f"{verb}{held}")
        ask(service, "add", "/messagegroups/g/messages/m/versions", {f"v{each}": {} for each in range(held)})
        path = "/messagegroups/g/messages/m" + ("/versions/v7" if verb == "patch" else "")
        service = opened(f"{verb}{held}", "refuse")
        for name in ("warm", "measured"):
            profile = cProfile.Profile()
            profile.runcall(ask, service, verb, path, {"name": name})
        costs.append(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
    few, many = costs
    assert many < 1.1 * few


@pytest.mark.slow
def test_few_versions_come_to_the_same_as_all_of_them(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random writes to two registries, of which one always looks at all versions."""
    draw = random.Random(SEED)
    moment = ""
    monkeypatch.setattr(serving, "current_time", lambda: moment)
    one, other = opened("few"), opened("all")
    for service in (one, other):
        moment = "2026-01-01T00:00:00Z"
        assert isinstance(ask(service, "replace", "/modelsource", MODEL), dict)
    looked = 0
    for number in range(400):
        # Some moments are the same, and some are of one second.
        moment = f"2026-01-01T00:{number // 40:02d}:{draw.randrange(3) + 10}.{draw.randrange(1, 100)}Z"
        given = write(draw)
        answers = []
        for service, few in ((one, FEW), (other, -1)):
            monkeypatch.setattr(settling, "MAX_LOOKUPS", few)
            monkeypatch.setattr(writing, "MAX_LOOKUPS", few)
            answers.append(ask(service, *given[:3], **given[3]))
        looked += not isinstance(answers[0], tuple)
        assert answers[0] == answers[1], given
        if number % 25 == 0:
            assert ask(one, "read", "/export") == ask(other, "read", "/export"), given
    assert ask(one, "read", "/export") == ask(other, "read", "/export")
    assert looked > 150


def write(draw: random.Random) -> tuple[str, str, Any, dict[str, Any]]:
    """Return one write: verb, path, body and flags."""
    mode = draw.choice(MODES)
    name = f"/boxes/{draw.choice('ab')}/{mode}files/{draw.choice('xy')}"
    versions = [
        f"{draw.randrange(3)}.{draw.randrange(4)}.{draw.randrange(3)}" for _ in range(draw.choice((1, 1, 2, 3)))
    ]
    flags = {"setdefaultversionid": draw.choice(("null", "request", versions[0]))} if draw.random() < 0.1 else {}
    kind = draw.choice(
        ("add", "add", "add", "versions", "patch", "version", "patch", "resource", "meta", "delete", "group")
    )
    if kind == "add":
        return (
            "add",
            name,
            {**body(draw, name, versions), **({} if draw.random() < 0.6 else {"versionid": versions[0]})},
            flags,
        )
    if kind == "versions":
        return "add", f"{name}/versions", {each: body(draw, name, versions) for each in versions}, flags
    if kind == "version":
        return "replace", f"{name}/versions/{versions[0]}", body(draw, name, versions), flags
    if kind == "patch":
        return "patch", f"{name}/versions/{versions[0]}", body(draw, name, versions), flags
    if kind == "resource":
        return draw.choice(("replace", "patch")), name, body(draw, name, versions), flags
    if kind == "meta":
        given: dict[str, Any] = {"defaultversionsticky": draw.random() < 0.5}
        if draw.random() < 0.5:
            given["defaultversionid"] = versions[0]
        if draw.random() < 0.3:
            given["compatibility"] = draw.choice(("backward", "full_transitive", None))
        return "patch", f"{name}/meta", given, flags
    if kind == "group":
        return (
            "patch",
            name.rpartition("/")[0].rpartition("/")[0],
            {"colour": draw.choice(("red", "red", "blue", None))},
            {},
        )
    if draw.random() < 0.2:
        return "delete", name, ABSENT, {}
    return "delete", f"{name}/versions/{versions[0]}", ABSENT, {}


def body(draw: random.Random, name: str, versions: list[str]) -> dict[str, Any]:
    """Return the body of a version."""
    given: dict[str, Any] = {"shade": draw.choice(("red", "red", "red", "blue"))}
    given["format"] = FORMAT if draw.random() < 0.97 else "Avro/1.12"
    schema = {"type": draw.choice((["object", "string"], "object", "object"))}
    given |= {f"{mode}file": schema for mode in MODES if mode in name}
    if draw.random() < 0.15:
        given["ancestorid"] = draw.choice((versions[0], versions[-1], "0.0.0", "1.0.0", "request"))
    if draw.random() < 0.2:
        given["createdat"] = f"2026-01-01T00:{draw.randrange(40):02d}:10.{draw.randrange(1, 100)}Z"
    if draw.random() < 0.03:
        given["owner"] = draw.choice("pq")
    return given
