"""To whom the router shows its credentials: an address that the catalog gives is pinned at its first use.

Others than the operator write catalogs, and must not lead the operator's passwords elsewhere. A source or sink with a
secret and without an address of its own is pinned, when it is first used, to the addresses that the catalog gives then.
After that, a reload or a start refuses a catalog that leads elsewhere (another scheme, host or port). Fewer of the same
addresses are allowed. An address in the settings is the operator's decision: nothing is pinned then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bindings.kafka.binding import Brokers
from bindings.private import waiting_lock
from bindings.protocols import sending_of
from catalog.model import Catalog, Finding
from catalog.parsing.regular import read_regular
from router.errors import ConfigError, StateError
from router.logs import get_logger
from router.settings import Settings
from router.settings.checks import REMEDY, Party, exposed, holds_secret
from router.sources import Source
from router.state.durable import write_durably

FORMAT: Final = 1
FILE: Final = "addresses.json"
"""The pins, in the state folder; replaced as a whole and durable before an address is used."""
_log = get_logger()


@dataclass(frozen=True, slots=True)
class Client:
    """A source or sink that connects to somebody else's server; ``own`` is whether the settings give its address.

    ``place`` is where its settings stand, such as ``sinks.bus``, and ``field`` the one that names addresses.
    ``settable``: whether that field may be set beside an endpoint.
    """

    name: str
    place: str
    field: str
    kind: str
    addresses: tuple[str, ...]
    party: Party
    own: bool
    settable: bool = True

    @property
    def guided(self) -> bool:
        """Whether the catalog says to whom it shows its credentials."""
        return not self.own and any(self.addresses) and holds_secret(self.party)

    @property
    def origins(self) -> tuple[str, ...]:
        """Scheme, host and port of each address, in one form for all ways to write it; no user, password or path."""
        return tuple(sorted(set(sending_of(self.kind).origins(self.addresses))))


def clients_of(settings: Settings, catalog: Catalog, sources: Iterable[Source]) -> list[Client]:
    """Return the clients of *sources*, and of the sinks that take their address from *catalog* or could."""
    return [*_of_sources(settings, sources), *_of_sinks(settings, catalog)]


def exposures(clients: Iterable[Client]) -> Iterator[Finding]:
    """Yield an error for each that would send its secret in plain text without the operator's permission."""
    for each in clients:
        address = exposed(each.kind, each.addresses, each.party)
        if address:
            text = f"{each.name}: {address} would get a secret in plain text"
            pointer = _pointer(each.place, "allow_plaintext_password")
            yield Finding("", pointer, "error", "plain-text-secret", text, REMEDY)


class Pins:
    """The addresses that credentials were first used with, in ``addresses.json`` of a state folder.

    Several processes may share the folder. A file that is damaged is never taken for an empty one: that would pin
    anew whatever the catalog says now.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def known(self) -> dict[str, list[str]]:
        """Return the pinned addresses by name; none were pinned where there is no file.

        Raises:
            StateError: the file is damaged, unreadable, or of another format.
        """
        try:
            form = json.loads(read_regular(self._path))
            if form["format"] != FORMAT:
                raise ValueError(f"format {form['format']!r}; this router knows {FORMAT}")
            return {str(name): [str(each) for each in addresses] for name, addresses in form["addresses"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            hint = "restore it from a backup; or name the addresses in the settings and remove it"
            raise StateError(
                f"{self._path}, which holds pinned addresses, cannot be used: {error}", hint=hint
            ) from error

    def moved(self, clients: Iterable[Client]) -> list[Finding]:
        """Return an error for each of *clients* that would show its credentials to an address it was not pinned to.

        Raises:
            StateError: as :meth:`known`.
        """
        known = self.known()
        findings = []
        for each in clients:
            pinned = known.get(each.name)
            strange = [origin for origin in each.origins if pinned is not None and origin not in pinned]
            if pinned is None or not strange or not each.guided:
                continue
            text = f"{each.name}: its credentials are for {', '.join(pinned)}; the catalog says {', '.join(strange)}"
            remove = f"remove the entry from {self._path}"
            hint = f"if that is meant, {remove}"
            if each.settable:
                hint = f"if that is meant, set {each.place}.{each.field} to it, or {remove}"
            findings.append(Finding("", _pointer(each.place, each.field), "error", "moved-address", text, hint))
        return findings

    def keep(self, clients: Iterable[Client]) -> None:
        """Pin those of *clients* that the catalog guides and are not pinned yet; durable when this returns.

        Raises:
            StateError: it cannot be read or written.
        """
        guided = [each for each in clients if each.guided]
        if all(each.name in self.known() for each in guided):
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with waiting_lock(self._path.with_suffix(".lock")):
                known = self.known()
                fresh = {each.name: list(each.origins) for each in guided if each.name not in known}
                form = {"format": FORMAT, "addresses": known | fresh}
                write_durably(self._path, json.dumps(form, indent=1, sort_keys=True).encode())
        except OSError as error:
            hint = "free its disk or correct its rights, or name the addresses in the settings"
            raise StateError(f"cannot write {self._path}: {error.strerror}", hint=hint) from error
        for name, addresses in fresh.items():
            _log.info("credentials are for these addresses of the catalog from now on", name=name, addresses=addresses)


def distrusted(clients: Sequence[Client], pins: Pins) -> list[Finding]:
    """Return why credentials must not be used as the catalog says; nothing when they may.

    Raises:
        StateError: as :meth:`Pins.known`.
    """
    return [*exposures(clients), *pins.moved(clients)]


def admit(clients: Sequence[Client], pins: Pins) -> None:
    """Make sure that credentials may be used as the catalog says, and pin what is new; call it before any connection.

    Raises:
        ConfigError: they may not; names source or sink and address.
        StateError: as :meth:`Pins.keep`.
    """
    require_trusted(clients, pins)
    pins.keep(clients)


def require_trusted(clients: Sequence[Client], pins: Pins) -> None:
    """Make sure that credentials may be used as the catalog says; for commands that only look, and so pin nothing.

    Raises:
        ConfigError: they may not; names source or sink and address.
        StateError: as :meth:`Pins.known`.
    """
    wrong = distrusted(clients, pins)
    if wrong:
        keys = [each.pointer[1:].replace("/", ".") for each in wrong]
        problems = tuple(f"{key}: {each.message}" for key, each in zip(keys, wrong, strict=True))
        raise ConfigError(wrong[0].message, key=keys[0], problems=problems, hint=wrong[0].hint)


def _of_sources(settings: Settings, sources: Iterable[Source]) -> Iterator[Client]:
    places = {each.endpoint: index for index, each in enumerate(settings.sources)}
    for source in sources:
        if source.served:
            continue  # others connect to us
        place = f"sources.{places.get(source.endpoint, 0)}"
        chosen = source.settings
        if source.brokered:
            addresses, field, own = source.uris, "uris", bool(chosen.uris)
        else:
            addresses = (Brokers(source.servers, source.security).text,)
            field, own = "bootstrap_servers", bool(chosen.bootstrap_servers)
        yield Client(f"source {source.endpoint}", place, field, source.kind, addresses, chosen, own)


def _of_sinks(settings: Settings, catalog: Catalog) -> Iterator[Client]:
    for name, sink in settings.sinks.items():
        remote = sink.remote
        if remote is None or remote.endpoint is None:
            continue
        endpoint, own = catalog.endpoints.get(remote.endpoint), remote.own_addresses
        addresses = own or tuple(endpoint.uris if endpoint else ())
        place = f"sinks.{name}"
        settable = remote.address_field != remote.template_field
        yield Client(f"sink {name}", place, remote.address_field, remote.family, addresses, remote, bool(own), settable)


def _pointer(place: str, field: str) -> str:
    return f"/{place.replace('.', '/')}/{field}"
