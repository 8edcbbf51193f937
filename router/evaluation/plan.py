"""The plan: a catalog and settings, compiled into what evaluates a batch.

Its id is a hash of its inputs, so equal ids mean equal outcomes. Only the inputs are stored, never code or pickles: a
plan that a batch is pinned to is compiled again when that batch is retried after a restart.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bindings.kafka.binding import PROTOCOL as KAFKA
from bindings.kafka.record_columns import KafkaColumnReader
from catalog.findings import DocumentError
from catalog.load import catalog_from_json, catalog_to_json, load, pause_gc
from catalog.model import Catalog
from catalog.schemas.ids.deciding import FrameSettings, SchemaIdRule
from catalog.schemas.validation import PayloadValidation
from router.errors import BatchPinError, CatalogUnavailable
from router.evaluation.forwarding import RelationColumns
from router.evaluation.outputs import OutputBuilder
from router.machine import divide_memory
from router.matching.channels import ChannelBuilder
from router.matching.context import RELATED
from router.matching.matcher import Matcher
from router.matching.record_columns import SCHEMA_ID
from router.routing import Routes, SizeLimits
from router.schemaids.framing import SinkFrames, WrittenFrame, frame_settings
from router.settings import Settings, settings_from_dict
from router.settings.catalogs import make_catalog_fetcher
from router.sources import Source, group_by_query, resolve_sources

if TYPE_CHECKING:
    from router.evaluation.comparing import ShadowCatalog

FORMAT: Final = 1
VERSION: Final = version("xregistry-router")
"""The installed version; batches of another version cannot be finished."""
TOPIC_PREFIX: Final = "kafka:"
"""Prefix of channel names that are topics."""
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, eq=False)
class Plan:
    """One compiled plan."""

    catalog: Catalog
    settings: Settings

    @cached_property
    def id(self) -> str:
        """A hash of catalog, settings and router version."""
        return hashlib.sha256(self._document).hexdigest()[:32]

    @cached_property
    def epoch(self) -> str:
        """The catalog's content hash; every written record has it."""
        return self.catalog.epoch

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The endpoints that records are read from, resolved against the catalog."""
        return resolve_sources(self.catalog, self.settings)

    @cached_property
    def frames(self) -> Mapping[str, FrameSettings]:
        """The framing of Kafka bodies with schema ids, by endpoint."""
        return self.create_frames()

    def create_frames(self) -> dict[str, FrameSettings]:
        """Create :attr:`frames` with separate registry clients, for another thread."""
        return frame_settings(self.settings, [each.settings for each in self.sources])

    def iter_unresolved_sources(self) -> Iterator[tuple[Source, tuple[str, ...]]]:
        """Yield Kafka sources whose schema ids cannot be resolved, with the definitions that this affects.

        With ``auto`` framing, JSON definitions are not affected: no frame begins like JSON.
        """
        rule = SchemaIdRule(self.catalog.schemas)
        for source in self.sources:
            frames = self.frames[source.endpoint]
            if not source.topic or frames.framing == "none" or frames.registry is not None or frames.required:
                continue
            xids = self.catalog.endpoints[source.endpoint].candidates
            affected = tuple(
                each.xid
                for each in map(self.catalog.definitions.get, xids)
                if each is not None
                and rule.can_have_frames(each)
                and rule.declared_ids(each, None) is None
                and not (frames.framing == "auto" and rule.is_json(each))
            )
            if affected:
                yield source, affected

    @cached_property
    def _sink_frames(self) -> SinkFrames:
        return SinkFrames(self.settings, self.catalog)

    def written_frames(self, sink: str, *, register: bool = True) -> Mapping[str, WrittenFrame]:
        """Return the frame that a sink writes before bodies, by xid of the definition; see
        :meth:`SinkFrames.frames_for`.

        Raises:
            SinkError: a schema has no id, or the schema registry is unavailable.
        """
        settings = self.settings.sinks[sink]
        if settings.framed is None:
            return {}
        endpoint = self.catalog.endpoints.get(settings.framed.endpoint or "")
        if endpoint is not None:
            xids = [xid for xid in endpoint.candidates if xid in self.catalog.definitions]
            return self._sink_frames.frames_for(sink, xids, register=register)
        numbers = self.routes.event_sinks.get(sink, ())
        xids_of_sink = (
            xid
            for source in self.sources
            for xid in self.catalog.endpoints[source.endpoint].candidates
            if any(rule.route in numbers for rule in self.routes.rules_for(xid, source.endpoint, lambda name: None))
        )
        return self._sink_frames.frames_for(sink, xids_of_sink, register=register)

    @cached_property
    def queries(self) -> Mapping[str, tuple[Source, ...]]:
        """The sources of each query."""
        return group_by_query(self.sources)

    @cached_property
    def routes(self) -> Routes:
        """The routes."""
        return Routes(self.settings)

    @cached_property
    def has_relations(self) -> bool:
        """Whether some definition has a relation to another; the lineage then names it."""
        return any(definition.relation is not None for definition in self.catalog.definitions.values())

    @cached_property
    def optional_lineage(self) -> tuple[str, ...]:
        """The lineage columns that only some plans have."""
        ids = (SCHEMA_ID,) if self.evaluator.matcher.ids.finds_any else ()
        return (*(RELATED if self.has_relations else ()), *ids)

    @property
    def pairs_messages(self) -> bool:
        """Whether messages are paired by relations."""
        return self.has_relations and self.settings.relations is not None

    @cached_property
    @pause_gc()
    def evaluator(self) -> Evaluator:
        """The compiled plan for the workers, which is broadcast once."""
        match = self.settings.match
        builder = ChannelBuilder(self.catalog, hop_by_hop=match.hop_by_hop, ambiguous=match.ambiguous)
        numbers: dict[str, int] = {}
        by_channel: dict[str, list[Source]] = {}
        for source in self.sources:
            by_channel.setdefault(source.channel, []).append(source)
        for channel, members in by_channel.items():
            context = {name: value for member in reversed(members) for name, value in member.context.items()}
            number = len(builder.channels)
            builder.add_endpoints(
                channel, [member.endpoint for member in members], context, self.frames[members[0].endpoint]
            )
            numbers[channel] = number
            numbers.update({member.endpoint: number for member in members})
        payloads, validate = PayloadValidation(self.catalog), self.routes.matching_validation
        matcher = Matcher(builder.targets, builder.channels, payloads, validate, builder.tie_breaker())
        catalog = self.catalog
        relations = (
            RelationColumns.from_catalog(matcher, catalog, pairs=self.pairs_messages) if self.has_relations else None
        )
        outputs = OutputBuilder(matcher, self.routes, SizeLimits(self.settings), relations)
        has_typed = any(self.settings.sinks[name].typed for name in self.routes.event_sinks)
        typed = _typed_definitions(catalog) if has_typed else Catalog()
        return Evaluator(matcher, outputs, numbers, divide_memory(self.settings).worker, typed)

    @cached_property
    def _document(self) -> bytes:
        return _ENCODER.encode(
            {
                "format": FORMAT,
                "version": VERSION,
                "settings": self.settings.unresolved,
                "catalog": catalog_to_json(self.catalog),
            }
        )

    def to_bytes(self) -> bytes:
        """Return the plan as stored in ``state.db``; it has references to secrets, never secrets."""
        return self._document


@dataclass(frozen=True, slots=True)
class Evaluator:
    """A compiled plan in a worker: the matcher, the output builder, channel numbers by name.

    ``memory_limit`` is the limit of a worker in bytes. ``typed_catalog`` has the definitions with their schemas, if a
    sink has typed columns. ``shadow`` is the shadow catalog.
    """

    matcher: Matcher
    outputs: OutputBuilder
    channel_numbers: Mapping[str, int]
    memory_limit: int
    typed_catalog: Catalog = field(default_factory=Catalog)
    shadow: ShadowCatalog | None = None
    kafka_reader: KafkaColumnReader = field(init=False)
    """The reader of Kafka rows."""

    def __post_init__(self) -> None:
        matcher, outputs = self.matcher, self.outputs
        sniffs = any(matcher.sniffs(number, KAFKA) for number in range(len(matcher.channels)))
        attributes = (f"e.{name}" for name in outputs.used_attributes)
        object.__setattr__(self, "kafka_reader", KafkaColumnReader((*matcher.keys, *attributes), sniffs=sniffs))


def _typed_definitions(catalog: Catalog) -> Catalog:
    """Return a catalog with only the schemas, and the definitions that have one."""
    definitions = {xid: each for xid, each in catalog.definitions.items() if each.schemakey in catalog.schemas}
    return Catalog(definitions=definitions, schemas=catalog.schemas, epoch=catalog.epoch)


def compile_plan(document: bytes, *, environ: Mapping[str, str] = os.environ, base: Path = Path()) -> Plan:
    """Compile a plan from its stored document; secrets are resolved from the current environment.

    Raises:
        BatchPinError: the document is of another format or router version, so outcomes may differ.
    """
    form: dict[str, Any] = msgspec.json.decode(document)
    if form.get("format") != FORMAT or form.get("version") != VERSION:
        origin = f"router {form.get('version')}, plan format {form.get('format')}"
        raise BatchPinError(
            f"an unfinished batch is pinned to a plan of {origin}; this is router {VERSION}",
            hint="start that version once to finish the batch, and stop it again",
        )
    return Plan(catalog_from_json(form["catalog"]), settings_from_dict(form["settings"], environ, base))


def read_catalog(settings: Settings) -> Catalog:
    """Load the catalog of the settings.

    Raises:
        CatalogUnavailable: it cannot be read, or has no usable definition.
    """
    source = settings.catalog
    try:
        catalog = load(source.source, fetcher=make_catalog_fetcher(settings), base_uri=source.base_uri)
    except DocumentError as error:
        unavailable = CatalogUnavailable(f"catalog: {error}", hint=error.hint or "correct catalog.source")
        unavailable.awaited = error.file if error.transient else ""
        raise unavailable from error
    if not catalog.definitions:
        sources = ", ".join(settings.catalog.source)
        raise CatalogUnavailable(
            f"catalog {sources} has no usable message definition", hint="run `xrouter check` on it"
        )
    return catalog
