"""Channels: where records arrive, and the candidates of each.

A channel is one endpoint, or several that share a topic or path: their candidates are the union, and a record's
endpoint is the winner's, else the first in settings (MATCHING.md#channels-and-candidates).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from catalog.definitions.constraints import MatchCandidate, candidate_in_scope, scope_of
from catalog.model import Catalog, Endpoint
from catalog.schemas.ids.deciding import FrameSettings
from catalog.values import is_valid
from router.matching.mapping import ChannelOrigin
from router.matching.tie_breaker import Ambiguous, TieBreaker

_FRAMES: Final = FrameSettings()


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel. ``candidates`` number targets of the plan; ``owners`` say which endpoint each came from.

    ``structured`` says whether an endpoint declares structured mode; see :meth:`Plan.sniffs` for its use. ``frames``
    say how Kafka bodies begin there.
    """

    name: str
    endpoints: tuple[str, ...]
    candidates: tuple[int, ...]
    owners: Mapping[int, str] = field(default_factory=dict)
    origin: ChannelOrigin = field(default_factory=lambda: ChannelOrigin(""))
    structured: bool = False
    frames: FrameSettings = _FRAMES

    def endpoint_of(self, target: int) -> str | None:
        """Return the endpoint of a record of this channel that this target won (negative: none)."""
        return self.owners.get(target, self.endpoints[0] if self.endpoints else None)


class ChannelBuilder:
    """Collects channels and numbers their targets, each distinct one once."""

    def __init__(self, catalog: Catalog, *, hop_by_hop: bool = False, ambiguous: Ambiguous = "dead-letter") -> None:
        """With ``ambiguous`` as ``base``, the bases of candidates are targets too, though of no channel."""
        self._catalog = catalog
        self._ambiguous = ambiguous
        self._bases: dict[int, tuple[int, ...]] = {}
        self._hop_by_hop = hop_by_hop
        self.targets: list[MatchCandidate] = []
        self.channels: list[Channel] = []
        self._numbers: dict[tuple[str, str | None, bool, bool], int] = {}

    def add_endpoints(
        self, name: str, xids: Sequence[str], context: Mapping[str, str] | None = None, frames: FrameSettings = _FRAMES
    ) -> Channel:
        """Add a channel that these endpoints share."""
        candidates: list[int] = []
        owners: dict[int, str] = {}
        structured = False
        known = [self._catalog.endpoints[xid] for xid in xids if xid in self._catalog.endpoints]
        for endpoint in known:
            structured = structured or str(endpoint.envelopeoptions.get("mode", "")).lower() == "structured"
            for number in self._iter_candidates(endpoint.candidates, endpoint):
                candidates.append(number)
                for each in (number, *self._bases_of(number, endpoint)):
                    owners.setdefault(each, endpoint.xid)
        origin = ChannelOrigin(source_of(known[0]) if known else (xids[0] if xids else name), dict(context or {}))
        return self._append(
            Channel(name, tuple(xids), tuple(dict.fromkeys(candidates)), owners, origin, structured, frames)
        )

    def add_definitions(self, name: str, xids: Iterable[str], frames: FrameSettings = _FRAMES) -> Channel:
        """Add a channel whose candidates are these definitions, without an endpoint."""
        numbers = list(self._iter_candidates(xids, None))
        for number in numbers:
            self._bases_of(number, None)
        return self._append(Channel(name, (), tuple(dict.fromkeys(numbers)), origin=ChannelOrigin(name), frames=frames))

    def tie_breaker(self) -> TieBreaker:
        """Return the tie breaker for targets that match equally well."""
        ranks = {xid: rank for rank, xid in enumerate(self._catalog.order)}
        known = [ranks.get(target.xid, len(ranks) + number) for number, target in enumerate(self.targets)]
        return TieBreaker(self._ambiguous, known, self._bases)

    def _bases_of(self, number: int, endpoint: Endpoint | None) -> tuple[int, ...]:
        if self._ambiguous != "base":
            return ()
        if number not in self._bases:
            self._bases[number] = tuple(self._iter_candidates(self.targets[number].definition.base, endpoint))
        return self._bases[number]

    def _append(self, channel: Channel) -> Channel:
        self.channels.append(channel)
        return channel

    def _iter_candidates(self, xids: Iterable[str], endpoint: Endpoint | None) -> Iterator[int]:
        """Yield the numbers of those definitions that can match at an endpoint; build each distinct target once."""
        for xid in xids:
            definition = self._catalog.definitions.get(xid)
            scope = None if definition is None else scope_of(definition, endpoint)
            if definition is None or scope is None:
                continue
            number = self._numbers.setdefault((xid, *scope), len(self.targets))
            if number == len(self.targets):
                self.targets.append(candidate_in_scope(definition, scope, hop_by_hop=self._hop_by_hop))
            yield number


def source_of(endpoint: Endpoint) -> str:
    """Return the default ``source`` of events mapped from an endpoint: its URI, else its xid.

    An address that is not a URI, such as ``10.0.0.1:9092``, cannot be a source.
    """
    address = endpoint.uris[0] if endpoint.uris else ""
    return address if address and is_valid("urireference", address) else endpoint.xid
