"""Messages checked against the definitions they were made by, before they are sent (JUDGING.md#sending).

The matcher is that of ``run``; it gets what a receiver of the message would read. A message with the same constrained
values as an earlier one gets the same verdict, so definitions of literals are decided once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bindings.envelope import EVENT_MEDIA
from bindings.parts import Part
from bindings.protocols import Binding
from bindings.sending import Outbound
from catalog.definitions.constraints import BASE64_KEY, Constraint
from catalog.model import Catalog, Definition, Endpoint
from catalog.values import media_type_of
from router.matching.channels import ChannelBuilder
from router.matching.facts import RawFacts, RawRow
from router.matching.matcher import Matcher
from router.sinks.messages.events import Event, Mode

_REMEMBERED: Final = 20_000
_REMEMBERED_BYTES: Final = 4096
"""Messages with longer properties are matched each time, so that senders cannot fill the memory with them."""
_MISMATCHES: Final = 4


@dataclass(frozen=True, slots=True)
class ShapedMessage:
    """A message, the event it is of, the definition it was made by (its place among all), and in which mode."""

    event: Event
    message: Outbound
    definition: int
    mode: Mode


class Conformance:
    """Checks messages for one endpoint, each against its own definition alone, which is one of *definitions*.

    ``uncarried`` are parts that the target has no place for, whatever the protocol has.
    """

    def __init__(
        self,
        catalog: Catalog,
        endpoint: Endpoint,
        binding: Binding,
        definitions: Sequence[Definition],
        uncarried: frozenset[str] = frozenset(),
    ) -> None:
        self._binding = binding
        self._uncarried = uncarried
        seen = replace(endpoint, protocol=endpoint.protocol or binding.protocol)
        names = [f"{endpoint.xid}#{number}" for number in range(len(definitions))]
        alone = {name: replace(seen, candidates=(each.xid,)) for name, each in zip(names, definitions, strict=True)}
        builder = ChannelBuilder(replace(catalog, endpoints=alone))
        for name in names:
            builder.endpoints(name, [name])
        self._matcher = Matcher(builder.targets, builder.channels)
        constraints = [
            {**_keyed(builder, number, event=True), **_keyed(builder, number, event=False)}
            for number in range(len(names))
        ]
        self._attributes = [
            tuple(key[2:] for key, deciding in each.items() if key.startswith("e.") and deciding)
            for each in constraints
        ]
        self._options = [
            {_part_key(key): deciding for key, deciding in each.items() if key.startswith(("p.", "b."))}
            for each in constraints
        ]
        self._sniffs = [self._matcher.sniffs(number, binding.protocol) for number in range(len(names))]
        self._known: dict[Any, str] = {}

    def faults(self, shaped: Sequence[ShapedMessage]) -> list[str]:
        """Return for each message what keeps it from matching its definition; empty when it matches."""
        received = [tuple(self._received(each.message)) for each in shaped]
        keys = [
            self._key(each, parts) or place for place, (each, parts) in enumerate(zip(shaped, received, strict=True))
        ]
        asked: dict[Any, int] = {}
        for place, key in enumerate(keys):
            if key not in self._known:
                asked.setdefault(key, place)
        decided = self._decide([(place, shaped[place], received[place]) for place in asked.values()]) if asked else {}
        fresh = {key: decided[place] for key, place in asked.items()}
        answers = [self._known[key] if key in self._known else fresh[key] for key in keys]
        if len(self._known) + len(fresh) > _REMEMBERED:
            self._known.clear()
        self._known.update((key, fault) for key, fault in fresh.items() if not isinstance(key, int))
        return answers

    def _received(self, message: Outbound) -> Iterator[Part]:
        parts = self._binding.sending.received(message, binary=self._binding.binary)
        return (part for part in parts if part.key not in self._uncarried) if self._uncarried else parts

    def _key(self, shaped: ShapedMessage, parts: Sequence[Part]) -> Any:
        """Return what decides the verdict; None when that is all of the message, or too large to be remembered."""
        size = sum(len(part.value or b"") for part in parts) + sum(map(len, shaped.event.attributes.values()))
        if size > _REMEMBERED_BYTES:
            return None
        attributes, content = shaped.event.attributes, shaped.event.attributes.get("datacontenttype")
        native = shaped.mode == "native"
        if native and (self._sniffs[shaped.definition] or media_type_of(content).startswith(EVENT_MEDIA)):
            return None
        options = self._options[shaped.definition]
        return (
            shaped.definition,
            shaped.mode,
            content,
            () if native else (tuple(attributes), *map(attributes.get, self._attributes[shaped.definition])),
            tuple((part if options[part.key] else part.key) for part in parts if part.key in options),
        )

    def _decide(self, asked: Sequence[tuple[int, ShapedMessage, Sequence[Part]]]) -> dict[int, str]:
        facts = RawFacts(self._matcher.index.keys)
        for place, shaped, parts in asked:
            message, number = shaped.message, shaped.definition
            sniff = self._sniffs[number]
            facts.add(
                RawRow(place, self._binding, parts, message.body, number, lambda sniff=sniff: sniff, message.id, None)  # type: ignore[misc]
            )
        built = facts.build()
        winners = self._matcher.winners(built)
        faults = {place: "it would be read as a batch of no events" for place, _, _ in asked}
        faults.update({int(source): "" for source in built.sources})
        if (winners < 0).any():
            outcomes = self._matcher.match(built)
            for row, source in enumerate(built.sources.tolist()):
                if winners[row] < 0:
                    faults[source] = _fault(outcomes.nearest.get(row, []), outcomes.details[row])
        return faults


def _keyed(builder: ChannelBuilder, channel: int, *, event: bool) -> dict[str, bool]:
    """Return the properties that a channel's target looks at; False for one that only has to be there."""
    keyed: dict[str, bool] = {}
    for number in builder.channels[channel].candidates:
        for key, constraint in builder.targets[number].constraints(event=event) or ():
            keyed[key] = keyed.get(key, False) or not _any_value(constraint)
    return keyed


def _any_value(constraint: Constraint) -> bool:
    return constraint.kind in ("present", "optional") and constraint.takes_any_text


def _part_key(key: str) -> str:
    return "key" if key == f"p.{BASE64_KEY}" else key[2:]


def _fault(nearest: Sequence[dict[str, Any]], detail: str) -> str:
    mismatches = [
        f"{each['property']} should be {each['expected']!r} and is {each['found']!r}"
        for near in nearest
        for each in near["mismatches"]
    ]
    return f"it would not match: {'; '.join(mismatches[:_MISMATCHES]) or detail}"
