"""What the settings of Kafka clients say: how to reach a cluster, and what contradicts itself in that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from bindings.kafka.addresses import Brokers, brokers_of, contradiction
from bindings.kafka.login import SaslLogin
from router.settings.logins import KafkaLogin
from router.settings.values import Options, revealed

if TYPE_CHECKING:
    from bindings.kafka.client import KafkaClient

_HOST_CHECK: Final = "ssl.endpoint.identification.algorithm"
_MECHANISM: Final = ("sasl.mechanism", "sasl.mechanisms")
_OURS: Final = ("bootstrap.servers", "group.id", "enable.auto.commit", "client.id")
"""Kafka options that the router itself must set for its promises to hold."""
_ISOLATIONS: Final = ("read_committed", "read_uncommitted")


def kafka_client(brokers: Brokers, settings: KafkaLogin, options: Options) -> KafkaClient:
    """Return how to reach a cluster, whose library is imported here."""
    from bindings.kafka.client import KafkaClient

    tls = settings.tls
    return KafkaClient(
        brokers.servers,
        _login(settings),
        tls=tls is not None or brokers.tls,
        security=brokers.security,
        ca=tls.ca if tls else None,
        cert=tls.cert if tls else None,
        key=tls.key if tls else None,
        options=revealed(options),
    )


def kafka_login_faults(key: str, login: KafkaLogin, name: str, options: object) -> Iterator[tuple[str, str]]:
    """Yield what is missing or too much in a login; *name* is the key of the client's *options*."""
    if login.sasl is not None and login.username is None:
        yield f"{key}.sasl", "needs username and password; add them, or leave it out"
    if login.sasl == "oauthbearer" and login.token_endpoint is None:
        yield f"{key}.token_endpoint", "is missing beside sasl: oauthbearer; add the URL that gives tokens"
    if login.sasl != "oauthbearer":
        for field in ("token_endpoint", "token_scope", "token_ca"):
            if getattr(login, field) is not None:
                yield f"{key}.{field}", "is for sasl: oauthbearer only; leave it out"
    if not isinstance(options, dict):
        return
    for option in _MECHANISM:
        if option in options and login.username is not None:
            yield f"{key}.{name}.{option}", "is only known to one of the two clients; set sasl instead"
    if _HOST_CHECK in options:
        yield f"{key}.{name}.{_HOST_CHECK}", "host names are always checked; leave it out, and mend the certificate"


def broker_faults(key: str, servers: str | None, login: KafkaLogin, options: Options) -> Iterator[tuple[str, str]]:
    """Yield how the addresses of Kafka brokers contradict each other or what is set beside them."""
    try:
        security = brokers_of([servers or ""]).security
    except ValueError as error:
        yield key, str(error)
        return
    tls, named = login.tls is not None, login.username is not None
    fault = contradiction(security, tls=tls, login=named, options=revealed(options))
    if fault:
        yield key, fault


def option_faults(key: str, options: object) -> Iterator[tuple[str, str]]:
    """Yield the options of a reading client that are the router's, and what its ``isolation.level`` may not be."""
    for name in _OURS:
        if isinstance(options, dict) and name in options:
            yield f"{key}.{name}", "is set by the router; leave it out"
    isolation = options.get("isolation.level") if isinstance(options, dict) else None
    if isolation is not None and isolation.get_secret_value() not in _ISOLATIONS:
        yield f"{key}.isolation.level", f"is {' (the default) or '.join(_ISOLATIONS)}"


def _login(settings: KafkaLogin) -> SaslLogin | None:
    if settings.username is None:
        return None
    return SaslLogin(
        settings.username,
        settings.password.get_secret_value() if settings.password else "",
        settings.sasl or "plain",
        settings.token_endpoint or "",
        settings.token_scope,
        settings.token_ca,
    )
