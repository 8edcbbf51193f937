"""What the router's processes are and take: the program's version, processor time, memory and descriptors."""

from __future__ import annotations

import platform
from collections.abc import Iterator

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
        ready, connected = self._families()
        ready.add_metric([], good)
        for name, gateway in answer["gateways"].items():
            connected.add_metric([name], gateway["up"])
        yield ready
        yield connected

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        ready = GaugeMetricFamily("xrouter_ready", "Whether records are taken and written, as /readyz says.")
        text = "Whether a gateway takes messages; brokers' are named by their endpoints."
        return ready, GaugeMetricFamily("xrouter_gateway_connected", text, labels=["gateway"])
