"""What we depend on: both lock files hold it, our code imports it, and what we override of it is as it was."""

from __future__ import annotations

import hashlib
import inspect
import re
import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bindings.mqtt.client import LinkClient
from bindings.nats.publisher import RawClient
from catalog.extras import EXTRAS
from router.errors import BatchPinError
from router.evaluation.plan import VERSION, compile_plan
from router.spark.connectors import read_pins
from tests.support.cases import read_cases

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
BASE: Final = [Requirement(text) for text in PROJECT["dependencies"]]
BY_EXTRA: Final = {
    name: [each for each in map(Requirement, texts) if each.name != PROJECT["name"]]
    for name, texts in PROJECT["optional-dependencies"].items()
}
FOR_TESTS: Final = BY_EXTRA.pop("dev")
NEEDED: Final = [*BASE, *(each for needed in BY_EXTRA.values() for each in needed)]
LOCK, LOCK_DEV = "requirements.lock", "requirements-dev.lock"
NOT_IMPORTED: Final = {
    "pandas": "PySpark asks for it where functions take Arrow",
    "sniffio": "httpx asks for it with each lock of asyncio, in vain for a millisecond where it is not installed",
}
"""Dependencies that our code does not import, and why they are needed."""
PRIVATE: Final[dict[str, type[Any]]] = {"nats-py": RawClient, "paho-mqtt": LinkClient}
"""Our subclasses of what packages do not show; their digests are in ``tests/cases/private.yaml``."""


def _held(lock: str) -> dict[str, str]:
    text = (ROOT / "deploy" / lock).read_text("utf-8")
    lines = re.findall(r"(?m)^([A-Za-z0-9._-]+)==([^\s;\\]+)", text)
    return {canonicalize_name(name): number for name, number in lines}


@pytest.mark.parametrize(("lock", "needed"), [(LOCK, NEEDED), (LOCK_DEV, [*NEEDED, *FOR_TESTS])])
def test_a_lock_file_holds_what_is_asked_for(lock: str, needed: list[Requirement]) -> None:
    held = _held(lock)
    for each in needed:
        assert each.specifier.contains(held[canonicalize_name(each.name)]), f"{lock}: {each}; run make lock"


def test_tests_run_with_the_versions_that_are_released() -> None:
    assert _held(LOCK_DEV).items() >= _held(LOCK).items()


def test_every_dependency_is_imported() -> None:
    roots = {
        found
        for folder in ("catalog", "bindings", "registry", "router", "xrouter")
        for file in (ROOT / folder).rglob("*.py")
        for found in re.findall(r"(?m)^\s*(?:from|import) (\w+)", file.read_text("utf-8"))
    }
    packages = packages_distributions()
    imported = {canonicalize_name(name) for root in roots for name in packages.get(root, ())}
    assert {each.name for each in NEEDED} - imported == set(NOT_IMPORTED)


def test_every_library_of_an_extra_is_named_with_it_where_it_is_missing() -> None:
    packages = packages_distributions()
    of_base = {canonicalize_name(each.name) for each in BASE}
    for extra, modules in EXTRAS.items():
        named = {canonicalize_name(name) for module in modules for name in packages[module]}
        needed = {canonicalize_name(each.name) for each in BY_EXTRA[extra]}
        assert not named & of_base
        assert needed - named <= {"pandas", "httptools", "uvloop", "opentelemetry-exporter-otlp-proto-http"}, extra
    (everything,) = map(Requirement, PROJECT["optional-dependencies"]["all"])
    assert BY_EXTRA.keys() - {"all"} == everything.extras == EXTRAS.keys()


@pytest.mark.parametrize("package", PRIVATE)
def test_what_is_overridden_of_a_package_is_as_it_was(package: str) -> None:
    ours, digests = PRIVATE[package], read_cases(ROOT / "tests" / "cases" / "private.yaml")[package]
    base: type[Any] = ours.__mro__[1]
    now = {name: hashlib.sha256(inspect.getsource(getattr(base, name)).encode()).hexdigest()[:16] for name in digests}
    changed = sorted(name for name, digest in digests.items() if now[name] != digest)
    remedy = f"see what changed, mend {ours.__module__}.{ours.__name__}, then raise the cap in pyproject.toml"
    assert not changed, f"{package} {version(package)} changed {', '.join(changed)}; {remedy}; now {now}"
    overridden = {name for name in vars(ours) if inspect.isfunction(getattr(base, name, None)) and name[:2] != "__"}
    assert overridden <= digests.keys()


@pytest.mark.parametrize("package", PRIVATE)
def test_a_package_whose_private_parts_are_overridden_has_a_cap(package: str) -> None:
    (requirement,) = [each for each in NEEDED if each.name == package]
    assert any(each.operator == "<" for each in requirement.specifier)


def test_spark_is_the_version_that_its_connector_is_of() -> None:
    """Without a lock file, as where the wheel is installed, a later Spark would be taken, which nobody tested."""
    (requirement,) = [each for each in NEEDED if each.name == "pyspark"]
    version = str(requirement.specifier).removeprefix("==")
    assert (
        f"org/apache/spark/spark-sql-kafka-0-10_2.13/{version}/spark-sql-kafka-0-10_2.13-{version}.jar" in read_pins()
    )


def test_the_version_is_that_of_the_installed_package() -> None:
    """A checkout that was not installed again after a release would finish batches that another version pinned."""
    assert VERSION == version("xregistry-router") == PROJECT["version"]


def test_a_batch_pinned_by_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BatchPinError, match=rf"router 0\.0\.9, plan format 1; this is router {re.escape(VERSION)}"):
        compile_plan(b'{"format":1,"version":"0.0.9"}', environ={}, base=tmp_path)
