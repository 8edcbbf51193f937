"""Making links: which address is tried when, on what terms, and how long to wait after a failure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bindings.addresses import Address, addresses_of, tls_context, with_login
from bindings.gateways import Connection, GatewayError, Tls
from bindings.mqtt.client import MAX_RECEIVE, VERSIONS, LinkTerms
from bindings.mqtt.link import Link, LinkOwner
from bindings.mqtt.messages import Version
from bindings.mqtt.options import session_options
from bindings.mqtt.sending import MqttSending


class LinkError(Exception):
    """A connection that could not be made, for now; the message has no secrets."""


@dataclass(frozen=True, slots=True)
class Connector:
    """Makes links, to one address after the other."""

    addresses: tuple[Address, ...]
    terms: LinkTerms

    def open(self, turn: int, owner: LinkOwner) -> Link:
        """Connect to the address whose turn it is, counted from 0 for ever; blocks for the network's time limits.

        Raises:
            LinkError: nothing answers there, or the server's certificate is not valid for it.
        """
        address = self.addresses[turn % len(self.addresses)]
        link = Link(self.terms, address, owner)
        try:
            link.connect()
        except (OSError, ValueError) as error:
            link.close("not connected")
            # The text of a system error alone: an exception's other arguments may hold what was sent.
            checked = getattr(error, "verify_message", "")
            said = f"its certificate does not hold: {checked}" if checked else getattr(error, "strerror", None)
            said = said or type(error).__name__
            raise LinkError(f"cannot connect to {address}: {said}") from None
        return link


def connector_of(
    connection: Connection, version: str, client_id: str, *, clean: bool, receive: int = MAX_RECEIVE
) -> Connector:
    """Return what makes the links of a connection.

    Raises:
        GatewayError: an address, a certificate, an option, the version or the client id cannot be used.
    """
    if version not in VERSIONS:
        raise GatewayError(f"{version!r:.40} is no protocol of this gateway; it speaks MQTT/5.0 and MQTT/3.1.1")
    if not client_id or "\0" in client_id or len(client_id.encode("utf-8", "replace")) > MAX_RECEIVE:
        raise GatewayError("an MQTT connection needs a client id, by which the broker knows its session again")
    known: Version = "MQTT/5.0" if version == "MQTT/5.0" else "MQTT/3.1.1"
    receive = max(1, min(receive, MAX_RECEIVE))
    addresses = tuple(_named(with_login(each, connection.login)) for each in addresses_of(MqttSending.form, connection))
    if not addresses:
        raise GatewayError("an MQTT connection has no address; give the endpoint one, such as mqtts://host:8883")
    tls = tls_context(connection.tls or Tls()) if any(address.tls for address in addresses) else None
    terms = LinkTerms(known, client_id, session_options(connection.options), clean, receive, tls)
    return Connector(addresses, terms)


def _named(address: Address) -> Address:
    """Give a login a user name: MQTT 3.1.1 allows no password without one."""
    return replace(address, username="") if address.password is not None and address.username is None else address
