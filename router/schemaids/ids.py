"""What a schema registry knows under an id, for workers and commands: from memory, from the disk, or asked for once.

An object pickles as plain data, its login and certificates with it, as those of sinks do; what it remembers stays
behind. Without a folder, as on executors that do not see that of the router, it has memory and the network alone.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from catalog.documents.logins import Login
from catalog.schemas.ids.client import SchemaRegistry, number_of
from catalog.schemas.ids.contract import RegistryUnavailableError, WrittenSchema
from router.schemaids.kept import FORGET_SECONDS, MOST_NOTHING, Damaged, KeptIds

MAX_HELD: Final = 10_000
"""Schemas that one process remembers; others are read from the disk again."""
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
PAUSE_SECONDS: Final = 1.0
"""Time after a failure in which a registry is not asked again, so that one that is away costs a batch one wait."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """A schema registry of the settings: its name there, address, login, and the seconds of one request."""

    name: str
    url: str
    login: Login | None = field(default=None, repr=False)
    seconds: float = 10.0

    def client(self) -> SchemaRegistry:
        """Return what asks it."""
        return SchemaRegistry(self.name, self.url, self.login, self.seconds)


class RegistryIds:
    """Answers for one schema registry, as :class:`catalog.schemas.ids.contract.SchemaIds`."""

    def __init__(
        self, address: RegistryAddress, folder: Path | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Keep what is asked for in *folder*, which is that of this registry."""
        self.name = address.name
        self.url = address.url.rstrip("/")
        self.address = address
        self.folder = folder
        self._clock = clock
        self._kept = KeptIds(folder, self.url) if folder is not None else None
        self._client: SchemaRegistry | None = None
        self._held: OrderedDict[str, WrittenSchema] = OrderedDict()
        self._bytes = 0
        self._nothing: dict[str, float] = {}
        self._failed: tuple[float, str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel without what is remembered."""
        return RegistryIds, (self.address, self.folder)

    def written(self, schema_id: str) -> WrittenSchema | None:
        """Return what the registry has under an id; None when it says that there is nothing.

        Raises:
            RegistryUnavailableError: it cannot be asked for now.
            OSError: the disk refuses.
        """
        held = self._held.get(schema_id)
        if held is not None:
            self._held.move_to_end(schema_id)
            return held
        number = number_of(schema_id)
        if number is None:
            return None
        key = str(number)
        damaged = ""
        try:
            kept = self._kept.schema(key) if self._kept is not None else None
        except Damaged as damage:
            kept, damaged = None, f"; {damage}"
            _logger.warning("the file of a schema of registry %s is damaged: %s", self.name, damage)
        if kept is not None:
            return self._remember(schema_id, kept)
        if self._is_nothing(key):
            return None
        try:
            answer = self._asked(key)
        except RegistryUnavailableError as error:
            raise (RegistryUnavailableError(f"{error}{damaged}") if damaged else error) from error.__cause__
        if self._kept is not None:
            answer = self._kept.keep(key, answer)
        elif answer is None:
            if len(self._nothing) >= MOST_NOTHING:
                self._nothing.pop(next(iter(self._nothing)))
            self._nothing[key] = self._clock() + FORGET_SECONDS
        return None if answer is None else self._remember(schema_id, answer)

    def _is_nothing(self, key: str) -> bool:
        return self._kept.is_nothing(key) if self._kept is not None else self._nothing.get(key, 0.0) > self._clock()

    def _asked(self, key: str) -> WrittenSchema | None:
        if self._failed is not None and self._clock() < self._failed[0]:
            raise RegistryUnavailableError(self._failed[1])
        if self._client is None:
            self._client = self.address.client()
        try:
            answer = self._client.schema(key)
        except RegistryUnavailableError as error:
            self._failed = (self._clock() + PAUSE_SECONDS, str(error))
            raise
        self._failed = None
        return answer

    def _remember(self, schema_id: str, schema: WrittenSchema) -> WrittenSchema:
        self._held[schema_id] = schema
        self._bytes += _size(schema)
        while len(self._held) > MAX_HELD or (self._bytes > MAX_HELD_BYTES and len(self._held) > 1):
            self._bytes -= _size(self._held.popitem(last=False)[1])
        return schema


def _size(schema: WrittenSchema) -> int:
    return len(schema.document) + sum(map(len, schema.references.values()))
