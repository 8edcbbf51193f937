"""Which settings hold secrets of ours, and which addresses would carry them in plain text (semantics section 10).

No address is excepted, loopback neither: who means to do without TLS says so with ``allow_plaintext_password``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from bindings.kafka.addresses import brokers_of, protocol_of
from router.settings.inward import KafkaInboxSettings
from router.settings.model import HttpSink, KafkaSink, MessageSink, Settings, SourceSettings
from router.settings.places import names_secret
from router.settings.values import Options, revealed

Party = SourceSettings | KafkaSink | KafkaInboxSettings | MessageSink
"""The settings of one client of somebody else's server."""
_CLEAR: Final[Mapping[str, frozenset[str]]] = {
    "mqtt": frozenset({"mqtt", "tcp", "ws", ""}),
    "nats": frozenset({"nats", "ws", ""}),
    "amqp": frozenset({"amqp"}),
    "http": frozenset({"http"}),
}
"""Schemes without TLS, by kind; with ``tls`` those of MQTT and NATS have it all the same."""
REMEDY: Final = "use an address with TLS, or set allow_plaintext_password if this connection may be read on its way"


def sends_secret(party: Party) -> bool:
    """Tell whether a secret crosses the connection; a client key, an nkey seed or a NATS user's seed never does."""
    if any(getattr(party, name, None) is not None for name in ("password", "token", "bearer", "api_key")):
        return True
    named = party.headers if isinstance(party, HttpSink) else _options(party)
    return any(names_secret(name) for name in named)


def holds_secret(party: Party) -> bool:
    """Tell whether we prove by anything who we are: then it matters who is at the other end."""
    files = any(getattr(party, name, None) is not None for name in ("credentials", "seed"))
    return sends_secret(party) or files or (party.tls is not None and party.tls.key is not None)


def exposed(kind: str, addresses: Iterable[str], party: Party) -> str:
    """Return the first of *addresses* that would carry a secret of *party* in plain text; empty when none does."""
    if party.allow_plaintext_password or not sends_secret(party):
        return ""
    if kind == "kafka":
        return _exposed_brokers(addresses, party)
    for address in addresses:
        scheme = urlsplit(address).scheme.lower() if "://" in address else ""
        if scheme in _CLEAR[kind] and (party.tls is None or kind in ("amqp", "http")):
            return _shown(address)
    return ""


def plaintext_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for secrets that the settings themselves send without TLS: sinks, inbox, registries."""
    for source in settings.catalog.source:
        parts = urlsplit(source) if source.lower().startswith("http://") else None
        if parts is not None and parts.password is not None and not settings.catalog.allow_plaintext_password:
            yield "catalog.allow_plaintext_password", f"{_shown(source)} would get its password in plain text; {REMEDY}"
    for name, sink in settings.sinks.items():
        if isinstance(sink, KafkaSink | MessageSink):
            yield from _faults(f"sinks.{name}", sink.type, _own(sink), sink)
    for index, source_settings in enumerate(settings.sources):
        yield from _tokens(f"sources.{index}", source_settings)
    if settings.inbox.kafka is not None:
        yield from _faults("inbox.kafka", "kafka", [settings.inbox.kafka.bootstrap_servers], settings.inbox.kafka)


def _own(sink: KafkaSink | MessageSink) -> list[str]:
    if isinstance(sink, KafkaSink):
        return [sink.bootstrap_servers] if sink.bootstrap_servers else []
    if isinstance(sink, HttpSink):
        return [sink.url] if sink.url is not None else []
    return list(getattr(sink, "uri", ()))


def _faults(key: str, kind: str, addresses: Iterable[str], party: Party) -> Iterator[tuple[str, str]]:
    address = exposed(kind, addresses, party)
    if address:
        yield f"{key}.allow_plaintext_password", f"{address} would get a secret in plain text; {REMEDY}"
    yield from _tokens(key, party)


def _tokens(key: str, party: Party) -> Iterator[tuple[str, str]]:
    endpoint = getattr(party, "token_endpoint", None) or ""
    if endpoint.lower().startswith("http://") and not party.allow_plaintext_password:
        yield f"{key}.token_endpoint", f"{_shown(endpoint)} would get the client secret in plain text; {REMEDY}"


def _exposed_brokers(addresses: Iterable[str], party: Party) -> str:
    try:
        brokers = brokers_of(addresses)
    except ValueError:
        return ""  # a fault of its own
    login = getattr(party, "username", None) is not None
    tls = party.tls is not None or brokers.tls
    protocol = protocol_of(brokers.security, tls=tls, login=login, options=revealed(_options(party)))
    return brokers.servers if brokers.servers and not protocol.endswith("SSL") else ""


def _options(party: Party) -> Options:
    if isinstance(party, SourceSettings):
        return party.kafka
    return party.options if isinstance(party, KafkaSink | KafkaInboxSettings) else {}


def _shown(address: str) -> str:
    """Return an address without user, password and query."""
    scheme, mark, rest = address.partition("://")
    place = rest if mark else scheme
    host = place.partition("/")[0].rpartition("@")[2]
    return f"{scheme}://{host}" if mark else host
