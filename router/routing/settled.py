"""What is known of an event before any record is seen: values that its definition settles for all of its records.

An attribute that a definition gives as a literal has that value in every event of it. A native record becomes an event
by the definition alone, so of that much more is known. Context attributes come from placeholders, and ``correlation``
from a relation: one that the definition does not have is never there.
"""

from __future__ import annotations

from typing import Final

from catalog.definitions.constraints import TYPED_LITERALS, Constraint
from router.matching.correlation import CORRELATION
from router.matching.mapping import Program
from router.matching.matcher import Matcher
from router.settings.names import ATTRIBUTE_PREFIX, CONTEXT_PREFIX

VERSION: Final = "specversion"


class Settled:
    """What is settled for one target on one channel, for records that are events or for native ones.

    ``unmappable`` says why no native record of it ever becomes an event; it is empty where one may.
    """

    def __init__(self, matcher: Matcher, channel: int, target: int, *, event: bool) -> None:
        names = {slot.name for slot in matcher.chooser.slots(target, event=event)}
        self._names = frozenset((*names, CORRELATION) if matcher.correlations.has(target) else names)
        seen = matcher.targets[target]
        self.unmappable = ""
        if event:
            self._attributes = _of_events(seen.constraints(event=True) or ())
        else:
            program = matcher.mapper.programs[matcher.mapper.program(target, channel)]
            self.unmappable = program.unmappable
            self._attributes = _of_native(program)
        self._all = not event

    def __call__(self, name: str) -> str | None:
        """Return a value (``context.NAME``, ``attributes.NAME``): empty for never there, None where records decide."""
        if name.startswith(CONTEXT_PREFIX):
            return None if name.removeprefix(CONTEXT_PREFIX) in self._names else ""
        return self._attributes.get(name.removeprefix(ATTRIBUTE_PREFIX), "" if self._all else None)


def _of_events(constraints: tuple[tuple[str, Constraint], ...]) -> dict[str, str | None]:
    """Return the attributes that are literals, compared as texts; numbers and instants may be written otherwise."""
    values: dict[str, str | None] = {VERSION: "1.0"}
    for key, constraint in constraints:
        if key.startswith("e.") and constraint.kind == "literal" and constraint.type not in TYPED_LITERALS:
            values[key.removeprefix("e.")] = constraint.value or ""
    return values


def _of_native(program: Program) -> dict[str, str | None]:
    """Return all attributes of mapped records, with the values of those that are the same for each."""
    return {attribute.name: attribute.constant for attribute in program.attributes}
