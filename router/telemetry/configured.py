"""Telemetry where settings ask for it; without them nothing of OpenTelemetry is imported."""

# Small: without telemetry nothing else of this room is loaded.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry

from router.errors import ConfigError
from router.settings.catalogs import OtlpSettings
from router.watching.batches import Steps


@contextmanager
def telemetry(settings: OtlpSettings | None, registry: CollectorRegistry, steps: Steps) -> Iterator[None]:
    """Send what batches do and a registry's metrics for the time of the block; nothing without *settings*.

    Raises:
        ConfigError: the packages of OpenTelemetry are not installed.
    """
    if settings is None:
        yield
        return
    try:
        from router.telemetry.exporting import exported
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"telemetry.otlp needs what is not installed: {error.name}",
            key="telemetry.otlp",
            hint="install it with the extra: pip install 'xregistry-router[telemetry]'",
        ) from error
    with exported(settings, registry, steps):
        yield
