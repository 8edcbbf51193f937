"""What an endpoint's options say about taking messages from NATS.

The specification has ``subject`` only. These are ours, each a text unless it says otherwise, dashes optional:

``queue``
    Core NATS: the queue group, whose members share the messages (also ``queuegroup``, ``consumergroup``, ``group``).
``stream``
    Take the subject from this JetStream stream, by a durable pull consumer. Without it the subscription is core NATS.
``durable``
    The name of that consumer (also ``consumer``); by default the queue group, whose members share its messages, else a
    name made of endpoint and subject. It is created when it is missing, and used as it is when it exists.
``ackwait``
    Seconds after which JetStream delivers a message again that nobody acknowledged, when the consumer is created here;
    30 by default. A gateway that still holds a message says so in time.
``deliver``
    Where a consumer created here begins: ``all`` (the default) or ``new`` (also ``deliverpolicy``).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bindings.gateways import GatewayError, Subscription
from catalog.protocols.properties import squashed

DEFAULT_ACK_WAIT: Final = 30.0
_QUEUE: Final = ("queue", "queuegroup", "consumergroup", "group")
_DURABLE: Final = ("durable", "consumer", *_QUEUE)
_DELIVER: Final = ("deliver", "deliverpolicy")
_MAX_SUBJECT: Final = 1024
_BLANK: Final = re.compile(r"[\s\x00-\x1f\x7f\ud800-\udfff]")
_NAME: Final = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")
"""What a server takes as the name of a stream or consumer."""


@dataclass(frozen=True, slots=True)
class CorePlan:
    """One core subscription; ``queue`` is empty without a group."""

    endpoint: str
    subject: str
    queue: str = ""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """One durable pull consumer; ``ack_wait`` (seconds) and ``from_first`` count when it is created."""

    endpoint: str
    subject: str
    stream: str
    durable: str
    ack_wait: float = DEFAULT_ACK_WAIT
    from_first: bool = True


Plan = CorePlan | StreamPlan


def plans_of(subscriptions: Sequence[Subscription], options: Mapping[str, Any]) -> tuple[Plan, ...]:
    """Return how to take each subscription; its own options come before *options*, those of the connection.

    Raises:
        GatewayError: a subject or option that no server takes, or one consumer for two subjects.
    """
    plans = tuple(dict.fromkeys(_plan(one, {**squashed(options), **squashed(one.options)}) for one in subscriptions))
    subjects: dict[tuple[str, str], Plan] = {}
    for plan in plans:
        if isinstance(plan, StreamPlan) and subjects.setdefault((plan.stream, plan.durable), plan) != plan:
            raise GatewayError(
                f"{plan.endpoint}: the durable {plan.durable} of stream {plan.stream} is named for two subjects or "
                f"endpoints; leave the options durable and queuegroup out, or give each its own"
            )
    return plans


def is_subject(text: str, *, wildcards: bool) -> bool:
    """Tell whether a server takes *text* as a subject: tokens between dots, none empty, no blanks."""
    if not text or len(text) > _MAX_SUBJECT or _BLANK.search(text):
        return False
    tokens = text.split(".")
    if not all(tokens):
        return False
    wild = [token for token in tokens if token in ("*", ">")]
    return (wildcards or not wild) and ">" not in tokens[:-1]


def _plan(one: Subscription, options: Mapping[str, Any]) -> Plan:
    if not is_subject(one.address, wildcards=True):
        raise GatewayError(
            f"{one.endpoint}: {one.address[:200]!r} is no NATS subject; write tokens between dots, without blanks, "
            f"* for any token and > for all that follow"
        )
    stream = _text(one, options, "stream")
    if not stream:
        return CorePlan(one.endpoint, one.address, _text(one, options, *_QUEUE))
    durable = _text(one, options, *_DURABLE) or _durable(one)
    for option, name in (("stream", stream), ("durable", durable)):
        if not _NAME.fullmatch(name):
            raise GatewayError(f"{one.endpoint}: {name[:200]!r} cannot be a {option}; use letters, digits, - and _")
    deliver = _text(one, options, *_DELIVER) or "all"
    if deliver not in ("all", "new"):
        raise GatewayError(f"{one.endpoint}: option deliver is {deliver[:50]!r}; write all or new")
    return StreamPlan(one.endpoint, one.address, stream, durable, _ack_wait(one, options), deliver == "all")


def _ack_wait(one: Subscription, options: Mapping[str, Any]) -> float:
    value = options.get("ackwait", DEFAULT_ACK_WAIT)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= 86_400:
        raise GatewayError(f"{one.endpoint}: option ackwait is {str(value)[:50]!r}; write seconds from 1 to 86400")
    return float(value)


def _text(one: Subscription, options: Mapping[str, Any], *names: str) -> str:
    """Return the first of these options that says something; an empty text when none does."""
    for name in names:
        value = options.get(name)
        if value is None or value == "":
            continue
        if not isinstance(value, str) or _BLANK.search(value):
            raise GatewayError(f"{one.endpoint}: option {name} is {str(value)[:50]!r}; write a text without blanks")
        return value
    return ""


def _durable(one: Subscription) -> str:
    """Make a name that is the same at every start: a readable text, made unique by a checksum."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", one.endpoint.removeprefix("/endpoints/")).strip("-")[:64]
    return f"xrouter-{readable}-{zlib.crc32(f'{one.endpoint} {one.address}'.encode()):08x}"
