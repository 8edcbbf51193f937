"""Other versions of Spark, each in an environment of its own that is made once, and programs that run with them.

An environment has what executors have: Spark, and what it needs itself for functions that take Arrow. The program's
Python has the wheel and the other libraries of the tests besides; nothing of the checkout.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from bindings.private_files import hold_lock
from router.spark.connectors import cache_root, fetch_jars
from tests.support.ports import LOOPBACK, free_ports
from tests.support.router import submit_options
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAM: Final = Path(__file__).with_name("spark_program.py")
JARS: Final = Path(__file__).with_name("spark_jars.json")
"""Of Spark 3.5: its Connect server, which later versions have, and the Kafka connector."""
UV: Final = Path(sys.executable).with_name("uv")
SECONDS: Final = 900.0
INSTALLED: Final = "installed"
VERSIONS: Final[Mapping[str, Sequence[str]]] = {
    # The Arrow and pandas of Databricks' runtimes with that Spark.
    "3.5": ("pyspark[connect]==3.5.7", "pyarrow==15.0.2", "numpy==1.26.4", "pandas==2.2.3", "setuptools"),
    "4.0": ("pyspark[connect]==4.0.5", "pyarrow==19.0.1", "pandas==2.2.3"),
    "4.1": ("pyspark[connect]==4.1.4", "pandas==2.3.3"),
}
PACKED: Final = (
    *("annotated_types", "fastavro", "google", "grpc", "grpc_tools", "json_structure"),
    *("jsonschema_rs", "lxml", "msgspec", "prometheus_client", "pydantic", "pydantic_core"),
    *("typing_extensions.py", "typing_inspection", "yaml"),
)
"""What executors need beside the wheel, from the libraries of the tests."""
PACKAGES: Final = ("catalog", "bindings", "registry", "router", "xrouter")


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the sources."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / "sources" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "sources")
    _uv("build", "--wheel", "--no-build-isolation", "--offline", "-o", folder, folder / "sources")
    [wheel] = folder.glob("*.whl")
    return wheel


def pack_wheel(wheel: Path, folder: Path) -> Path:
    """Return the wheel under the name by which Spark puts a file on the path of executors."""
    return Path(shutil.copy(wheel, folder / "xrouter.zip"))


def pack_environment(wheel: Path, folder: Path) -> Path:
    """Return an archive of the wheel and what it needs, for executors with nothing of it."""
    target, archive = folder / "packages", folder / "xrouter_packages.tar.gz"
    _uv("pip", "install", "--offline", "--no-deps", "--target", target, wheel)
    libraries = Path(sysconfig.get_path("purelib"))
    for name in PACKED:
        copy = shutil.copytree if (libraries / name).is_dir() else shutil.copy
        copy(libraries / name, target / name)
    with tarfile.open(archive, "w:gz", compresslevel=1) as file:
        file.add(target, ".")
    return archive


def spark_environment(version: str) -> Path:
    """Return the folder of an environment with that Spark, made if it is not there; half a gigabyte each."""
    wanted = VERSIONS[version]
    folder = cache_root() / "sparks" / hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:20]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder.parent / ".lock"):
        if not (folder / "installed").exists():
            _uv("venv", "--clear", folder)
            _uv("pip", "install", "--python", folder / "bin" / "python", *wanted)
            (folder / "installed").touch()
    return folder


@dataclass(frozen=True, slots=True)
class SparkProgram:
    """A Python for the program, one for executors, the home of Spark, and the jars that it needs besides."""

    python: Path
    executors: Path
    spark: Path
    jars: Sequence[Path] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def create(cls, version: str, wheel: Path, folder: Path) -> SparkProgram:
        """Make both; that of the executors does not have the wheel."""
        libraries = Path(sysconfig.get_path("purelib"))
        if version == INSTALLED:
            spark, executors = libraries, _make_python(folder / "executors", [libraries])
        else:
            environment = spark_environment(version)
            [spark] = environment.glob("lib/python*/site-packages")
            executors = environment / "bin" / "python"
        python = _make_python(folder / "program", [spark, libraries])
        _uv("pip", "install", "--offline", "--no-deps", "--python", python, wheel)
        jars = fetch_jars(JARS) if version == "3.5" else ()
        return cls(python, executors, spark / "pyspark", jars, submit_options() if version == INSTALLED else {})

    def run(self, program: Path, *arguments: str | Path, conf: Mapping[str, str], cwd: Path) -> None:
        """Run a program to its end; its options of ``spark-submit`` are *conf*.

        Raises:
            AssertionError: it failed; what it wrote is the message, without the JVM's traces.
        """
        log = cwd / "log"
        with log.open("w") as file:
            process = self.start(program, *arguments, conf=conf, cwd=cwd, log=file)
            failed = process.wait(SECONDS)
        if failed:
            raise AssertionError(_said(log))

    def start(
        self, program: Path, *arguments: str | Path, conf: Mapping[str, str], cwd: Path, log: IO[str]
    ) -> subprocess.Popen[bytes]:
        """Start a program, whose output goes to *log*."""
        command = (self.python, "-P", program, *arguments)
        options = " ".join([*self._options(conf), "pyspark-shell"])
        return self._start(command, cwd, log, {"PYSPARK_SUBMIT_ARGS": options})

    @contextmanager
    def connect_server(self, cwd: Path) -> Iterator[str]:
        """Yield the address of a Connect server that is ended afterwards."""
        (port,) = free_ports(1)
        conf = {"spark.master": "local[2]", "spark.connect.grpc.binding.port": str(port)}
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        submit = self.spark / "bin" / "spark-submit"
        command = ["sh", str(submit), "--class", server, *self._options(conf), "spark-internal"]
        log = cwd / "server.log"
        with log.open("w") as file:
            process = self._start(command, cwd, file, {"SPARK_HOME": str(self.spark)})
        try:
            wait_until(lambda: _listens(port) or process.poll() is not None, SECONDS, lambda: _said(log))
            assert process.poll() is None, _said(log)
            yield f"sc://{LOOPBACK}:{port}"
        finally:
            process.terminate()
            process.wait(SECONDS)

    def _options(self, conf: Mapping[str, str]) -> list[str]:
        told = {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.ui.enabled": "false",
            **({"spark.jars": ",".join(map(str, self.jars))} if self.jars else {}),
            **conf,
        }
        return [word for name, value in told.items() for word in ("--conf", f"{name}={value}")]

    def _start(
        self, command: Sequence[str | Path], cwd: Path, log: IO[str], more: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        gone = ("PYTHON", "PYSPARK_", "VIRTUAL_ENV", "SPARK_", "XROUTER_")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(gone)} | dict(self.environ)
        pythons = {"PYSPARK_PYTHON": str(self.executors), "PYSPARK_DRIVER_PYTHON": str(self.python)}
        return subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            env={**environ, **pythons, **more},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((LOOPBACK, port)) == 0


def _said(log: Path) -> str:
    """Return the end of what a program wrote, without the JVM's traces."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if "\tat " not in line]
    return "\n".join(lines)[-9000:]


def _make_python(folder: Path, searched: Sequence[Path]) -> Path:
    """Return the Python of a new environment with the libraries of some folders, without what their .pth files name."""
    _uv("venv", "--offline", folder)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text("".join(f"{each}\n" for each in searched))
    return folder / "bin" / "python"


def _uv(command: str, *words: str | Path) -> None:
    python = () if "--python" in words or command == "pip" else ("--python", sys.executable)
    told = [str(word) for word in (UV, command, *words, *python, "--quiet")]
    done = subprocess.run(told, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(told)}:\n{done.stderr[-2000:]}")
