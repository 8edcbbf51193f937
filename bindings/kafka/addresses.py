"""Addresses of Kafka brokers, whose scheme says the security protocol as in other bindings (OPERATIONS.md#security)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

SECURITY: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Schemes that say a security protocol, in any letter case; all others, and none, leave it to the settings."""
PROTOCOL: Final = "security.protocol"


@dataclass(frozen=True, slots=True)
class Brokers:
    """Bootstrap servers, ``HOST:PORT`` with commas, and the security protocol that their addresses ask for, if any."""

    servers: str = ""
    security: str = ""

    @property
    def text(self) -> str:
        """The addresses in a form that :func:`brokers_of` reads back."""
        return f"{self.security}://{self.servers}" if self.security and self.servers else self.servers

    @property
    def tls(self) -> bool:
        """Whether the addresses ask for TLS."""
        return self.security.endswith("SSL")


def brokers_of(addresses: Iterable[str]) -> Brokers:
    """Read addresses such as ``host:9092``, ``kafka://host``, ``SASL_SSL://one:9093,two:9093``.

    An address without a scheme of :data:`SECURITY` takes the security protocol of the others.

    Raises:
        ValueError: two of them say different security protocols.
    """
    servers: list[str] = []
    said: dict[str, None] = {}
    for address in (part.strip() for each in addresses for part in each.split(",")):
        scheme, mark, rest = address.partition("://")
        if mark and scheme.upper() in SECURITY:
            said[scheme.upper()] = None
        server = rest.partition("/")[0] if mark else address
        if server:
            servers.append(server)
    if len(said) > 1:
        raise ValueError(f"its addresses ask for {' and for '.join(said)}, and one client speaks one of them")
    return Brokers(",".join(servers), next(iter(said), ""))


def contradiction(security: str, *, tls: bool, login: bool, options: Mapping[str, object]) -> str:
    """Say what settings contradict the security protocol that addresses ask for; empty when nothing does.

    ``tls`` and ``login`` say whether the settings have them; ``options`` are the client's.
    """
    if not security:
        return ""
    other = str(options.get(PROTOCOL, security))
    own_login = login or any(name.startswith("sasl.") for name in options)
    if other.upper() != security:
        return f"its addresses ask for {security} and {PROTOCOL} for {other}; leave out one"
    if tls and not security.endswith("SSL"):
        return f"its addresses ask for {security}, which has no TLS, and tls is set; correct one of them"
    if login and not security.startswith("SASL"):
        return f"its addresses ask for {security}, which has no login, and username is set; correct one of them"
    if security.startswith("SASL") and not own_login:
        return f"its addresses ask for {security}, and there is no login; set username and password"
    return ""


def brokers_for(
    addresses: Iterable[str], *, tls: bool, login: bool, options: Mapping[str, object]
) -> tuple[Brokers, str]:
    """Return the brokers at these addresses for a client of these settings, and what is wrong with them, if anything.

    Addresses that contradict each other or the settings are a fault. No address at all is no fault.
    """
    try:
        brokers = brokers_of(addresses)
    except ValueError as error:
        return Brokers(), str(error)
    return brokers, contradiction(brokers.security, tls=tls, login=login, options=options)


def protocol_of(security: str, *, tls: bool, login: bool, options: Mapping[str, str]) -> str:
    """Return the security protocol of a client: that of its options, else of its addresses, else of its settings."""
    from_settings = f"{'SASL_' if login else ''}{'SSL' if tls else 'PLAINTEXT'}"
    return options.get(PROTOCOL, security or from_settings).upper()
