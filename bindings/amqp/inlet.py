"""One subscription on one connection: its receiving link, how it is attached, and its credit."""

from __future__ import annotations

from typing import Final

import proton
from proton import Described, Link, Terminus, symbol
from proton.reactor import Container, ReceiverOption

from bindings.amqp.dialing import reconnecting
from bindings.amqp.options import capabilities_of, option, option_map, source_filters
from bindings.gateways import Subscription

_MODES: Final = {"move": Terminus.DIST_MODE_MOVE, "copy": Terminus.DIST_MODE_COPY}


class _Terms(ReceiverOption):
    """What is asked of the broker for a link. Settled only by us and only once: at least once (AMQP part 2, 2.6.12);
    a broker that answers that it settles by itself is taken as it is.
    """

    def __init__(self, subscription: Subscription, durable: bool) -> None:
        self._options = subscription.options
        self._durable = durable

    def apply(self, receiver: Link) -> None:
        receiver.snd_settle_mode = Link.SND_UNSETTLED
        receiver.rcv_settle_mode = Link.RCV_FIRST
        properties = option_map(self._options, "linkproperties")
        if properties:
            receiver.properties = {symbol(name): value for name, value in properties.items()}
        mode = option(self._options, "distributionmode")
        if mode is not None:
            receiver.source.distribution_mode = _MODES[mode]
        filters = source_filters(self._options)
        if filters:
            described = {symbol(each.name): Described(symbol(each.descriptor), each.value) for each in filters}
            receiver.source.filter.put_dict(described)
        capabilities = capabilities_of(self._options)
        if capabilities:
            receiver.source.capabilities.put_array(False, proton.Data.SYMBOL)
            receiver.source.capabilities.enter()
            for name in capabilities:
                receiver.source.capabilities.put_symbol(symbol(name))
            receiver.source.capabilities.exit()
        if self._durable:
            receiver.source.durability = Terminus.DELIVERIES
            receiver.source.expiry_policy = Terminus.EXPIRE_NEVER


class Inlet:
    """A receiving link, attached anew whenever the broker detaches it.

    Its ``window`` is the most messages that may be on their way to it or held for it. ``held`` counts the latter.
    ``attached`` says whether the broker serves it now; ``problem`` why not. ``leaving``: nobody wants it any more.
    """

    def __init__(self, subscription: Subscription, container_id: str) -> None:
        self.subscription = subscription
        self.backoff = reconnecting()
        self.window = 1
        self.held = 0
        self.attached = False
        self.leaving = False
        self.problem = ""
        self.receiver: proton.Receiver | None = None
        self._durable = option(subscription.options, "durable") is True
        # A durable subscription is known to the broker by container and link name, over all connections.
        self._name = f"{container_id}{subscription.endpoint}|{subscription.address}"
        self._attempts = 0

    def attach(self, container: Container, connection: proton.Connection) -> None:
        """Ask the broker for the link. The broker serves it once the handler gets its remote opening."""
        self._attempts += 1
        name = self._name if self._durable else f"{self._name}|{self._attempts}"
        terms = _Terms(self.subscription, self._durable)
        self.held = 0
        self.receiver = container.create_receiver(connection, self.subscription.address, name=name, options=terms)

    def ignored_filters(self) -> list[str]:
        """Return the filters that we asked for and that the broker, by its answer, does not apply."""
        wanted = [each.name for each in source_filters(self.subscription.options)]
        applied: set[str] = set()
        if wanted and self.receiver is not None:
            data = self.receiver.remote_source.filter
            data.rewind()
            answer = data.get_object() if data.next() is not None else None
            applied = {str(name) for name in answer} if isinstance(answer, dict) else set()
        return [name for name in wanted if name not in applied]

    def grant(self, most: int) -> None:
        """Give credit, so that at most *most* messages are on their way or held; small amounts wait for more."""
        if self.receiver is None or not self.attached or self.leaving:
            return
        missing = most - self.held - self.receiver.credit
        if missing > 0 and (missing >= most // 4 or self.receiver.credit == 0):
            self.receiver.flow(missing)

    def shut(self) -> None:
        """Take back the credit, as far as the broker has not used it yet."""
        if self.receiver is not None and self.attached:
            self.receiver.drain(0)

    def leave(self) -> None:
        """End the link; the broker keeps a durable subscription."""
        if self.receiver is not None:
            if self._durable:
                self.receiver.detach()
            else:
                self.receiver.close()
        self.receiver, self.attached = None, False

    def lose(self, reason: str) -> None:
        """Note that the broker ended the link."""
        receiver, self.receiver, self.attached = self.receiver, None, False
        self.problem = reason
        if receiver is not None:
            receiver.close()
