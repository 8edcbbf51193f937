"""The options that endpoints have, and which of them the router honours where it receives and where it sends.

The table is ``channel_options.yaml``, the one place for it: lint is made from it, and a test holds that the bindings do
what it says. An option has for each *role* of an endpoint either ``true``, or an exception or several: the ``values``
for which it is not honoured (or with ``except`` all others, or with neither any), why, and what to do. One without a
word on a role means nothing in it. ``as`` is another name for an option. An exception that ``decides`` which messages
come is an error of a source that has such a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, cast

from catalog.model import PROTOCOLS, Endpoint, Severity
from catalog.parsing.texts import parse_text
from catalog.protocols.properties import squash

TABLE: Final = Path(__file__).with_name("channel_options.yaml")
Role = Literal["receives", "sends"]
ROLES: Final[tuple[Role, ...]] = ("receives", "sends")
TEXTUAL: Final = frozenset({"text", "filter", "subject", "topic"})
"""The kinds of options whose value is a text, and stands as it is written."""
_FAMILY: Final = "MQTT"
"""What holds for all versions of MQTT; a version's own words go before it."""


@dataclass(frozen=True, slots=True)
class Exemption:
    """Values of an option that are not honoured: ``values``, or with *inverted* all but those; no values are all."""

    why: str
    hint: str
    severity: Severity = "warning"
    values: tuple[str, ...] = ()
    inverted: bool = False
    decides: bool = False

    def concerns(self, value: Any) -> bool:
        """Tell whether the value of an option is one of these; letter case does not count."""
        return not self.values or (_text(value) in self.values) != self.inverted


@dataclass(frozen=True, slots=True)
class ChannelOption:
    """One option of the endpoints of a protocol.

    ``name`` is its usual spelling, and ``kind`` names the form its value has (empty: any). ``roles`` has what is not
    honoured in each role that the option has a meaning in. ``other_name`` is True for one that only goes by this name.
    """

    name: str
    kind: str = ""
    roles: Mapping[Role, tuple[Exemption, ...]] = field(default_factory=dict)
    other_name: bool = False

    def unhonoured(self, role: Role, value: Any) -> Exemption | None:
        """Return why a value is not honoured in a role that the option has a meaning in; None when it is."""
        return next((each for each in self.roles[role] if each.concerns(value)), None)


def refused_option(endpoint: Endpoint) -> tuple[str, Exemption] | None:
    """Return an option that decides which messages come from an endpoint and is not honoured; None without one.

    What means something where others produce is no word to a receiver, when the endpoint is one for producers too.
    """
    known = channel_options(endpoint.protocol or "")
    for name, value in endpoint.options.items():
        option = known.get(option_key(name))
        if option is None or "receives" not in option.roles or value is None:
            continue
        if "producer" in endpoint.usage and "sends" in option.roles:
            continue
        exemption = option.unhonoured("receives", value)
        if exemption is not None and exemption.decides:
            return name, exemption
    return None


def option_key(name: str) -> str:
    """Reduce the name of an option to what its spellings share: Kafka's clients write ``auto.offset.reset``."""
    return squash(name).replace(".", "")


@cache
def channel_options(protocol: str) -> Mapping[str, ChannelOption]:
    """Return the options of a protocol's endpoints by its :func:`option_key`; empty for an unknown protocol."""
    return _table().get(protocol, MappingProxyType({}))


@cache
def _table() -> Mapping[str, Mapping[str, ChannelOption]]:
    tree: Mapping[str, Any] = parse_text(TABLE.name, TABLE.read_bytes()).tree
    table: dict[str, Mapping[str, ChannelOption]] = {}
    for protocol in PROTOCOLS:
        rows: dict[str, Any] = dict(tree[_FAMILY]) if protocol.startswith(_FAMILY) else {}
        rows |= tree.get(protocol, {})
        table[protocol] = MappingProxyType({option_key(name): _option(name, rows) for name in rows})
    return MappingProxyType(table)


def _option(name: str, rows: Mapping[str, Any]) -> ChannelOption:
    usual = rows[name].get("as", name)
    row = rows[usual]
    roles = {role: _exemptions(row[role]) for role in ROLES if role in row}
    return ChannelOption(usual, row.get("value", ""), MappingProxyType(roles), usual != name)


def _exemptions(written: Any) -> tuple[Exemption, ...]:
    if written is True:
        return ()
    listed = written if isinstance(written, list) else [written]
    return tuple(
        Exemption(
            each["why"],
            each["hint"],
            cast(Severity, each.get("severity", "warning")),
            tuple(map(_text, each.get("values", each.get("except", ())))),
            "except" in each,
            each.get("decides", False),
        )
        for each in listed
    )


def _text(value: Any) -> str:
    return str(value).strip().lower()
