"""Topic filters: made from templates, checked, and held against topics (MQTT 5.0 section 4.7 and 4.8.2).

:func:`requests_of` makes what a broker is asked for of the subscriptions of endpoints.

A filter may be shared, ``$share/<group>/<filter>``: what it takes is then dealt out among the group's members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bindings.gateways import GatewayError, Subscription
from catalog.protocols.addresses import PLACEHOLDER, SHARE, filter_fault, mqtt_text_fault, unshared
from catalog.protocols.properties import squashed

SHARE_OPTIONS: Final = ("sharedsubscriptiongroup", "sharename", "sharedgroup", "consumergroup", "group")
"""Names, squashed, of the endpoint option that asks for a shared subscription; its value is the group."""
_TOPIC_OPTIONS: Final = ("topicfilter", "topic", "topicname")


class FilterError(ValueError):
    """A text that is no topic filter; the message names it and says what is wrong."""


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """What a broker is asked for: a filter, and the options of MQTT 5 that decide which of its messages come.

    ``no_local``: not those that this client published. ``retain_handling``: retained ones with each SUBSCRIBE (0), with
    one that is new to the session (1), or never (2).
    """

    filter: str
    no_local: bool = False
    retain_handling: int = 1


def requests_of(subscriptions: Sequence[Subscription]) -> tuple[SubscribeRequest, ...]:
    """Return what to ask a broker for, in the order of *subscriptions*, also where another one covers it.

    Raises:
        GatewayError: a subscription is no topic filter, has an option that MQTT does not allow there, or two that
            overlap have different options, which one connection cannot keep apart.
    """
    requests: list[SubscribeRequest] = []
    for each in subscriptions:
        try:
            request = _request(each)
        except FilterError as error:
            raise GatewayError(f"{each.endpoint}: {error}") from error
        for other, known in zip(subscriptions, requests, strict=False):
            if known != request and _same_messages(known.filter, request.filter):
                if (known.no_local, known.retain_handling) != (request.no_local, request.retain_handling):
                    raise GatewayError(
                        f"{other.endpoint} and {each.endpoint} subscribe to {known.filter} and {request.filter}, which "
                        f"overlap, with different nolocal or retainhandling; a message comes by both, so write the "
                        f"same, or give one of the sources a client_id of its own"
                    )
        requests.append(request)
    return tuple(requests)


def _request(subscription: Subscription) -> SubscribeRequest:
    known = squashed(subscription.options)
    no_local, handling = known.get("nolocal"), known.get("retainhandling")
    filter_ = shared(subscription.address, subscription.options)
    if not isinstance(no_local, bool | None):
        raise FilterError(f"option nolocal is true or false, not {no_local!r:.40}")
    if handling is not None and (isinstance(handling, bool) or handling not in (0, 1, 2)):
        raise FilterError(f"option retainhandling is 0, 1 or 2, not {handling!r:.40}")
    if no_local and filter_.startswith(SHARE):
        raise FilterError(f"{filter_} is shared, and MQTT allows no nolocal there; remove one of the two options")
    return SubscribeRequest(filter_, bool(no_local), 1 if handling is None else int(handling))


def _same_messages(one: str, other: str) -> bool:
    """Whether a broker that has both filters of one client holds their options against each other."""
    if one.startswith(SHARE) or other.startswith(SHARE):
        return one == other
    return overlap(one, other)


def filter_of_template(template: str) -> str:
    """Return the narrowest filter that takes every topic which fits a template (JUDGING.md#templates).

    A level with a placeholder becomes ``+``, since a placeholder never takes a ``/``; a template that is one
    placeholder takes anything and becomes ``#``. Wildcards that stand in the template already are kept.

    Raises:
        FilterError: the outcome is no topic filter.
    """
    if PLACEHOLDER.fullmatch(template):
        return "#"
    levels = ("+" if PLACEHOLDER.search(level) else level for level in template.split("/"))
    return checked("/".join(levels))


def filters_of_templates(templates: Iterable[str]) -> list[str]:
    """Return the filters of several definitions' topics, each once, without those that another one covers.

    Raises:
        FilterError: a template gives no topic filter.
    """
    return uncovered(filter_of_template(template) for template in templates)


def filter_of_options(options: Mapping[str, Any]) -> str | None:
    """Return the filter that an endpoint's options name (``topicfilter``, else ``topic``); :func:`shared` shares it.

    None when they name none; then the endpoint's address or its definitions say what to subscribe to.

    Raises:
        FilterError: the option is no text, or no topic filter.
    """
    known = squashed(options)
    for name in _TOPIC_OPTIONS:
        value = known.get(name)
        if value is None or value == "":
            continue
        if not isinstance(value, str):
            raise FilterError(f"option {name} must be a topic filter as text, not {value!r:.80}")
        return filter_of_template(value)
    return None


def shared(address: str, options: Mapping[str, Any]) -> str:
    """Return the filter *address*, shared when the options name a group and it is not shared already.

    Raises:
        FilterError: the address is no topic filter, or the group is no name for one.
    """
    known = squashed(options)
    group = next((known[name] for name in SHARE_OPTIONS if known.get(name)), None)
    if group is None or address.startswith(SHARE):
        return checked(address)
    if not isinstance(group, str) or any(sign in group for sign in "/+#"):
        raise FilterError(f"{group!r:.80} is no group for a shared subscription; it is a text without / + and #")
    return checked(f"{SHARE}{group}/{address}")


def checked(text: str) -> str:
    """Return *text* when it is a topic filter.

    Raises:
        FilterError: it is empty, too long, holds U+0000 or half a surrogate pair, or has a wildcard out of place.
    """
    fault = filter_fault(text)
    if fault:
        raise FilterError(f"{text!r:.80} is no topic filter: {fault}")
    return text


def topic_fault(topic: str) -> str:
    """Return what makes *topic* no name that a message can be published to; empty when nothing does."""
    if "+" in topic or "#" in topic:
        return "a topic has no wildcards (+ or #)"
    return mqtt_text_fault(topic)


def matches(text: str, topic: str) -> bool:
    """Tell whether a filter, shared or not, takes a topic.

    A wildcard in the first level takes no topic that begins with ``$``.
    """
    wanted = unshared(text).split("/")
    levels = topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place >= len(levels) or (level not in ("+", levels[place])):
            return False
    return len(wanted) == len(levels)


def covers(wide: str, narrow: str) -> bool:
    """Tell whether whatever *narrow* takes, *wide* takes as well. A shared filter covers itself only."""
    if wide == narrow:
        return True
    if wide.startswith(SHARE) or narrow.startswith(SHARE):
        return False
    outer, inner = wide.split("/"), narrow.split("/")
    if inner[0].startswith("$") and outer[0] in ("+", "#"):
        return False
    for place, level in enumerate(outer):
        if level == "#":
            return True
        if place >= len(inner) or inner[place] == "#" or (level != "+" and level != inner[place]):
            return False
    return len(outer) == len(inner)


def overlap(one: str, other: str) -> bool:
    """Tell whether some topic fits both filters, shared or not."""
    left, right = unshared(one).split("/"), unshared(other).split("/")
    for wild, plain in ((left[0], right[0]), (right[0], left[0])):
        if wild in ("+", "#") and plain.startswith("$"):
            return False
    for place in range(max(len(left), len(right)) + 1):
        here, there = left[place : place + 1], right[place : place + 1]
        if "#" in (*here, *there):
            return True  # it takes the level above it as well, so the other one may have ended there
        if not here or not there:
            return here == there
        if here != there and "+" not in (*here, *there):
            return False
    return True


def uncovered(filters: Iterable[str]) -> list[str]:
    """Return the filters that no other one covers, each once, in order."""
    distinct = list(dict.fromkeys(filters))
    return [each for each in distinct if not any(other != each and covers(other, each) for other in distinct)]
