"""Files of the state folder: replaced durably, and read with errors that name the file and the remedy."""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bindings.kafka.binding import Brokers
from bindings.private_files import create_private_folder, hold_lock, replace_file
from bindings.protocols import sending_of
from catalog.model import Catalog, Finding
from catalog.parsing.regular import read_regular
from catalog.values import parse_whole_number
from router.errors import ConfigError, DiskError, RouterError, StateError
from router.logs import get_logger
from router.settings import Settings
from router.settings.checks import REMEDY, ClientSettings, first_plaintext_address, holds_secret
from router.sources import Source

DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
"""Errors of a full or failing disk, whatever the file."""
RESTORE: Final = "restore it from a backup of the state folder"


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file so that after a crash it holds the old content or the new, and the new once this returns.

    Raises:
        OSError: the disk refuses; the old content stays.
    """
    create_private_folder(path.parent)
    with replace_file(path, path.with_name(f".{path.name}.{os.getpid()}")) as file:
        file.write(content)


@contextmanager
def disk_of(root: Path) -> Iterator[None]:
    """Turn errors of a full or failing disk within the block, ours or the JVM's, into :class:`DiskError`."""
    try:
        yield
    except RouterError:
        raise
    except Exception as error:
        for number in DISK:
            reason = os.strerror(number)
            if (isinstance(error, OSError) and error.errno == number) or reason in str(error):
                raise DiskError(f"the disk of {root} fails: {reason}", hint="free space or fix it") from error
        raise


def numbers_in(folder: Path) -> list[int]:
    """Return the numbers that are names in a folder, ascending; none where there is no folder.

    Raises:
        StateError: it is there and cannot be read.
    """
    try:
        numbers = (parse_whole_number(entry.name) for entry in folder.iterdir())
        return sorted(number for number in numbers if number is not None)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(folder, error) from error


def newest_in(folder: Path) -> int | None:
    """Return the highest of :func:`numbers_in`; None if there is none."""
    return max(numbers_in(folder), default=None)


def read(path: Path) -> bytes | None:
    """Return the content of a file; None when there is none.

    Raises:
        StateError: it is there and cannot be read.
    """
    try:
        return read_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error


def read_object(path: Path, *, hint: str = RESTORE) -> dict[str, Any] | None:
    """Return the JSON object in a file; None when there is no such file.

    Raises:
        StateError: it cannot be read, or is no JSON object; with *hint* as the remedy.
    """
    content = read(path)
    if content is None:
        return None
    try:
        form = json.loads(content)
    except ValueError as error:
        raise damaged(path, "it is empty" if not content else f"it is not valid JSON ({error})", hint=hint) from error
    if not isinstance(form, dict):
        raise damaged(path, "it is not a JSON object", hint=hint)
    return form


def damaged(path: Path, fault: str, *, hint: str = RESTORE) -> StateError:
    """Return the error for a file whose content is not what was written."""
    return StateError(f"{path} is damaged: {fault}", hint=hint)


def missing(path: Path, why: str, *, hint: str = RESTORE) -> StateError:
    """Return the error for a file or folder that is gone; ``why`` says how it is known that it was there."""
    return StateError(f"{path} is missing: {why}", hint=hint)


def unreadable(path: Path, error: OSError) -> StateError:
    """Return the error for a file that the system does not let us read."""
    hint = "give it back to the user that the router runs as, or restore it from a backup of the state folder"
    return StateError(f"{path} cannot be read: {error.strerror}", hint=hint)


# The files that Spark keeps in a checkpoint, looked at before Spark reads them.
#
# Spark takes an emptied or truncated file for a passing fault, or for no file at all. Each of its files has a known
# form (a line with a version, then JSON) and a ``.crc`` file beside it, with a CRC-32 of every 512 bytes.

_VERSION: Final = re.compile(rb"v[1-9][0-9]?")
_CRC_MAGIC: Final = b"crc\0"
_CRC_HEAD: Final = 8
_log = get_logger()


@dataclass(frozen=True, slots=True)
class CheckpointProgress:
    """How far a checkpoint is: the newest batches that were planned and committed, and where they end and begin.

    ``end`` is the source's offset up to which the newest planned batch reads, ``start`` where the first record lies
    that is not committed; each None before the first batch.
    """

    planned: int | None = None
    committed: int | None = None
    start: dict[str, Any] | None = None
    end: dict[str, Any] | None = None

    @property
    def pending(self) -> int | None:
        """The batch that was planned and not committed; None when there is none."""
        return self.planned if self.planned != self.committed else None


def progress_of(path: Path) -> CheckpointProgress:
    """Check the files of the checkpoint at *path* that Spark will read, and return its progress.

    A broken ``.crc`` file beside an intact file is removed, since Spark would refuse both.

    Raises:
        StateError: a file is missing, cannot be read, or is not as Spark wrote it.
    """
    planned, committed = newest_in(path / "offsets"), newest_in(path / "commits")
    if committed is not None and (planned is None or planned < committed):
        raise missing(path / "offsets" / str(committed), f"batch {committed} was committed")
    if planned is None:
        return CheckpointProgress()
    if read(path / "metadata") is None:
        raise missing(path / "metadata", "the checkpoint has batches")
    _checked(path / "metadata", lambda content: isinstance(json.loads(content)["id"], str))
    for number in numbers_in(path / "sources" / "0"):
        _checked(path / "sources" / "0" / str(number), partial(_has_objects, objects=1))
    if (planned > 0 and committed is None) or (committed is not None and committed < planned - 1):
        raise missing(path / "commits" / str(planned - 1), f"batch {planned} was begun after it")
    if committed is not None:
        _checked(path / "commits" / str(committed), partial(_has_objects, objects=1))
    end = _offset_in(path, planned)
    before = _offset_in(path, planned - 1) if planned > 0 else None
    return CheckpointProgress(planned, committed, end if committed == planned else before, end)


def _offset_in(path: Path, batch: int) -> dict[str, Any]:
    file = path / "offsets" / str(batch)
    if read(file) is None:
        raise missing(file, "Spark continues from it")
    hint = (
        f"{RESTORE}; if state.db has no pin of it (SELECT * FROM pins WHERE batch = {batch}), nothing of it was "
        f"written and the file may be removed"
    )
    return json.loads(_checked(file, _is_offsets, hint=hint).split(b"\n")[2]) or {}


def _checked(path: Path, is_whole: Callable[[bytes], bool], *, hint: str = RESTORE) -> bytes:
    """Return the content of a file, after a check of its form and checksum."""
    content = read(path) or b""
    try:
        whole = is_whole(content)
    except (ValueError, LookupError, TypeError):
        whole = False
    if not whole:
        raise damaged(path, "it is truncated or was not written by Spark" if content else "it is empty", hint=hint)
    crc = path.with_name(f".{path.name}.crc")
    written = read(crc)
    if written is None or written == (right := _crc_of(content, written)):
        return content
    if len(written) < _CRC_HEAD or right.startswith(written):
        _log.warning("truncated checksum file removed; the file it belongs to is intact", file=str(crc))
        crc.unlink()
        return content
    raise damaged(path, f"its content does not match {crc.name}", hint=hint)


def _crc_of(content: bytes, written: bytes) -> bytes:
    """Return what the checksum file of a content should be, with as many bytes for each sum as *written* says."""
    size = max(1, int.from_bytes(written[4:_CRC_HEAD], "big"))
    sums = (zlib.crc32(content[at : at + size]) for at in range(0, len(content), size))
    return _CRC_MAGIC + size.to_bytes(4, "big") + b"".join(each.to_bytes(4, "big") for each in sums)


def _is_offsets(content: bytes) -> bool:
    # Spark takes a plan of a batch without a time for one of 1970.
    return _has_objects(content, 2) and "batchTimestampMs" in json.loads(content.split(b"\n")[1])


def _has_objects(content: bytes, objects: int) -> bool:
    """Whether a file of Spark has a version and that many JSON objects, a line each."""
    # Kafka's source begins its first offsets with a zero byte, for readers of old.
    version, *forms = content.removeprefix(b"\0").rstrip(b"\n").split(b"\n")
    whole = _VERSION.fullmatch(version) is not None and len(forms) == objects
    return whole and all(isinstance(json.loads(form), dict) for form in forms)


# To whom the router shows its credentials: an address that the catalog gives is pinned at its first use.
#
# Others than the operator write catalogs, and must not lead the operator's passwords elsewhere. A source or sink with a
# secret and without an address of its own is pinned, when it is first used, to the addresses that the catalog gives
# then. After that, a reload or a start refuses a catalog that leads elsewhere (another scheme, host or port). Fewer of
# the same addresses are allowed. An address in the settings is the operator's decision: nothing is pinned then.

FORMAT: Final = 1
FILE: Final = "addresses.json"
"""The pins, in the state folder; replaced as a whole and durable before an address is used."""


@dataclass(frozen=True, slots=True)
class _Client:
    """A source or sink that connects to somebody else's server; ``own`` is whether the settings give its address.

    ``place`` is where its settings stand, such as ``sinks.bus``, and ``field`` the one that names addresses.
    ``settable``: whether that field may be set beside an endpoint.
    """

    name: str
    place: str
    field: str
    kind: str
    addresses: tuple[str, ...]
    party: ClientSettings
    own: bool
    settable: bool = True

    @property
    def origins(self) -> tuple[str, ...]:
        """Scheme, host and port of each address that the catalog leads its secret to; none where it does not."""
        if self.own or not any(self.addresses) or not holds_secret(self.party):
            return ()
        return tuple(sorted(set(sending_of(self.kind).iter_origins(self.addresses))))

    def fault(self, field: str, rule: str, text: str, hint: str) -> Finding:
        """Return the finding about one of its settings."""
        pointer = f"/{self.place.replace('.', '/')}/{field}"
        return Finding("", pointer, "error", rule, f"{self.name}: {text}", hint)


def distrusted(settings: Settings, catalog: Catalog, sources: Iterable[Source]) -> list[Finding]:
    """Return why credentials must not be used as the catalog says; nothing when they may.

    They must not go in plain text without the operator's permission, nor to an address that is not pinned.

    Raises:
        StateError: as :func:`pinned_addresses`.
    """
    folder = Path(settings.state)
    known = pinned_addresses(folder)
    findings = []
    for each in _clients_of(settings, catalog, sources):
        if address := first_plaintext_address(each.kind, each.addresses, each.party):
            text = f"{address} would receive a secret in plain text"
            findings.append(each.fault("allow_plaintext_password", "plain-text-secret", text, REMEDY))
        pinned = known.get(each.name, each.origins)
        if strange := [origin for origin in each.origins if origin not in pinned]:
            text = f"its credentials are for {', '.join(pinned)}; the catalog says {', '.join(strange)}"
            choice = f"set {each.place}.{each.field} to it, or " if each.settable else ""
            hint = f"if that is intended, {choice}remove the entry from {folder / FILE}"
            findings.append(each.fault(each.field, "moved-address", text, hint))
    return findings


def require_trusted(settings: Settings, catalog: Catalog, sources: Iterable[Source]) -> None:
    """Make sure that credentials may be used as the catalog says; for commands that only look, and so pin nothing.

    Raises:
        ConfigError: they may not; names source or sink and address.
        StateError: as :func:`pinned_addresses`.
    """
    if wrong := distrusted(settings, catalog, sources):
        keys = [each.pointer[1:].replace("/", ".") for each in wrong]
        problems = tuple(f"{key}: {each.message}" for key, each in zip(keys, wrong, strict=True))
        raise ConfigError(wrong[0].message, key=keys[0], problems=problems, hint=wrong[0].hint)


def admit(settings: Settings, catalog: Catalog, sources: Iterable[Source]) -> None:
    """Make sure that credentials may be used as the catalog says, and pin what is new; call it before any connection.

    Raises:
        ConfigError: they may not; names source or sink and address.
        StateError: as :func:`pin_addresses`.
    """
    require_trusted(settings, catalog, sources)
    pin_addresses(settings, catalog, sources)


def pinned_addresses(folder: Path) -> dict[str, list[str]]:
    """Return the pinned addresses in a state folder by name; none were pinned where there is no file.

    A file that is damaged is never taken for an empty one: that would pin anew whatever the catalog says now.

    Raises:
        StateError: the file is damaged, unreadable, or of another format.
    """
    try:
        form = json.loads(read_regular(folder / FILE))
        if form["format"] != FORMAT:
            raise ValueError(f"format {form['format']!r}; this router knows {FORMAT}")
        return {str(name): [str(each) for each in addresses] for name, addresses in form["addresses"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "restore it from a backup; or name the addresses in the settings and remove it"
        raise StateError(f"{folder / FILE}, with pinned addresses, cannot be used: {error}", hint=hint) from error


def pin_addresses(settings: Settings, catalog: Catalog, sources: Iterable[Source]) -> None:
    """Pin the clients that the catalog leads and are not pinned yet; durable when this returns.

    Several processes may share the folder.

    Raises:
        StateError: the file cannot be read or written.
    """
    path = Path(settings.state) / FILE
    origins = {each.name: list(each.origins) for each in _clients_of(settings, catalog, sources) if each.origins}
    if origins.keys() <= pinned_addresses(path.parent).keys():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(path.with_suffix(".lock")):
            known = pinned_addresses(path.parent)
            form = {"format": FORMAT, "addresses": origins | known}
            write_durably(path, json.dumps(form, indent=1, sort_keys=True).encode())
    except OSError as error:
        hint = "free its disk or correct its rights, or name the addresses in the settings"
        raise StateError(f"cannot write {path}: {error.strerror}", hint=hint) from error
    for name in origins.keys() - known.keys():
        _log.info("credentials pinned to these addresses of the catalog", name=name, addresses=origins[name])


def _clients_of(settings: Settings, catalog: Catalog, sources: Iterable[Source]) -> Iterator[_Client]:
    """Yield the clients of *sources*, and of the sinks that take their address from *catalog* or could."""
    yield from _of_sources(settings, sources)
    yield from _of_sinks(settings, catalog)


def _of_sources(settings: Settings, sources: Iterable[Source]) -> Iterator[_Client]:
    places = {each.endpoint: index for index, each in enumerate(settings.sources)}
    for source in sources:
        if source.served:
            continue  # others connect to us
        place = f"sources.{places.get(source.endpoint, 0)}"
        chosen = source.settings
        if source.brokered:
            addresses, field, own = source.uris, "uris", bool(chosen.uris)
        else:
            addresses = (Brokers(source.servers, source.security).address_text,)
            field, own = "bootstrap_servers", bool(chosen.bootstrap_servers)
        yield _Client(f"source {source.endpoint}", place, field, source.kind, addresses, chosen, own)


def _of_sinks(settings: Settings, catalog: Catalog) -> Iterator[_Client]:
    for name, sink in settings.sinks.items():
        remote = sink.remote
        if remote is None or remote.endpoint is None:
            continue
        endpoint, own = catalog.endpoints.get(remote.endpoint), remote.own_addresses
        addresses = own or tuple(endpoint.uris if endpoint else ())
        field, settable = remote.address_field, remote.address_field != remote.template_field
        yield _Client(f"sink {name}", f"sinks.{name}", field, remote.family, addresses, remote, bool(own), settable)
