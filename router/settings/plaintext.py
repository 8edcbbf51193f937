"""Which settings hold secrets of ours, and which addresses would carry them in plain text (OPERATIONS.md#security).

There is no exception, not even for loopback: whoever wants no TLS has to set ``allow_plaintext_password``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import urlsplit

from bindings.protocols import sending_of
from bindings.sending import shown
from router.settings.catalogs import CatalogLogin, CatalogSettings
from router.settings.inward import KafkaInboxSettings
from router.settings.model import Settings, SourceSettings
from router.settings.places import names_secret
from router.settings.sinks.contract import RemoteSink
from router.settings.telemetry import telemetry_faults
from router.settings.values import revealed

Party = SourceSettings | KafkaInboxSettings | RemoteSink
"""The settings of one client of somebody else's server."""
_ALLOWED: Final = "catalog.allow_plaintext_password"
REMEDY: Final = "use an address with TLS, or set allow_plaintext_password if this connection may be read on its way"


def sends_secret(party: Party) -> bool:
    """Tell whether a secret crosses the connection; a client key, an nkey seed or a NATS user's seed never does."""
    if any(getattr(party, name, None) is not None for name in ("password", "token", "bearer", "api_key")):
        return True
    return any(names_secret(name) for name in party.client_options)


def holds_secret(party: Party) -> bool:
    """Return whether we show who we are in any way: then it matters who is at the other end."""
    files = any(getattr(party, name, None) is not None for name in ("credentials", "seed"))
    return sends_secret(party) or files or (party.tls is not None and party.tls.key is not None)


def exposed(kind: str, addresses: Iterable[str], party: Party) -> str:
    """Return the first of *addresses* that would carry a secret of *party* in plain text; empty when none does."""
    if party.allow_plaintext_password or not sends_secret(party):
        return ""
    tls, login = party.tls is not None, getattr(party, "username", None) is not None
    return sending_of(kind).exposed(addresses, tls=tls, login=login, options=revealed(party.client_options))


def plaintext_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for secrets that the settings themselves send without TLS: sinks, inbox, registries."""
    if not settings.catalog.allow_plaintext_password:
        yield from _registries(settings.catalog)
    for name, registry in settings.schema_registries.items():
        if not registry.allow_plaintext_password:
            key = f"schema_registries.{name}.allow_plaintext_password"
            yield from ((key, fault) for fault in _login_faults(registry))
    yield from telemetry_faults(settings.telemetry, REMEDY)
    for name, sink in settings.sinks.items():
        if (remote := sink.remote) is not None:
            yield from remote_faults(f"sinks.{name}", remote)
    for index, source_settings in enumerate(settings.sources):
        yield from _tokens(f"sources.{index}", source_settings)
    if settings.inbox.kafka is not None:
        yield from _faults("inbox.kafka", "kafka", [settings.inbox.kafka.bootstrap_servers], settings.inbox.kafka)


def remote_faults(key: str, remote: RemoteSink) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for secrets that the sink at *key* would send without TLS."""
    yield from _faults(key, remote.family, remote.own_addresses, remote)


def _registries(catalog: CatalogSettings) -> Iterator[tuple[str, str]]:
    for source in (*catalog.source, *catalog.shadow):
        parts = urlsplit(source) if source.lower().startswith("http://") else None
        if parts is not None and parts.password is not None:
            yield _ALLOWED, f"{shown(source)} would get its password in plain text; {REMEDY}"
    for login in catalog.logins:
        yield from ((_ALLOWED, fault) for fault in _login_faults(login))


def _login_faults(login: CatalogLogin) -> Iterator[str]:
    secret = (login.bearer, login.bearer_file, login.password, login.token_endpoint) != (None,) * 4
    if secret and login.url.lower().startswith("http://"):
        yield f"{shown(login.url)} would get a secret in plain text; {REMEDY}"
    if (login.token_endpoint or "").lower().startswith("http://"):
        yield f"{shown(login.token_endpoint or '')} would get the client secret in plain text; {REMEDY}"


def _faults(key: str, kind: str, addresses: Iterable[str], party: Party) -> Iterator[tuple[str, str]]:
    address = exposed(kind, addresses, party)
    if address:
        yield f"{key}.allow_plaintext_password", f"{address} would get a secret in plain text; {REMEDY}"
    yield from _tokens(key, party)


def _tokens(key: str, party: Party) -> Iterator[tuple[str, str]]:
    endpoint = getattr(party, "token_endpoint", None) or ""
    if endpoint.lower().startswith("http://") and not party.allow_plaintext_password:
        yield f"{key}.token_endpoint", f"{shown(endpoint)} would get the client secret in plain text; {REMEDY}"
