"""One change, and all changes between two catalogs; their JSON forms are those of ``catalog diff``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

Relation = Literal["same", "wider", "narrower", "different", "unknown"]
"""How the records that match before and after relate: the same ones, more, fewer, others, or that is not decidable."""
Kind = Literal[
    "definition-added",
    "definition-removed",
    "definition-renamed",
    "definition-changed",
    "selector-changed",
    "property-added",
    "property-removed",
    "property-changed",
    "relation-changed",
    "schema-added",
    "schema-removed",
    "schema-changed",
    "context-gained",
    "context-lost",
    "mapped-attribute-added",
    "mapped-attribute-removed",
    "mapped-attribute-changed",
    "endpoint-added",
    "endpoint-removed",
    "endpoint-changed",
    "address-changed",
    "candidate-added",
    "candidate-removed",
    "ambiguous-now",
    "never-reached-now",
]
COMPATIBLE: Final = frozenset({"same", "wider"})


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the thing *xid*; ``name`` is the property, attribute, placeholder or candidate it is about.

    ``compatible`` is False when records that had an outcome may get another, or consumers may miss or misread a thing.
    ``relation`` is set where records are constrained, ``detail`` says in words what a reader could not see otherwise.
    """

    kind: Kind
    xid: str
    name: str = ""
    compatible: bool = True
    relation: Relation | None = None
    before: Any = None
    after: Any = None
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return all members, in this order."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Difference:
    """All changes from the catalog of epoch ``before`` to that of ``after``, in a stable order."""

    before: str
    after: str
    changes: tuple[Change, ...] = ()

    @property
    def compatible(self) -> bool:
        """Whether every change is."""
        return all(change.compatible for change in self.changes)

    def to_json(self) -> dict[str, Any]:
        """Return ``{before, after, compatible, changes}``."""
        changes = [change.to_json() for change in self.changes]
        return {"before": self.before, "after": self.after, "compatible": self.compatible, "changes": changes}
