"""Which records a tap shows: by endpoint, definition, outcome and reason, and by conditions on single values.

A condition is ``NAME=GLOB`` or ``NAME!=GLOB``, all of them must hold, as in a route. Conditions see a sample as it is
shown: what is hidden there cannot be asked for.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from catalog.parsing.pointers import at_pointer
from router.errors import RouterError
from router.settings.routes import REASONS

OUTCOMES: Final = ("routed", "dead-letter")
PLAIN: Final = ("endpoint", "message", "outcome", "reason", "protocol", "position", "sinks")
PREFIXES: Final = ("attributes.", "context.", "native.")
MOST: Final = 20
"""Conditions, and globs of one kind."""
LONGEST: Final = 200
"""Characters of a glob."""
_WRITE: Final = (
    f"write NAME=GLOB or NAME!=GLOB, NAME being {', '.join(PLAIN)}, attributes.X, context.X, native.X, "
    "or a JSON pointer into the body, such as /order/id"
)
_CONDITION: Final = re.compile(r"([^=!]+)(!?=)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. ``wanted`` False is that the value is another, or there is none."""

    name: str
    glob: str
    wanted: bool = True

    def holds(self, values: Callable[[str], Sequence[str]]) -> bool:
        """Tell whether it holds of what *values* gives for its name."""
        return any(fnmatch.fnmatchcase(value, self.glob) for value in values(self.name)) is self.wanted


@dataclass(frozen=True, slots=True)
class Choice:
    """What is shown. Of several values of one option one must fit; globs take ``*``, ``?`` and ``[...]``."""

    endpoints: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    outcome: str = ""
    reasons: frozenset[str] = frozenset()
    conditions: tuple[Condition, ...] = ()

    def takes(self, endpoint: str | None, message: str | None, reason: str | None) -> bool:
        """Tell whether an outcome may be shown, as far as these say: ``message`` None is a dead letter."""
        return (
            (not self.outcome or (self.outcome == "routed") == (message is not None))
            and (not self.reasons or reason in self.reasons)
            and (not self.endpoints or any(fnmatch.fnmatchcase(endpoint or "", each) for each in self.endpoints))
            and (not self.messages or any(fnmatch.fnmatchcase(message or "", each) for each in self.messages))
        )

    def fits(self, values: Callable[[str], Sequence[str]]) -> bool:
        """Tell whether all conditions hold of a sample."""
        return all(condition.holds(values) for condition in self.conditions)


def choice_of(
    *,
    endpoints: Sequence[str] | None = None,
    messages: Sequence[str] | None = None,
    outcome: str | None = None,
    reasons: Sequence[str] | None = None,
    where: Sequence[str] | None = None,
) -> Choice:
    """Build the choice of a command line.

    Raises:
        RouterError: an option cannot be read, or there is no such outcome or reason; names it.
    """
    if outcome is not None and outcome not in OUTCOMES:
        raise RouterError(f"--outcome {outcome!r} is none", hint=f"there are {' and '.join(OUTCOMES)}")
    for reason in reasons or ():
        if reason not in REASONS:
            near = get_close_matches(reason, REASONS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(REASONS)}"
            raise RouterError(f"--reason {reason!r} is no reason of dead letters", hint=hint)
    for option, given in (("--endpoint", endpoints), ("--message", messages), ("--where", where)):
        if len(given or ()) > MOST or any(len(each) > LONGEST for each in given or ()):
            raise RouterError(f"{option} is too much", hint=f"give it {MOST} times at most, of {LONGEST} characters")
    conditions = tuple(_condition(text) for text in where or ())
    return Choice(tuple(endpoints or ()), tuple(messages or ()), outcome or "", frozenset(reasons or ()), conditions)


def _condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    name = match[1].strip() if match is not None else ""
    known = name in PLAIN or name.startswith("/") or any(name.startswith(each) and name != each for each in PREFIXES)
    if match is None or not known:
        raise RouterError(f"--where {text!r} cannot be read", hint=_WRITE)
    return Condition(name, match[3].strip(), match[2] == "=")


def value_at(tree: Any, pointer: str) -> list[str]:
    """Return the value at a JSON pointer as text, in a list; nothing where there is none, or no single value."""
    try:
        value = at_pointer(tree, pointer)
    except KeyError:
        return []
    if isinstance(value, bool):
        return ["true" if value else "false"]
    return [str(value)] if isinstance(value, str | int | float) else []
