"""The settings of a registry: one YAML file and the environment, with secrets by reference only, as the router's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from pydantic import Field, SecretStr
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from bindings.protocols import Binding
from catalog.documents.connecting import Logins, Reach
from registry.core.service import RegistryService
from registry.delivery.service import PERMISSIONS
from registry.delivery.subscriptions import (
    PATH,
    AddressOf,
    BrokerSender,
    DeliveryLimits,
    DeliverySettings,
    EventMessages,
    Mode,
    Sender,
    SubscriberDelivery,
    Wants,
)
from registry.delivery.targets import Webhook, WebhookSender
from registry.errors import Refusal
from registry.faces.known import FACES, faces_at
from registry.http.access import ANY, FaceType, Roles
from registry.http.application import RequestLimits
from registry.http.openapi import HISTORY
from registry.http.server import RegistrySettings, open_service
from registry.replication.peers import Direction, Peer
from registry.store.engine import StoreError, store_error
from registry.upkeep import HistoryLimits
from router.errors import ConfigError, RouterError, SinkError, StateError
from router.settings.catalogs import CatalogLogin, login_of, one_login_faults, path_of, tls_of
from router.settings.checks import REMEDY, is_loopback, remote_faults
from router.settings.load import Spot, failure, overlay, read_file, resolve, validated
from router.settings.model import HttpSettings, LogSettings, MetricsSettings, access_of, limits_of
from router.settings.names import event_values, parse_address, parse_name
from router.settings.sinks.contract import Fault, RemoteSink
from router.settings.sinks.kafka import KafkaSink
from router.settings.sinks.messages import AmqpSink, HttpSink, MqttSink, NatsSink
from router.settings.values import Duration, Section, Size, Texts, absolute

# Settings of a registry's events: subscribers of the operator, with the clients of the router's sinks, and limits.

_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_OF_ROUTERS: Final = ("endpoint", "lineage", "pass_headers", "max_destinations", "missing", "key", "in_flight")
"""Keys of sinks that say what is done with records."""
Entity = Literal["registry", "model", "modelsource", "capabilities", "group", "resource", "version"]


class _Target(RemoteSink):
    """A sink of the router as the target of a registry's events."""

    def mode_for(self, binding: Binding) -> Mode:
        """Return the content mode: that of the settings, else binary where the protocol has headers."""
        asked: Mode | None = getattr(self, "mode", None)
        return asked or ("binary" if binding.binary else "structured")

    def address_of(self, binding: Binding) -> AddressOf:
        """Return what makes the address of an event from its attributes."""
        address = parse_address(self.template, binding.sending)
        return lambda attributes: address.expand(_values(attributes))

    def sender(self, name: str) -> Sender:
        """Return a client.

        Raises:
            OSError, GatewayError: something that waiting does not repair.
        """
        try:
            return BrokerSender(self.publisher(name, self.binding(None), None))
        except SinkError as error:
            raise OSError(str(error)) from error


class KafkaTarget(KafkaSink, _Target):
    """Topics."""

    def address_of(self, binding: Binding) -> AddressOf:
        """Return what makes the topic of an event."""
        topic = parse_name(self.topic)
        return lambda attributes: topic.expand(_values(attributes))


class MqttTarget(MqttSink, _Target):
    """Topics of MQTT."""


class AmqpTarget(AmqpSink, _Target):
    """Nodes."""


class NatsTarget(NatsSink, _Target):
    """Subjects."""


class WebhookTarget(HttpSink, _Target):
    """Webhooks, which want a body with each event: so structured mode, unless another is asked for."""

    def mode_for(self, binding: Binding) -> Mode:
        """Return the content mode."""
        return self.mode or "structured"

    def sender(self, name: str) -> Sender:
        """Return a client."""
        login = self.login()
        named = login.username is not None and login.password is not None
        target = Webhook(
            tuple(self.own_headers()),
            (login.username or "", login.password or "") if named else None,
            tls_of(self.tls),
            self.seconds,
            self.version,
            self.method,
            self.webhook_origin or "",
        )
        return WebhookSender(target)


class SubscriberSettings(Section):
    """One subscriber, and which events it gets: all of them by default."""

    to: Annotated[KafkaTarget | MqttTarget | AmqpTarget | NatsTarget | WebhookTarget, Field(discriminator="type")] = (
        Field(description="Where to, as in `sinks` of the router.")
    )
    types: Texts = Field((), description="Types of events, such as `io.xregistry.resource.deleted`.")
    entities: tuple[Entity, ...] = Field((), description="Kinds of entities, such as `resource`.")
    below: Texts = Field((), description="Xids, such as `/messagegroups/g`; what is below them is meant as well.")
    events: tuple[Literal["xregistry", "messagecatalog"], ...] = Field(
        ("xregistry",), description="Of which specification: `xregistry`, `messagecatalog` or both."
    )


class EventsSettings(Section):
    """Whom the registry notifies of changes."""

    subscribers: dict[Annotated[str, Field(pattern=_NAME)], SubscriberSettings] = Field(
        {}, description="Subscribers by name, the same ones in all processes over one database."
    )
    subscriptions: bool = Field(True, description="Whether writers and administrators may subscribe over HTTP.")
    allow_addresses: Texts = Field(
        (), description="Hosts and networks that are not public and may be named as sinks over HTTP."
    )
    max_subscriptions: int = Field(100, ge=0, description="Subscriptions over HTTP at a time.")
    origin: str = Field(
        "", description="Our name in the handshake of webhooks; unset is the host of `base_url`.", pattern=r"^[!-~]*$"
    )
    keep: Duration = Field(
        timedelta(days=7), gt=timedelta(0), description="How long an event is tried; then it is dropped and counted."
    )
    max_waiting: int = Field(
        1_000_000, ge=1, description="Events that may wait for one subscriber; more are dropped and counted."
    )
    max_held: int = Field(
        1_000, ge=1, description="Events of one subscriber in memory; when all of them are held it gets no further."
    )
    max_pause: Duration = Field(timedelta(minutes=1), gt=timedelta(0), description="Longest pause between two tries.")
    poll: Duration = Field(
        timedelta(milliseconds=250), gt=timedelta(0), description="How soon writes of other processes are seen."
    )


def event_faults(given: EventsSettings) -> Iterator[Fault]:
    """Yield what contradicts itself; a fault names the remedy and no secret."""
    for name, each in given.subscribers.items():
        key = f"events.subscribers.{name}.to"
        for field in sorted(set(_OF_ROUTERS) & each.to.model_fields_set):
            yield f"{key}.{field}", "is for sinks of the router; leave it out"
        yield from each.to.faults(key, events=True, letters=False)
        yield from each.to.login_faults(key)
        yield from remote_faults(key, each.to)
        if getattr(each.to, "qos", 1) == 0:
            yield f"{key}.qos", "is 0, which no broker confirms; write 1"


def delivery_settings(given: EventsSettings, catalog: str) -> DeliverySettings:
    """Return how events are delivered; *catalog* is the path of the Message Catalog, '' without one."""
    return DeliverySettings(
        {name: _delivery(name, each) for name, each in given.subscribers.items()},
        given.subscriptions,
        tuple(given.allow_addresses),
        given.origin,
        catalog,
        DeliveryLimits(
            keep=given.keep.total_seconds(),
            max_waiting=given.max_waiting,
            max_held=given.max_held,
            max_pause=given.max_pause.total_seconds(),
            poll=given.poll.total_seconds(),
            max_subscriptions=given.max_subscriptions,
        ),
    )


def _delivery(name: str, given: SubscriberSettings) -> SubscriberDelivery:
    wants = Wants(given.events, frozenset(given.types), entities=frozenset(given.entities), below=tuple(given.below))
    binding = given.to.binding(None)
    composer = EventMessages(binding, given.to.address_of(binding), given.to.mode_for(binding), given.to.given)
    return SubscriberDelivery(wants, composer, partial(given.to.sender, name))


def _values(attributes: Mapping[str, str]) -> dict[str, str]:
    return event_values("", "", "", {}, attributes)


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
        limits=RequestLimits(max_body=http.max_body, max_answer=given.max_answer, origins=http.cors),
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


# Opening a registry for one command, with errors as commands report them.

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file of the registry.")]


@contextmanager
def opened(config: Path, *, lint: bool = True) -> Iterator[RegistryService]:
    """Open the registry of a settings file, made if need be; without *lint* writes are not looked at.

    Raises:
        RouterError: it cannot be opened, or what the block does is refused.
    """
    _, settings = load_registry(config)
    try:
        database, service = open_service(settings if lint else replace(settings, lint="off"))
    except StoreError as error:
        raise unopened(error) from error
    try:
        yield service
    except Refusal as refusal:
        raise refused(refusal) from refusal
    except SQLAlchemyError as error:
        raise unopened(store_error(settings.store, error)) from error
    finally:
        database.close()


def unopened(error: StoreError) -> RouterError:
    """Return the error that ends a command when a store cannot be opened, or does not answer any more."""
    return StateError(str(error), hint=f"{error.hint}; store in the settings says where it is" if error.hint else "")


def refused(refusal: Refusal) -> RouterError:
    """Return a refusal as the error that ends a command."""
    return RouterError(refusal.title, hint=refusal.detail)
