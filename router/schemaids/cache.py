"""The cache of ids in ``state/schemas``: what a schema registry answered, kept for every process of the router.

An id never changes, so its file is written once: ``<id>.json``, with a format version and the address of its registry;
answers of another registry under the same name are ignored. "Not found" is a line in a file per address, valid for
:data:`FORGET_SECONDS`, so that a batch repeated within that time is evaluated the same. The first answer on disk wins,
whoever asks at the same moment. Only ``xrouter schemas pull`` replaces "not found" by a schema earlier.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from bindings.private_files import create_private_folder, hold_lock, open_private_file, replace_file
from catalog.documents.connecting import OriginLogin
from catalog.parsing.regular import open_regular, read_regular
from catalog.schemas.ids.client import RegistryUnavailableError, SchemaIdRegistry, WrittenSchema, number_of

FORMAT: Final = 1
"""The format of a file; any earlier one can always be read."""
FORGET_SECONDS: Final = 7 * 86_400.0
MAX_UNKNOWN_IDS: Final = 200_000
"""Ids stored as unknown; beyond that the older half is dropped, so that noise cannot fill the disk."""
SCHEMAS: Final = "schemas"
"""The folder below that of the state, with one for each registry."""
_UNKNOWN: Final = "nothing-"
_LINE: Final = re.compile(rb"([0-9]{1,19}) ([0-9]{1,12})")
_PULLED: Final = "pulled"
_FOUND: Final = "found-"
_LOCK: Final = ".lock"
_SUFFIX: Final = ".json"


class _Stored(msgspec.Struct):
    """What all files begin with."""

    format: int
    url: str


class _File(_Stored):
    """The schema of an id."""

    id: str
    family: str
    document: str
    references: dict[str, str]
    subjects: list[tuple[str, int]]
    fault: str = ""


class _Index(_Stored):
    """What was mirrored: ids by subject and version."""

    subjects: dict[str, dict[int, str]]


class _Lookup(_Stored):
    """Where a schema that we write with was found."""

    subject: str
    id: str


Form = TypeVar("Form", bound=_Stored)


class DamagedFile(Exception):
    """A file that cannot be read; the message names it."""


@dataclass(slots=True)
class SchemaIdCache:
    """The ids of one registry. ``folder`` is the registry's, ``url`` its address. Created at the first write."""

    folder: Path
    url: str
    clock: Callable[[], float] = time.time
    _unknown_ids: dict[str, float] = field(default_factory=dict)
    _stamp: tuple[int, int] = (0, 0)

    def schema(self, schema_id: str) -> WrittenSchema | None:
        """Return the stored schema of an id, or None.

        Raises:
            DamagedFile: its file is damaged.
            OSError: the disk cannot be read or written.
        """
        path = self.folder / f"{schema_id}{_SUFFIX}"
        try:
            data = read_regular(path)
        except FileNotFoundError:
            return None
        try:
            file = msgspec.json.decode(data, type=_File)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DamagedFile(f"{path} is damaged: {error}") from error
        if file.format > FORMAT or file.id != schema_id:
            raise DamagedFile(f"{path} has format {file.format} and id {file.id}, not {FORMAT} and {schema_id}")
        if file.url != self.url:
            return None
        return WrittenSchema(file.id, file.family, file.document, file.references, tuple(file.subjects), file.fault)

    def is_unknown(self, schema_id: str) -> bool:
        """Whether the registry answered recently that an id does not exist."""
        self._read_unknown()
        since = self._unknown_ids.get(schema_id)
        return since is not None and self.clock() < since + FORGET_SECONDS

    def store(self, schema_id: str, answer: WrittenSchema | None, *, anew: bool = False) -> WrittenSchema | None:
        """Store an answer, and return the valid one: what another process has stored meanwhile wins.

        With *anew*, a schema replaces "not found": from then on :meth:`schema` returns it.

        Raises:
            OSError: the disk cannot be read or written.
        """
        with self._lock_folder():
            if not anew:
                try:
                    stored = self.schema(schema_id)
                except DamagedFile:
                    stored = None  # it is written again
                if stored is not None:
                    return stored
                if self.is_unknown(schema_id):
                    return None
            if answer is None:
                self._add_unknown(schema_id)
                return None
            subjects, references = list(answer.subjects), dict(answer.references)
            self._write(
                f"{schema_id}{_SUFFIX}",
                _File(FORMAT, self.url, answer.id, answer.family, answer.document, references, subjects, answer.fault),
            )
            return answer

    def ids(self) -> Iterator[str]:
        """Yield the ids that have a file, of whatever address."""
        try:
            names = sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return
        for name in names:
            if name.endswith(_SUFFIX):
                yield name.removesuffix(_SUFFIX)

    def find_id(self, digest: str) -> str | None:
        """Return the id under which a schema was found in a subject, by a digest of both; None if unknown."""
        lookup = self._read(f"{_FOUND}{digest}", _Lookup)
        return lookup.id if lookup is not None else None

    def store_found_id(self, digest: str, subject: str, schema_id: str) -> None:
        """Store the id under which a schema was found in a subject."""
        with self._lock_folder():
            self._write(f"{_FOUND}{digest}", _Lookup(FORMAT, self.url, subject, schema_id))

    def mirrored_versions(self) -> dict[str, dict[int, str]]:
        """Return the ids of the mirrored versions of each subject; empty if unknown."""
        index = self._read(_PULLED, _Index)
        return index.subjects if index is not None else {}

    def store_mirrored(self, subjects: Mapping[str, Mapping[int, str]]) -> None:
        """Store which id each version of a subject has."""
        index = _Index(FORMAT, self.url, {subject: dict(versions) for subject, versions in subjects.items()})
        with self._lock_folder():
            self._write(_PULLED, index)

    def _read(self, name: str, kind: type[Form]) -> Form | None:
        """Return the content of a file; None if there is none of this format and address."""
        try:
            form = msgspec.json.decode(read_regular(self.folder / name), type=kind)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return form if (form.format, form.url) == (FORMAT, self.url) else None

    def _write(self, name: str, form: _Stored) -> None:
        path = self.folder / name
        with replace_file(path, path.with_suffix(".new")) as file:
            file.write(msgspec.json.encode(form))

    @property
    def _unknown_path(self) -> Path:
        return self.folder / (_UNKNOWN + hashlib.sha256(self.url.encode()).hexdigest()[:12])

    def _replace_unknown(self) -> AbstractContextManager[BinaryIO]:
        # A new file has a new inode, by which other processes see that what they read before is outdated.
        return replace_file(self._unknown_path, self._unknown_path.with_suffix(".new"))

    @contextmanager
    def _lock_folder(self) -> Iterator[None]:
        create_private_folder(self.folder)
        with hold_lock(self.folder / _LOCK):
            yield

    def _add_unknown(self, schema_id: str) -> None:
        now = self.clock()
        fresh = {key: since for key, since in self._unknown_ids.items() if now < since + FORGET_SECONDS}
        if len(self._unknown_ids) >= MAX_UNKNOWN_IDS:
            newest = sorted(fresh.items(), key=lambda each: each[1])[-(MAX_UNKNOWN_IDS // 2) :]
            lines = "".join(f"{key} {since:.0f}\n" for key, since in newest)
            with self._replace_unknown() as file:
                file.write(f"{lines}{schema_id} {now:.0f}\n".encode())
            return
        with open_private_file(self._unknown_path, "ab") as file:
            # The first line feed ends a line that a crash left half written.
            file.write(f"\n{schema_id} {now:.0f}\n".encode())
            file.flush()
            os.fsync(file.fileno())

    def _read_unknown(self) -> None:
        """Read what was added since the last call."""
        try:
            with open(self._unknown_path, "rb", opener=open_regular) as file:
                status = os.fstat(file.fileno())
                number, size = self._stamp
                if (status.st_ino, status.st_size) == self._stamp:
                    return
                if status.st_ino != number or status.st_size < size:
                    self._unknown_ids, size = {}, 0
                file.seek(size)
                whole, end, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            self._unknown_ids, self._stamp = {}, (0, 0)
            return
        for line in whole.split(b"\n"):
            if found := _LINE.fullmatch(line):
                self._unknown_ids[found[1].decode()] = float(found[2])
        self._stamp = (status.st_ino, size + len(whole) + len(end))


# A schema registry's ids for workers and commands: from memory, from disk, or from the registry, once.
#
# An object pickles as plain data with its login and certificates, as sinks do, but without its cache. Without a folder,
# as on executors that cannot see the router's, it uses memory and network only.

MAX_CACHED_BYTES: Final = 64 * 1024 * 1024
"""Schemas that one process caches; others are read from disk again."""
PAUSE_SECONDS: Final = 1.0
"""Pause after a failure, so that an unreachable registry costs a batch one wait."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """A schema registry of the settings: its name there, address, login, and the seconds of one request."""

    name: str
    url: str
    login: OriginLogin | None = field(default=None, repr=False)
    seconds: float = 10.0

    def client(self) -> SchemaIdRegistry:
        """Return a client of this registry."""
        return SchemaIdRegistry(self.name, self.url, self.login, self.seconds)


class RegistryIds:
    """Ids of one schema registry; implements :class:`catalog.schemas.ids.client.SchemaIds`."""

    def __init__(
        self, address: RegistryAddress, folder: Path | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Cache schemas in *folder*, which is this registry's."""
        self.name = address.name
        self.url = address.url.rstrip("/")
        self.address = address
        self.folder = folder
        self._clock = clock
        self._files = SchemaIdCache(folder, self.url) if folder is not None else None
        self._client: SchemaIdRegistry | None = None
        self._cached: OrderedDict[str, WrittenSchema] = OrderedDict()
        self._bytes = 0
        self._unknown_ids: dict[str, float] = {}
        self._failed: tuple[float, str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the cache."""
        return RegistryIds, (self.address, self.folder)

    def get_schema(self, schema_id: str) -> WrittenSchema | None:
        """Return the registry's schema of an id; None if it has none.

        Raises:
            RegistryUnavailableError: the registry is unavailable now.
            OSError: the disk cannot be read or written.
        """
        cached = self._cached.get(schema_id)
        if cached is not None:
            self._cached.move_to_end(schema_id)
            return cached
        number = number_of(schema_id)
        if number is None:
            return None
        key = str(number)
        damage_note = ""
        try:
            stored = self._files.schema(key) if self._files is not None else None
        except DamagedFile as damage:
            stored, damage_note = None, f"; {damage}"
            _logger.warning("the file of a schema of registry %s is damaged: %s", self.name, damage)
        if stored is not None:
            return self._remember(schema_id, stored)
        if self._files.is_unknown(key) if self._files is not None else self._unknown_ids.get(key, 0.0) > self._clock():
            return None
        try:
            answer = self._request(key)
        except RegistryUnavailableError as error:
            raise (RegistryUnavailableError(f"{error}{damage_note}") if damage_note else error) from error.__cause__
        if self._files is not None:
            answer = self._files.store(key, answer)
        elif answer is None:
            if len(self._unknown_ids) >= MAX_UNKNOWN_IDS:
                self._unknown_ids.pop(next(iter(self._unknown_ids)))
            self._unknown_ids[key] = self._clock() + FORGET_SECONDS
        return None if answer is None else self._remember(schema_id, answer)

    def _request(self, key: str) -> WrittenSchema | None:
        if self._failed is not None and self._clock() < self._failed[0]:
            raise RegistryUnavailableError(self._failed[1])
        if self._client is None:
            self._client = self.address.client()
        try:
            answer = self._client.get_schema(key)
        except RegistryUnavailableError as error:
            self._failed = (self._clock() + PAUSE_SECONDS, str(error))
            raise
        self._failed = None
        return answer

    def _remember(self, schema_id: str, schema: WrittenSchema) -> WrittenSchema:
        self._cached[schema_id] = schema
        self._bytes += _schema_bytes(schema)
        while self._bytes > MAX_CACHED_BYTES and len(self._cached) > 1:
            self._bytes -= _schema_bytes(self._cached.popitem(last=False)[1])
        return schema


def _schema_bytes(schema: WrittenSchema) -> int:
    return 1_000 + len(schema.document) + sum(map(len, schema.references.values()))


# Mirroring all ids of a schema registry to disk: each version of each subject is requested once.

THREADS: Final = 8
"""Concurrent requests."""
VERSIONS_AT_ONCE: Final = 200
"""Versions after which the index is written, so that an aborted run is not lost."""
TELL_SECONDS: Final = 5.0


@dataclass(slots=True)
class MirrorProgress:
    """Progress: ``found`` versions, of which ``versions`` are done. ``missing`` are unknown subjects."""

    subjects: int = 0
    found: int = 0
    versions: int = 0
    known: int = 0
    new: int = 0
    unusable: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def mirror_registry(
    address: RegistryAddress, folder: Path, subjects: Sequence[str], tally: MirrorProgress, tell: Callable[[], None]
) -> None:
    """Mirror a registry, or only some *subjects*, into *folder*; *tell* is called at intervals, *tally* counts.

    Raises:
        RegistryUnavailableError: it does not answer now; what was mirrored stays.
    """
    cache = SchemaIdCache(folder, address.url)
    local = threading.local()

    def client() -> SchemaIdRegistry:
        """Return this thread's client: each serves one."""
        if not hasattr(local, "client"):
            local.client = address.client()
        own: SchemaIdRegistry = local.client
        return own

    index = {subject: dict(versions) for subject, versions in cache.mirrored_versions().items()}
    on_disk = {schema_id for schema_id in cache.ids() if _is_readable(cache, schema_id)}
    chosen = list(dict.fromkeys(subjects)) or client().list_subjects()
    reported = time.monotonic()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="schemas") as pool:
        todo: list[tuple[str, int]] = []
        for subject, versions in zip(chosen, pool.map(lambda each: client().list_versions(each), chosen), strict=True):
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
        for start in range(0, len(todo), VERSIONS_AT_ONCE):
            part = todo[start : start + VERSIONS_AT_ONCE]
            found = list(pool.map(lambda place: client().get_version(*place), part))
            ids = {each.id for each in found if each is not None and each.id}
            unseen = sorted(ids - on_disk)
            for schema_id, schema in zip(unseen, pool.map(lambda each: client().get_schema(each), unseen), strict=True):
                on_disk.add(schema_id)
                if schema is None:
                    continue
                cache.store(schema_id, schema, anew=True)
                tally.new += 1
                if schema.fault:
                    tally.unusable.append(f"id {schema_id} cannot be used: {schema.fault}")
            for (subject, version), each in zip(part, found, strict=True):
                tally.versions += 1
                if each is not None and each.id:
                    tally.known += each.id not in unseen
                    index.setdefault(subject, {})[version] = each.id
            cache.store_mirrored(index)
            if time.monotonic() > reported + TELL_SECONDS:
                reported = time.monotonic()
                tell()


def _is_readable(cache: SchemaIdCache, schema_id: str) -> bool:
    try:
        return cache.schema(schema_id) is not None
    except DamagedFile:
        return False
