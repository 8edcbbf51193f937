"""The schema registries of the settings, opened: for sources, sinks and commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from catalog.documents.logins import Login
from catalog.schemas.ids.frames import Frames
from router.schemaids.ids import RegistryAddress, RegistryIds
from router.schemaids.kept import SCHEMAS
from router.settings.catalogs import login_of
from router.settings.model import Settings, SourceSettings
from router.settings.schema_registries import default_registry

UNREGISTERED: Final = frozenset({"none", "glue"})
"""Framings whose ids no registry of Confluent's API knows."""


IDS: Final = "name the registry in schema_registries, declare ids (label schemaid), or set framing: none for the source"
"""The remedy where nothing is known of the ids in frames."""


def unidentified_text(source: SourceSettings, xids: Sequence[str]) -> str:
    """Say what it means that nothing is known of the ids of a source's frames."""
    more = f" and {len(xids) - 1} more" if len(xids) > 1 else ""
    return (
        f"bodies from {source.endpoint} that begin with the id of a schema are read by the schema of {xids[0]}{more}, "
        "whatever the id: records of another type may be taken for it"
    )


def schema_ids_of(settings: Settings, source: SourceSettings) -> RegistryIds | None:
    """Return what answers for the ids in frames of a source's bodies; None where no schema registry does.

    Raises:
        DocumentError: a certificate that executors are to be sent cannot be read.
    """
    if source.framing in UNREGISTERED and source.schema_registry is None:
        return None
    name = source.schema_registry or default_registry(settings.schema_registries)
    return None if name is None else opened(settings, name)


def frames_of(settings: Settings, sources: Iterable[SourceSettings]) -> dict[str, Frames]:
    """Return how bodies of sources begin, by endpoint, with one object for each registry: they serve one thread.

    Raises:
        DocumentError: a certificate that executors are to be sent cannot be read.
    """
    registries: dict[str, RegistryIds] = {}
    frames: dict[str, Frames] = {}
    for source in sources:
        registry = schema_ids_of(settings, source)
        if registry is not None:
            registry = registries.setdefault(registry.name, registry)
        frames[source.endpoint] = Frames(source.framing, registry, source.framing_ids == "require")
    return frames


def opened(settings: Settings, name: str) -> RegistryIds:
    """Return what answers for the schema registry of that name, with its files where executors see the folder."""
    folder = folder_of(settings, name)
    reached = settings.spark.reaches(str(folder))
    return RegistryIds(address_of(settings, name), folder if reached else None)


def folder_of(settings: Settings, name: str) -> Path:
    """Return the folder with the files of the schema registry of that name."""
    return Path(settings.state) / SCHEMAS / name


def address_of(settings: Settings, name: str) -> RegistryAddress:
    """Return where the schema registry of that name is, and who we are there.

    Certificates travel as texts to executors of other machines, as those of Kafka do.
    """
    registry = settings.schema_registries[name]
    login = login_of(registry)
    if not settings.spark.is_local:
        login = _carried(login)
    return RegistryAddress(name, registry.url.rstrip("/"), login, registry.timeout.total_seconds())


def _carried(login: Login) -> Login:
    tokens = login.tokens
    if tokens is not None:
        tokens = replace(tokens, certificates=tokens.certificates.as_texts())
    return replace(login, certificates=login.certificates.as_texts(), tokens=tokens)
