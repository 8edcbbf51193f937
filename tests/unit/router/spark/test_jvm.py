"""What the JVM prints while it starts, where lines are handed on: nothing waits for it, and nothing of it is lost."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from zipfile import ZipFile

import pyspark.util
import pytest
from pyspark.serializers import CloudPickleSerializer

from router.spark.executors import ROUTER, find_differences, find_versions, list_needed_packages, write_archive
from router.spark.session import silence_pyspark

SECONDS: Final = 60.0
LINES: Final = 3000
"""More of them than a pipe holds."""
SUBMIT: Final = f"""#!/bin/sh
i=0
while [ $i -lt {LINES} ]; do echo "line $i of those that say why it does not start" >&2; i=$((i+1)); done
exit 1
"""
START: Final = """
import sys
from pathlib import Path
from pyspark.errors import PySparkRuntimeError
from router.logs import configure_logs
from router.settings import LogSettings
from router.spark.session import launch_jvm
configure_logs(LogSettings(format="json"))
try:
    launch_jvm({}, Path(sys.argv[1]), relayed=True)
except PySparkRuntimeError:
    print("ended")
"""


@pytest.mark.slow
def test_a_start_that_prints_much_and_fails_is_told_whole(tmp_path: Path) -> None:
    program = tmp_path / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(SUBMIT)
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-P", "-c", START, str(tmp_path / "state")],
        env={**os.environ, "SPARK_HOME": str(tmp_path / "spark")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.stdout == "ended\n", done.stderr[-3000:]
    printed = [json.loads(line) for line in done.stderr.splitlines()]
    told = [event["line"] for event in printed if event["event"] == "printed by the JVM"]
    assert told == [f"line {number} of those that say why it does not start" for number in range(LINES)]


# What pyspark prints past the logs when the JVM has gone: nothing.


class OfTheJvm:
    """Asks a JVM that is gone for its number, as a broadcast does."""

    def __reduce__(self) -> str:
        raise ConnectionResetError("the JVM is gone")


def pickled(value: object) -> Any:
    serializer: Any = CloudPickleSerializer()
    return serializer.dumps(value)


def test_pickling_what_needs_the_jvm_raises_and_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pyspark.util, "print_exec", pyspark.util.print_exec)
    with pytest.raises(pickle.PicklingError):
        pickled(OfTheJvm())
    assert "Traceback" in capfd.readouterr().err

    silence_pyspark(SimpleNamespace(_accumulatorServer=SimpleNamespace()))
    with pytest.raises(pickle.PicklingError, match="the JVM is gone"):
        pickled(OfTheJvm())
    assert capfd.readouterr() == ("", "")


# The archive that executors get: whole, and enough for another Python to import the router from.


@pytest.mark.slow
def test_the_router_is_imported_out_of_the_archive_alone(tmp_path: Path) -> None:
    write_archive(tmp_path / "code.zip")
    with ZipFile(tmp_path / "code.zip") as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "code")
    assert not [name for name in names if "__pycache__" in name]
    script = (
        "import sys, router.evaluation.plan, catalog.protocols.properties as options\n"
        "assert options.channel_options('KAFKA')\n"
        "print(router.__file__, router.evaluation.plan.VERSION)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'code')!r})\n{script}"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    file, version = done.stdout.split()
    assert Path(file).is_relative_to(tmp_path / "code")
    assert version == find_versions([ROUTER])[ROUTER]


def test_packages_are_compared_by_name() -> None:
    assert {"pyarrow", "deltalake", "pyspark"} <= set(list_needed_packages())
    assert not {"pytest", "ruff"} & set(list_needed_packages())
    here = find_versions(list_needed_packages())
    assert all(here.values())
    assert not find_differences(here, find_versions(list_needed_packages()))
    there = {**here, "pyarrow": "1.0", "msgspec": ""}
    said = find_differences(here, there)
    assert said == [f"no msgspec (here {here['msgspec']})", f"pyarrow 1.0 (here {here['pyarrow']})"]
    assert not find_differences(find_versions([]), find_versions(["no-such-package"]))
