"""What relations of definitions add to outcomes: how an event is related, and what pairs it with others.

| column | meaning |
|---|---|
| ``relation``, ``relatedto`` | of the definition: what its relation is, and to which other; for the lineage |
| ``exchange`` | what pairs a record with others (:func:`read_exchange`); only where pairs are kept |
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from catalog.model import Catalog, Relation
from router.matching.correlation import RELATED, value_of
from router.matching.matcher import Matcher, Outcomes

EXCHANGE: Final = "exchange"
LONGEST: Final = 1024
"""Bytes of an id or a value in an exchange. A longer one is cut, and its hash is the key."""
_MARK: Final = "\x1f"
_TEXTUAL: Final = "p.user_properties."
_BINARY: Final = "p.correlation_data"


class Exchange(msgspec.Struct, frozen=True, array_like=True):
    """What pairs a record with others, of bounded length. ``id`` is that of the event.

    ``asks`` are the keys by which other records answer this one. ``answers`` is set for a record that is an answer: it
    is the key of the record that asks, or empty where the answer does not name one.
    """

    id: str
    asks: tuple[str, ...] = ()
    answers: str | None = None
    correlation: str = ""


_DECODER: Final = msgspec.json.Decoder(Exchange)


def read_exchange(text: str) -> Exchange:
    """Read what the column ``exchange`` has of one record."""
    return _DECODER.decode(text)


@dataclass(frozen=True, slots=True)
class RelationColumns:
    """Makes these columns for a plan whose catalog has relations.

    ``asked`` has the properties by which records of a definition are answered; without it there are no exchanges.
    """

    matcher: Matcher
    asked: Mapping[str, tuple[str, ...]] | None

    @classmethod
    def of(cls, matcher: Matcher, catalog: Catalog, *, pairs: bool) -> RelationColumns:
        """Return those of a catalog; with *pairs* that of exchanges, too."""
        return cls(matcher, _asked(catalog) if pairs else None)

    @property
    def fields(self) -> list[tuple[str, pa.DataType]]:
        """Names and types of the columns."""
        names = RELATED if self.asked is None else (*RELATED, EXCHANGE)
        return [(name, pa.string()) for name in names]

    def columns(self, outcomes: Outcomes) -> dict[str, pa.Array]:
        """Return the columns, with a row for each row of facts."""
        relations = [target.definition.relation for target in self.matcher.targets]
        winners = pa.array(outcomes.winners, mask=outcomes.winners < 0)
        kinds = pa.array([each.kind or None if each is not None else None for each in relations], pa.string())
        others = pa.array([each.to if each is not None else None for each in relations], pa.string())
        columns = dict(zip(RELATED, (kinds.take(winners), others.take(winners)), strict=True))
        return columns if self.asked is None else {**columns, EXCHANGE: self._exchanges(outcomes, self.asked)}

    def _exchanges(self, outcomes: Outcomes, asked: Mapping[str, tuple[str, ...]]) -> pa.StringArray:
        parts = [bool(self._answered(target) or asked.get(target.xid)) for target in self.matcher.targets]
        winners = np.where(outcomes.winners >= 0, outcomes.winners, -1)
        rows = np.flatnonzero(np.array([*parts, False], bool)[winners])
        at = pa.array(rows)
        keys = dict.fromkeys(("e.id", *self.matcher.correlations.keys))
        values = {key: value_of(outcomes, key).take(at).to_pylist() for key in keys}
        texts: list[str | None] = [None] * outcomes.facts.columns.rows
        for place, row in enumerate(rows.tolist()):
            target = self.matcher.targets[int(winners[row])]
            given = {key: column[place] for key, column in values.items() if column[place] is not None}
            exchange = _exchange(target.xid, self._answered(target), asked.get(target.xid, ()), given)
            texts[row] = msgspec.json.encode(exchange).decode()
        return pa.array(texts, pa.string())

    def _answered(self, target: Any) -> Relation | None:
        relation: Relation | None = target.definition.relation
        return relation if relation is not None and relation.via else None


def _asked(catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """Return by which properties the records of definitions are answered."""
    asked: dict[str, dict[str, None]] = {}
    for definition in catalog.definitions.values():
        relation = definition.relation
        if relation is not None and relation.of:
            asked.setdefault(relation.to, {})[relation.of] = None
    return {xid: tuple(keys) for xid, keys in asked.items()}


def _exchange(xid: str, relation: Relation | None, asked: tuple[str, ...], given: Mapping[str, str]) -> Exchange:
    asks = tuple(_key(xid, of, given[of]) for of in asked if of in given)
    id = _cut(given.get("e.id", ""))
    if relation is None:
        return Exchange(id, asks)
    own = given.get(relation.via)
    if own is None:
        return Exchange(id, asks, "")
    return Exchange(id, asks, _key(relation.to, relation.of, _as(relation, own)), _cut(own))


def _key(xid: str, of: str, value: str) -> str:
    octets = value.encode()
    known = value if len(octets) <= LONGEST else _MARK + sha256(octets).hexdigest()
    return _MARK.join((xid, of, known))


def _cut(value: str) -> str:
    octets = value.encode()
    return value if len(octets) <= LONGEST else octets[:LONGEST].decode(errors="ignore") + "…"


def _as(relation: Relation, value: str) -> str:
    """Return a value as the related message has it: correlation data of MQTT are bytes, here as base64."""
    if relation.of == _BINARY and relation.via.startswith(_TEXTUAL):
        return base64.b64encode(value.encode()).decode()
    return value
