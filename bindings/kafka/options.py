"""The endpoint options of Kafka for reading and sending records. Case, dashes and dots in names do not count.

``consumergroup`` is only shown to the brokers: Spark keeps the offsets of a query itself, and its consumers are
assigned their partitions and join no group. ``acks`` has no place here: a record is sent when all replicas in sync
have it, since what is confirmed here was acknowledged at its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from catalog.protocols.channel_options import option_key

_START: Final = "autooffsetreset"
_STARTS: Final[Mapping[str, Literal["earliest", "latest"]]] = {
    **dict.fromkeys(("earliest", "smallest", "beginning"), "earliest"),
    **dict.fromkeys(("latest", "largest", "end"), "latest"),
}


def topic_of(options: Mapping[str, Any]) -> str:
    """Return the topic that the options name, which may be a template; empty when they name none."""
    topic = _squashed(options).get("topic")
    return topic if isinstance(topic, str) else ""


def group_of(options: Mapping[str, Any]) -> str:
    """Return the consumer group that the options name; empty when they name none."""
    group = _squashed(options).get("consumergroup")
    return group if isinstance(group, str) else ""


def start_of(options: Mapping[str, Any]) -> Literal["earliest", "latest"] | None:
    """Return where a first read begins by ``autooffsetreset``; None when its value is not a known one."""
    value = _squashed(options).get(_START)
    return _STARTS.get(value.strip().lower()) if isinstance(value, str) else None


def _squashed(options: Mapping[str, Any]) -> dict[str, Any]:
    return {option_key(name): value for name, value in options.items()}
