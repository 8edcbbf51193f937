"""The class archive of the JVM: made by the demonstration, whole or not at all, and used where it is there."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from router.spark.connectors import class_archive, make_class_archive
from router.spark.session import _JAVA_VARIABLES, _archive_option, _collector_option


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "a cache"
    monkeypatch.setenv("XROUTER_CACHE", str(folder))
    return folder


def run_demo(monkeypatch: pytest.MonkeyPatch, *, dumps: bool) -> None:
    """Put in place of ``xrouter demo`` what leaves the lock of its JVM, and the archive if it *dumps* one."""

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> None:
        state = Path(command[-1]) / "state"
        state.mkdir(parents=True)
        (state / "lock.jvm").touch()
        if dumps:
            Path(shlex.split(env["SPARK_SUBMIT_OPTS"])[0].partition("=")[2]).write_bytes(b"new")

    monkeypatch.setattr(subprocess, "run", run)


def test_an_archive_takes_the_place_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    run_demo(monkeypatch, dumps=True)
    class_archive().parent.mkdir(parents=True)
    class_archive().write_bytes(b"old")
    make_class_archive()
    assert class_archive().read_bytes() == b"new"
    assert list(class_archive().parent.iterdir()) == [class_archive()]


def test_a_java_that_makes_none_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    run_demo(monkeypatch, dumps=False)
    make_class_archive()
    assert not class_archive().exists() and _archive_option({}) == ""


def test_an_archive_is_used_unless_the_settings_name_one() -> None:
    assert _archive_option({}) == ""
    class_archive().parent.mkdir(parents=True)
    class_archive().touch()
    assert _archive_option({}) == f"'-XX:SharedArchiveFile={class_archive()}' -Xlog:cds*=off"
    own = {"spark.driver.extraJavaOptions": "-XX:ArchiveClassesAtExit=/tmp/own.jsa"}
    assert _archive_option(own) == ""


def test_a_collector_of_the_user_stays_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _JAVA_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert _collector_option("-Da=b") == "-XX:+UseParallelGC"
    assert _collector_option("-Da=b -XX:+UseZGC") == ""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseG1GC")
    assert _collector_option("") == ""
