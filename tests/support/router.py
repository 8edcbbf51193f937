"""A real router process: started as a user starts it, killed as only tests dare."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.ports import free_ports
from tests.support.router_archive import router_options
from tests.support.waiting import wait_until

START_SECONDS: Final = 300.0
STOP_SECONDS: Final = 300.0


class RouterProcess:
    """``xrouter run`` (or another service) on a settings file in *folder*; logs go to ``router.log`` there."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, command: str = "run") -> None:
        self.folder = folder
        self.command = command
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_ports(1)[0]
        self.config = folder / "router.yaml"
        self.configure(settings)
        self.module: tuple[str, ...] = ("router",)
        self.script: Path | None = None
        """What to run instead of the module."""
        self.cwd: Path | None = None
        self.umask = -1
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Write the settings; they count at the next start."""
        told = {"metrics": {"port": self.port}, "state": str(self.folder / "state"), **settings}
        spark = dict(told.get("spark", {}))
        conf = dict(spark.get("conf", {}))
        if "spark.driver.extraJavaOptions" not in conf:
            conf["spark.driver.extraJavaOptions"] = router_options()
        spark["conf"] = conf
        self.config.write_text(yaml.safe_dump({**told, "spark": spark}))

    @property
    def ended(self) -> int | None:
        """The exit code of the router that was started last; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    @property
    def log(self) -> str:
        """What the router has written so far, over all its starts."""
        path = self.folder / "router.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *arguments: str, environ: Mapping[str, str] | None = None) -> RouterProcess:
        """Start it and wait until it is ready."""
        self.launch(*arguments, environ=environ)
        wait_until(self._ready_or_dead, START_SECONDS, lambda: f"the router to be ready; log:\n{self.log[-3000:]}")
        return self

    @property
    def pid(self) -> int:
        """The process's id; it has one once it was started."""
        assert self._process is not None
        return self._process.pid

    def launch(self, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
        """Start it and do not wait; ``cwd`` and ``umask`` are those of the tests unless they were set."""
        program = [sys.executable, "-m", *self.module] if self.script is None else [str(self.script)]
        with (self.folder / "router.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*program, self.command, str(self.config), *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=self.cwd,
                umask=self.umask,
                env={**os.environ, **(environ or {})},
            )

    def kill(self) -> None:
        """SIGKILL, as the kernel or a power cut would; the JVM notices by itself."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_SECONDS)

    def stop(self) -> int:
        """SIGTERM, wait for the drain, return the exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def interrupt(self) -> int:
        """Ctrl-C: SIGINT to the router and all its children, wait for the drain, return the exit code."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGINT)
        return self.wait()

    def hang_up(self) -> int:
        """SIGHUP to the router and all of its process group, as a terminal that closes; return the exit code."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGHUP)
        return self.wait()

    def wait(self, limit: float = STOP_SECONDS) -> int:
        """Wait for the end by itself, return the exit code."""
        assert self._process is not None
        try:
            return self._process.wait(limit)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"the router did not end; log:\n{self.log[-3000:]}") from error

    def end(self) -> None:
        """Make sure that nothing of it is left."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(STOP_SECONDS)

    def metrics(self) -> dict[str, float]:
        """Return all samples by name with labels as Prometheus writes them; empty while it does not answer."""
        try:
            text = self._get("/metrics")
        except OSError:
            return {}
        lines = (line for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def total(self, metric: str, **labels: str) -> float:
        """Return the sum of a metric over all series that have these labels."""
        wanted = [f'{name}="{value}"' for name, value in labels.items()]
        return sum(
            value
            for name, value in self.metrics().items()
            if name.partition("{")[0] == metric and all(label in name for label in wanted)
        )

    def readiness(self) -> dict[str, Any]:
        """Return what /readyz says, ready or not; empty while it does not answer."""
        try:
            told: dict[str, Any] = json.loads(self._get("/readyz"))
        except urllib.error.HTTPError as error:
            told = json.loads(error.read())
        except OSError:
            return {}
        return told

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            content: bytes = answer.read()
            return content.decode()

    def _ready_or_dead(self) -> bool | None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the router ended with {self._process.returncode}; log:\n{self.log[-3000:]}")
        try:
            self._get("/readyz")
        except (OSError, urllib.error.HTTPError):
            return None
        return True
