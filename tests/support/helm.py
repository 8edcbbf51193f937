"""Helm itself for tests of the chart, built by Go from the modules that ``charts/go.sum`` names by SHA-256.

Run as a module it builds it, which takes minutes; later runs work offline and at once. What Helm makes is held against
Kubernetes' own schemas, unknown fields refused, as kubeconform does; they are a package of the development environment,
since those that kubeconform reads are on no registry of packages.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from bindings.private_files import hold_lock
from router.spark.connectors import cache_root

CHART: Final = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "xrouter"
MODULE: Final = Path(__file__).resolve().with_name("charts")
HELM: Final = "helm.sh/helm/v3/cmd/helm"
OPERATOR_KINDS: Final = ("ServiceMonitor", "PrometheusRule")
"""Of the Prometheus operator; no schema of theirs is at hand."""
OLDEST_GO: Final = 21
NEWEST: Final = "1.37"
PLACE: Final = ("--namespace", "flows", "--kube-version", NEWEST)
"""Where a release is meant to go: there is no cluster to ask."""
_NEEDED: Final = "Helm is built with Go 1.21 or later, which is missing: install it"
_BUILD_SECONDS: Final = 1800.0


class HelmError(Exception):
    """Helm refused; the message is what it said."""


@cache
def program() -> Path:
    """Return the program, built when the cache lacks it.

    Without a Go that can build it the test is skipped.
    """
    go = shutil.which("go")
    pins = b"".join((MODULE / name).read_bytes() for name in ("go.mod", "go.sum"))
    root = cache_root() / "charts"
    folder = root / hashlib.sha256(pins).hexdigest()[:20]
    root.mkdir(parents=True, exist_ok=True)
    with hold_lock(root / ".lock"):
        if not folder.exists():
            if go is None or not _new_enough(go):
                pytest.skip(_NEEDED)
            _build(go, folder)
    return folder / "helm"


def _new_enough(go: str) -> bool:
    told = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, timeout=60).stdout
    release = re.match(r"go1\.(\d+)", told)
    return release is not None and int(release[1]) >= OLDEST_GO


def _build(go: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
        command = [go, "build", "-mod=readonly", "-buildvcs=false", "-ldflags=-s -w", "-o", f"{fresh}/made/", HELM]
        done = subprocess.run(command, cwd=MODULE, capture_output=True, text=True, timeout=_BUILD_SECONDS)
        assert done.returncode == 0, f"Helm cannot be built:\n{done.stderr[-3000:]}"
        Path(fresh, "made").rename(folder)


def helm(*arguments: str | Path) -> str:
    """Run Helm without a cluster, and return its standard output.

    Raises:
        HelmError: it ended with an error.
    """
    command = [program(), *arguments]
    with tempfile.TemporaryDirectory() as home:
        environ = {"PATH": os.environ["PATH"], "HOME": home}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise HelmError(done.stderr + done.stdout)
    return done.stdout


def rendered(*values: Path, release: str = "garden", **given: Any) -> list[dict[str, Any]]:
    """Return the objects of a release in namespace ``flows``; *given* are more values, over those of the files."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as more:
        yaml.safe_dump(given, more)
        more.flush()
        files = [word for path in (*values, Path(more.name)) for word in ("--values", str(path))]
        text = helm("template", release, CHART, *PLACE, *files)
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of one kind by name."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def pods(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the template of the pods of each workload, with its name."""
    for each in objects:
        if each["kind"] in ("StatefulSet", "Deployment"):
            yield each["metadata"]["name"], each["spec"]["template"]


def conforms(objects: list[dict[str, Any]], version: str) -> None:
    """Assert that the objects are what a Kubernetes of that version takes, and that it knows all their fields."""
    for each in objects:
        if each["kind"] not in OPERATOR_KINDS:
            try:
                kubernetes_validate.validate(each, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                where = "/".join(map(str, error.path))
                raise AssertionError(f"{each['kind']} {each['metadata']['name']}: {where}: {error.message}") from error


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a container whose values the chart gives."""
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def main() -> int:
    """Build it and say where it is."""
    sys.stdout.write(f"{program()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
