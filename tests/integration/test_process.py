"""The processes of a router, seen from outside: where they look for modules, their arguments, and who may read what."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support import plain
from tests.support.ports import free_ports
from tests.support.processes import below, command_of
from tests.support.router import RouterProcess, submit_options
from tests.support.waiting import wait_until

SECONDS: Final = 300.0
XROUTER: Final = Path(sys.executable).with_name("xrouter")
SHADOWS: Final = ("router", "catalog", "json", "sitecustomize", "typer", "pyarrow")
PACKAGES: Final = ("bindings", "pyspark")
TRAP: Final = "open(__file__ + '.ran', 'w').close()\nraise SystemExit('a module of the working directory ran')\n"
SECRET: Final = "s3cr3t-of-this-test"
CONF: Final = {
    "spark.hadoop.fs.s3a.secret.key": f'{SECRET}-1 with "quotes", \\ and ü=#!\t€',
    "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 '-Djavax.net.ssl.trustStorePassword={SECRET}-2 \"x\"'",
    "spark.driver.defaultJavaOptions": f"-Djavax.net.ssl.keyStorePassword={SECRET}-3",
    "spark.ssl.keyPassword": f"{SECRET}-4",
}


CATALOG: Final = plain.catalog({"door": plain.endpoint("HTTP", {"path": "/events"}, "g")}, g={"m": plain.event("made")})


@dataclass(frozen=True, slots=True)
class Seen:
    """One router that took a record while it had secrets, traps in its working directory, and state open to all."""

    folder: Path
    arguments: dict[int, str]
    """The arguments of each of its processes, by id."""
    log: str


def set_traps(folder: Path) -> None:
    """Fill a folder with modules that must not run, named like ours, like those of libraries, and like Python's."""
    folder.mkdir()
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(TRAP)
    for name in PACKAGES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(TRAP)


def settings_with_secrets(folder: Path, port: int) -> dict[str, object]:
    return plain.routed(
        plain.write(folder, CATALOG),
        plain.lines(folder, "lines", "dead") | plain.tables(folder, "table"),
        http={"port": port},
        spark={"conf": {name: f"${{TEST_CONF_{number}}}" for number, name in enumerate(CONF)}},
    )


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("process")
    (port,) = free_ports(1)
    router = RouterProcess(folder, settings_with_secrets(folder, port))
    router.script, router.cwd, router.umask = folder / "xrouter", folder / "traps", 0
    # As an installer writes it, whatever this environment was installed from.
    router.script.write_text(f"#!{sys.executable}\nfrom xrouter.__main__ import main\nmain()\n")
    router.script.chmod(0o755)
    set_traps(folder / "traps")
    (folder / "traps" / "named").mkdir()
    for name in ("router", "catalog", "bindings", "registry"):
        (folder / "traps" / "named" / f"{name}.py").write_text(TRAP)
    state = folder / "state"
    (state / "checkpoints" / "earlier").mkdir(parents=True)
    state.chmod(0o777)
    (state / "checkpoints" / "earlier" / "offsets").write_text("")
    (state / "checkpoints" / "earlier" / "offsets").chmod(0o666)
    try:
        told = {f"TEST_CONF_{number}": value for number, value in enumerate(CONF.values())}
        path = {"PYTHONPATH": str(folder / "traps" / "named")}
        router.start(environ={**told, **path, **submit_options()})
        plain.post(port, "/events", {}, **plain.http_headers("made"))
        wait_until(lambda: (folder / "table").exists(), SECONDS, lambda: f"the record\n{router.log[-3000:]}")
        arguments = {pid: command_of(pid) for pid in below(router.pid)}
        assert router.stop() == 0, router.log[-3000:]
        yield Seen(folder, arguments, router.log)
    finally:
        router.end()


def modes(folder: Path) -> dict[str, str]:
    """Return the rights that anybody but the owner has below *folder*, where there are some."""
    entries = (folder, *folder.rglob("*"))
    return {str(path): stat.filemode(path.stat().st_mode) for path in entries if path.stat().st_mode & 0o077}


def test_nothing_in_the_working_directory_is_run(seen: Seen) -> None:
    ran = {path.name for path in (seen.folder / "traps").rglob("*.ran")}
    assert not ran, seen.log[-3000:]
    assert any("router.spark.worker_daemon" in arguments for arguments in seen.arguments.values())


def test_no_argument_of_any_process_has_a_secret(seen: Seen) -> None:
    assert any("java" in arguments for arguments in seen.arguments.values())
    assert not [arguments for arguments in seen.arguments.values() if SECRET in arguments]
    assert SECRET not in seen.log
    assert not (seen.folder / "state" / "launch").exists()


def test_state_is_for_its_owner_alone(seen: Seen) -> None:
    written = {path.name for path in (seen.folder / "state").iterdir()}
    assert {"checkpoints", "inbox", "state.db", "lock.jvm"} <= written
    assert modes(seen.folder / "state") == {}


def test_state_that_was_open_is_narrowed_and_told(seen: Seen) -> None:
    [line] = [line for line in seen.log.splitlines() if "accessible to other users" in line]
    assert str(seen.folder / "state") in line and "entries=4" in line


def test_files_of_sinks_are_for_the_group_as_well(seen: Seen) -> None:
    for name in ("lines", "table"):
        for path in (seen.folder / name).rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) == (0o750 if path.is_dir() else 0o640), path


@pytest.mark.full
def test_the_jvm_gets_every_value_as_it_was_written(tmp_path: Path) -> None:
    names = [
        *list(CONF)[:1],
        "spark.ssl.keyPassword",
        "javax.net.ssl.trustStorePassword",
        "javax.net.ssl.keyStorePassword",
    ]
    script = (
        "import json, sys; from pathlib import Path; from router.spark.session import end_jvm, launch_jvm\n"
        "conf, names = json.load(sys.stdin); launch_jvm(conf, Path(sys.argv[1]) / 'a folder')\n"
        "from pyspark import SparkContext; read = SparkContext._jvm.java.lang.System.getProperty\n"
        "print(json.dumps([read(name) for name in names])); end_jvm()"
    )
    command = [sys.executable, "-P", "-c", script, str(tmp_path)]
    done = subprocess.run(
        command, input=json.dumps([CONF, names]), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    first, last = CONF["spark.hadoop.fs.s3a.secret.key"], CONF["spark.ssl.keyPassword"]
    assert json.loads(done.stdout) == [first, last, f'{SECRET}-2 "x"', f"{SECRET}-3"]


@pytest.mark.parametrize("program", [[str(XROUTER)], [sys.executable, "-m", "xrouter"]], ids=["script", "module"])
def test_a_command_looks_for_nothing_in_the_working_directory(program: list[str], tmp_path: Path) -> None:
    set_traps(tmp_path / "traps")
    plain.write(tmp_path, CATALOG)
    done = subprocess.run(
        [*program, "catalog", "list", str(tmp_path / "catalog.json")],
        cwd=tmp_path / "traps",
        env={name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "traps").rglob("*.ran"))
