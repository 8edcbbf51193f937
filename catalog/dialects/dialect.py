"""What a dialect is to the others: how its documents are known, its own names, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["groups", "messages", "selectors", "attributes", "bases", "holders", "metadata", "definition"]
"""Kinds of names: of the collections of groups and of messages; of what selects envelope and protocol; of the other
attributes of a message, and its base; of what holds addresses and options of an endpoint; of envelope attributes or
protocol options that are told apart by content (``metadata``), and in sections (``definition``)."""
Names = Mapping[Kind, Mapping[str, str]]
"""By kind and spelling in lower case: the name of 1.0."""


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """A dialect of JUDGING.md#catalogs; :mod:`catalog.dialects.detection` lists them all.

    The names of all dialects are read in every document; ``names`` are a document's own, and not remarked
    upon.
    """

    title: str
    detects: Callable[[Mapping[str, Any]], bool]
    """Recognises a document of this dialect, once those listed before have not taken it."""
    names: Names
    suffixes: tuple[str, ...] = ()
    """Endings of its files, beside those of JSON and YAML."""
    is_replaced: bool = True
    """Whether xRegistry 1.0 has replaced it."""
    checks_attributes: bool = True
    """Whether lint knows all its attributes, so that it can report slips."""
    is_listed: bool = False
    """Whether collections are lists of entries with an ``id``, and a document may be one group."""
    numbers_versions: bool = False
    """Whether versions of a message are numbered: the highest counts, and nothing refers to the others."""
    groups_give_formats: bool = False
    """Whether the envelope and protocol of a group are its messages' own where they name none."""
