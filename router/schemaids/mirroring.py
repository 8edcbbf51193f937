"""All ids of a schema registry onto the disk: each version of each subject is asked for once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from catalog.schemas.ids.client import SchemaRegistry
from catalog.schemas.ids.contract import WrittenSchema
from router.schemaids.ids import RegistryAddress
from router.schemaids.kept import Damaged, KeptIds

THREADS: Final = 8
"""Questions at a time."""
AT_A_TIME: Final = 200
"""Versions after which the index is written, so that a run which breaks off is not in vain."""
TELL_SECONDS: Final = 5.0


@dataclass(slots=True)
class Mirrored:
    """What came: ``found`` versions are to be looked at, ``versions`` have been. ``missing`` are unknown subjects."""

    subjects: int = 0
    found: int = 0
    versions: int = 0
    known: int = 0
    new: int = 0
    unusable: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def mirror(
    address: RegistryAddress, folder: Path, subjects: Sequence[str], tally: Mirrored, tell: Callable[[], None]
) -> None:
    """Mirror a registry, or only some *subjects*, into *folder*; *tell* is called now and then, *tally* counts.

    Raises:
        RegistryUnavailableError: it gives no answer for now; what was mirrored stays.
    """
    kept = KeptIds(folder, address.url)
    local = threading.local()

    def client() -> SchemaRegistry:
        # One object serves one thread.
        if not hasattr(local, "client"):
            local.client = address.client()
        asked: SchemaRegistry = local.client
        return asked

    index = {subject: dict(versions) for subject, versions in kept.pulled().items()}
    on_disk = {schema_id for schema_id in kept.ids() if _readable(kept, schema_id)}
    wanted = list(dict.fromkeys(subjects)) or client().subjects()
    told = time.monotonic()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="schemas") as pool:
        todo: list[tuple[str, int]] = []
        for subject, versions in zip(wanted, pool.map(lambda each: client().versions(each), wanted), strict=True):
            if not versions:
                tally.missing.append(subject)
                continue
            tally.subjects += 1
            tally.found += len(versions)
            for version in versions:
                if index.get(subject, {}).get(version) in on_disk:
                    tally.known += 1
                    tally.versions += 1
                else:
                    todo.append((subject, version))
        for part in _parts(todo):
            found = list(pool.map(lambda place: client().version(*place), part))
            ids = {each.id for each in found if each is not None and each.id}
            asked = sorted(ids - on_disk)
            for schema_id, schema in zip(asked, pool.map(lambda each: client().schema(each), asked), strict=True):
                _keep(kept, schema_id, schema, tally)
                on_disk.add(schema_id)
            for (subject, version), each in zip(part, found, strict=True):
                tally.versions += 1
                if each is not None and each.id:
                    tally.known += each.id not in asked
                    index.setdefault(subject, {})[version] = each.id
            kept.note_pulled(index)
            if time.monotonic() > told + TELL_SECONDS:
                told = time.monotonic()
                tell()


def _keep(kept: KeptIds, schema_id: str, schema: WrittenSchema | None, tally: Mirrored) -> None:
    if schema is None:
        return
    kept.keep(schema_id, schema, anew=True)
    tally.new += 1
    if schema.fault:
        tally.unusable.append(f"id {schema_id} cannot be used: {schema.fault}")


def _readable(kept: KeptIds, schema_id: str) -> bool:
    try:
        return kept.schema(schema_id) is not None
    except Damaged:
        return False


def _parts(todo: Sequence[tuple[str, int]]) -> Iterator[Sequence[tuple[str, int]]]:
    for start in range(0, len(todo), AT_A_TIME):
        yield todo[start : start + AT_A_TIME]
