"""The archive that executors get: whole, and enough for another Python to import the router from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from router.spark.executors import ROUTER, find_differences, find_versions, list_needed_packages, write_archive


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
