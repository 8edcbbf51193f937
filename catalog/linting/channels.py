"""Endpoints and groups: what is expected nowhere, what nothing is expected at, and options of a wrong kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from catalog.declared import Place
from catalog.linting.subject import Subject
from catalog.model import Endpoint
from catalog.protocol_properties import squash

_RECEIVING: Final = frozenset({"consumer", "subscriber"})
_HOLDERS: Final = ("protocoloptions", "protocolmetadata", "config")
Check = tuple[str, Callable[[Any], bool]]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_TEXT: Final[Check] = ("a text that is not empty", _is_text)
_WHOLE: Final[Check] = ("a whole number", _is_whole)
_FLAG: Final[Check] = ("true or false", lambda value: isinstance(value, bool))
_MAP: Final[Check] = ("a map", lambda value: isinstance(value, dict))
_QOS: Final[Check] = ("0, 1 or 2", lambda value: _is_whole(value) and 0 <= value <= 2)
_ACKS: Final[Check] = ("-1, 0 or 1", lambda value: value == "all" or (_is_whole(value) and -1 <= value <= 1))
_MODE: Final[Check] = ("move or copy", lambda value: value in ("move", "copy"))
_MQTT: Final[Mapping[str, Check]] = {
    "topic": _TEXT,
    "topicfilter": _TEXT,
    "qos": _QOS,
    "retain": _FLAG,
    "cleansession": _FLAG,
    "willtopic": _TEXT,
    "willmessage": _TEXT,
}
_OPTIONS: Final[Mapping[str, Mapping[str, Check]]] = {
    "MQTT/3.1.1": _MQTT,
    "MQTT/5.0": _MQTT,
    "AMQP/1.0": {
        "node": _TEXT,
        "durable": _FLAG,
        "linkproperties": _MAP,
        "connectionproperties": _MAP,
        "distributionmode": _MODE,
    },
    "KAFKA": {
        "topic": _TEXT,
        "acks": _ACKS,
        "key": _TEXT,
        "partition": ("a whole number from 0", lambda value: _is_whole(value) and value >= 0),
        "consumergroup": _TEXT,
    },
    "NATS": {"subject": _TEXT},
    "HTTP": {"method": _TEXT, "path": _TEXT},
}
"""What the endpoint specification allows of each option, by protocol and squashed name."""


def channels(subject: Subject) -> None:
    """Look at every endpoint, and at the groups that none of them lists."""
    for endpoint in subject.catalog.endpoints.values():
        place = subject.declarations.endpoints[endpoint.xid].place
        body = subject.endpoint_bodies.get(endpoint.xid, {})
        if not endpoint.candidates:
            hint = "list a message group, or add messages"
            subject.findings.warning(place, "no-candidates", f"{endpoint.xid} expects no message at all", hint)
        if not endpoint.usage and body.get("usage") is None:  # one that cannot be read is reported when reading
            hint = "write usage: [consumer], [producer] or [subscriber]"
            subject.findings.warning(place, "missing-required", f"{endpoint.xid} has no usage", hint)
        _mismatch(subject, endpoint, place)
        _address(subject, endpoint, place, body)
        _options(subject, endpoint, place, body)
    _unreachable(subject)


def _mismatch(subject: Subject, endpoint: Endpoint, place: Place) -> None:
    """Report an endpoint whose candidates are all for other protocols than its own."""
    protocols = {subject.catalog.definitions[xid].protocol for xid in endpoint.candidates}
    if endpoint.protocol is not None and protocols and not protocols & {None, endpoint.protocol}:
        found = ", ".join(sorted(filter(None, protocols)))
        text = f"{endpoint.xid} is of {endpoint.protocol}, and all its messages are for {found}"
        hint = "correct the protocol, or list a group of that protocol"
        subject.findings.warning(place, "endpoint-mismatch", text, hint)


def _address(subject: Subject, endpoint: Endpoint, place: Place, body: Mapping[str, Any]) -> None:
    """Only who says that an endpoint is deployed is told that nobody can connect to it; HTTP is hosted here."""
    if endpoint.uris or endpoint.protocol == "HTTP" or not _RECEIVING & set(endpoint.usage):
        return
    holders = (body, *(body.get(name) for name in _HOLDERS))
    if any(isinstance(holder, dict) and holder.get("deployed") is True for holder in holders):
        text = f"{endpoint.xid} is deployed, and has no address"
        subject.findings.info(place, "no-address", text, 'add protocoloptions.endpoints, such as [{"uri": "..."}]')


def _options(subject: Subject, endpoint: Endpoint, place: Place, body: Mapping[str, Any]) -> None:
    checks = _OPTIONS.get(endpoint.protocol or "", {})
    for name, value in endpoint.options.items():
        wanted, check = checks.get(squash(name), ("", None))
        if check is not None and not check(value):
            text = f"{name} of a {endpoint.protocol} endpoint is {wanted}"
            subject.findings.warning(_option_place(body, place, name), "endpoint-option", text, f"write {wanted}")


def _option_place(body: Mapping[str, Any], place: Place, name: str) -> Place:
    """Return where an option is written, whatever its spelling and holder."""
    for held in _HOLDERS:
        holder = body.get(held)
        if not isinstance(holder, dict):
            continue
        nested = holder.get("options")
        for found, at in ((nested, place / held / "options"), (holder, place / held)):
            keys: list[str] = list(found) if isinstance(found, dict) else []
            for key in keys:
                if squash(key) == squash(name):
                    return at / key
    return place


def _unreachable(subject: Subject) -> None:
    """Report groups that no endpoint lists, in documents with endpoints; a group of bases is there to derive from."""
    listed = {group for endpoint in subject.catalog.endpoints.values() for group in endpoint.messagegroups}
    bases = {base.split("/messages/")[0] for each in subject.catalog.definitions.values() for base in each.base[:1]}
    for xid, members in subject.catalog.groups.items():
        if members and xid in subject.groups_beside_endpoints and xid not in listed and xid not in bases:
            text = f"no endpoint lists {xid}, so none of its {len(members)} messages is expected anywhere"
            hint = "list it in messagegroups of an endpoint"
            subject.findings.info(subject.declarations.groups[xid].place, "unreachable-group", text, hint)
