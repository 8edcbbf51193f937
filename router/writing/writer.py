"""Write an evaluated batch to its sinks: the writing steps of an attempt.

If all destinations are topics of one Kafka cluster, a single write sends events and dead letters. Otherwise the
outcomes are cached while they are written to each sink. Kafka and other message targets get a batch at least once;
tables and files exactly once, by transaction id. Records that a target rejects become dead letters of the same batch
(:mod:`router.writing.outcomes`). The source is committed after all sinks have the batch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from catalog.model import Catalog
from catalog.templates import TEMPLATE_TYPES, parse_template
from catalog.values import to_text
from router.errors import SinkError
from router.evaluation.plan import Plan
from router.routing import Routes, SizeLimits
from router.settings import KafkaSink, Settings, dead_letter_sinks, event_sinks, plain_options
from router.settings.routes import ATTRIBUTE_PREFIX, CONTEXT_PREFIX, DestinationTemplate, full_variable_name
from router.sinks import ArrowSink, WriteResult, open_sink
from router.sinks.contract import RejectedRow
from router.sinks.jsonlines import DEAD_LETTER, WIDE, WIDE_WITH_AMBIGUOUS
from router.sinks.messages.sink import MESSAGE, DestinationCap, get_destination_cap
from router.state.ledger import waits_for
from router.watching.batches import watch_write
from router.writing.outcomes import HeldBack, Outcomes, Rejections
from router.writing.staging import BatchId, RowsForSink, create_commit

if TYPE_CHECKING:
    from router.watching.metrics import Metrics

# The cap on the topics of a Kafka sink's template (MATCHING.md#what-comes-out), enforced on the driver.
#
# If the catalog cannot exceed the cap, nothing is counted. Otherwise the distinct topics of a batch are counted before
# the write, and records of topics above the cap are rejected. :mod:`router.sinks.messages.sink` remembers the topics: a
# batch repeated in the same process has the same rejections, and a restart counts from zero.

_OF_DEFINITION: Final = ("message", "messageid", "messagegroup")


def capped_topics(
    settings: Settings, topics: Mapping[str, DestinationTemplate], catalog: Catalog
) -> dict[str, DestinationCap]:
    """Return the known topics of each Kafka sink whose template may exceed its cap."""
    capped: dict[str, DestinationCap] = {}
    for name, template in topics.items():
        sink = settings.sinks[name].topics
        if sink is not None and may_exceed_cap(sink, template, catalog):
            capped[name] = get_destination_cap(name, sink)
    return capped


def may_exceed_cap(sink: KafkaSink, template: DestinationTemplate, catalog: Catalog) -> bool:
    """Whether a template may exceed the topic cap of its sink, according to the catalog."""
    named = {full_variable_name(variable) for variable in template.variables}
    if any(name.startswith(CONTEXT_PREFIX) for name in named):
        return True
    attributes = {name.removeprefix(ATTRIBUTE_PREFIX) for name in named if name.startswith(ATTRIBUTE_PREFIX)}
    if not all(_is_always_literal(catalog, attribute) for attribute in attributes):
        return True
    by_definition = bool(attributes) or not named.isdisjoint(_OF_DEFINITION)
    by_endpoint = not named.isdisjoint(("endpoint", "endpointid"))
    bound = (len(catalog.definitions) if by_definition else 1) * (len(catalog.endpoints) if by_endpoint else 1)
    return bound > sink.max_destinations


def limit_topics(events: Outcomes, sink: str, cap: DestinationCap) -> tuple[Outcomes, tuple[RejectedRow, ...]]:
    """Return the events of a sink whose topics are within its cap, and rejections for the others.

    The events are read twice, or three times if some are rejected.
    """
    # Sorted by name: a batch that is counted again after a restart has the same rejections.
    faults = {name: fault for name in sorted(events.list_topics(sink)) if (fault := cap.fault(name)) is not None}
    if not faults:
        return events, ()
    outside = events.list_sent_to(sink, faults)
    named = ((each, f"topic {topic}: {faults[topic]}") for topic, each in outside)
    rejected = (RejectedRow(each.position, fault, each.endpoint, each.message) for each, fault in named)
    return events.exclude([each.letter for _, each in outside]), tuple(rejected)


def _is_always_literal(catalog: Catalog, attribute: str) -> bool:
    """Whether every definition has a literal for an attribute."""
    for definition in catalog.definitions.values():
        prop = next((each for each in definition.envelopemetadata if each.name == attribute), None)
        if prop is None or prop.value is None:
            return False
        if prop.type in TEMPLATE_TYPES and not parse_template(to_text(prop.value)).is_literal:
            return False
    return True


class BatchWriter:
    """Writes batches for one plan; *metrics* count its writes."""

    def __init__(self, plan: Plan, metrics: Metrics) -> None:
        self._plan = plan
        self._metrics = metrics
        self._letters = dead_letter_sinks(plan.settings)
        self._open_sinks: dict[tuple[str, bool], ArrowSink] = {}
        self._capped = capped_topics(plan.settings, plan.routes.topics, plan.catalog)
        self._finished: dict[str, tuple[int, set[tuple[tuple[int, ...], str]]]] = {}

    @property
    def routes(self) -> Routes:
        """The routes of the plan."""
        return self._plan.routes

    @cached_property
    def is_single_write(self) -> bool:
        """Whether a single write serves all sinks: one cluster, binary mode, and one destination for each record."""
        sinks = self._plan.settings.sinks
        used = {*event_sinks(self._plan.settings), *self._letters}
        kafka = [sink for name in used if (sink := sinks[name].topics) is not None]
        clusters = {
            repr((s.bootstrap_servers, s.username, s.tls, sorted(plain_options(s.options).items()))) for s in kafka
        }
        lists = [self._plan.settings.dead_letters.sinks, *(route.to for route in self._plan.settings.routes)]
        single = all(len(names) == 1 for names in lists)
        binary = all(sink.mode == "binary" for sink in kafka)
        framed = any(sink.framed is not None for sink in kafka)
        unchecked = not framed and self._plan.settings.dead_letters.max_ratio is None and not self.may_reject
        return unchecked and len(kafka) == len(used) and len(clusters) == 1 and single and binary

    @property
    def may_reject(self) -> bool:
        """Whether sinks may reject records; outcomes must then keep the original records."""
        if self._plan.settings.dead_letters.order == "park":
            return True
        sinks = (self._plan.settings.sinks[name] for route in self._plan.settings.routes for name in route.to)
        rules = any(sink.may_reject for sink in tuple(self._open_sinks.values()))
        return bool(self._capped) or rules or any(sink.sends_messages for sink in sinks)

    @property
    def may_spill(self) -> bool:
        """Whether dead letters go to Kafka, which limits the size of records."""
        return any(self._is_kafka(name) for name in self._letters)

    def staged_shares(self, batch: BatchId) -> tuple[RowsForSink, ...] | None:
        """Return the shares of a batch if all sinks accept files staged by workers, else None.

        A sink that already has its events gets no share.
        """
        shares = [
            self._staged_share(name, numbers, batch)
            for name, numbers in self._plan.routes.event_sinks.items()
            if name not in self._marked_sinks(batch)
        ]
        for name, numbers in self._plan.routes.dead_letter_sinks.items():
            shares.append(self._staged_share(name, numbers, batch, letters=True))
        staged = tuple(share for share in shares if share is not None)
        return staged if len(staged) == len(shares) else None

    def send_all(self, outcomes: Outcomes) -> None:
        """Step for a single write: evaluate and write events and dead letters together.

        After a crash or an error some of them may be written; a retry writes all of them again.

        Raises:
            SinkError: the cluster did not accept them.
        """
        names = list(dict.fromkeys([*self._plan.routes.event_sinks, *self._letters]))
        self._publish(names, partial(outcomes.publish_all, names))

    def new_rejections(self) -> Rejections:
        """Return what sinks say of an attempt, before they say anything."""
        return Rejections(self._plan.routes, SizeLimits(self._plan.settings))

    def send_events(
        self,
        events: Outcomes,
        batch: BatchId,
        rejections: Rejections,
        only: Container[str] | None = None,
        reached: Set[int] | None = None,
    ) -> None:
        """Step: write the events to each sink; *only* limits the sinks, None for all.

        *reached* are the routes of the outcomes, if known: sinks of other routes are skipped. What sinks say is added
        to *rejections*.

        After a crash or an error some sinks have their share; tables and files accept a transaction id only once. A
        sink that got its share in this process is skipped, unless it rejected records and must report them again.

        Raises:
            SinkError: a sink failed; the sinks before it have their share.
        """
        for name, numbers in self._plan.routes.event_sinks.items():
            # A sink must not get its share twice while another sink blocks the batch: Kafka would have duplicates.
            if (only is None or name in only) and name not in self._marked_sinks(batch):
                rejected: tuple[RejectedRow, ...] = ()
                if reached is None or not reached.isdisjoint(numbers):
                    rejected = self._send(name, numbers, events.select_routes(numbers), batch, rejections)
                rejections.add(name, rejected)
                if not rejected:
                    self._mark_finished(name, batch)

    def withhold_events(
        self, events: Outcomes, batch: BatchId, rejections: Rejections, reasons: Mapping[str, str]
    ) -> None:
        """Step of a batch that is moved to dead letters: reject all records that the sinks in *reasons* lack.

        Nothing is written. A repeat has the same result.

        Raises:
            SinkError: a sink cannot be opened.
        """
        for name, numbers in self._plan.routes.event_sinks.items():
            if name in reasons:
                share: Iterable[RejectedRow] = (
                    RejectedRow(each.position, reasons[name], each.endpoint, each.message)
                    for each in events.select_routes(numbers).list_decisions()
                )
                if not self._is_kafka(name):
                    share = self._open_sink(name).iter_missing_rows(create_commit(name, batch), share)
                rejections.add(name, share)

    def reject_held(self, held: HeldBack, batch: BatchId, rejections: Rejections) -> None:
        """Step: reject held-back records at all of their sinks. Nothing is written.

        A sink that has the whole batch of this part has these records: it got them before their keys were blocked.
        """
        complete = self.finished_sinks(replace(batch, part=batch.part[:-1])) if batch.part and held else frozenset()
        for name, numbers in self._plan.routes.event_sinks.items():
            if name in complete:
                rejections.ignore_rows(name)
                continue
            waiting = ((each, waits_for(letter)) for each, letter in held.items() if each.route in numbers)
            rejections.add(name, (RejectedRow(o.position, why, o.endpoint, o.message) for o, why in waiting))

    def send_dead_letters(
        self, letters: Outcomes, batch: BatchId, rejections: Rejections, reached: Set[int] | None = None
    ) -> None:
        """Step: write the dead letters to each of their sinks, with those of rejected records.

        *reached* is as for events, with the routes of rejected records.

        This step follows those for events, so dead letters of a batch at a sink prove that all sinks have its events.
        Tables and files accept a transaction id only once.

        Raises:
            SinkError: a sink failed.
        """
        for name, numbers in self._plan.routes.dead_letter_sinks.items():
            if reached is None or not reached.isdisjoint(numbers):
                self._send(name, numbers, letters.select_routes(numbers), batch, rejections, letters=True)

    def has_dead_letters(self, batch: BatchId) -> bool:
        """Whether a sink is known to have the dead letters of the batch, so that all sinks have its events.

        Raises:
            SinkError: a sink cannot be read.
        """
        readable = (name for name in self._letters if not self._is_kafka(name))
        commits = ((name, create_commit(name, batch, letters=True)) for name in readable)
        return any(self._open_sink(name, letters=True).has_commit(commit) for name, commit in commits)

    def finished_sinks(self, batch: BatchId) -> frozenset[str]:
        """Return the sinks known to have their events: by transaction id, or by a write of this process."""
        known = set(self._marked_sinks(batch))
        for name in self._plan.routes.event_sinks:
            if name in known or self._is_kafka(name):
                continue
            try:
                if self._open_sink(name).has_commit(create_commit(name, batch)):
                    known.add(name)
            except SinkError:
                continue  # It may be the failing sink, so it counts as not having the batch.
        return frozenset(known)

    def _mark_finished(self, name: str, batch: BatchId) -> None:
        number, taken = self._finished.get(batch.generation, (-1, set()))
        before = taken if number == batch.number else set()
        self._finished[batch.generation] = (batch.number, {*before, (batch.part, name)})

    def _marked_sinks(self, batch: BatchId) -> set[str]:
        """Return the sinks to which this process wrote the batch, or the whole batch of this part."""
        number, taken = self._finished.get(batch.generation, (-1, set()))
        if number != batch.number:
            return set()
        return {name for part, name in taken if batch.part[: len(part)] == part}

    def _is_kafka(self, name: str) -> bool:
        """Whether Spark writes to the sink, so that transaction ids are unknown."""
        return self._plan.settings.sinks[name].topics is not None

    def _staged_share(
        self, name: str, numbers: tuple[int, ...], batch: BatchId, *, letters: bool = False
    ) -> RowsForSink | None:
        """Return the share of a sink that accepts files, else None."""
        if not self._plan.settings.sinks[name].tabular:
            return None
        staging = self._open_sink(name, letters=letters).make_stager(create_commit(name, batch, letters=letters))
        schema = DEAD_LETTER if letters else self._event_schema(name)
        return None if staging is None else RowsForSink(name, letters, numbers, schema, staging)

    def _send(
        self,
        name: str,
        numbers: tuple[int, ...],
        outcomes: Outcomes,
        batch: BatchId,
        rejections: Rejections,
        *,
        letters: bool = False,
    ) -> tuple[RejectedRow, ...]:
        """Write events or dead letters to a sink, and return the rows that it rejected."""
        if self._is_kafka(name):
            return self._publish_outcomes(name, outcomes, letters=letters)
        sink, commit = self._open_sink(name, letters=letters), create_commit(name, batch, letters=letters)
        if (share := self._staged_share(name, numbers, batch, letters=letters)) is not None:
            staged = outcomes.stage(share)
            staged.may_reject = outcomes.may_reject and not letters
            result = self._write(name, lambda: sink.commit_staged(staged, commit))
        else:
            rows = outcomes.dead_letters_table() if letters else outcomes.events_table(self._event_schema(name))
            result = self._write(name, lambda: sink.write(rows, commit))
        if result.refused and not letters and not outcomes.may_reject:
            # The sink reports them again when the batch is repeated.
            hint = "no action is needed: they become dead letters when the batch is retried"
            raise SinkError(name, f"rejects {len(result.refused)} rows: {result.refused[0].reason}", hint=hint)
        rejections.report_rows(name, result, letters=letters)
        return result.refused

    def _publish_outcomes(self, name: str, outcomes: Outcomes, *, letters: bool) -> tuple[RejectedRow, ...]:
        rejected: tuple[RejectedRow, ...] = ()
        if name in self._capped and not letters:
            outcomes, rejected = limit_topics(outcomes, name, self._capped[name])
        self._publish([name], partial(outcomes.publish, name, letters=letters))
        if rejected:
            self._metrics.count_sink_write(name, "rejected")
        return rejected

    def _event_schema(self, name: str) -> pa.Schema:
        """Return the event columns of a sink; only tables do not need the original text of the time."""
        if not self._plan.settings.sinks[name].tabular:
            schema = MESSAGE
        else:
            schema = WIDE_WITH_AMBIGUOUS if self._plan.settings.match.ambiguous != "dead-letter" else WIDE
        return pa.schema([*schema, *((column, pa.string()) for column in self._plan.optional_lineage)])

    def _write(self, name: str, write: Callable[[], WriteResult]) -> WriteResult:
        began = time.monotonic()
        with watch_write(name):
            result = write()
        self._count([name], began)
        if result.refused:
            self._metrics.count_sink_write(name, "rejected")
        if result.unfit:
            counts = Counter[str]()
            for each in result.unfit:
                counts[each.message] += each.values if each.column is not None else 0
            self._metrics.count_unfit_values(name, +counts)
        return result

    def _publish(self, names: Sequence[str], publish: Callable[[], None]) -> None:
        began = time.monotonic()
        with watch_write(",".join(names), by_spark=True):
            publish()
        self._count(names, began)

    def _count(self, names: Sequence[str], began: float) -> None:
        for name in names:
            self._metrics.took(name, time.monotonic() - began)
            self._metrics.count_sink_write(name, "ok")

    def _open_sink(self, name: str, *, letters: bool = False) -> ArrowSink:
        sink = self._open_sinks.get((name, letters))
        if sink is None:
            plan = self._plan
            settings = plan.settings.sinks[name]
            frames = plan.create_frames()
            sink = open_sink(name, settings, "dead-letters" if letters else "events", plan.catalog, frames)
            if not letters and (written := plan.written_frames(name)):
                sink.set_frames(written)
            self._open_sinks[(name, letters)] = sink
        return sink
