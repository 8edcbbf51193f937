"""Endpoints and groups: what is expected nowhere, and what nothing is expected at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from catalog.declared import Place
from catalog.definitions.subject import Subject
from catalog.linting.endpoint_options import HOLDERS
from catalog.model import Endpoint
from catalog.protocols.properties import vocabulary_of
from catalog.values import over_websockets

_RECEIVING: Final = frozenset({"consumer", "subscriber"})


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
        _transport(subject, endpoint, place)
    _unreachable(subject)


def _mismatch(subject: Subject, endpoint: Endpoint, place: Place) -> None:
    """Report an endpoint whose candidates are all for other protocols than its own."""
    protocols = {subject.catalog.definitions[xid].protocol for xid in endpoint.candidates}
    if endpoint.protocol is not None and protocols and not protocols & {None, endpoint.protocol}:
        others = ", ".join(sorted(filter(None, protocols)))
        text = f"{endpoint.xid} is of {endpoint.protocol}, and all its messages are for {others}"
        hint = "correct the protocol, or list a group of that protocol"
        subject.findings.error(place, "endpoint-mismatch", text, hint)


def _address(subject: Subject, endpoint: Endpoint, place: Place, body: Mapping[str, Any]) -> None:
    """Report that an endpoint has no address, but only if it is deployed; gateways host some."""
    if endpoint.uris or vocabulary_of(endpoint.protocol).hosted or not _RECEIVING & set(endpoint.usage):
        return
    holders = (body, *(body.get(name) for name in HOLDERS))
    if any(isinstance(holder, dict) and holder.get("deployed") is True for holder in holders):
        text = f"{endpoint.xid} is deployed, and has no address"
        subject.findings.info(place, "no-address", text, 'add protocoloptions.endpoints, such as [{"uri": "..."}]')


def _transport(subject: Subject, endpoint: Endpoint, place: Place) -> None:
    """Report an endpoint whose every address is over WebSockets, which no gateway or sink speaks."""
    if vocabulary_of(endpoint.protocol).streamed and endpoint.uris and all(map(over_websockets, endpoint.uris)):
        text = f"{endpoint.xid} has addresses over WebSockets alone, which this router does not speak"
        hint = "add the broker's address over TCP or TLS, or set uris of the source or uri of the sink"
        subject.findings.warning(place, "websockets-only", text, hint)


def _unreachable(subject: Subject) -> None:
    """Report groups that no endpoint lists, in documents with endpoints; a group of bases is there to derive from."""
    listed = {group for endpoint in subject.catalog.endpoints.values() for group in endpoint.messagegroups}
    bases = {base.split("/messages/")[0] for each in subject.catalog.definitions.values() for base in each.base[:1]}
    for xid, members in subject.catalog.groups.items():
        if members and xid in subject.groups_beside_endpoints and xid not in listed and xid not in bases:
            text = f"no endpoint lists {xid}, so none of its {len(members)} messages is expected anywhere"
            hint = "list it in messagegroups of an endpoint"
            subject.findings.info(subject.declarations.groups[xid].place, "unreachable-group", text, hint)
