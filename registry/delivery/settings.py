"""How events are delivered: what the settings of a registry say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from registry.delivery.limits import DeliveryLimits
from registry.delivery.wants import Delivery


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """To whom events go, and on which terms.

    ``subscribers`` are those of the operator, by id. With ``subscriptions`` writers and administrators subscribe by the
    API; their sinks may be at public hosts, and at ``allowed`` hosts and networks
    (:class:`catalog.documents.reach.Reach`). ``origin`` is our name in the handshake of webhooks, '' that of the host
    of the registry's URL. ``catalog`` is the path of the face of the Message Catalog, '' without one.
    """

    subscribers: Mapping[str, Delivery] = field(default_factory=dict)
    subscriptions: bool = True
    allowed: tuple[str, ...] = ()
    origin: str = ""
    catalog: str = ""
    limits: DeliveryLimits = field(default_factory=DeliveryLimits)
