"""All of lint on one screen: the families of rules in order, each a function over the whole catalog.

A family reports where the thing is declared, and none stops at the first finding. What a definition has from its base
unchanged is reported at the base only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from catalog.definitions.candidates import candidates
from catalog.definitions.subject import Subject
from catalog.linting.attributes import attributes
from catalog.linting.channels import channels
from catalog.linting.credentials import credentials
from catalog.linting.endpoint_options import endpoint_options
from catalog.linting.events import events
from catalog.linting.options import options
from catalog.linting.payloads import payloads
from catalog.linting.relations import relations
from catalog.linting.selectors import selectors
from catalog.linting.unconstrained import unconstrained
from catalog.linting.values import values

FAMILIES: Final[tuple[Callable[[Subject], None], ...]] = (
    attributes,
    selectors,
    values,
    options,
    events,
    payloads,
    channels,
    endpoint_options,
    credentials,
    relations,
    candidates,
    unconstrained,
)


def lint(subject: Subject) -> None:
    """Apply every rule that needs the whole catalog; findings of single values were reported while reading."""
    for family in FAMILIES:
        family(subject)
