"""What else is checked on this machine: the state folder, folders of tables and lines, and the ports to listen at."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bindings.gateways import GatewayError
from bindings.http.listening import listen, server_tls
from bindings.locks import is_locked
from router.errors import ConfigError, StateError
from router.examining.diagnosis import Diagnosis
from router.settings import HttpSettings, Settings
from router.sinks.tables.files import local_folder

_TABLES: Final = 1_000
"""Tables of a sink that are looked at."""


def state_folder(settings: Settings) -> Iterator[Diagnosis]:
    """Look whether the state folder can be written and has more room than the inbox keeps free."""
    folder = Path(settings.state)
    if fault := unwritable(folder):
        yield Diagnosis("state", "fail", fault, "change its rights, or set `state` elsewhere", StateError)
        return
    free = shutil.disk_usage(_existing(folder)).free
    room = f"{folder}, {free / 2**30:.1f} GiB free"
    if free <= settings.inbox.min_free_bytes:
        yield Diagnosis("state", "warn", room, "free disk space, or lower inbox.min_free_bytes: gateways push back")
    elif free <= 2 * settings.inbox.min_free_bytes:
        yield Diagnosis("state", "warn", room, "free disk space before gateways push back")
    else:
        yield Diagnosis("state", "ok", room)


def sink_folders(settings: Settings) -> Iterator[Diagnosis]:
    """Look whether the folders of tables and lines can be written; nobody asks an object store before a batch does.

    A folder that cannot be written holds up its own batches only: a router starts all the same, and waits for its
    sinks.
    """
    for name, sink in settings.sinks.items():
        place = sink.folder
        folder = local_folder(place) if place else None
        if folder is not None:
            # The files of a table lie in folders below it, and its log lists them.
            fault = unwritable(folder) or unwritable(folder / "_delta_log")
            refused = "" if fault or not sink.tabular else next(_refused_tables(folder), "")
            if refused:
                remedy = "ALTER TABLE ... DROP FEATURE, or give the sink another path; batches wait until then"
                yield Diagnosis(f"sink {name}", "warn", refused, remedy)
            elif fault:
                remedy = "give this user the right to write there, or choose another path; batches wait until then"
                yield Diagnosis(f"sink {name}", "warn", fault, remedy)
            else:
                yield Diagnosis(f"sink {name}", "ok", str(folder))


def _refused_tables(folder: Path) -> Iterator[str]:
    """Yield what keeps tables in and below a folder from being written, as far as they can be read."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    from router.sinks.tables.form import Form

    for log in itertools.islice(folder.rglob("_delta_log"), _TABLES):
        try:
            refused = Form.of(DeltaTable(log.parent)).refused
        except (DeltaError, OSError) as error:
            reason = str(error).partition("\n")[0]
            refused = f"cannot be read: {reason}" if DeltaTable.is_deltatable(str(log.parent)) else ""
        if refused:
            yield f"{log.parent}: {refused}"


def metrics_port(settings: Settings) -> Iterator[Diagnosis]:
    """Look whether metrics and status page can be served; not for a process that serves them already."""
    chosen = settings.metrics
    yield from _port("metrics port", settings, chosen.host, chosen.port, "metrics.port", beside=True)


def http_port(settings: Settings, *, beside: bool = False) -> Iterator[Diagnosis]:
    """Look whether HTTP can be taken, and whether the certificates for it can be read.

    With *beside*, a router that runs on the state folder is another process, which may hold the port.
    """
    chosen = settings.http
    try:
        _certificates(chosen)
    except GatewayError as error:
        yield Diagnosis("http port", "fail", str(error), "correct http.tls", ConfigError)
        return
    yield from _port("http port", settings, chosen.host, chosen.port, "http.port", beside=beside)


def unwritable(folder: Path) -> str:
    """Say why a folder, which need not exist, cannot be written; empty when it can."""
    existing = _existing(folder)
    if not existing.is_dir():
        return f"{folder} cannot be written: {existing} is no folder"
    return "" if os.access(existing, os.W_OK | os.X_OK) else f"{existing} cannot be written"


def _existing(folder: Path) -> Path:
    """Return the folder itself, or the nearest above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))


def _certificates(chosen: HttpSettings) -> None:
    if chosen.tls is not None:
        clients = Path(chosen.tls.ca) if chosen.tls.ca else None
        server_tls(Path(chosen.tls.cert), Path(chosen.tls.key), clients)


def _port(name: str, settings: Settings, host: str, port: int, key: str, *, beside: bool) -> Iterator[Diagnosis]:
    try:
        listen(host, port, "nobody").close()
    except GatewayError as error:
        if beside and _answers(host, port) and is_locked(Path(settings.state) / "lock"):
            yield Diagnosis(name, "ok", f"{host}:{port} is in use while a router runs on {settings.state}")
            return
        fault = str(error).removeprefix("nobody ").partition("; ")[0]
        remedy = f"set {key} to another port, or to 0 for a free one, or stop what uses it"
        yield Diagnosis(name, "fail", fault, remedy, ConfigError)
        return
    yield Diagnosis(name, "ok", f"{host}:{port} is free" if port else f"a free one at {host}")


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True
