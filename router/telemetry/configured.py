"""Optional telemetry; OpenTelemetry is imported only if it is configured."""

# Small: without telemetry nothing else of this room is loaded.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry

from router.settings.catalogs import OtlpSettings
from router.watching.batches import BatchSteps


@contextmanager
def send_telemetry(settings: OtlpSettings | None, registry: CollectorRegistry, steps: BatchSteps) -> Iterator[None]:
    """Send spans of batches and a registry's metrics during the block; nothing without *settings*.

    Raises:
        MissingExtraError: the packages of OpenTelemetry are not installed.
    """
    if settings is None:
        yield
        return
    from router.telemetry.exporting import export_telemetry

    with export_telemetry(settings, registry, steps):
        yield
