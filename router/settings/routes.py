"""Routes as they are written: what each takes, and to which sinks (JUDGING.md#routes).

Routes of two kinds stand in one list, told apart by ``when.outcome``: those of events and those of dead letters. In
each kind the first that takes a record decides. A route is called by its place in the list, whatever its kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from pydantic import Field

from router.settings.section import Section
from router.settings.values import Texts

REASONS: Final = (
    *("no-candidates", "no-match", "ambiguous", "invalid-cloudevent", "schema-violation", "undecodable"),
    *("unmappable", "oversized", "sink-rejected"),
)
"""Why a record is a dead letter; each has a section of its own below JUDGING.md#dead-letters."""
Validate = Literal["never", "ambiguous", "always"]
Missing = Literal["placeholder", "reject"]
MISSING_TEXT: Final = "Where a template's variable has neither value nor default: `_`, or no event (`sink-rejected`)."


class When(Section):
    """What a route takes; all that is given must hold. Values may have shell-style `*`; several are alternatives.

    A context attribute or attribute that a record does not have counts as empty: `*` takes it, `?*` does not.
    """

    outcome: Literal["routed", "dead-letter"] = Field(
        "routed",
        description="Whether the route is one of events or of dead letters; those have `endpoint` and `reason`.",
    )
    message: Texts = Field((), description="Xids of definitions.")
    messagegroup: Texts = Field((), description="Ids of message groups.")
    endpoint: Texts = Field((), description="Xids of endpoints.")
    context: dict[str, Texts] = Field({}, description="Context attributes by name.")
    attributes: dict[str, Texts] = Field(
        {}, description="CloudEvents attributes by name, extensions too, as the event leaves."
    )
    reason: Texts = Field((), description="Reason codes, with `outcome: dead-letter`.")

    @property
    def always(self) -> bool:
        """Whether this takes every record of its outcome."""
        given = (self.message, self.messagegroup, self.endpoint, self.context, self.attributes, self.reason)
        return not any(given)

    @property
    def letters(self) -> bool:
        """Whether this is about dead letters."""
        return self.outcome == "dead-letter"


class RouteSettings(Section):
    """One line of the routes; of its outcome, the first that takes a record decides."""

    when: When = Field(When(), description="What the route takes; without it, every event.")
    to: Texts = Field(description="Names of the sinks, each of which gets the record.", min_length=1)
    validation: Validate | None = Field(
        None, alias="validate", description="When bodies are held against their schemas; unset is `match.validate`."
    )


Numbered = tuple[int, RouteSettings]
"""A route and its place in the list."""


def event_routes(routes: Sequence[RouteSettings]) -> list[Numbered]:
    """Return the routes of events, in order."""
    return [(number, route) for number, route in enumerate(routes) if not route.when.letters]


def letter_routes(routes: Sequence[RouteSettings]) -> list[Numbered]:
    """Return the routes of dead letters, in order; letters that none takes go to ``dead_letters.sinks``."""
    return [(number, route) for number, route in enumerate(routes) if route.when.letters]
