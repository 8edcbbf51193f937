"""The wheel in an environment of its own, in a folder without the checkout: what is installed is all that it needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

import httpx
import pytest
from packaging.requirements import Requirement

from tests.support.ports import LOOPBACK, free_ports
from tests.support.router import submit_options
from tests.support.spark_versions import PACKAGES, ROOT, UV, build_wheel
from tests.support.waiting import wait_until

SECONDS: Final = 500.0


PROGRAM: Final = """
import xrouter

catalog = xrouter.load("garden.xreg.json", {"messagegroups": {}})
outcome: xrouter.MatchOutcome = catalog.match({"protocol": "KAFKA"}, endpoint="/endpoints/e")
names: list[str] = [each.xid for each in catalog.definitions.values()]
told: str = outcome.explain()
event: dict[str, object] = outcome.to_cloudevent()
found = [each.severity for each in catalog.check()]
reveal_type(catalog)
told.matches("")
outcome.message = ""
"""
EXPECTED: Final = [
    'note: Revealed type is "xrouter.matching.LoadedCatalog"',
    'error: "str" has no attribute "matches"  [attr-defined]',
    'error: Property "message" defined in "MatchOutcome" is read-only  [misc]',
]


def run(
    *command: str | Path, cwd: Path, input: str = "", status: int = 0, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=clean() | dict(environ or {}),
        input=input,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == status, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def clean() -> dict[str, str]:
    """Return the variables of the tests without those that lead Python or the router anywhere."""
    gone = ("PYTHON", "VIRTUAL_ENV", "XROUTER_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(gone) or name == "XROUTER_CACHE"}
    return {**kept, **submit_options()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def xrouter(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``xrouter`` of a new environment: the wheel, and the libraries of the tests without the checkout among them."""
    folder = tmp_path_factory.mktemp("environment")
    python, site = new_environment(folder, wheel)
    # A folder named by a .pth file has its own .pth files left alone, such as that of the editable checkout.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-P", "-c", "import router, registry; print(router.__file__, registry.__file__)", cwd=folder)
    assert where.stdout.count(str(site)) == 2
    return python.with_name("xrouter")


def new_environment(folder: Path, wheel: Path) -> tuple[Path, Path]:
    """Install the wheel alone into a new environment; return its Python and its folder of packages."""
    run(UV, "venv", "--quiet", "--offline", "--python", sys.executable, folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", python, wheel, cwd=folder)
    [site] = (folder / "env" / "lib").glob("python*/site-packages")
    return python, site


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``xrouter`` of a new environment with the libraries that the wheel needs without extras."""
    return environment_with(wheel, tmp_path_factory.mktemp("base"))


def environment_with(wheel: Path, folder: Path, *extras: str) -> Path:
    """Return ``xrouter`` of a new environment with the libraries that the wheel needs with these extras alone."""
    python, site = new_environment(folder, wheel)
    installed = Path(sysconfig.get_path("purelib"))
    [info] = site.glob("xregistry_router-*.dist-info")
    for name in needed_names(Distribution.at(info).requires or (), extras) - {"xregistry-router"}:
        for top in {Path(file).parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(installed / top)
    return python.with_name("xrouter")


def needed_names(requires: Sequence[str], extras: Collection[str] = ()) -> set[str]:
    """Return the distributions that these requirements name, with all that they need themselves."""
    wanted = [each for each in map(Requirement, requires) if _is_wanted(each, extras)]
    names = {each.name for each in wanted}
    return names.union(*(needed_names(distribution(each.name).requires or (), each.extras) for each in wanted))


def _is_wanted(each: Requirement, extras: Collection[str]) -> bool:
    return each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in (*extras, ""))


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
    told = run(xrouter, "init", "other", cwd=nowhere).stdout
    assert "xrouter check catalog.xreg.json --config router.yaml" in told
    garden = write_case(xrouter, nowhere)
    (garden / "registry.yaml").write_text("open: true\n")
    run(xrouter, "registry", "import", "registry.yaml", "catalog.xreg.json", cwd=garden)
    assert "garden-http" in run(xrouter, "registry", "export", "registry.yaml", cwd=garden).stdout


def write_case(xrouter: Path, folder: Path) -> Path:
    """Write a project with ``xrouter init``, and a case; return its folder."""
    run(xrouter, "init", "garden", "--http", "--mqtt", cwd=folder)
    garden = folder / "garden"
    native = {"method": "POST", "path": "/beds/7/moisture"}
    record = {"endpoint": "/endpoints/garden-http", "protocol": "HTTP", "native": native, "body": '{"percent": 41}'}
    expect = {"outcome": "routed", "context": {"bed": "7"}, "route": 0, "sinks": ["events"]}
    (garden / "garden.cases.json").write_text(
        json.dumps({"config": "router.yaml", "cases": [{"record": record, "expect": expect}]})
    )
    (garden / "records").write_text(json.dumps(record))
    return garden


def use_base(xrouter: Path, folder: Path) -> None:
    """Use what the wheel does without extras, and ask for what it does not."""
    garden = write_case(xrouter, folder)
    checked = run(xrouter, "check", "catalog.xreg.json", "--config", "router.yaml", cwd=garden)
    assert checked.stdout == "0 errors, 0 warnings, 0 infos\n"
    assert "1 of 1 case passed" in run(xrouter, "test", "garden.cases.json", cwd=garden).stdout
    chosen = ("--catalog", "catalog.xreg.json")
    emitted = run(xrouter, "emit", *chosen, "--message", "Garden.Http.Moisture", "--context", "bed=7", cwd=garden)
    for record in (emitted.stdout, (garden / "records").read_text()):
        matched = json.loads(run(xrouter, "match", *chosen, cwd=garden, input=record).stdout)
        assert matched["outcome"] == "routed"
    python = xrouter.with_name("python")
    script = "import xrouter; print(*xrouter.load('catalog.xreg.json').definitions)"
    assert "Garden.Http.Moisture" in run(python, "-c", script, cwd=garden).stdout
    needs = r"\w+ is not installed, which this needs: pip install 'xregistry-router\[(\w+)\]'"
    for extra, *command in (("spark", "run", "router.yaml"), ("registry", "registry", "serve", "registry.yaml")):
        said = re.fullmatch(f"xrouter: error: {needs}\n", run(xrouter, *command, cwd=garden, status=2).stderr)
        assert said is not None and said[1] == extra
    last = run(python, "-c", "import catalog.schemas.protobuf.protoc", cwd=garden, status=1).stderr.splitlines()[-1]
    assert last == f"catalog.extras.MissingExtraError: {last.partition(': ')[2]}" and re.search(needs, last)


@pytest.mark.slow
def test_what_needs_no_extra_works_without(base: Path, nowhere: Path) -> None:
    use_base(base, nowhere)


@pytest.mark.slow
def test_a_registry_needs_its_extra_alone(wheel: Path, tmp_path: Path) -> None:
    xrouter = environment_with(wheel, tmp_path, "registry")
    script = "import xrouter, registry.http.server, router.commands.registry.serve"
    run(xrouter.with_name("python"), "-c", script, cwd=tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("installer", ["pip", "uv tool", "pipx"])
def test_the_wheel_alone_is_installed_by(installer: str, wheel: Path, nowhere: Path) -> None:
    bins = nowhere / "bin"
    if installer == "pip":
        run(sys.executable, "-m", "venv", nowhere / "env", cwd=nowhere)
        run(nowhere / "env" / "bin" / "python", "-m", "pip", "install", "--quiet", wheel, cwd=nowhere)
        bins = nowhere / "env" / "bin"
    elif installer == "uv tool":
        folders = {"UV_TOOL_DIR": str(nowhere / "tools"), "UV_TOOL_BIN_DIR": str(bins)}
        run(UV, "tool", "install", wheel, cwd=nowhere, environ=folders)
    elif (pipx := shutil.which("pipx")) is None:
        pytest.skip("pipx is not there")
    else:
        folders = {"PIPX_HOME": str(nowhere / "tools"), "PIPX_BIN_DIR": str(bins)}
        run(pipx, "install", wheel, cwd=nowhere, environ=folders)
    use_base((bins / "xrouter").resolve(), nowhere)


@pytest.mark.slow
@pytest.mark.parametrize("as_module", [False, True])
def test_modules_of_the_names_of_ours_are_not_taken_for_ours(xrouter: Path, as_module: bool, nowhere: Path) -> None:
    garden = write_case(xrouter, nowhere)
    for name in ("router", "catalog", "registry", "bindings"):
        folder = garden / name if name in ("registry", "bindings") else garden
        folder.mkdir(exist_ok=True)
        (folder / ("__init__.py" if folder != garden else f"{name}.py")).write_text(
            "raise SystemExit('another module')"
        )
    command = [xrouter.with_name("python"), "-m", "xrouter"] if as_module else [xrouter]
    paths: list[dict[str, str]] = [{}, {"PYTHONPATH": str(garden)}]
    for path in paths:
        assert "1 of 1 case passed" in run(*command, "test", "garden.cases.json", cwd=garden, environ=path).stdout


@pytest.mark.slow
def test_a_module_of_such_a_name_that_is_loaded_is_told(xrouter: Path, nowhere: Path) -> None:
    (nowhere / "router.py").write_text("mine = 1")
    said = run(xrouter.with_name("python"), "-c", "import router, xrouter", cwd=nowhere, status=1).stderr
    expected = f"has a package router of its own, but {nowhere / 'router.py'} is loaded by that name: rename it"
    assert said.splitlines()[-1] == f"ImportError: xrouter {expected}"


@pytest.mark.slow
def test_another_project_is_checked_strictly_against_our_types(base: Path, nowhere: Path) -> None:
    (nowhere / "program.py").write_text(PROGRAM)
    options = ("--strict", "--config-file=", "--cache-dir=cache", "--python-executable", base.with_name("python"))
    said = run(sys.executable, "-m", "mypy", *options, "program.py", cwd=nowhere, status=1).stdout
    lines = [line.partition(": ")[2] for line in said.splitlines() if line.startswith("program.py")]
    assert lines == EXPECTED, said


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
    letters = run(xrouter, "dead-letters", "list", "router.yaml", cwd=nowhere, environ=ports).stdout
    assert "no-match\t1" in letters


@pytest.mark.full
@pytest.mark.timeout(SECONDS + 60)
def test_the_demo_runs(xrouter: Path, nowhere: Path) -> None:
    assert "416 in = 400 routed + 16 dead-lettered: adds up" in run(xrouter, "demo", cwd=nowhere).stdout
