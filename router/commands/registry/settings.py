"""The settings of a registry: a YAML file and the environment; secrets by reference only, like the router's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from pydantic import Field, SecretStr
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from bindings.gateways import GatewayError
from bindings.protocols import Binding
from catalog.documents.connecting import ConnectionPolicy, Logins
from registry.apis.apis import APIS, apis_by_path
from registry.backup import HistoryLimits
from registry.core.service import RegistryService
from registry.delivery.service import PERMISSIONS
from registry.delivery.subscriptions import (
    PATH,
    AddressOf,
    BrokerSender,
    DeliveryLimits,
    DeliverySettings,
    EventFilter,
    EventMessages,
    Mode,
    Sender,
    SubscriberDelivery,
)
from registry.delivery.targets import Webhook, WebhookSender
from registry.errors import Refusal
from registry.http.access import ANY, RegistryApiFactory, Roles
from registry.http.application import RequestLimits
from registry.http.openapi import HISTORY
from registry.http.server import RegistrySettings, open_service
from registry.replication.peers import Direction, Peer
from registry.store.engine import StoreError, store_error
from router.errors import ConfigError, RouterError, SinkError, StateError
from router.settings.catalogs import CatalogLogin, iter_registry_login_faults, make_origin_login, reveal, to_tls
from router.settings.checks import is_loopback, iter_plain_login_faults, iter_secret_faults
from router.settings.load import SettingsNode, apply_environment, read_yaml, resolve, settings_error, validate_model
from router.settings.model import HttpSettings, LogSettings, MetricsSettings, make_access, make_server_limits
from router.settings.routes import make_event_values, parse_address, parse_name
from router.settings.sinks.contract import RemoteSink
from router.settings.sinks.kafka import KafkaSink
from router.settings.sinks.messages import AmqpSink, HttpSink, MqttSink, NatsSink
from router.settings.values import Duration, Section, Size, Texts, to_absolute

# Settings of events: the operator's subscribers, which use the clients of the router's sinks, and limits.

_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_OF_ROUTERS: Final = ("endpoint", "lineage", "pass_headers", "max_destinations", "missing", "key", "in_flight")
"""Keys of sinks that only apply to a router's records."""
Entity = Literal["registry", "model", "modelsource", "capabilities", "group", "resource", "version"]


class _Target(RemoteSink):
    """A sink of the router as the target of a registry's events."""

    def choose_mode(self, binding: Binding) -> Mode:
        """Return the content mode: the configured one, else binary if the protocol has headers.

        A webhook expects a body, so structured mode is its default.
        """
        asked: Mode | None = getattr(self, "mode", None)
        return asked or ("binary" if binding.binary and self.family != "http" else "structured")

    def make_address_of(self, binding: Binding) -> AddressOf:
        """Return the function from an event's attributes to its destination."""
        topics = self.topics
        name = parse_address(self.template, binding.sending) if topics is None else parse_name(topics.topic)
        return lambda attributes: name.expand(make_event_values("", "", "", {}, attributes))

    def make_sender(self, name: str) -> Sender:
        """Return a client.

        Raises:
            OSError, GatewayError: a permanent failure.
        """
        try:
            return BrokerSender(self.publisher(name, self.binding(None), None))
        except SinkError as error:
            raise OSError(str(error)) from error


class KafkaTarget(KafkaSink, _Target):
    """Topics."""


class MqttTarget(MqttSink, _Target):
    """An MQTT topic."""


class AmqpTarget(AmqpSink, _Target):
    """Nodes."""


class NatsTarget(NatsSink, _Target):
    """Subjects."""


class WebhookTarget(HttpSink, _Target):
    """A webhook."""

    def make_sender(self, name: str) -> Sender:
        """Return a client."""
        login = self.login
        named = login.username is not None and login.password is not None
        target = Webhook(
            tuple(self.own_headers()),
            (login.username or "", login.password or "") if named else None,
            to_tls(self.tls),
            self.seconds,
            self.version,
            self.method,
            self.webhook_origin or "",
        )
        return WebhookSender(target)


class SubscriberSettings(Section):
    """One subscriber and its events: all by default."""

    to: Annotated[KafkaTarget | MqttTarget | AmqpTarget | NatsTarget | WebhookTarget, Field(discriminator="type")] = (
        Field(description="Target, as in `sinks` of the router.")
    )
    types: Texts = Field((), description="Event types, such as `io.xregistry.resource.deleted`.")
    entities: tuple[Entity, ...] = Field((), description="Kinds of entities, such as `resource`.")
    below: Texts = Field((), description="Xids, such as `/messagegroups/g`; entities below them are included.")
    events: tuple[Literal["xregistry", "messagecatalog"], ...] = Field(
        ("xregistry",), description="Specifications of the events: `xregistry`, `messagecatalog` or both."
    )


class EventsSettings(Section):
    """Notification of changes."""

    subscribers: dict[Annotated[str, Field(pattern=_NAME)], SubscriberSettings] = Field(
        {}, description="Subscribers by name; must be the same in all processes that share a database."
    )
    subscriptions: bool = Field(True, description="Whether writers and administrators may subscribe over HTTP.")
    allow_addresses: Texts = Field((), description="Private hosts and networks that clients may name as sinks.")
    max_subscriptions: int = Field(100, ge=0, description="Maximum number of subscriptions over HTTP.")
    origin: str = Field("", description="Our name to webhooks; default: the host of `base_url`.", pattern=r"^[!-~]*$")
    keep: Duration = Field(
        timedelta(days=7), gt=timedelta(0), description="How long an event is retried; then it is dropped and counted."
    )
    max_waiting: int = Field(
        1_000_000,
        ge=1,
        description="Maximum number of events waiting for one subscriber; more are dropped and counted.",
    )
    max_held: int = Field(
        1_000, ge=1, description="Events of one subscriber in memory; when all are blocked, delivery to it stops."
    )
    max_pause: Duration = Field(timedelta(minutes=1), gt=timedelta(0), description="Longest pause between attempts.")
    poll: Duration = Field(
        timedelta(milliseconds=250),
        gt=timedelta(0),
        description="Interval at which writes of other processes are noticed.",
    )


def make_delivery_settings(given: EventsSettings, catalog: str) -> DeliverySettings:
    """Return the delivery settings; *catalog* is the path of the Message Catalog API, '' without one."""
    return DeliverySettings(
        {name: _make_subscriber(name, each) for name, each in given.subscribers.items()},
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


def _make_subscriber(name: str, given: SubscriberSettings) -> SubscriberDelivery:
    wants = EventFilter(
        given.events, frozenset(given.types), entities=frozenset(given.entities), below=tuple(given.below)
    )
    binding = given.to.binding(None)
    composer = EventMessages(
        binding, given.to.make_address_of(binding), given.to.choose_mode(binding), given.to.message_form.given
    )
    return SubscriberDelivery(wants, composer, partial(given.to.make_sender, name))


MESSAGE_CATALOG: Final = "messagecatalog"
"""The API whose paths are used in events of the Message Catalog."""
PREFIX: Final = "XREGISTRY_"
"""Prefix of environment variables that override settings."""
_PORT: Final = 8090
_ORIGIN: Final = re.compile(r"https?://(?:[a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?", re.ASCII)
"""An origin as browsers send it, in lower case."""
_SECRET: Final = frozenset(("password", "sslpassword"))
"""Secret libpq parameters, which a URL may have in its query."""


class StoreSettings(Section):
    """The database of the registry: an SQLite file, or PostgreSQL."""

    path: str = Field("./registry.db", description="SQLite database file.")
    url: str | None = Field(None, description="PostgreSQL database to use instead, as postgresql://USER@HOST/NAME.")
    password: SecretStr | None = Field(None, description="Password for `url`, by reference.")


class ServingSettings(HttpSettings):
    """How the registry listens."""

    port: int = Field(_PORT, ge=0, le=65535, description="Port; 0 selects a free one.")
    max_body: Size = Field(16 * 2**20, gt=0, description="Maximum size of a request body; if larger, 413.")
    cors: Texts = Field(
        (), description="Origins whose web pages may use it, such as https://ui.example; `*` for all. Default: none."
    )


class RoleSettings(Section):
    """Permissions of the users of `http.auth`, or of certificates by common name; all of them may read."""

    administrators: Texts = Field((), description="Users who may do everything.")
    writers: dict[str, Texts] = Field(
        {}, description="Groups that a user may write to, by name, such as `/messagegroups/*`."
    )
    anonymous: bool = Field(False, description="Whether anybody may read without credentials.")


class PeerSettings(CatalogLogin):
    """Another catalog to replicate with, and the login to it, as in `catalog.logins` of the router."""

    url: str = Field(
        description="URL of its message catalog, such as https://other.example/messagecatalog.",
        pattern=r"^https?://[^\s/?#@\\]+(?:/[^\s?#]*[^\s?#/])?$",
    )
    direction: Direction = Field("both", description="Whether changes are pulled from it, pushed to it, or both.")
    interval: Duration = Field(timedelta(seconds=10), gt=timedelta(0), description="Interval between two rounds.")
    allow_plaintext_password: bool = Field(False, description="Whether a secret may be sent without TLS.")


class HistorySettings(Section):
    """Retention of the history; the newest entry of each existing entity is always kept."""

    keep: Duration | None = Field(None, gt=timedelta(0), description="Retention time; default: unlimited.")
    max_entries: int = Field(10_000_000, ge=1, description="Maximum number of entries.")


class RegistryFile(Section):
    """A settings file."""

    registryid: str = Field("registry", description="Id of the registry; used only when it is created.")
    base_url: str = Field("", description="URL of the registry for clients; default: the host of each request.")
    store: StoreSettings = Field(StoreSettings(), description="Where data is stored.")
    http: ServingSettings = Field(ServingSettings(), description="The HTTP server.")
    open: bool = Field(False, description="Whether anybody may do everything; only on loopback addresses.")
    roles: RoleSettings = Field(RoleSettings(), description="Permissions.")
    lint: Literal["refuse", "report", "off"] = Field(
        "refuse", description="Whether writes with lint errors are refused or reported, or not checked."
    )
    writes_per_second: float = Field(200.0, gt=0, description="Maximum rate of writes of one sender.")
    write_burst: int = Field(1000, ge=1, description="Maximum burst of writes of one sender.")
    max_answer: Size = Field(64 * 2**20, gt=0, description="Maximum size of a response; larger ones are answered 406.")
    faces: dict[str, str] = Field({}, description="Paths of older APIs by name, such as `/cloudevents`.")
    events: EventsSettings = Field(EventsSettings(), description="Notification of changes.")
    metrics: MetricsSettings | None = Field(None, description="Where /metrics is served; default: nowhere.")
    authority: str = Field(
        "",
        description="Authority (URI) of messages that name none; default: the message catalog of `base_url`.",
        pattern=r"^(?:[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9\-._~:/?@!$&'()*+,;=%]+)?$",
    )
    replication: tuple[PeerSettings, ...] = Field((), description="Catalogs to replicate with.")
    history: HistorySettings = Field(HistorySettings(), description="Retention of the history.")
    log: LogSettings = Field(LogSettings(), description="Logging.")


def load_registry(path: Path, environ: Mapping[str, str] | None = None) -> tuple[RegistryFile, RegistrySettings]:
    """Read a settings file, overridden by ``XREGISTRY_...`` variables of *environ* (the process's own if None).

    They are spelled like the router's. Relative paths are relative to the file's folder.

    Raises:
        ConfigError: it cannot be read, a key is unknown, or a value is invalid.
    """
    base = path.resolve().parent
    variables = os.environ if environ is None else environ
    root = SettingsNode(RegistryFile)
    written = apply_environment(read_yaml(path), variables, root, PREFIX)
    given = validate_model(RegistryFile, resolve(written, variables, base, str(path), root), str(path))
    faults = list(_iter_faults(given))
    if faults:
        raise settings_error(str(path), faults)
    return given, _make_settings(given, base, path)


def _error(path: Path, key: str, text: str, hint: str = "") -> ConfigError:
    return ConfigError(f"{path}: {text}", file=str(path), key=key, hint=hint)


def require_access(given: RegistryFile, path: Path) -> None:
    """Raise if the settings let nobody use the registry, or let strangers change it.

    Raises:
        ConfigError: nobody has access, or everybody who can reach the address has.
    """
    http = given.http
    if http.auth is None and http.tls is not None and http.tls.ca is not None:
        return  # certificates identify clients
    if http.auth is None and not given.open:
        hint = "set http.auth, or http.tls.ca for certificates, or `open: true` for a registry only on this machine"
        raise _error(path, "http.auth", "nobody may use this registry", hint)
    if http.auth is None and not is_loopback(http.host):
        hint = "set http.auth, or listen on 127.0.0.1"
        raise _error(path, "open", "open is allowed only on loopback addresses", hint)
    known = http.auth.client_names if http.auth is not None else ()
    for name in (*given.roles.administrators, *given.roles.writers):
        if name not in known:
            hint = f"users are {', '.join(known) or 'none'}"
            raise _error(path, "roles", f"http.auth has no user {name!r}", hint)


def _make_settings(given: RegistryFile, base: Path, path: Path) -> RegistrySettings:
    http = given.http
    keep = given.history.keep
    writers = {name: tuple(groups) for name, groups in given.roles.writers.items()}
    return RegistrySettings(
        store=_database_url(given.store, base, path),
        registryid=given.registryid,
        base=given.base_url,
        host=http.host,
        port=http.port,
        tls=to_tls(http.tls),
        access=make_access(http.auth),
        roles=Roles(frozenset(given.roles.administrators), writers, given.roles.anonymous),
        lint=given.lint,
        writes_per_second=given.writes_per_second,
        write_burst=given.write_burst,
        limits=RequestLimits(max_body=http.max_body, max_answer=given.max_answer, origins=http.cors),
        server=make_server_limits(http),
        apis=_make_apis(given.faces, path),
        delivery=make_delivery_settings(given.events, given.faces.get(MESSAGE_CATALOG, "")),
        metrics=(given.metrics.host, given.metrics.port) if given.metrics is not None else None,
        authority=_choose_authority(given),
        peers=tuple(_iter_peers(given, path)),
        history=HistoryLimits(None if keep is None else keep.total_seconds(), given.history.max_entries),
    )


def _iter_faults(given: RegistryFile) -> Iterator[tuple[str, str]]:
    try:
        ConnectionPolicy(given.events.allow_addresses)
    except ValueError as error:
        yield "events.allow_addresses", f"is not a valid network: {error}; use one such as 10.0.0.0/8"
    for number, origin in enumerate(given.http.cors):
        if origin != ANY and not _ORIGIN.fullmatch(origin):
            yield (
                f"http.cors.{number}",
                "is not a valid origin; use one such as https://ui.example, without a path, or *",
            )
    for name, face in given.faces.items():
        if f"{face}/".startswith((f"{PATH}/", f"{PERMISSIONS}/")):
            yield f"faces.{name}", f"is reserved for subscriptions; use a path other than {PATH} and {PERMISSIONS}"
        if f"{face}/".startswith(f"{HISTORY}/"):
            yield f"faces.{name}", f"is reserved for history; use a path other than {HISTORY}"
    for name, each in given.events.subscribers.items():
        key = f"events.subscribers.{name}.to"
        for field in sorted(set(_OF_ROUTERS) & each.to.model_fields_set):
            yield f"{key}.{field}", "applies only to sinks of the router; remove it"
        yield from each.to.faults(key, events=True, letters=False)
        yield from iter_secret_faults(key, each.to, each.to.family, each.to.own_addresses)
        if getattr(each.to, "qos", 1) == 0:
            yield f"{key}.qos", "is 0, which no broker confirms; use 1"


def _make_apis(given: Mapping[str, str], path: Path) -> dict[str, RegistryApiFactory]:
    try:
        return apis_by_path(given)
    except ValueError as error:
        hint = f"write faces as NAME: /PATH; the names are {', '.join(APIS) or 'none'}"
        raise _error(path, "faces", f"{error}", hint) from None


def _choose_authority(given: RegistryFile) -> str:
    catalog = given.faces.get("messagecatalog", "/messagecatalog")
    return given.authority or (f"{given.base_url.rstrip('/')}{catalog}" if given.base_url else "")


def _iter_peers(given: RegistryFile, path: Path) -> Iterator[Peer]:
    if given.replication and not _choose_authority(given):
        hint = "set authority or base_url, which identify messages written here to other catalogs"
        raise _error(path, "authority", "replication needs an authority", hint)
    for index, each in enumerate(given.replication):
        key = f"replication.{index}"
        faults = list(iter_registry_login_faults(key, each, needed=False))
        if not each.allow_plaintext_password:
            faults += ((f"{key}.url", fault) for fault in iter_plain_login_faults(each))
        for where, fault in faults:
            raise ConfigError(f"{path}: {where}: {fault}", file=str(path), key=where, problems=(f"{where}: {fault}",))
        yield Peer(each.url, each.direction, each.interval.total_seconds(), Logins([make_origin_login(each)]))


def _database_url(given: StoreSettings, base: Path, path: Path) -> str:
    if given.url is None:
        return f"sqlite:///{to_absolute(given.path, base)}"
    try:
        url = make_url(given.url)
    except ArgumentError:
        raise _error(path, "store.url", "store.url is not a valid URL") from None
    if url.password is not None or not _SECRET.isdisjoint(url.query):
        hint = "remove it there, and set store.password to ${VAR} or file:/path"
        raise _error(path, "store.url", "store.url contains a password", hint)
    if url.get_backend_name() != "postgresql":
        hint = "use postgresql://USER@HOST/NAME, or store.path for SQLite"
        raise _error(path, "store.url", "store.url is not a PostgreSQL URL", hint)
    url = url.set(drivername="postgresql+psycopg", password=reveal(given.password))
    return url.render_as_string(hide_password=False)


# Opening a registry for one command.

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file of the registry.")]


@contextmanager
def open_registry(config: Path, *, lint: bool = True) -> Iterator[RegistryService]:
    """Open, or create, the registry of a settings file; without *lint* writes are not checked.

    Raises:
        RouterError: it cannot be opened, or a request in the block is refused.
    """
    _, settings = load_registry(config)
    with report_errors(settings):
        database, service = open_service(settings if lint else replace(settings, lint="off"))
        try:
            yield service
        finally:
            database.close()


@contextmanager
def report_errors(settings: RegistrySettings, *, located: bool = True) -> Iterator[None]:
    """Raise errors of a registry in the block as those of a command: of its store, its files, and refused requests.

    With *located*, the hint of an error of the store says where its location is set.
    """
    try:
        yield
    except (StoreError, SQLAlchemyError) as error:
        failure = error if isinstance(error, StoreError) else store_error(settings.store, error)
        where = "; its location is `store` in the settings" if failure.hint and located else ""
        raise StateError(str(failure), hint=f"{failure.hint}{where}") from error
    except Refusal as refusal:
        raise RouterError(refusal.title, hint=refusal.detail) from refusal
    except BrokenPipeError:
        raise  # The reader of the output left.
    except (GatewayError, OSError) as error:
        if isinstance(error, OSError) and error.filename:
            text = f"{error.filename}: {error.strerror or type(error).__name__}"
            raise RouterError(text, hint="check the path and its permissions") from error
        raise RouterError(str(error)) from error
