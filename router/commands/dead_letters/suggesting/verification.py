"""Trying drafts before anybody adds them: by the matcher of ``match`` and ``run``, on the catalog with them in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from catalog.model import Catalog
from catalog.templates import tokens_of
from catalog.values import text_of
from router.commands.dead_letters.suggesting.fragment import PlacedDraft
from router.commands.emit.producer import EmitError, Producer, record_line
from router.matching.records import CHUNK, RecordMatcher

TRIED: Final = 2_000
"""Records of one draft that are tried."""
MOST_DEFINITIONS: Final = 300
_EQUAL: Final = "equally specific: "
_NOW: Final = "2026-01-02T03:04:05Z"


@dataclass(slots=True)
class DraftTrial:
    """What became of the records of one draft.

    ``own`` were matched by it, ``other`` by other drafts or definitions (by xid); ``tied`` counts sets of definitions
    that matched equally well, ``failed`` the reasons of the rest.
    """

    tried: int = 0
    own: int = 0
    other: Counter[str] = field(default_factory=Counter)
    tied: Counter[tuple[str, ...]] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def matched(self) -> float:
        """The share of records that some definition matched."""
        return (self.own + self.other.total()) / self.tried if self.tried else 0.0

    def count(self, outcome: dict[str, Any], xid: str) -> None:
        """Count one outcome, as ``match`` gives it."""
        self.tried += 1
        if outcome["outcome"] == "routed":
            if outcome["message"] == xid:
                self.own += 1
            else:
                self.other[outcome["message"]] += 1
        elif outcome["outcome"] == "dead-letter" and outcome["reason"] == "ambiguous":
            self.tied[tuple(sorted(outcome["detail"].removeprefix(_EQUAL).split(", ")))] += 1
        else:
            self.failed[outcome.get("reason", outcome["outcome"])] += 1


def tried(drafts: Sequence[PlacedDraft], catalog: Catalog) -> list[DraftTrial]:
    """Match the records of each draft against *catalog*, which has the drafts; the trials are in their order."""
    matcher = RecordMatcher(catalog)
    trials: list[DraftTrial] = []
    for each in drafts:
        trial = DraftTrial()
        lines = [record_line(traits.record) for traits in each.draft.bundle.records[:TRIED]]
        for start in range(0, len(lines), CHUNK):
            for outcome in matcher.decide(list(lines[start : start + CHUNK])):
                trial.count(outcome, each.xid)
        trials.append(trial)
    return trials


def losses(before: Catalog, after: Catalog, endpoints: Iterable[str]) -> dict[str, str]:
    """Return the definitions of these endpoints whose own records go elsewhere *after*, and where to.

    One record of each of the first :data:`MOST_DEFINITIONS` is made, as ``emit`` makes it, and matched in both.
    """
    lost: dict[str, str] = {}
    samples: list[tuple[str, bytes]] = []
    for endpoint in endpoints:
        known = before.endpoints.get(endpoint)
        for xid in known.candidates if known is not None else ():
            if len(samples) < MOST_DEFINITIONS:
                samples += [(xid, line) for line in _line(before, xid, endpoint)]
    lines: list[bytes | str] = [line for _, line in samples]
    was, becomes = RecordMatcher(before).decide(lines), RecordMatcher(after).decide(lines)
    for (xid, _), old, new in zip(samples, was, becomes, strict=True):
        if old.get("message") == xid and new.get("message") != xid:
            lost[xid] = new.get("message") or new.get("detail") or new["outcome"]
    return lost


def _line(catalog: Catalog, xid: str, endpoint: str) -> list[bytes]:
    """Return one record of a definition as a line; nothing for one that no record can be made of."""
    definition = catalog.definitions.get(xid)
    if definition is None:
        return []
    context: dict[str, str] = {}
    for prop in (*definition.envelopemetadata, *definition.protocoloptions):
        if prop.value is not None:
            context.update(dict.fromkeys(tokens_of(text_of(prop.value))[1::2], "7"))
    try:
        producer = Producer(catalog, xid, endpoint=endpoint, context=context, seed=0, clock=lambda: _NOW)
        return [record_line(producer.record())]
    except EmitError:
        return []  # it cannot be produced as it stands, so there is nothing to compare
