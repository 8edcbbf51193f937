"""Which certificates of our own the settings name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from router.settings.inward import HttpTlsSettings
from router.settings.logins import TlsSettings


def certificates(settings: BaseModel) -> dict[str, Path]:
    """Return the files of our own certificates, by the keys that they stand under, such as ``sinks.bus.tls``."""
    return dict(_below(settings, ""))


def _below(value: object, key: str) -> Iterator[tuple[str, Path]]:
    if isinstance(value, TlsSettings | HttpTlsSettings):
        if value.cert is not None:
            yield key, Path(value.cert)
        return
    members: Iterator[tuple[object, object]] = iter(())
    if isinstance(value, BaseModel):
        members = ((name, getattr(value, name)) for name in type(value).model_fields)
    elif isinstance(value, dict):
        members = iter(value.items())
    elif isinstance(value, list | tuple):
        members = iter(enumerate(value))
    for name, member in members:
        yield from _below(member, f"{key}.{name}" if key else str(name))
