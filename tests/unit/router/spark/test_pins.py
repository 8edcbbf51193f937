"""Jars are held against the hashes of a manifest, fresh from a repository and kept in the cache alike."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from router.spark.connectors import (
    KAFKA,
    PINS,
    Coordinate,
    JarRequest,
    PinMismatch,
    resolve_jars,
    resolve_kafka_jars,
    resolve_pinned,
)
from tests.support.pins import write_pins

APP = JarRequest((Coordinate("org.example", "app", "1.0"),))
POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>org.example</groupId><artifactId>app</artifactId><version>1.0</version></project>"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that was filled with ``app`` from a repository in a folder."""
    root = tmp_path_factory.mktemp("pins")
    folder = root / "repository/org/example/app/1.0"
    folder.mkdir(parents=True)
    (folder / "app-1.0.pom").write_text(POM)
    with zipfile.ZipFile(folder / "app-1.0.jar", "w") as jar:
        jar.writestr("name.txt", "app")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XROUTER_MAVEN_REPOSITORY", (root / "repository").as_uri())
        resolve_jars(APP, root / "cache")
    return root / "cache"


@pytest.mark.slow
def test_the_right_jars_pass(cache: Path, tmp_path: Path) -> None:
    write_pins(resolve_jars(APP, cache), tmp_path / "pins.json")
    assert resolve_pinned(APP, tmp_path / "pins.json", cache) == resolve_jars(APP, cache)


@pytest.mark.parametrize("pins", [{}, {"app-1.0.jar": "0" * 64}, {"app-1.0.jar": ""}])
def test_a_fetched_jar_that_the_manifest_does_not_have_is_refused(
    cache: Path, tmp_path: Path, pins: dict[str, str]
) -> None:
    (tmp_path / "pins.json").write_text(json.dumps(pins))
    with pytest.raises(PinMismatch, match=r"app-1\.0\.jar is not the file") as failure:
        resolve_pinned(APP, tmp_path / "pins.json", cache)
    assert str(resolve_jars(APP, cache)[0].parent) in failure.value.hint


def test_a_jar_that_did_not_come_is_named(cache: Path, tmp_path: Path) -> None:
    write_pins(resolve_jars(APP, cache), tmp_path / "pins.json")
    pins = json.loads((tmp_path / "pins.json").read_text())
    (tmp_path / "pins.json").write_text(json.dumps({**pins, "lib-1.9.jar": "0" * 64}))
    with pytest.raises(PinMismatch, match=r"lacks lib-1\.9\.jar"):
        resolve_pinned(APP, tmp_path / "pins.json", cache)


def test_a_kept_jar_that_was_changed_ends_a_start_with_code_7(tmp_path: Path) -> None:
    folder = resolve_kafka_jars()[0].parent
    kept = tmp_path / "jars" / KAFKA.digest
    shutil.copytree(folder, kept)
    jar = next(kept.glob("kafka-clients-*.jar"))
    content, times = bytearray(jar.read_bytes()), jar.stat()
    content[len(content) // 2] ^= 1
    jar.write_bytes(content)
    os.utime(jar, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = subprocess.run(
        [sys.executable, "-m", "router.spark.connectors"],
        env={**os.environ, "XROUTER_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "")
    assert str(jar) in done.stderr and f"remove {kept}" in done.stderr


def test_each_jar_of_the_connector_has_its_pin() -> None:
    assert {jar.name for jar in resolve_kafka_jars()} == set(json.loads(PINS.read_text()))
