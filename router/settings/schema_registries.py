"""The section of schema registries: where they are, who we are there, and which one is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

from pydantic import Field

from router.settings.catalogs import CatalogLogin, one_login_faults
from router.settings.logins import PLAIN_TEXT
from router.settings.values import Duration

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class SchemaRegistrySettings(CatalogLogin):
    """A schema registry of Confluent's API, and who we are to it; see `catalog.logins` for the login."""

    url: str = Field(
        description="URL before `/schemas` and `/subjects`; of Apicurio it ends with /apis/ccompat/v7.",
        pattern=r"^https?://[^\s/?#@\\]+(?:/[^\s?#]*)?$",
    )
    default: bool = Field(False, description="Whether sources that name no schema registry use this one of several.")
    timeout: Duration = Field(timedelta(seconds=10), gt=timedelta(0), description="Longest wait for one answer.")
    allow_plaintext_password: bool = Field(False, description=PLAIN_TEXT)


def schema_registry_faults(registries: Mapping[str, SchemaRegistrySettings]) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction; a fault names the remedy."""
    for name, registry in registries.items():
        key = f"schema_registries.{name}"
        if not _NAME.fullmatch(name):
            yield key, "is no name of a folder; use letters, digits, - and _, at most 63"
        yield from one_login_faults(key, registry, needed=False)
    chosen = [name for name, registry in registries.items() if registry.default]
    if len(chosen) > 1:
        yield f"schema_registries.{chosen[1]}.default", f"{chosen[0]} is the default as well; keep one"
    elif len(registries) > 1 and not chosen:
        yield "schema_registries", f"has several and none with default: true; add it to one of {', '.join(registries)}"


def name_faults(
    key: str, name: str | None, registries: Mapping[str, SchemaRegistrySettings]
) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for the name of a schema registry that the settings do not have."""
    if name is not None and name not in registries:
        known = f"known are {', '.join(registries)}" if registries else "there are none; add schema_registries"
        yield key, f"{name} is no schema registry; {known}"


def default_registry(registries: Mapping[str, SchemaRegistrySettings]) -> str | None:
    """Return the name of the schema registry that is used where none is named; None where there is none."""
    if len(registries) == 1:
        return next(iter(registries))
    return next((name for name, registry in registries.items() if registry.default), None)
