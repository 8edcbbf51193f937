"""Messages for an endpoint, one event at a time."""

from __future__ import annotations

from bindings.sending import Outbound
from router.sinks.messages.definitions import EndpointComposer
from router.sinks.messages.sink import RoutedEvent, UnsendableMessage


class OneByOne(EndpointComposer):
    """Composes one event, or raises why there can be no message."""

    def compose_one(self, event: RoutedEvent) -> Outbound:
        """Return the message for one event."""
        (made,) = self.compose([event])
        if isinstance(made, UnsendableMessage):
            raise made
        return made
