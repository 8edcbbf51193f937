"""Subjects that are subscribed to: made from templates, and held against each other (NATS, subject-based messaging).

``*`` stands for one token, ``>`` at the end for one or more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from catalog.protocols.addresses import BLANK, PLACEHOLDER, subject_fault
from catalog.protocols.properties import squashed

_SUBJECT_OPTIONS: Final = ("subjectfilter", "subject")


def subject_of_template(template: str) -> str:
    """Return the narrowest subject that takes every subject which fits a template (JUDGING.md#templates).

    A token with a placeholder becomes ``*``, since a placeholder never takes a dot; a template that is one placeholder
    takes anything and becomes ``>``. Wildcards that stand in the template already are kept.
    """
    if PLACEHOLDER.fullmatch(template):
        return ">"
    tokens = PLACEHOLDER.sub(BLANK, template).split(".")
    return ".".join("*" if BLANK in token else token for token in tokens)


def subjects_of_templates(templates: Iterable[str]) -> list[str]:
    """Return the subjects of several definitions, each once, without those that another one covers."""
    return uncovered(subject_of_template(template) for template in templates)


def subject_of_options(options: Mapping[str, Any]) -> str | None:
    """Return the subject that an endpoint's options name (``subjectfilter``, else ``subject``); None without one.

    Raises:
        ValueError: nobody can subscribe to it.
    """
    known = squashed(options)
    values = (known.get(name) for name in _SUBJECT_OPTIONS)
    named = next((value for value in values if isinstance(value, str) and value), None)
    if named is None:
        return None
    if fault := subject_fault(named):
        raise ValueError(f"{named!r:.80} is no subject: {fault}")
    return subject_of_template(named)


def covers(wide: str, narrow: str) -> bool:
    """Tell whether whatever *narrow* takes, *wide* takes as well."""
    outer, inner = wide.split("."), narrow.split(".")
    for place, token in enumerate(outer):
        if place >= len(inner):
            return False
        if token == ">":
            return True
        if inner[place] == ">" or (token != "*" and token != inner[place]):
            return False
    return len(outer) == len(inner)


def overlap(one: str, other: str) -> bool:
    """Tell whether some subject fits both."""
    left, right = one.split("."), other.split(".")
    for here, there in zip(left, right, strict=False):
        if ">" in (here, there):
            return True
        if here != there and "*" not in (here, there):
            return False
    return len(left) == len(right)


def uncovered(subjects: Iterable[str]) -> list[str]:
    """Return the subjects that no other one covers, each once, in order."""
    distinct = list(dict.fromkeys(subjects))
    return [each for each in distinct if not any(other != each and covers(other, each) for other in distinct)]
