"""Resolving jars, against a Maven repository of our own in a folder: no network, but the real Ivy."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from router.spark.connectors import Coordinate, JarRequest, JavaMissing, ResolutionError, cache_root, resolve_jars

APP = Coordinate("org.example", "app", "1.0")
POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>{0.organisation}</groupId><artifactId>{0.module}</artifactId><version>{0.revision}</version>
<dependencies>{1}</dependencies></project>"""
NEED = (
    "<dependency><groupId>{0.organisation}</groupId><artifactId>{0.module}</artifactId><version>{0.revision}</version>"
)


def publish(repository: Path, item: Coordinate, needs: Sequence[Coordinate] = ()) -> None:
    folder = repository.joinpath(*item.organisation.split("."), item.module, item.revision)
    folder.mkdir(parents=True)
    stem = f"{item.module}-{item.revision}"
    (folder / f"{stem}.pom").write_text(
        POM.format(item, "".join(NEED.format(need) + "</dependency>" for need in needs))
    )
    with zipfile.ZipFile(folder / f"{stem}.jar", "w") as jar:
        jar.writestr("name.txt", str(item))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``app`` needs a ``lib`` that was never published and a ``log`` that the host brings."""
    folder = tmp_path / "repository"
    publish(folder, APP, [Coordinate("org.example", "lib", "2.0"), Coordinate("org.host", "log", "1.0")])
    publish(folder, Coordinate("org.example", "lib", "1.9"))
    publish(folder, Coordinate("org.host", "log", "1.0"))
    monkeypatch.setenv("XROUTER_MAVEN_REPOSITORY", folder.as_uri())
    return folder


def request_for(*wanted: Coordinate) -> JarRequest:
    return JarRequest(wanted, overrides=(Coordinate("org.example", "lib", "1.9"),), excludes=("org.host",))


@pytest.mark.slow
def test_overrides_and_excludes_hold(repository: Path, tmp_path: Path) -> None:
    jars = resolve_jars(request_for(APP), tmp_path / "cache")
    assert [jar.name for jar in jars] == ["app-1.0.jar", "lib-1.9.jar"]
    assert zipfile.ZipFile(jars[1]).read("name.txt") == b"org.example:lib:1.9"


@pytest.mark.slow
def test_a_filled_cache_needs_neither_network_nor_java(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve_jars(request_for(APP), tmp_path / "cache")
    monkeypatch.setenv("XROUTER_MAVEN_REPOSITORY", "https://127.0.0.1:1/nowhere")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert resolve_jars(request_for(APP), tmp_path / "cache") == first
    with pytest.raises(JavaMissing, match="install Java 17 or 21"):
        resolve_jars(request_for(APP), tmp_path / "empty")


@pytest.mark.slow
def test_a_damaged_folder_is_filled_anew(repository: Path, tmp_path: Path) -> None:
    app, lib = resolve_jars(request_for(APP), tmp_path / "cache")
    whole = app.stat().st_size
    app.write_bytes(b"cut")
    lib.unlink()
    assert resolve_jars(request_for(APP), tmp_path / "cache") == (app, lib)
    assert (app.stat().st_size, lib.exists()) == (whole, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["{", pytest.param("", marks=pytest.mark.full), pytest.param("{}", marks=pytest.mark.full)]
)
def test_a_torn_manifest_is_no_manifest(repository: Path, tmp_path: Path, text: str) -> None:
    jars = resolve_jars(request_for(APP), tmp_path / "cache")
    (jars[0].parent / "manifest.json").write_text(text)
    assert resolve_jars(request_for(APP), tmp_path / "cache") == jars


@pytest.mark.slow
def test_what_a_dead_process_left_is_no_hindrance(repository: Path, tmp_path: Path) -> None:
    request = request_for(APP)
    partial = tmp_path / "cache" / f".partial-{request.digest}"
    partial.mkdir(parents=True)
    (partial / "half.jar").write_bytes(b"half")
    assert [jar.name for jar in resolve_jars(request, tmp_path / "cache")] == ["app-1.0.jar", "lib-1.9.jar"]
    assert not partial.exists()


@pytest.mark.slow
def test_two_fills_at_once_agree(repository: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: resolve_jars(request_for(APP), tmp_path / "cache"), range(2)))
    assert both[0] == both[1]
    assert all(jar.exists() for jar in both[0])


@pytest.mark.slow
def test_a_missing_jar_names_the_coordinate_and_the_remedy(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(ResolutionError, match=r"org\.example:nothing:1\.0") as failure:
        resolve_jars(request_for(Coordinate("org.example", "nothing", "1.0")), tmp_path / "cache")
    assert "XROUTER_CACHE" in failure.value.hint
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.name not in {".lock", "ivy"}] == []


@pytest.mark.slow
def test_credentials_of_a_mirror_are_never_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XROUTER_MAVEN_REPOSITORY", "http://user:secret@127.0.0.1:1/maven")
    with pytest.raises(ResolutionError) as failure:
        resolve_jars(request_for(APP), tmp_path / "cache")
    assert "127.0.0.1:1/maven" in str(failure.value)
    assert "secret" not in str(failure.value)


def test_a_repository_that_is_no_url_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XROUTER_MAVEN_REPOSITORY", "over there")
    with pytest.raises(ResolutionError, match="XROUTER_MAVEN_REPOSITORY"):
        resolve_jars(request_for(APP), tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_named(repository: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(ResolutionError, match="cannot store"):
        resolve_jars(request_for(APP), blocked / "cache")


def test_the_digest_depends_on_every_member() -> None:
    requests = [JarRequest((APP,)), JarRequest((APP,), overrides=(APP,)), JarRequest((APP,), excludes=("org.host",))]
    assert len({request.digest for request in requests}) == 3
    assert JarRequest((APP,)).digest == requests[0].digest


@pytest.mark.slow
def test_the_manifest_tells_what_the_folder_is_for(repository: Path, tmp_path: Path) -> None:
    folder = resolve_jars(request_for(APP), tmp_path / "cache")[0].parent
    assert json.loads((folder / "manifest.json").read_text())["request"]["excludes"] == ["org.host"]


def test_a_coordinate_is_named_as_builds_write_it() -> None:
    assert str(APP) == "org.example:app:1.0"


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XROUTER_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "xrouter"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "xrouter"
    monkeypatch.setenv("XROUTER_CACHE", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"
