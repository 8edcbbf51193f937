"""The router's own code on its way to executors: an archive of the installed packages, unpacked there by Spark.

Spark unpacks it, since some modules read files that lie beside them and cannot do so from a zip. The packages that
ours need contain native code, so executors must have them already (:mod:`router.spark.executors`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zipfile import ZIP_DEFLATED, ZipFile

import bindings
import catalog
import router
from bindings.private import private_folder
from router.spark.installed import ROUTER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER: Final = "code"
"""In the state folder; executors fetch the archive from there for as long as the session lives."""
_UNPACKED: Final = "xrouter-code"
_PACKAGES: Final = (catalog, bindings, router)


def ship_code(spark: SparkSession, state: Path) -> None:
    """Have every executor, also one that comes later, import the router's packages as they are here.

    Raises:
        OSError: the archive cannot be written into the state folder.
    """
    folder = state / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    private_folder(folder)
    archive = folder / f"{_UNPACKED}.zip"
    write_archive(archive)
    context = spark.sparkContext
    context.addArchive(f"{archive}#{_UNPACKED}")
    # Workers put what is named here in front of their path, below the folder that archives are unpacked in.
    context._python_includes = [*(context._python_includes or ()), _UNPACKED]


def write_archive(archive: Path) -> None:
    """Write the packages, and what says their version, into a zip."""
    installed = distribution(ROUTER)
    with ZipFile(archive, "x", ZIP_DEFLATED) as target:
        for name, file in _files():
            target.write(file, name)
        about = f"{ROUTER.replace('-', '_')}-{installed.version}.dist-info"
        target.writestr(
            f"{about}/METADATA", installed.read_text("METADATA") or f"Name: {ROUTER}\nVersion: {installed.version}\n"
        )


def _files() -> Iterator[tuple[str, Path]]:
    """Yield the files of all packages, with their names below the folder that the packages are in."""
    for package in _PACKAGES:
        root = Path(package.__path__[0])
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file.relative_to(root.parent).as_posix(), file
