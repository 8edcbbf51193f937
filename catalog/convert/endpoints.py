"""One endpoint to its 1.0-rc4 form: addresses, options in the names of 1.0, and what else it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from catalog.convert.names import common, last
from catalog.declared import DeclaredEndpoint
from catalog.protocols.properties import vocabulary_of

_SPELLED: Final = {
    "clean-session": "cleansession",
    "consumer-group": "consumergroup",
    "topic-filter": "topicfilter",
    "will-message": "willmessage",
    "will-topic": "willtopic",
}
"""Options that 1.0-rc4 writes without dashes; the others have them there too."""
_RESERVED: Final = frozenset({"endpoints", "options", "deployed", "authorization", "strict", "protocol"})
"""Names that are no options beside the addresses, and are when they stand below ``options``."""
_DROPPED: Final = frozenset({"endpointid", "protocoloptions", "version"})


def endpoint_form(declared: DeclaredEndpoint, groups: Sequence[str]) -> dict[str, Any]:
    """Return the form of an endpoint that lists *groups*, without its messages."""
    form: dict[str, Any] = {
        "endpointid": last(declared.xid),
        "xid": declared.xid,
        **common(declared.other, _DROPPED),
        "usage": list(declared.usage),
        "envelope": declared.envelope,
        "envelopeoptions": dict(declared.envelopeoptions),
        "protocol": declared.protocol,
        "protocoloptions": _options(declared),
        "messagegroups": list(groups),
    }
    return {name: value for name, value in form.items() if value}


def _options(declared: DeclaredEndpoint) -> dict[str, Any]:
    options: dict[str, Any] = {}
    addresses = _addresses(declared)
    if addresses:
        options["endpoints"] = addresses
    options.update(declared.other.get("protocoloptions", {}))
    nested: dict[str, Any] = {}
    for name, value in declared.options.items():
        holder = nested if name in _RESERVED else options
        holder[_SPELLED.get(name, name)] = _wrapped(value)
    return {**options, **({"options": nested} if nested else {})}


def _addresses(declared: DeclaredEndpoint) -> list[Mapping[str, Any]]:
    """Return the addresses; where they are hosts of one cluster, that is one entry of bootstrap servers."""
    if vocabulary_of(declared.protocol).bootstrap and not any("://" in uri for uri in declared.uris):
        return [{"bootstrap.servers": list(declared.uris)}] if declared.uris else []
    return [{"uri": uri} for uri in declared.uris]


def _wrapped(value: Any) -> Any:
    """Wrap a value that would itself be read as the wrapping ``{"value": …}`` of older documents."""
    looks_wrapped = isinstance(value, dict) and "value" in value and "name" not in value
    return {"value": value} if value is None or looks_wrapped else value
