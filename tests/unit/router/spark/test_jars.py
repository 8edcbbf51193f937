"""The jars of Spark's connector: a list with hashes, fetched once by Ivy from a repository, checked at each use."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from router.errors import ConnectorError, JvmError
from router.spark.connectors import CACHE_VARIABLE, REPOSITORY_VARIABLE, cache_root, fetch_jars, find_java, sha256_of

JAR = "org/example/app/1.0/app-1.0.jar"
ARCHIVE = "org/example/box/1.0/box-1.0-all.tar.gz"
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId><artifactId>app</artifactId>
<version>1.0</version><dependencies><dependency><groupId>org.example</groupId><artifactId>lib</artifactId>
<version>2.0</version></dependency></dependencies></project>"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a jar, which needs another one that is not there, and an archive; and an empty cache."""
    root = tmp_path / "a repository"
    (root / JAR).parent.mkdir(parents=True)
    (root / JAR).with_suffix(".pom").write_text(POM)
    with zipfile.ZipFile(root / JAR, "w") as jar:
        jar.writestr("name.txt", "app")
    (root / ARCHIVE).parent.mkdir(parents=True)
    (root / ARCHIVE).parent.joinpath("box-1.0.pom").write_text(POM.replace("app", "box"))
    (root / ARCHIVE).write_bytes(b"all")
    monkeypatch.setenv(REPOSITORY_VARIABLE, root.as_uri())
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "a cache"))
    return root


@pytest.fixture
def manifest(repository: Path, tmp_path: Path) -> Path:
    path = tmp_path / "pins.json"
    path.write_text(json.dumps({JAR: sha256_of(repository / JAR), ARCHIVE: sha256_of(repository / ARCHIVE)}))
    return path


@pytest.mark.slow
def test_what_is_listed_is_fetched_once(manifest: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = fetch_jars(manifest)
    assert jars == [cache_root() / "jars" / JAR, cache_root() / "jars" / ARCHIVE]
    assert [jar.read_bytes() for jar in jars] == [(repository / JAR).read_bytes(), b"all"]
    monkeypatch.setenv("JAVA_HOME", str(repository))
    assert fetch_jars(manifest) == jars  # no Java, so no Ivy


@pytest.mark.slow
def test_a_damaged_file_is_fetched_again(manifest: Path, repository: Path) -> None:
    jar = fetch_jars(manifest)[0]
    jar.write_bytes(b"damaged")
    assert fetch_jars(manifest)[0] == jar and jar.read_bytes() == (repository / JAR).read_bytes()


@pytest.mark.slow
def test_another_file_than_the_list_says_is_refused(manifest: Path) -> None:
    manifest.write_text(json.dumps({JAR: "0" * 64}))
    with pytest.raises(ConnectorError, match=rf"{JAR}: not what this version requires") as failure:
        fetch_jars(manifest)
    assert failure.value.exit_code == 7 and not (cache_root() / "jars" / JAR).exists()


@pytest.mark.slow
def test_a_file_that_no_repository_has_is_named_with_the_remedies(manifest: Path) -> None:
    missing = JAR.replace("1.0", "1.1")
    manifest.write_text(json.dumps({missing: "0" * 64}))
    with pytest.raises(ConnectorError, match=r"cannot fetch .*app-1\.1\.jar.*not found") as failure:
        fetch_jars(manifest)
    assert "make connectors" in failure.value.hint and REPOSITORY_VARIABLE in failure.value.hint


def test_a_cache_that_cannot_be_written(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(ConnectorError, match="cannot store jars"):
        fetch_jars(manifest)


@pytest.mark.slow
def test_two_at_once_fetch_once(manifest: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(fetch_jars, [manifest, manifest])
    assert one == two and all(jar.is_file() for jar in one)


def test_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(JvmError, match="java command not found"):
        find_java()


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XROUTER_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "xrouter"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "xrouter"
    monkeypatch.setenv("XROUTER_CACHE", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"


@pytest.mark.slow
@pytest.mark.parametrize(("java", "code"), [(None, 7), ("/absent", 10)])
def test_what_ends_a_start_is_told_in_a_line(
    repository: Path, monkeypatch: pytest.MonkeyPatch, java: str | None, code: int
) -> None:
    if java is not None:
        monkeypatch.setenv("JAVA_HOME", java)
    command = [sys.executable, "-m", "router.spark.connectors"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (code, "") and len(done.stderr.splitlines()) == 1
