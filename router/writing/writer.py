"""Which sink gets what of a judged batch: the steps of an attempt that write, and what is known of earlier ones.

When all destinations are topics of one Kafka cluster, events and dead letters leave in one pass and one write.
Otherwise the outcomes are kept in memory while each sink takes its share. Kafka and other message targets get a batch
at least once; tables and files exactly once, by the batch's commit. Records that a target rejects become dead letters
of the same batch (:mod:`router.writing.outcomes`). Nothing is committed to the source before every sink has it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property, partial
from typing import Final

import pyarrow as pa

from catalog.model import Catalog
from catalog.templates import TEMPLATE_TYPES, parse
from catalog.values import text_of
from router.errors import SinkError
from router.judging.plan import Plan
from router.routing import LetterLimits, Routes
from router.settings import KafkaSink, Settings, event_sinks, letter_sinks, revealed
from router.settings.names import ATTRIBUTE_PREFIX, CONTEXT_PREFIX, DestinationTemplate, value_name
from router.sinks import ArrowSink, Commit, WriteResult, open_sink
from router.sinks.contract import Rejected
from router.sinks.jsonlines import DEAD_LETTER, DECIDED, WIDE
from router.sinks.messages.definitions import spread_key
from router.sinks.messages.sink import MESSAGE, Spread, kept_spread
from router.watching.batches import writing
from router.writing.outcomes import HeldBack, Outcomes, Receipts, Rejections
from router.writing.staging import BatchId, RowsForSink, commit_of

# The cap on the topics that a Kafka sink's template makes (JUDGING.md#what-comes-out), held on the driver.
#
# Spark writes those records, so they are not seen one by one. Where the catalog bounds the topics below the cap nothing
# is done. Else the distinct topics of a batch are counted before it is written, on the rows that were kept for its
# sinks; records of topics past the cap are taken out and rejected. The topics known are those of
# :mod:`router.sinks.messages.sink`: a batch that is written again in the same process is divided as before, and a
# restart begins to count anew.

_OF_DEFINITION: Final = ("message", "messageid", "messagegroup")


def capped_topics(settings: Settings, topics: Mapping[str, DestinationTemplate], catalog: Catalog) -> dict[str, Spread]:
    """Return, by sink, the topics that Kafka sinks have had, for those whose templates may make more than their cap."""
    capped: dict[str, Spread] = {}
    for name, template in topics.items():
        sink = settings.sinks[name].topics
        if sink is not None and is_counted(sink, template, catalog):
            capped[name] = kept_spread(spread_key(name, sink), sink.max_destinations)
    return capped


def is_counted(sink: KafkaSink, template: DestinationTemplate, catalog: Catalog) -> bool:
    """Tell whether a template may make more topics than the cap of its sink, as far as the catalog tells."""
    named = {value_name(variable) for variable in template.variables}
    if any(name.startswith(CONTEXT_PREFIX) for name in named):
        return True
    attributes = {name.removeprefix(ATTRIBUTE_PREFIX) for name in named if name.startswith(ATTRIBUTE_PREFIX)}
    if not all(_is_literal(catalog, attribute) for attribute in attributes):
        return True
    by_definition = bool(attributes) or not named.isdisjoint(_OF_DEFINITION)
    by_endpoint = not named.isdisjoint(("endpoint", "endpointid"))
    bound = (len(catalog.definitions) if by_definition else 1) * (len(catalog.endpoints) if by_endpoint else 1)
    return bound > sink.max_destinations


def within(events: Outcomes, sink: str, spread: Spread) -> tuple[Outcomes, tuple[Rejected, ...]]:
    """Return the events of a sink whose topic is within its cap, and what is rejected of the others.

    The events are read twice, or three times when some are rejected.
    """
    # In the order of their names: a batch that is counted again after a restart is divided in the same way.
    past = {name: fault for name in sorted(events.topics(sink)) if (fault := spread.fault(name)) is not None}
    if not past:
        return events, ()
    outside = events.to_topics(sink, past)
    rejected = (
        Rejected(each.position, f"topic {topic}: {past[topic]}", each.endpoint, each.message) for topic, each in outside
    )
    return events.without([each.letter for _, each in outside]), tuple(rejected)


def _is_literal(catalog: Catalog, attribute: str) -> bool:
    """Tell whether every definition gives an attribute one value."""
    for definition in catalog.definitions.values():
        prop = next((each for each in definition.envelopemetadata if each.name == attribute), None)
        if prop is None or prop.value is None:
            return False
        if prop.type in TEMPLATE_TYPES and not parse(text_of(prop.value)).is_literal:
            return False
    return True


Counted = Callable[[str, str], None]
Timed = Callable[[str, float], None]


Nulled = Callable[[str, Mapping[str, int]], None]


def untimed(sink: str, seconds: float) -> None:
    """Tell nobody."""


def uncounted(sink: str, unfit: Mapping[str, int]) -> None:
    """Tell nobody."""


class BatchWriter:
    """Writes batches for one plan. *counted* is called with a sink's name and the result of each write to it, and
    *timed* with how long one took that the sink accepted, *nulled* with the values, by definition, that one
    made null in typed columns.
    """

    def __init__(self, plan: Plan, counted: Counted, timed: Timed = untimed, nulled: Nulled = uncounted) -> None:
        self._plan = plan
        self._counted = counted
        self._timed = timed
        self._nulled = nulled
        self._letters = letter_sinks(plan.settings)
        self._arrow: dict[tuple[str, bool], ArrowSink] = {}
        self._capped = capped_topics(plan.settings, plan.routes.topics, plan.catalog)
        self._taken: dict[str, tuple[int, set[tuple[tuple[int, ...], str]]]] = {}

    @property
    def routes(self) -> Routes:
        """Which sinks get what."""
        return self._plan.routes

    @cached_property
    def one_pass(self) -> bool:
        """Whether a batch needs a single write: one cluster, binary mode, and one destination for each record."""
        sinks = self._plan.settings.sinks
        used = {*event_sinks(self._plan.settings), *self._letters}
        kafka = [sink for name in used if (sink := sinks[name].topics) is not None]
        clusters = {repr((s.bootstrap_servers, s.username, s.tls, sorted(revealed(s.options).items()))) for s in kafka}
        lists = [self._plan.settings.dead_letters.sinks, *(route.to for route in self._plan.settings.routes)]
        single = all(len(names) == 1 for names in lists)
        binary = all(sink.mode == "binary" for sink in kafka)
        framed = any(sink.framed is not None for sink in kafka)
        unchecked = not framed and self._plan.settings.dead_letters.max_ratio is None and not self.may_reject
        return unchecked and len(kafka) == len(used) and len(clusters) == 1 and single and binary

    @property
    def may_reject(self) -> bool:
        """Whether routed records may become dead letters after all; outcomes must then keep how records arrived."""
        if self._plan.settings.dead_letters.order == "park":
            return True
        sinks = (self._plan.settings.sinks[name] for route in self._plan.settings.routes for name in route.to)
        rules = any(sink.may_reject for sink in tuple(self._arrow.values()))
        return bool(self._capped) or rules or any(sink.sends_messages for sink in sinks)

    @property
    def may_spill(self) -> bool:
        """Whether dead letters go to Kafka, which takes no record of any size."""
        return any(self._by_spark(name) for name in self._letters)

    def shares(self, batch: BatchId) -> tuple[RowsForSink, ...] | None:
        """Return what sinks are to get of a batch, where all take files that workers stage; None where one does not.

        Those known to have their events already have no share.
        """
        shares = [
            self._share(name, numbers, batch)
            for name, numbers in self._plan.routes.event_sinks.items()
            if name not in self._noted(batch)
        ]
        for name, numbers in self._plan.routes.letter_sinks.items():
            shares.append(self._share(name, numbers, batch, letters=True))
        staged = tuple(share for share in shares if share is not None)
        return staged if len(staged) == len(shares) else None

    def send_all(self, outcomes: Outcomes) -> None:
        """Step of a batch in one pass: events and dead letters leave in one write, which judges them on its way.

        A crash or an error leaves any of them written, and they are all written again.

        Raises:
            SinkError: the cluster does not take them now.
        """
        names = list(dict.fromkeys([*self._plan.routes.event_sinks, *self._letters]))
        self._publish(names, partial(outcomes.publish_all, names))

    def send_events(
        self,
        events: Outcomes,
        batch: BatchId,
        only: Container[str] | None = None,
        receipts: Receipts | None = None,
        reached: Set[int] | None = None,
    ) -> Rejections:
        """Step: each sink takes its share of the events; *only* are the sinks that get any, None for all.

        *reached* are the routes that outcomes took, where that is known: sinks of others are not asked at all.

        A crash or an error leaves some sinks with their share and some without: tables and files have it wholly or not
        at all, and take no commit twice. A sink that took its share in this process is not asked again, unless it
        rejected some: it must say again which. What sinks say they have is added to *receipts*.

        Raises:
            SinkError: a sink cannot take its share now; those before it have theirs.
        """
        rejections = self._no_rejections()
        for name, numbers in self._plan.routes.event_sinks.items():
            # A sink that has its share is not given it again while another holds the batch: Kafka would double it.
            if (only is None or name in only) and name not in self._noted(batch):
                rejected: tuple[Rejected, ...] = ()
                if reached is None or not reached.isdisjoint(numbers):
                    rejected = self._send_events(name, numbers, events.on_routes(numbers), batch, receipts)
                rejections.add(name, rejected)
                if not rejected:
                    self._note_taken(name, batch)
        return rejections

    def withhold_events(self, events: Outcomes, batch: BatchId, reasons: Mapping[str, str]) -> Rejections:
        """Step of a batch that is set aside: no sink gets events; those in *reasons* reject what they lack.

        Nothing is written. A repeat gives the same: only records that a sink really has are left out of its share.

        Raises:
            SinkError: a sink cannot be made ready to be asked.
        """
        rejections = self._no_rejections()
        for name, numbers in self._plan.routes.event_sinks.items():
            if name in reasons:
                share = (
                    Rejected(each.position, reasons[name], each.endpoint, each.message)
                    for each in events.on_routes(numbers).decisions()
                )
                unasked = self._by_spark(name)
                rejections.add(name, share if unasked else self._sink(name).lacking(commit_of(name, batch), share))
        return rejections

    def reject_held(
        self, rejections: Rejections, held: HeldBack, batch: BatchId, receipts: Receipts | None = None
    ) -> None:
        """Step: what is held back counts as rejected by all of its sinks. Nothing is written.

        A sink that has the whole, of which this is a part, has these records too: it took them before their keys were
        blocked.
        """
        having = self.taken(replace(batch, part=batch.part[:-1])) if batch.part and held.records else frozenset()
        for name, numbers in self._plan.routes.event_sinks.items():
            if name not in having:
                rejections.add(name, held.share(numbers))
            elif receipts is not None:
                receipts.waive(name)

    def send_letters(
        self,
        letters: Outcomes,
        batch: BatchId,
        receipts: Receipts | None = None,
        reached: Set[int] | None = None,
    ) -> None:
        """Step: each sink of dead letters takes its share, those of rejected records with the others.

        *reached* is as for events, with the routes of rejected records.

        It comes after all sinks of events, so a sink that has the letters of a batch shows that these have its events.
        A crash or an error leaves some sinks without their share; tables and files take no commit twice.

        Raises:
            SinkError: a sink cannot take them now.
        """
        for name, numbers in self._plan.routes.letter_sinks.items():
            if reached is None or not reached.isdisjoint(numbers):
                self._send_letters(name, numbers, letters.on_routes(numbers), batch, receipts)

    def has_letters(self, batch: BatchId) -> bool:
        """Whether a sink of dead letters is known to have those of the batch: then all sinks have its events.

        Raises:
            SinkError: a sink cannot be read.
        """
        asked = (name for name in self._letters if not self._by_spark(name))
        return any(self._sink(name, letters=True).already(commit_of(name, batch, letters=True)) for name in asked)

    def taken(self, batch: BatchId) -> frozenset[str]:
        """Return the sinks known to have their events of the batch: by its commit, or since they took it just now."""
        known = set(self._noted(batch))
        for name in self._plan.routes.event_sinks:
            if name in known or self._by_spark(name):
                continue
            try:
                if self._sink(name).already(commit_of(name, batch)):
                    known.add(name)
            except SinkError:
                continue  # One that cannot be read may be the one that is in the way: it counts as not having it.
        return frozenset(known)

    def lacking(self, taken: Container[str]) -> list[str]:
        """Return the sinks of routes that are not among *taken*."""
        return [name for name in self._plan.routes.event_sinks if name not in taken]

    def _no_rejections(self) -> Rejections:
        return Rejections(self._plan.routes, LetterLimits(self._plan.settings))

    def _note_taken(self, name: str, batch: BatchId) -> None:
        number, taken = self._taken.get(batch.generation, (-1, set()))
        before = taken if number == batch.number else set()
        self._taken[batch.generation] = (batch.number, {*before, (batch.part, name)})

    def _noted(self, batch: BatchId) -> set[str]:
        """Return the sinks that took their share of the batch, or of what it is a part of, since this process began."""
        number, taken = self._taken.get(batch.generation, (-1, set()))
        if number != batch.number:
            return set()
        return {name for part, name in taken if batch.part[: len(part)] == part}

    def _by_spark(self, name: str) -> bool:
        """Whether Spark itself writes to a sink, and nobody can ask what it has."""
        return self._plan.settings.sinks[name].topics is not None

    def _share(
        self, name: str, numbers: tuple[int, ...], batch: BatchId, *, letters: bool = False
    ) -> RowsForSink | None:
        """Return what a sink gets that takes files; None for another."""
        if not self._plan.settings.sinks[name].tabular:
            return None
        staging = self._sink(name, letters=letters).staging(commit_of(name, batch, letters=letters))
        schema = DEAD_LETTER if letters else self._schema(name)
        return None if staging is None else RowsForSink(name, letters, numbers, schema, staging)

    def _send_events(
        self, name: str, numbers: tuple[int, ...], events: Outcomes, batch: BatchId, receipts: Receipts | None
    ) -> tuple[Rejected, ...]:
        if (share := self._share(name, numbers, batch)) is not None:
            result = self._take(share, events, commit_of(name, batch))
        elif not self._by_spark(name):
            sink, rows = self._sink(name), events.events(self._schema(name))
            result = self._write(name, lambda: sink.write(rows, commit_of(name, batch)))
        else:
            return self._publish_events(name, events)
        if result.refused and not events.may_reject:
            # The sink says them again when it is given the batch again.
            hint = "none is needed: they become dead letters when the batch is tried again"
            raise SinkError(name, f"rejects {len(result.refused)} rows: {result.refused[0].reason}", hint=hint)
        if receipts is not None:
            receipts.add(name, result)
        return result.refused

    def _publish_events(self, name: str, events: Outcomes) -> tuple[Rejected, ...]:
        rejected: tuple[Rejected, ...] = ()
        if name in self._capped:
            events, rejected = within(events, name, self._capped[name])
        self._publish([name], partial(events.publish_events, name))
        if rejected:
            self._counted(name, "rejected")
        return rejected

    def _send_letters(
        self, name: str, numbers: tuple[int, ...], letters: Outcomes, batch: BatchId, receipts: Receipts | None
    ) -> None:
        commit = commit_of(name, batch, letters=True)
        if (share := self._share(name, numbers, batch, letters=True)) is not None:
            result = self._take(share, letters, commit)
        elif self._by_spark(name):
            self._publish([name], partial(letters.publish_letters, name))
            return
        else:
            sink, rows = self._sink(name, letters=True), letters.dead_letters()
            result = self._write(name, lambda: sink.write(rows, commit))
        if receipts is not None:
            receipts.add(name, result, letters=True)

    def _schema(self, name: str) -> pa.Schema:
        """Return what a sink takes of events: all but tables also need the time as it was written."""
        if not self._plan.settings.sinks[name].tabular:
            schema = MESSAGE
        else:
            schema = DECIDED if self._plan.settings.match.ambiguous != "dead-letter" else WIDE
        return pa.schema([*schema, *((column, pa.string()) for column in self._plan.rare)])

    def _take(self, share: RowsForSink, outcomes: Outcomes, commit: Commit) -> WriteResult:
        staged = outcomes.staged(share)
        staged.may_reject = outcomes.may_reject and not share.letters
        sink = self._sink(share.name, letters=share.letters)
        return self._write(share.name, lambda: sink.take(staged, commit))

    def _write(self, name: str, write: Callable[[], WriteResult]) -> WriteResult:
        # No look whether it has the batch already: a sink that is down must not hold one that has nothing for it.
        began = time.monotonic()
        with writing(name):
            result = write()
        self._timed(name, time.monotonic() - began)
        self._counted(name, "ok")
        if result.refused:
            self._counted(name, "rejected")
        if result.unfit:
            counts = Counter[str]()
            for each in result.unfit:
                counts[each.message] += each.values if each.column is not None else 0
            self._nulled(name, +counts)
        return result

    def _publish(self, names: Sequence[str], publish: Callable[[], None]) -> None:
        began = time.monotonic()
        with writing(",".join(names), by_spark=True):
            publish()
        for name in names:
            self._timed(name, time.monotonic() - began)
            self._counted(name, "ok")

    def _sink(self, name: str, *, letters: bool = False) -> ArrowSink:
        sink = self._arrow.get((name, letters))
        if sink is None:
            plan = self._plan
            settings = plan.settings.sinks[name]
            sink = open_sink(name, settings, "dead-letters" if letters else "events", plan.catalog, plan.frames_anew())
            if not letters and (frames := plan.written_frames(name)):
                sink.begin_with(frames)
            self._arrow[(name, letters)] = sink
        return sink
