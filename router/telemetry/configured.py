"""Optional telemetry; OpenTelemetry is imported only if it is configured."""

# Small: without telemetry nothing else of this room is loaded.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry

from router.errors import ConfigError
from router.settings.catalogs import OtlpSettings
from router.watching.batches import BatchSteps


@contextmanager
def send_telemetry(settings: OtlpSettings | None, registry: CollectorRegistry, steps: BatchSteps) -> Iterator[None]:
    """Send spans of batches and a registry's metrics during the block; nothing without *settings*.

    Raises:
        ConfigError: the packages of OpenTelemetry are not installed.
    """
    if settings is None:
        yield
        return
    try:
        from router.telemetry.exporting import export_telemetry
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"telemetry.otlp needs what is not installed: {error.name}",
            key="telemetry.otlp",
            hint="install it with the extra: pip install 'xregistry-router[telemetry]'",
        ) from error
    with export_telemetry(settings, registry, steps):
        yield
