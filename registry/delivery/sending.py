"""What becomes of messages at a target, and how brokers are sent to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from bindings.gateways import GatewayError
from bindings.sending import Outbound, Publisher, Refusal, Unsettled


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one message.

    ``held`` concerns this message alone, ``away`` the whole target, which takes nothing now. ``gone`` is a target that
    wants nothing more, ever. ``reason`` is one line without secrets. ``pause`` is the least number of seconds that the
    target asks for.
    """

    kind: Literal["delivered", "held", "away", "gone"]
    reason: str = ""
    pause: float = 0.0


DELIVERED = Verdict("delivered")


class Sender(Protocol):
    """Sends to one target; used by one thread."""

    def room(self) -> tuple[int, float]:
        """Return how many messages may be sent now and, if none, in how many seconds one may."""
        ...

    def send(self, messages: Sequence[Outbound]) -> list[Verdict]:
        """Send messages, no two of one lane, and return what became of each. It does not raise."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class BrokerSender:
    """Keeps :class:`Sender` over a publisher of the bindings."""

    def __init__(self, publisher: Publisher, most: int = 500) -> None:
        self._publisher = publisher
        self._most = most

    def room(self) -> tuple[int, float]:
        """Return how many at a time."""
        return self._most, 0.0

    def send(self, messages: Sequence[Outbound]) -> list[Verdict]:
        """Send messages; when none was taken, that is an outage."""
        try:
            return [_settled(answer) for answer in self._publisher.send(messages)]
        except Unsettled as error:
            taken = any(answer is None for answer in error.settled.values())
            left = Verdict("held" if taken else "away", str(error))
            settled = error.settled
            return [_settled(settled[place]) if place in settled else left for place in range(len(messages))]
        except (GatewayError, OSError) as error:
            return [Verdict("away", str(error))] * len(messages)

    def close(self) -> None:
        """Disconnect."""
        self._publisher.close()


def _settled(answer: Refusal | None) -> Verdict:
    return DELIVERED if answer is None else Verdict("held", answer.reason)
