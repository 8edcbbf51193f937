"""Schema ids at the beginning of Kafka bodies: which candidates they leave, and how each body is read
(MATCHING.md#schema-ids).

A stage before :mod:`router.matching.schema_validation`, with every ``match.validate``. Each combination of a channel, a
match set and a frame is decided once and cached; rows are only assigned to those. If an id is neither declared nor
known and ``framing`` is ``auto``, a body may also have no frame: such rows are validated whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bindings.kafka.binding import PROTOCOL as KAFKA
from catalog.schemas.contract import MessagePlace, decode_content
from catalog.schemas.ids.client import Framing
from catalog.schemas.ids.deciding import (
    DIGITS,
    PLAIN,
    PROPERTY,
    Begin,
    FrameIds,
    FrameLookup,
    IdDecision,
    find_frame_ids,
    frame_kind,
    read_frame,
    read_message_place,
)
from catalog.schemas.validation import PayloadValidation
from router.matching.channels import Channel
from router.matching.index.classes import BoolArray, IntArray, SplitColumn
from router.matching.index.index import MatchIndex
from router.matching.record_columns import Payload, RecordColumns, protocol_number

KEY: Final = f"p.{PROPERTY}"
"""The property of the id, as constraints have it."""
MAX_GROUPS: Final = 20_000
"""Most cached decisions; beyond, all are dropped."""
PLAUSIBLE: Final = 1 << 24
"""Ids below this are counted if it is unknown whether a body has a frame; registries count from 1."""
MAX_COUNTED: Final = 1_000
"""Most ids of one Arrow batch that are counted separately."""
MAX_SHOWN: Final = 3
"""Most definitions whose id or schema rejects a body that a dead letter names."""
_KAFKA: Final = protocol_number(KAFKA)


@dataclass(frozen=True, slots=True)
class FrameGroup:
    """The decisions for rows of one channel, match set and frame.

    ``left`` is the number of the remaining set; ``begins`` says by xid how the bodies are read.
    """

    lookup: FrameLookup
    certain: bool
    decisions: Mapping[int, IdDecision]
    left: int
    begins: Mapping[str, Begin]

    @property
    def dropped(self) -> dict[int, IdDecision]:
        """The targets that the id excludes."""
        return {target: each for target, each in self.decisions.items() if not each.accepts}


@dataclass(slots=True)
class IdFilteredSets:
    """The sets that ids leave. ``numbers`` are the rows' indexes in ``groups``, -1 for none."""

    sets: IntArray
    numbers: IntArray
    groups: list[FrameGroup] = field(default_factory=list)

    def group(self, row: int) -> FrameGroup | None:
        """Return the group of a row; None if its id decided nothing."""
        number = int(self.numbers[row])
        return self.groups[number] if number >= 0 else None

    def rows_without_candidates(self) -> dict[int, FrameGroup]:
        """Return the rows whose candidates were all excluded by their id."""
        empty = [bool(each.dropped) and len(each.dropped) == len(each.decisions) for each in self.groups]
        rows = np.flatnonzero(np.array([*empty, False], bool)[self.numbers])
        return {row: self.groups[int(self.numbers[row])] for row in rows.tolist()}


class SchemaIdFilter:
    """Drops candidates by the ids of schemas, for the match sets of one index."""

    def __init__(self, index: MatchIndex, channels: Sequence[Channel], payloads: PayloadValidation | None) -> None:
        self._index = index
        self._frames = [channel.frames for channel in channels]
        self._payloads = payloads
        self._declared = [frozenset[str]() for _ in channels]
        self._framed = [False] * len(channels)
        self._decides = [False] * len(channels)
        self._groups: dict[Any, FrameGroup] = {}
        if payloads is not None:
            for number, channel in enumerate(channels):
                self._inspect_channel(number, channel, payloads)

    def _inspect_channel(self, number: int, channel: Channel, payloads: PayloadValidation) -> None:
        frames, rule = channel.frames, payloads.ids
        if frames.framing == "none":
            return
        definitions = [
            target.definition
            for target in (self._index.targets[candidate] for candidate in channel.candidates)
            if target.protocol in (None, KAFKA)
        ]
        declared = list(filter(None, (rule.declared_ids(one, frames.registry) for one in definitions)))
        framed = any(map(rule.can_have_frames, definitions))
        constrained = {
            str(option.value)
            for one in definitions
            for option in one.protocoloptions
            if option.name == PROPERTY and option.value is not None
        }
        self._declared[number] = frozenset[str]().union(constrained, *(each.ids for each in declared))
        self._framed[number] = framed or bool(declared) or self.constrains
        resolves = frames.registry is not None or frames.required
        self._decides[number] = bool(declared) or (framed and resolves) or any(map(rule.names_message, definitions))

    @property
    def constrains(self) -> bool:
        """Whether some definition constrains the id."""
        return KEY in self._index.keys

    @property
    def finds_any(self) -> bool:
        """Whether bodies of any channel are searched for ids."""
        return any(self._framed)

    def finds(self, channel: int) -> bool:
        """Return whether bodies of that channel are searched for ids; their first bytes are enough."""
        return channel >= 0 and self._framed[channel]

    def framing(self, channel: int) -> Framing:
        """Return how bodies of a channel begin."""
        return self._frames[channel].framing if channel >= 0 else "none"

    def find(self, facts: RecordColumns) -> None:
        """Record the ids that bodies begin with."""
        framed = np.flatnonzero(np.array([*self._framed, False], bool)[facts.channels] & (facts.protocols == _KAFKA))
        if not len(framed):
            return
        codes = np.full(facts.columns.rows, -1, np.int64)
        names: dict[str, int] = {}
        heads = facts.bodies if facts.bodies is not None else pa.nulls(0, pa.binary())
        by_columns = framed[framed < len(heads)]
        if len(by_columns):
            framings = [self._frames[channel].framing for channel in range(len(self._frames))]
            kinds = sorted({framings[number] for number in np.unique(facts.channels[by_columns]).tolist()})
            whole = len(kinds) == 1 and len(by_columns) == len(heads)
            for kind in kinds:
                chosen = np.array([each == kind for each in (*framings, "")], bool)[facts.channels[by_columns]]
                rows = by_columns[chosen]
                found = find_frame_ids(heads if whole else heads.take(pa.array(rows)), kind)
                numbers = [names.setdefault(name, len(names)) for name in found.names]
                codes[rows] = np.array([*numbers, -1], np.int64)[found.codes]
        self._find_ids_singly(facts, framed, codes, names)
        facts.ids = FrameIds(codes, list(names))
        if self.constrains:
            known = pa.array(facts.ids.names, pa.string()).take(pa.array(codes, mask=codes < 0))
            facts.columns = replace(facts.columns, by_key={**facts.columns.by_key, KEY: SplitColumn(known)})

    def _find_ids_singly(self, facts: RecordColumns, framed: IntArray, codes: IntArray, names: dict[str, int]) -> None:
        """Record the ids of rows that the codec read, and of bodies with a content coding."""
        coded = np.zeros(0, np.int64)
        if facts.codings is not None and facts.codings.null_count < len(facts.codings):
            coded = np.flatnonzero(facts.codings.is_valid().to_numpy(zero_copy_only=False))
        rows = [row for row in facts.readings if row < len(codes)]
        chosen = np.intersect1d(framed, np.array([*rows, *coded.tolist()], np.int64))
        for row, payload in zip(chosen.tolist(), facts.payloads(chosen.tolist()), strict=True):
            codes[row] = -1
            if payload is None or not payload.whole or payload.body is None:
                continue
            body = decode_content(payload.body, payload.coding) if payload.coding else payload.body
            frame = read_frame(body, self.framing(int(facts.channels[row]))) if isinstance(body, bytes) else None
            if frame is not None:
                codes[row] = names.setdefault(frame.id, len(names))

    def drop(self, facts: RecordColumns, sets: IntArray) -> IdFilteredSets:
        """Return the sets without the candidates that do not accept the ids of their records.

        Raises:
            RegistryUnavailableError: a schema registry is unavailable.
        """
        found, none = facts.ids, np.full(facts.columns.rows, -1, np.int64)
        if found is None or self._payloads is None or not any(self._decides):
            return IdFilteredSets(sets, none)
        deciding = np.array([*self._decides, False], bool)[facts.channels] & (found.codes >= 0)
        deciding[list(facts.faults)] = False
        rows = np.flatnonzero(deciding)
        if not len(rows):
            return IdFilteredSets(sets, none)
        identified = IdFilteredSets(sets.copy(), none)
        width, depth = len(found.names), int(sets.max()) + 1
        keys = (facts.channels[rows] * depth + sets[rows]) * width + found.codes[rows]
        distinct, owners = np.unique(keys, return_inverse=True)
        order = np.argsort(owners, kind="stable")
        starts = np.searchsorted(owners[order], np.arange(len(distinct) + 1))
        for number, key in enumerate(distinct.tolist()):
            (channel, matched), code = divmod(key // width, depth), key % width
            if not self._index.sets[matched].targets:
                continue
            mine = rows[order[starts[number] : starts[number + 1]]]
            for group, members in self._group_rows(facts, mine, channel, matched, found.names[code]):
                identified.sets[members] = group.left
                identified.numbers[members] = len(identified.groups)
                identified.groups.append(group)
        return identified

    def _group_rows(
        self, facts: RecordColumns, rows: IntArray, channel: int, matched: int, name: str
    ) -> list[tuple[FrameGroup, IntArray]]:
        """Divide rows of one channel, set and id into groups, by named message and by schemas for the whole body."""
        frames, targets = self._frames[channel], self._index.sets[matched].targets
        assert self._payloads is not None  # the caller checked that there are schemas
        rule = self._payloads.ids
        definitions = {target: self._index.targets[target].definition for target in targets}
        written = frames.registry.get_schema(name) if frames.registry is not None else None
        certain = frames.framing != "auto" or name in self._declared[channel] or written is not None
        by_message = any(map(rule.names_message, definitions.values()))
        framed = [target for target in targets if rule.can_have_frames(definitions[target])]
        if not by_message and certain:
            frame = FrameLookup(name, frames.registry, written, None, frames.required)
            return [(self._cached_group(channel, matched, frame), rows)]
        payloads = [each if isinstance(each, Payload) else None for each in facts.decoded_payloads(rows.tolist())]
        given = [None if each is None else each.body for each in payloads]
        places: list[MessagePlace | None] = [None] * len(rows)
        if by_message:
            places = [_message_place(body, frames.framing) for body in given]
        fitting: list[tuple[int, ...]] = [()] * len(rows)
        if not certain:
            fitting = self._accepting_targets(payloads, framed)
        groups: dict[tuple[MessagePlace | None, tuple[int, ...]], list[int]] = {}
        for row, place, whole in zip(rows.tolist(), places, fitting, strict=True):
            groups.setdefault((place, whole), []).append(row)
        return [
            (
                self._cached_group(
                    channel,
                    matched,
                    FrameLookup(name, frames.registry, written, place, frames.required),
                    certain,
                    whole,
                ),
                np.array(mine, np.int64),
            )
            for (place, whole), mine in groups.items()
        ]

    def _accepting_targets(self, payloads: Sequence[Payload | None], framed: Sequence[int]) -> list[tuple[int, ...]]:
        """Return per row the targets whose schemas accept its whole body, so that it has no frame for them."""
        assert self._payloads is not None
        bodies = [None if each is None else each.body for each in payloads]
        types = [None if each is None else each.content_type for each in payloads]
        by_target = {target: self._payloads.faults(self._index.targets[target].xid, bodies, types) for target in framed}
        return [
            tuple(target for target in framed if by_target[target][at] is None and body is not None)
            for at, body in enumerate(bodies)
        ]

    def _cached_group(
        self, channel: int, matched: int, lookup: FrameLookup, certain: bool = True, whole: tuple[int, ...] = ()
    ) -> FrameGroup:
        key = (channel, matched, lookup.id, lookup.place, certain, whole, id(lookup.written))
        group = self._groups.get(key)
        if group is None or group.lookup.written is not lookup.written:
            if len(self._groups) >= MAX_GROUPS:
                self._groups.clear()
            group = self._groups[key] = self._decide_group(channel, matched, lookup, certain, whole)
        return group

    def _decide_group(
        self, channel: int, matched: int, lookup: FrameLookup, certain: bool, whole: tuple[int, ...]
    ) -> FrameGroup:
        assert self._payloads is not None
        rule, frames = self._payloads.ids, self._frames[channel]
        known = self._index.sets[matched]
        decisions: dict[int, IdDecision] = {}
        begins: dict[str, Begin] = {}
        bits = known.bits
        for target in known.targets:
            definition = self._index.targets[target].definition
            if target in whole:
                decisions[target] = IdDecision(True, "any: its schema accepts the whole body, unframed", lookup.id)
                begins[definition.xid] = PLAIN
                continue
            decision = rule.decide(definition, lookup)
            if not certain and decision.unread and frames.registry is None and not frames.required:
                # It is unknown whether there is a frame: the body is read as it is.
                decision = IdDecision(True, decision.expected, f"{decision.found}, so it has no frame")
                begins[definition.xid] = PLAIN
            elif decision.accepts:
                kind: Framing = frame_kind(frames.framing) if certain or lookup.place is not None else frames.framing
                begins[definition.xid] = Begin(kind, lookup.written)
            decisions[target] = decision
            if not decision.accepts:
                bits &= ~(1 << target)
        return FrameGroup(lookup, certain, decisions, self._index.set_number(bits, event=known.event), begins)

    def begins(self, facts: RecordColumns, rows: Sequence[int], xid: str) -> list[Begin]:
        """Return how the bodies of rows are read for a definition: only those of Kafka have frames."""
        framings = [*(_BEGINS[each.framing] for each in self._frames), PLAIN]
        channels = np.where(facts.protocols == _KAFKA, facts.channels, -1)[rows].tolist()
        identified = facts.identified
        if identified is None or not identified.groups:
            return [framings[channel] for channel in channels]
        numbers = identified.numbers[rows].tolist()
        known = [each.begins.get(xid) for each in identified.groups]
        return [
            (known[number] if number >= 0 else None) or framings[channel]
            for number, channel in zip(numbers, channels, strict=True)
        ]

    def ids_of_rows(self, facts: RecordColumns) -> pa.StringArray:
        """Return the ids of rows, null for a row without a frame or with an implausible one."""
        found = facts.ids
        if found is None:
            return pa.nulls(facts.columns.rows, pa.string())
        shown = self._are_shown(facts, found)
        return pa.array(found.names, pa.string()).take(pa.array(found.codes, mask=~shown))

    def _are_shown(self, facts: RecordColumns, found: FrameIds) -> BoolArray:
        plausible = np.array([*(_is_plausible(name) for name in found.names), False], bool)[found.codes]
        sure = np.array([*(each.framing != "auto" for each in self._frames), False], bool)[facts.channels]
        if (identified := facts.identified) is not None and identified.groups:
            certain = np.array([*(each.certain for each in identified.groups), False], bool)[identified.numbers]
            whole = [PLAIN in each.begins.values() for each in identified.groups]
            sure |= certain
            plausible &= ~np.array([*whole, False], bool)[identified.numbers]
        shown: BoolArray = (found.codes >= 0) & (sure | plausible)
        return shown

    def count_routed(self, facts: RecordColumns, winners: IntArray, order: IntArray) -> list[list[Any]]:
        """Count routed rows among *order* by their definition, their id, and what decided."""
        found = facts.ids
        if found is None:
            return []
        rows = order[(winners[order] >= 0) & self._are_shown(facts, found)[order]]
        identified = facts.identified
        groups = identified.groups if identified is not None else []
        numbers = identified.numbers[rows] if identified is not None else np.full(len(rows), -1, np.int64)
        width, depth = len(found.names), len(groups) + 1
        keys = (winners[rows] * depth + numbers + 1) * width + found.codes[rows]
        counts: Counter[tuple[int, str, str]] = Counter()
        for key, count in zip(*(each.tolist() for each in np.unique(keys, return_counts=True)), strict=True):
            (target, number), code = divmod(key // width, depth), key % width
            decision = groups[number - 1].decisions.get(target) if number else None
            counts[target, found.names[code], decision.by if decision is not None else "nothing"] += count
        most = counts.most_common(MAX_COUNTED)
        return [[*key, count] for key, count in most]


_BEGINS: Final[Mapping[Framing, Begin]] = {
    kind: Begin(kind) for kind in ("auto", "confluent", "apicurio", "glue", "none")
}


def id_rejection_detail(group: FrameGroup, targets: Sequence[Any]) -> str:
    """Return the detail of a dead letter whose candidates were all excluded by the id."""
    listed = [
        f"{targets[target].xid}: protocoloptions.{PROPERTY}: expected {each.expected!r}, found {each.found!r}"
        for target, each in sorted(group.dropped.items(), key=lambda item: targets[item[0]].xid)[:MAX_SHOWN]
    ]
    unread = {each.unread for each in group.dropped.values()}
    if "message" in unread:
        return f"the body begins with schema id {group.lookup}, but its index is not that of a message in the file"
    if "id" in unread:
        registry = group.lookup.registry
        where = "which nothing declares" if registry is None else f"which registry {registry.name} does not have"
        return f"the body begins with schema id {group.lookup}, {where}"
    return f"schema id {group.lookup}; " + "; ".join(listed)


def id_mismatches(group: FrameGroup, targets: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the definitions that an id excluded, in the form of ``nearest``."""
    shown: dict[str, dict[str, Any]] = {}
    for target, each in sorted(group.dropped.items(), key=lambda item: targets[item[0]].xid):
        mismatch = {"property": f"protocoloptions.{PROPERTY}", "expected": each.expected, "found": each.found}
        shown.setdefault(targets[target].xid, {"message": targets[target].xid, "mismatches": [mismatch]})
    return list(shown.values())[:MAX_SHOWN]


def _is_plausible(name: str) -> bool:
    return DIGITS.fullmatch(name) is not None and 0 < int(name) < PLAUSIBLE


def _message_place(body: bytes | None, framing: Framing) -> MessagePlace | None:
    frame = read_frame(body, framing) if body is not None else None
    data = frame.unpack(body) if frame is not None and body is not None else None
    found = read_message_place(data, framing) if isinstance(data, bytes) else None
    return None if found is None else found[0]
