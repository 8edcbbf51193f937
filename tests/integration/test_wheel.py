"""The wheel in an environment of its own, in a folder without the checkout: what is installed is all that it needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.ports import LOOPBACK, free_ports
from tests.support.router import submit_options
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("catalog", "bindings", "registry", "router")
UV: Final = Path(sys.executable).with_name("uv")
BUILD: Final = ("--quiet", "--wheel", "--no-build-isolation", "--offline")
SECONDS: Final = 500.0


def run(*command: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**clean(), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def clean() -> dict[str, str]:
    """Return the variables of the tests without those that lead Python or the router anywhere."""
    gone = ("PYTHON", "VIRTUAL_ENV", "XROUTER_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(gone) or name == "XROUTER_CACHE"}
    return {**kept, **submit_options()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("sources")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    out = tmp_path_factory.mktemp("wheel")
    run(UV, "build", *BUILD, "--python", sys.executable, "-o", out, folder, cwd=folder)
    [path] = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def xrouter(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``xrouter`` of a new environment: the wheel, and the libraries of the tests without the checkout among them."""
    folder = tmp_path_factory.mktemp("environment")
    run(UV, "venv", "--quiet", "--offline", "--python", sys.executable, folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", python, wheel, cwd=folder)
    [site] = (folder / "env" / "lib").glob("python*/site-packages")
    # A folder named by a .pth file has its own .pth files left alone, such as that of the editable checkout.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-P", "-c", "import router, registry; print(router.__file__, registry.__file__)", cwd=folder)
    assert where.stdout.count(str(site)) == 2
    return python.with_name("xrouter")


@pytest.fixture
def nowhere(tmp_path: Path) -> Iterator[Path]:
    """A folder without the checkout, in it or above it."""
    yield tmp_path
    assert not any((folder / "router").exists() for folder in (tmp_path, *tmp_path.parents))


@pytest.mark.slow
def test_every_file_of_the_packages_is_in_it(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    for name in PACKAGES:
        files = (path for path in (ROOT / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        assert {path.relative_to(ROOT).as_posix() for path in files} <= packed


@pytest.mark.slow
def test_what_starts_no_spark_works(xrouter: Path, nowhere: Path) -> None:
    told = run(xrouter, "init", "garden", "--http", "--mqtt", cwd=nowhere).stdout
    assert "xrouter check catalog.xreg.json --config router.yaml" in told
    garden = nowhere / "garden"
    checked = run(xrouter, "check", "catalog.xreg.json", "--config", "router.yaml", cwd=garden)
    assert checked.stdout == "0 errors, 0 warnings, 0 infos\n"
    native = {"method": "POST", "path": "/beds/7/moisture"}
    record = {"endpoint": "/endpoints/garden-http", "protocol": "HTTP", "native": native, "body": '{"percent": 41}'}
    expect = {"outcome": "routed", "context": {"bed": "7"}, "route": 0, "sinks": ["events"]}
    cases = {"config": "router.yaml", "cases": [{"record": record, "expect": expect}]}
    (garden / "garden.cases.json").write_text(json.dumps(cases))
    assert "1 of 1 case passed" in run(xrouter, "test", "garden.cases.json", cwd=garden).stdout
    (garden / "registry.yaml").write_text("open: true\n")
    run(xrouter, "registry", "import", "registry.yaml", "catalog.xreg.json", cwd=garden)
    assert "garden-http" in run(xrouter, "registry", "export", "registry.yaml", cwd=garden).stdout


@pytest.mark.full
@pytest.mark.timeout(SECONDS + 60)
def test_what_init_writes_runs(xrouter: Path, nowhere: Path) -> None:
    assert run(xrouter, "--version", cwd=nowhere).stdout.startswith("xrouter ")
    assert run(xrouter, "check", "--explain", "all", cwd=nowhere).stdout
    assert "doctor" in run(xrouter, "--help", cwd=nowhere).stdout
    run(xrouter, "init", cwd=nowhere)
    assert "/endpoints/garden" in run(xrouter, "routes", "router.yaml", cwd=nowhere).stdout
    http, metrics = free_ports(2)
    ports = {"XROUTER_HTTP__PORT": str(http), "XROUTER_METRICS__PORT": str(metrics)}
    log = nowhere / "log"
    with log.open("w") as file:
        router = subprocess.Popen(
            [xrouter, "run", "router.yaml"],
            cwd=nowhere,
            env={**clean(), **ports},
            stdin=subprocess.DEVNULL,
            stderr=file,
        )
    try:

        def ready() -> bool:
            assert router.poll() is None, log.read_text()[-3000:]
            try:
                return httpx.get(f"http://{LOOPBACK}:{metrics}/readyz").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(ready, SECONDS, lambda: log.read_text()[-3000:])
        headers = {"content-type": "application/json"}
        for path in ("/beds/7/moisture", "/beds/7/slugs"):
            answer = httpx.post(f"http://{LOOPBACK}:{http}{path}", content=b'{"percent": 41}', headers=headers)
            assert answer.status_code == 202
        wait_until(
            lambda: (
                httpx.get(f"http://{LOOPBACK}:{metrics}/metrics").text.count('outcome="dead-letter",reason="no-match"')
                > 0
            ),
            SECONDS,
            lambda: log.read_text()[-3000:],
        )
    finally:
        router.terminate()
        assert router.wait(SECONDS) == 0, log.read_text()[-3000:]
    letters = run(xrouter, "dead-letters", "list", "router.yaml", cwd=nowhere, **ports).stdout
    assert "no-match\t1" in letters


@pytest.mark.full
@pytest.mark.timeout(SECONDS + 60)
def test_the_demo_runs(xrouter: Path, nowhere: Path) -> None:
    assert "416 in = 400 routed + 16 dead-lettered: adds up" in run(xrouter, "demo", cwd=nowhere).stdout
