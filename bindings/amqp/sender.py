"""The AMQP 1.0 sender of sinks: blocks until the broker has said of every message what became of it.

A broker may end the connection at a message that it cannot read (AMQP 1.0 part 2 section 2.8.15). Such a message is
found and given up (:mod:`bindings.suspects`); the others pass.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from bindings.amqp.dialing import Dialer
from bindings.amqp.options import option_map
from bindings.amqp.outgoing import AmqpMessage, EncodingError, encode
from bindings.amqp.outlet import Job, LinkLost, Outlet
from bindings.gateways import Connection
from bindings.sending import Refusal, Unsettled
from bindings.suspects import Ended, Item, Suspects

ENCODING: Final = "amqp:encode-error"
ENDED: Final = "amqp:connection:framing-error"
"""The condition of a message at which the broker ended the connection each time; the description has its own."""
_JOIN_SECONDS: Final = 5.0


@dataclass(slots=True)
class _Run:
    """One connection and its thread."""

    outlet: Outlet
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self.outlet.live, name="amqp-sender", daemon=True)
        self.thread.start()


class AmqpSender:
    """Sends to any nodes of one broker. It connects when it is first needed, and anew after a connection was lost.

    ``timeout`` seconds bound one exchange with the broker, connecting included. At most ``max_in_flight`` messages are
    without an answer at any time. Delivery is at least once: after :class:`Unsettled` messages may arrive twice.

    Raises:
        GatewayError: the connection has something that waiting does not repair.
    """

    def __init__(
        self, connection: Connection, *, container_id: str, timeout: float = 30.0, max_in_flight: int = 1000
    ) -> None:
        self._dialer = Dialer(connection, container_id)
        self._container_id = container_id
        self._timeout = timeout
        self._max_in_flight = max_in_flight
        self._properties = option_map(connection.options, "linkproperties")
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._closed = False
        self._suspects = Suspects(_given_up)

    def send(self, messages: Sequence[AmqpMessage]) -> list[Refusal | None]:
        """Send messages, in order for each node, and wait: None for one that was accepted, else why it never will be.

        Messages of other lanes may overtake one at which the broker ends the connection.

        Raises:
            Unsettled: the broker cannot be reached, does not answer in time, or released a message.
        """
        settled: dict[int, Refusal | None] = {}
        encoded: dict[int, tuple[int, str, bytes]] = {}
        for place, message in enumerate(messages):
            try:
                encoded[place] = (place, message.address, encode(message))
            except EncodingError as error:
                settled[place] = _refusal(ENCODING, str(error))
        items = [
            Item(message.lane, hash(encoded[place][1:]) if place in encoded else 0)
            for place, message in enumerate(messages)
        ]
        with self._lock:
            try:
                self._suspects.send(
                    items, lambda places: self._sent([encoded[place] for place in places], settled), settled
                )
            except (Ended, Unsettled) as error:
                raise Unsettled(f"{error}; send again", settled) from error
        return [settled[place] for place in range(len(messages))]

    def close(self) -> None:
        """Close the connection; what is being sent fails with Unsettled."""
        self._closed = True
        run = self._run
        if run is not None:
            run.outlet.close()
            run.thread.join(_JOIN_SECONDS)

    def _sent(self, encoded: list[tuple[int, str, bytes]], settled: dict[int, Refusal | None]) -> None:
        if self._closed:
            raise Unsettled("the sender is closed")
        if self._run is None or not self._run.outlet.usable:
            self._run = _Run(Outlet(self._dialer, self._container_id, self._max_in_flight, self._properties))
        outlet = self._run.outlet
        done: Future[list[tuple[int, str, str]]] = Future()
        job = Job(encoded, done)
        outlet.submit(job)
        try:
            done.result(self._timeout)
        except TimeoutError:
            outlet.close()
            raise Unsettled(f"no answer from the broker within {self._timeout:g} s") from None
        except LinkLost as error:
            raise (Ended(str(error), sure=error.sure) if error.ended else Unsettled(str(error))) from error
        finally:
            settled.update(dict.fromkeys(job.accepted))
            settled.update(
                (place, _refusal(condition, description)) for place, condition, description in list(job.refused)
            )


def _given_up(reason: str) -> Refusal:
    return _refusal(ENDED, reason)


def _refusal(condition: str, description: str) -> Refusal:
    """Name the AMQP condition, and what the broker says about it."""
    return Refusal(f"the broker refuses it: {condition} {description}".strip())
