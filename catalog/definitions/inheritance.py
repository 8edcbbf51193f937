"""Inheritance: every message with all that its bases give it (JUDGING.md#inheritance, basemessage of 1.0).

Chains are followed by a loop, never by recursion, so that no document can exhaust the stack, and every message is
resolved once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

from catalog.declared import Declarations, DeclaredMessage
from catalog.definitions.options import Named, normal_options
from catalog.findings import Findings
from catalog.parsing.nearest import Suggestions
from catalog.references.resolving import Resolver

MAX_LEVELS: Final = 64
MAX_PROPERTIES: Final = 500_000
"""Properties of all messages of a load together: few lines of inheritance can stand for very many."""
_SCHEMA: Final = ("dataschema", "dataschemaxid", "dataschemauri")


@dataclass(frozen=True, slots=True)
class Effective:
    """A message after inheritance; attributes are merged but not yet read as properties.

    ``protocol_declared`` is False when only a group's default gives the protocol. ``spelling`` is the protocol whose
    options these are: an endpoint's default is none of the message, yet tells what an inline one means. ``own`` is what
    the message itself says, in canonical spelling.
    """

    message: DeclaredMessage
    attributes: Mapping[str, Any]
    own: Mapping[str, Any]
    envelope: str | None = None
    protocol: str | None = None
    protocol_declared: bool = True
    spelling: str | None = None
    base: tuple[str, ...] = ()


class _Selecting(Protocol):
    """A message with the envelope and the protocol that its attributes are written for, None where none is said."""

    @property
    def envelope(self) -> str | None: ...
    @property
    def spelling(self) -> str | None: ...


def foreign_sections(base: _Selecting, derived: _Selecting) -> tuple[str, ...]:
    """Return the sections that *derived* does not inherit from *base*: those of another envelope or another protocol.

    A base that names none gives its sections to all.
    """
    sections: tuple[str, ...] = ()
    if None not in (base.envelope, derived.envelope) and base.envelope != derived.envelope:
        sections += ("envelopemetadata", "envelopeoptions")
    if None not in (base.spelling, derived.spelling) and base.spelling != derived.spelling:
        sections += ("protocoloptions",)
    return sections


@dataclass(slots=True)
class Inheritance:
    """Resolves the messages of one load. What cannot be used is reported, and absent from :meth:`resolve`'s answer."""

    declarations: Declarations
    resolver: Resolver
    findings: Findings
    _done: dict[str, Effective | None] = field(default_factory=dict)
    _errors: set[str] = field(default_factory=set)
    _targets: dict[str, str | None] = field(default_factory=dict)
    _properties: int = 0
    _near: Suggestions = field(init=False)

    def __post_init__(self) -> None:
        self._near = Suggestions(self.declarations.messages)

    def resolve(self) -> list[Effective]:
        """Return all messages that can be used, versions left out, in the order of their documents."""
        for xid in list(self.declarations.messages):  # references may add messages of other documents
            self._resolve(xid)
        resolved = (self._done[xid] for xid in self.declarations.messages)
        return [effective for effective in resolved if effective is not None and not effective.message.hidden]

    def _resolve(self, xid: str) -> None:
        chain: dict[str, None] = {}
        current: str | None = xid
        while current is not None and current not in self._done:
            if current in chain:
                self._cycle(list(chain), current)
                break
            chain[current] = None
            current = self._target(current)
        for name in reversed(chain):
            if name not in self._done:
                self._done[name] = self._effective(name)

    def _cycle(self, chain: list[str], entry: str) -> None:
        """Mark a cycle; those that lead into it are marked when their turn comes."""
        cycle = chain[chain.index(entry) :]
        for xid in cycle:
            message = self.declarations.messages[xid]
            text = f"{xid} is its own base: {' -> '.join((*cycle[:8], '...') if len(cycle) > 8 else (*cycle, entry))}"
            self.findings.error(message.place, "base-cycle", text, "remove one basemessage of the cycle")
            self._done[xid] = None
            self._errors.add(xid)

    def _target(self, xid: str) -> str | None:
        if xid not in self._targets:
            message = self.declarations.messages[xid]
            reference = message.borrowed or message.base
            self._targets[xid] = None if reference is None else self.resolver.message(reference, xid)
            failure = self.resolver.failure(reference or "", xid)
            if failure is not None and failure.transient:
                text = f"{reference} cannot be reached now, so {xid} is not what it will be: {failure}"
                self.findings.warning(message.place, "unreachable-reference", text, failure.hint)
        return self._targets[xid]

    def _effective(self, xid: str) -> Effective | None:
        message = self.declarations.messages[xid]
        target = self._target(xid)
        if target in self._errors:
            text = f"{xid} derives from {target}, which has an error"
            self.findings.error(message.place, "base-error", text, "mend the base")
            self._errors.add(xid)
            return None
        base = self._done[target] if target is not None else None
        if base is None and not self._stands(message):
            return None
        if base is not None and len(base.base) >= MAX_LEVELS:
            text = f"{xid} derives over more than {MAX_LEVELS} levels"
            self.findings.error(message.place, "base-too-deep", text, "shorten the chain of bases")
            self._errors.add(xid)
            return None
        return self._bounded(self._laid_over(message, base))

    def _bounded(self, effective: Effective) -> Effective | None:
        """Report and leave out the messages that would stand for too much."""
        size = _size(effective.attributes)
        if self._properties + size > MAX_PROPERTIES:
            message = effective.message
            text = f"{message.xid} has {size} properties, and all messages together more than {MAX_PROPERTIES}"
            self.findings.error(message.place, "too-many", text, "inherit less, or split the catalog")
            self._errors.add(message.xid)
            return None
        self._properties += size
        return effective

    def _stands(self, message: DeclaredMessage) -> bool:
        """Report a reference that leads nowhere; a borrowed message does not stand without it."""
        reference = message.borrowed or message.base
        failure = self.resolver.failure(reference or "", message.xid)
        if reference is not None and (failure is None or not failure.transient):
            reason = f" ({failure})" if failure is not None else ""
            rule, text = "dangling-base", f"the base {reference} is not there{reason}; the definition stands as written"
            if message.borrowed is not None:
                rule = "dangling-borrow"
                text = f"{message.xid} borrows {reference}, which is not there{reason}; it is left out"
            hint = self._near.hint(reference, "correct the reference, or add the document")
            self.findings.warning(message.place, rule, text, hint)
        return message.borrowed is None

    def _laid_over(self, message: DeclaredMessage, base: Effective | None) -> Effective:
        """Lay a message over its base: envelope and protocol are its own, else the base's, else its group's."""
        own = dict(message.attributes)
        group = self.resolver.declared_group(message.group)
        envelope = own.pop("envelope", None) or (base.envelope if base else None) or (group.envelope if group else None)
        protocol, declared = own.pop("protocol", None), True
        if protocol is None and base is not None and base.protocol is not None:
            protocol, declared = base.protocol, base.protocol_declared
        elif protocol is None and group is not None and group.protocol is not None:
            protocol, declared = group.protocol, False
        endpoint = self.declarations.endpoints.get(message.group) or self.resolver.endpoint_beyond(message.group)
        spelling = protocol or (endpoint.protocol if endpoint else None)
        options = own.get("protocoloptions")
        if options is not None:
            own["protocoloptions"] = normal_options(options, spelling, message.at("protocoloptions"), self.findings)
        metadata = own.get("envelopemetadata")
        if metadata is not None:
            own["envelopemetadata"] = {name: body for name, body in metadata.items() if body is not None}
        effective = Effective(message, own, own, envelope, protocol, declared, spelling)
        if base is None:
            return effective
        inherited = self._inherited(effective, base)
        self._report_foreign(effective, base, inherited)
        return replace(effective, attributes=overlaid(inherited, own), base=(base.message.xid, *base.base))

    def _inherited(self, derived: Effective, base: Effective) -> Mapping[str, Any]:
        """Return what the bases give: all they say, but for the sections of another envelope or protocol."""
        levels = [base, *(each for each in map(self._done.get, base.base) if each is not None)]
        foreign = [foreign_sections(level, derived) for level in levels]
        if not any(foreign):
            return base.attributes
        inherited: dict[str, Any] = {}
        for level, sections in zip(reversed(levels), reversed(foreign), strict=True):
            kept = {name: value for name, value in level.own.items() if name not in sections}
            inherited = overlaid(inherited, kept)
        return inherited

    def _report_foreign(self, derived: Effective, base: Effective, inherited: Mapping[str, Any]) -> None:
        """Report what the base has and does not give, at what makes the message another one."""
        message = derived.message
        for selector, section, own, others in (
            ("envelope", "envelopemetadata", derived.envelope, base.envelope),
            ("envelope", "envelopeoptions", derived.envelope, base.envelope),
            ("protocol", "protocoloptions", derived.spelling, base.spelling),
        ):
            left = sorted(_names_left(base.attributes.get(section) or {}, inherited.get(section) or {}))
            if left:
                place = message.at(selector) if selector in message.attributes else message.place
                names = ", ".join((*left[:5], "...") if len(left) > 5 else left)
                text = (
                    f"{message.xid} has {selector} {own}, but its base {base.message.xid} has {others}: "
                    f"it does not inherit {section} {names}"
                )
                hint = f"write them in {message.xid} too, or move what both share to a base without {selector}"
                self.findings.warning(place, "foreign-base", text, hint)


def _names_left(given: Mapping[str, Any], inherited: Mapping[str, Any]) -> Iterator[str]:
    return (name for name, value in given.items() if name not in inherited or inherited[name] != value)


Replace = Callable[[list[Any], list[Any]], list[Any]]
"""Gives the bodies in force from those below and those above; several where a list repeats their name."""


def _the_nearer(below: list[Any], above: list[Any]) -> list[Any]:
    return above


def merge(inherited: Any, overlay: Any, replaced: Replace = _the_nearer) -> Any:
    """Deep-merge: maps and named lists member by member, all else replaces; a member that is null is not listed.

    A name that a list repeats replaces as well. *replaced* may keep what is laid over.
    """
    if isinstance(inherited, Named) and isinstance(overlay, Named):
        return inherited.merged(overlay, partial(_lay, replaced=replaced))
    if not isinstance(inherited, dict) or not isinstance(overlay, dict):
        return replaced([inherited], [overlay])[0]
    merged = dict(inherited)
    for name, value in overlay.items():
        if value is not None:
            merged[name] = merge(merged[name], value, replaced) if name in merged else value
    return merged


def _lay(below: list[Any], above: list[Any], replaced: Replace) -> list[Any]:
    if len(below) == len(above) == 1:
        return [merge(below[0], above[0], replaced)]
    return replaced(below, above) if above else below


def overlaid(inherited: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge attributes; the ways to give a schema exclude each other, so those written nearer count."""
    kept = dict(inherited)
    if any(name in own for name in _SCHEMA):
        kept = {name: value for name, value in kept.items() if name not in _SCHEMA or name in own}
    merged: dict[str, Any] = merge(kept, dict(own))
    return merged


def _size(attributes: Mapping[str, Any]) -> int:
    """Count the properties that merged attributes stand for."""
    options = attributes.get("protocoloptions", {}).values()
    inner = sum(len(each.entries) if isinstance(each, Named) else len(each) for each in options if _is_collection(each))
    return len(attributes.get("envelopemetadata", ())) + len(options) + inner


def _is_collection(option: Any) -> bool:
    return isinstance(option, (Named, dict))
