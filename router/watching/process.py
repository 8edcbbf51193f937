"""What the router's processes are and take: the program's version, processor time, memory and descriptors."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from router.judging.plan import VERSION
from router.watching.status import Status


def watch_process(registry: CollectorRegistry) -> None:
    """Add what there is to know of this process."""
    build = Gauge("xrouter_build_info", "The router's version, always 1.", ("version", "python"), registry=registry)
    build.labels(VERSION, platform.python_version()).set(1)
    ProcessCollector(registry=registry)


def watch_jvm(registry: CollectorRegistry, pid: int) -> None:
    """Add what the JVM of Spark takes, for as long as it lives."""
    ProcessCollector(namespace="xrouter_jvm", pid=lambda: pid, registry=registry)


class DiskCollector(Collector):
    """The size of the disks that *folders* lie on, which need not exist yet, and how much of it is free."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Tell the registry the names, which it then keeps others from taking."""
        yield from self._families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Look at the disks; one that cannot be asked has no figures."""
        free, size = self._families()
        for key, folder in self._folders.items():
            with suppress(OSError):
                usage = shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists()))
                free.add_metric([key], usage.free)
                size.add_metric([key], usage.total)
        yield free
        yield size

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        text = "Free bytes of the disk of the state, or of a sink's folder, by its key of the settings."
        free = GaugeMetricFamily("xrouter_disk_free_bytes", text, labels=["disk"])
        return free, GaugeMetricFamily("xrouter_disk_size_bytes", "All bytes of that disk.", labels=["disk"])


class StatusCollector(Collector):
    """What ``/readyz`` says, as metrics."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Tell the registry the names, which it then keeps others from taking."""
        yield from self._families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Give the current state."""
        good, answer = self._status.ready()
        ready, connected, accepting = self._families()
        ready.add_metric([], good)
        for name, gateway in answer["gateways"].items():
            connected.add_metric([name], gateway["up"])
        if answer["inbox"]["accepting"] is not None:
            accepting.add_metric([], answer["inbox"]["accepting"])
        yield ready
        yield connected
        yield accepting

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        ready = GaugeMetricFamily("xrouter_ready", "Whether records are taken and written, as /readyz says.")
        text = "Whether a gateway takes messages; brokers' are named by their endpoints."
        connected = GaugeMetricFamily("xrouter_gateway_connected", text, labels=["gateway"])
        text = "Whether the inbox accepts messages; while it does not, gateways push back, and HTTP answers 503."
        return ready, connected, GaugeMetricFamily("xrouter_inbox_accepting", text)
