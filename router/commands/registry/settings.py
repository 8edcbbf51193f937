"""The settings of a registry: one YAML file and the environment, with secrets by reference only, as the router's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, SecretStr
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from catalog.documents.logins import Logins
from catalog.documents.reach import Reach
from registry.delivery.service import PERMISSIONS
from registry.delivery.subscriptions import PATH
from registry.faces.known import FACES, faces_at
from registry.http.access import Roles
from registry.http.application import Limits
from registry.http.browsers import ANY
from registry.http.face import FaceType
from registry.http.openapi.operations import HISTORY
from registry.http.server import RegistrySettings
from registry.replication.peers import Direction, Peer
from registry.upkeep.history import HistoryLimits
from router.commands.registry.events import EventsSettings, delivery_settings, event_faults
from router.errors import ConfigError
from router.settings.catalogs import CatalogLogin, login_of, one_login_faults
from router.settings.environment import overlay
from router.settings.inward import HttpSettings
from router.settings.load import failure, read_file, validated
from router.settings.logins import path_of
from router.settings.model import LogSettings, MetricsSettings
from router.settings.places import absolute
from router.settings.plaintext import REMEDY
from router.settings.references import resolve
from router.settings.schema import Spot
from router.settings.section import Section
from router.settings.security import is_loopback
from router.settings.serving import access_of, limits_of
from router.settings.values import Duration, Size, Texts

MESSAGE_CATALOG: Final = "messagecatalog"
"""The face whose paths events of the Message Catalog name."""
PREFIX: Final = "XREGISTRY_"
"""Begins the variables that override settings."""
_PORT: Final = 8090
_ORIGIN: Final = re.compile(r"https?://(?:[a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?", re.ASCII)
"""An origin as browsers write it, in lower case."""
_SECRET: Final = frozenset(("password", "sslpassword"))
"""Secrets among libpq's parameters, which a URL may have as its query."""


class StoreSettings(Section):
    """Where the registry is kept: a file of SQLite, or a database of PostgreSQL."""

    path: str = Field("./registry.db", description="File of the SQLite database.")
    url: str | None = Field(None, description="Database of PostgreSQL instead, as postgresql://USER@HOST/NAME.")
    password: SecretStr | None = Field(None, description="Password for `url`, by reference.")


class ServingSettings(HttpSettings):
    """How the registry listens."""

    port: int = Field(_PORT, ge=0, le=65535, description="Port; 0 takes a free one.")
    max_body: Size = Field(16 * 2**20, gt=0, description="Largest request body; more is answered 413.")
    cors: Texts = Field(
        (), description="Origins whose web pages may use it, such as https://ui.example; `*` for all. Without it, none."
    )


class RoleSettings(Section):
    """Who of `http.auth`, or of those with certificates by common name, may do what; all of them may read."""

    administrators: Texts = Field((), description="Names that may do everything.")
    writers: dict[str, Texts] = Field(
        {}, description="By name, the groups that one may write to, such as `/messagegroups/*`."
    )
    anonymous: bool = Field(False, description="Whether everybody may read without credentials.")


class PeerSettings(CatalogLogin):
    """Another catalog to replicate with, and who we are to it; see `catalog.logins` of the router for the login."""

    url: str = Field(
        description="URL of its message catalog, such as https://other.example/messagecatalog.",
        pattern=r"^https?://[^\s/?#@\\]+(?:/[^\s?#]*[^\s?#/])?$",
    )
    direction: Direction = Field("both", description="Whether changes are taken from it, given to it, or both.")
    interval: Duration = Field(timedelta(seconds=10), gt=timedelta(0), description="How often changes are looked for.")
    allow_plaintext_password: bool = Field(False, description="Whether a secret may go over a connection without TLS.")


class HistorySettings(Section):
    """How much is kept of who did what; the newest entry of each entity that is there always stays."""

    keep: Duration | None = Field(None, gt=timedelta(0), description="For how long; unset is for ever.")
    max_entries: int = Field(10_000_000, ge=1, description="How many entries, the newest ones.")


class RegistryFile(Section):
    """A settings file."""

    registryid: str = Field("registry", description="The registry's id, given once, when it is made.")
    base_url: str = Field("", description="URL that clients know it by; unset is the host that they name.")
    store: StoreSettings = Field(StoreSettings(), description="The store.")
    http: ServingSettings = Field(ServingSettings(), description="How it listens.")
    open: bool = Field(False, description="Whether everybody may do everything; on loopback addresses alone.")
    roles: RoleSettings = Field(RoleSettings(), description="Who may do what.")
    lint: Literal["refuse", "report", "off"] = Field(
        "refuse", description="Whether writes that make errors for lint are refused, reported, or not looked at."
    )
    writes_per_second: float = Field(200.0, gt=0, description="Writes of one sender in a second.")
    write_burst: int = Field(1000, ge=1, description="Writes of one sender at once.")
    max_answer: Size = Field(64 * 2**20, gt=0, description="Largest answer; more is answered 406.")
    faces: dict[str, str] = Field(
        {}, description="Older APIs over the same store, by name, each with its path, such as `/cloudevents`."
    )
    events: EventsSettings = Field(EventsSettings(), description="Whom it notifies of changes.")
    metrics: MetricsSettings | None = Field(None, description="Where /metrics is; unset is nowhere.")
    authority: str = Field(
        "",
        description="URI of who controls messages that name no authority; unset is the message catalog of `base_url`.",
        pattern=r"^(?:[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9\-._~:/?@!$&'()*+,;=%]+)?$",
    )
    replication: tuple[PeerSettings, ...] = Field((), description="Catalogs that have the same messages.")
    history: HistorySettings = Field(HistorySettings(), description="How much of its history is kept.")
    log: LogSettings = Field(LogSettings(), description="Logging.")


def load_registry(path: Path, environ: Mapping[str, str] | None = None) -> tuple[RegistryFile, RegistrySettings]:
    """Read a settings file, overridden by ``XREGISTRY_...`` variables of *environ* (the process's own if None).

    They are spelled as those of the router. Relative paths start from the folder of the file.

    Raises:
        ConfigError: it cannot be read, a key is unknown, or a value is invalid.
    """
    base = path.resolve().parent
    variables = os.environ if environ is None else environ
    written = overlay(read_file(path), variables, Spot(RegistryFile), PREFIX)
    given = validated(RegistryFile, resolve(written, variables, base, str(path)), str(path))
    faults = list(_faults(given))
    if faults:
        raise failure(str(path), faults)
    return given, _settings(given, base, path)


def admit(given: RegistryFile, path: Path) -> None:
    """Make sure that nobody serves a registry that strangers may change.

    Raises:
        ConfigError: nobody is let in, or everybody who reaches the address is.
    """
    http = given.http
    if http.auth is None and http.tls is not None and http.tls.ca is not None:
        return  # certificates say who everybody is
    if http.auth is None and not given.open:
        hint = "give http.auth, or http.tls.ca for certificates, or `open: true` for a registry on this machine alone"
        raise ConfigError(f"{path}: nobody may use this registry", file=str(path), key="http.auth", hint=hint)
    if http.auth is None and not is_loopback(http.host):
        hint = "give http.auth, or listen at 127.0.0.1"
        raise ConfigError(f"{path}: open is for loopback addresses", file=str(path), key="open", hint=hint)
    known = http.auth.names if http.auth is not None else ()
    for name in (*given.roles.administrators, *given.roles.writers):
        if name not in known:
            hint = f"it has {', '.join(known) or 'none'}"
            raise ConfigError(f"{path}: http.auth has nobody named {name!r}", file=str(path), key="roles", hint=hint)


def _settings(given: RegistryFile, base: Path, path: Path) -> RegistrySettings:
    http = given.http
    tls = http.tls
    writers = {name: tuple(groups) for name, groups in given.roles.writers.items()}
    return RegistrySettings(
        store=_store(given.store, base, path),
        registryid=given.registryid,
        base=given.base_url,
        host=http.host,
        port=http.port,
        tls_certificate=path_of(tls.cert) if tls is not None else None,
        tls_key=path_of(tls.key) if tls is not None else None,
        tls_clients=path_of(tls.ca) if tls is not None else None,
        access=access_of(http.auth),
        roles=Roles(frozenset(given.roles.administrators), writers, given.roles.anonymous),
        lint=given.lint,
        writes_per_second=given.writes_per_second,
        write_burst=given.write_burst,
        limits=Limits(max_body=http.max_body, max_answer=given.max_answer, origins=http.cors),
        server=limits_of(http),
        faces=_faces(given.faces, path),
        delivery=delivery_settings(given.events, given.faces.get(MESSAGE_CATALOG, "")),
        metrics=(given.metrics.host, given.metrics.port) if given.metrics is not None else None,
        authority=_authority(given),
        peers=tuple(_peers(given, path)),
        history=HistoryLimits(
            given.history.keep.total_seconds() if given.history.keep is not None else None, given.history.max_entries
        ),
    )


def _faults(given: RegistryFile) -> Iterator[tuple[str, str]]:
    try:
        Reach(given.events.allow_addresses)
    except ValueError as error:
        yield "events.allow_addresses", f"names no network: {error}; write one such as 10.0.0.0/8"
    for number, origin in enumerate(given.http.cors):
        if origin != ANY and not _ORIGIN.fullmatch(origin):
            yield f"http.cors.{number}", "names no origin; write one such as https://ui.example, without a path, or *"
    for name, face in given.faces.items():
        if f"{face}/".startswith((f"{PATH}/", f"{PERMISSIONS}/")):
            yield f"faces.{name}", f"is where subscriptions are; choose a path other than {PATH} and {PERMISSIONS}"
        if f"{face}/".startswith(f"{HISTORY}/"):
            yield f"faces.{name}", f"is where history is; choose a path other than {HISTORY}"
    yield from event_faults(given.events)


def _faces(given: Mapping[str, str], path: Path) -> dict[str, FaceType]:
    try:
        return faces_at(given)
    except ValueError as error:
        hint = f"write faces as NAME: /PATH; the names are {', '.join(FACES) or 'none'}"
        raise ConfigError(f"{path}: {error}", file=str(path), key="faces", hint=hint) from None


def _authority(given: RegistryFile) -> str:
    catalog = given.faces.get("messagecatalog", "/messagecatalog")
    return given.authority or (f"{given.base_url.rstrip('/')}{catalog}" if given.base_url else "")


def _peers(given: RegistryFile, path: Path) -> Iterator[Peer]:
    if given.replication and not _authority(given):
        hint = "give authority, or base_url, by which other catalogs know whose messages are written here"
        raise ConfigError(f"{path}: replication needs an authority", file=str(path), key="authority", hint=hint)
    for index, each in enumerate(given.replication):
        key = f"replication.{index}"
        faults = list(one_login_faults(key, each, needed=False))
        shows = each.bearer is not None or each.bearer_file is not None or each.password is not None
        if shows and each.url.startswith("http:") and not each.allow_plaintext_password:
            faults.append((f"{key}.url", f"would carry a secret in plain text; {REMEDY}"))
        for where, fault in faults:
            raise ConfigError(f"{path}: {where}: {fault}", file=str(path), key=where, problems=(f"{where}: {fault}",))
        yield Peer(each.url, each.direction, each.interval.total_seconds(), Logins([login_of(each)]))


def _store(given: StoreSettings, base: Path, path: Path) -> str:
    if given.url is None:
        return f"sqlite:///{absolute(given.path, base)}"
    try:
        url = make_url(given.url)
    except ArgumentError:
        raise ConfigError(f"{path}: store.url is no URL", file=str(path), key="store.url") from None
    if url.password is not None or not _SECRET.isdisjoint(url.query):
        hint = "leave it out there, and give store.password as ${VAR} or file:/path"
        raise ConfigError(f"{path}: store.url holds a password", file=str(path), key="store.url", hint=hint)
    if url.get_backend_name() != "postgresql":
        hint = "write postgresql://USER@HOST/NAME, or store.path for SQLite"
        raise ConfigError(f"{path}: store.url is no PostgreSQL", file=str(path), key="store.url", hint=hint)
    secret: Any = given.password.get_secret_value() if given.password is not None else None
    return url.set(drivername="postgresql+psycopg", password=secret).render_as_string(hide_password=False)
