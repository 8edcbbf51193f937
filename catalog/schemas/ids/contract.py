"""What a schema registry knows under an id, and who answers (JUDGING.md#schema-ids).

Small, since those that ask (matching, tables) and those that answer (the client of a registry, the files of ids) share
nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from catalog.errors import CatalogError

Framing = Literal["auto", "confluent", "apicurio", "glue", "none"]
"""How bodies of a Kafka source begin: ``auto`` tries ``confluent``, and takes a body without a frame as well."""


@dataclass(frozen=True, slots=True)
class WrittenSchema:
    """The schema that a body was written with, as a registry knows it under one id. It never changes.

    ``family`` is the name of one in :mod:`catalog.schemas.families` (``Avro``, ``Protobuf``, ``JsonSchema``),
    ``document`` the schema's text. ``references`` holds the text of all that it refers to, directly or not, by the
    names that referring schemas use. ``subjects`` are the subjects and versions it was registered under when it was
    first asked for, sorted. ``fault`` says why it cannot be used, such as a reference that leads nowhere; it is empty
    otherwise, and lasting: another try would end the same.
    """

    id: str
    family: str
    document: str
    references: Mapping[str, str] = field(default_factory=dict)
    subjects: tuple[tuple[str, int], ...] = ()
    fault: str = ""


class RegistryUnavailableError(CatalogError):
    """A schema registry gives no answer for now: the batch waits, and nothing becomes a dead letter.

    The message names registry, address and reason, and never a secret.
    """


class SchemaIds(Protocol):
    """Answers for one schema registry. Pickles as plain data; one object serves one thread.

    ``name`` is the registry's name in the settings, ``url`` its address without a slash at the end.
    """

    name: str
    url: str

    def written(self, schema_id: str) -> WrittenSchema | None:
        """Return what the registry has under an id; None when it says that there is nothing.

        An answer is kept for ever, in memory and on disk; "nothing" is kept so long that a batch which is repeated
        gets the same answer.

        Raises:
            RegistryUnavailableError: it cannot be asked for now.
        """
        ...
