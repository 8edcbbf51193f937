"""Frames that begin the bodies we write: byte 0, the schema id, and for Protobuf the message's index.

An id is declared, or looked up in a schema registry once, by content, and cached on disk. A definition whose schema is
not there makes a start fail, and blocks batches of a catalog loaded later; it never causes a dead letter.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec

from catalog.model import Catalog, Definition
from catalog.schemas.contract import SchemaError, SchemaSource
from catalog.schemas.families import family_of
from catalog.schemas.ids.client import (
    TYPES,
    Reference,
    RegisteredSchema,
    RegistrationError,
    RegistryUnavailableError,
    SchemaIdRegistry,
    number_of,
)
from catalog.schemas.ids.deciding import FrameSettings, SchemaIdRule
from catalog.schemas.library import CatalogLibrary, schema_source
from router.errors import SinkError
from router.schemaids.cache import SCHEMAS, RegistryAddress, RegistryIds, SchemaIdCache
from router.settings.catalogs import find_default_registry, make_origin_login
from router.settings.model import Settings, SourceSettings
from router.settings.sinks.kafka import KafkaSink

# The schema registries of the settings, for sources, sinks and commands.

UNREGISTERED: Final = frozenset({"none", "glue"})
"""Framings whose ids no registry with Confluent's API has."""


IDS: Final = "name the registry in schema_registries, declare ids (label schemaid), or set framing: none for the source"
"""The remedy if the ids in frames are unknown."""


def unidentified_text(source: SourceSettings, xids: Sequence[str]) -> str:
    """Return the warning that the ids of a source's frames are unknown."""
    more = f" and {len(xids) - 1} more" if len(xids) > 1 else ""
    return (
        f"bodies from {source.endpoint} that begin with a schema id are read with the schema of {xids[0]}{more}, "
        "whatever the id: records of another type may be mistaken for it"
    )


def frame_settings(settings: Settings, sources: Iterable[SourceSettings]) -> dict[str, FrameSettings]:
    """Return how bodies of sources begin, by endpoint, with one object per registry: they serve one thread.

    Executors use the files of a registry where they see the folder.

    Raises:
        DocumentError: a certificate that executors are to be sent cannot be read.
    """
    registries: dict[str, RegistryIds] = {}
    frames: dict[str, FrameSettings] = {}
    for source in sources:
        name = source.schema_registry
        if name is None and source.framing not in UNREGISTERED:
            name = find_default_registry(settings.schema_registries)
        if name is not None and name not in registries:
            folder = registry_folder(settings, name)
            reached = settings.spark.reaches(str(folder))
            registries[name] = RegistryIds(registry_address(settings, name), folder if reached else None)
        registry = registries[name] if name is not None else None
        frames[source.endpoint] = FrameSettings(source.framing, registry, source.framing_ids == "require")
    return frames


def registry_folder(settings: Settings, name: str) -> Path:
    """Return the folder with the files of the schema registry of that name."""
    return Path(settings.state) / SCHEMAS / name


def registry_address(settings: Settings, name: str) -> RegistryAddress:
    """Return the address of the schema registry of that name, and our login there.

    Certificates travel as texts to executors of other machines, as those of Kafka do.
    """
    registry = settings.schema_registries[name]
    login = make_origin_login(registry)
    if not settings.spark.is_local:
        tokens = login.tokens
        if tokens is not None:
            tokens = replace(tokens, certificates=tokens.certificates.as_texts())
        login = replace(login, certificates=login.certificates.as_texts(), tokens=tokens)
    return RegistryAddress(name, registry.url.rstrip("/"), login, registry.timeout.total_seconds())


_MAX_ID: Final = 2**32 - 1
_TITLE: Final = "title"
_SUBJECTS: Final = "/subjects/"
_UNREGISTERED: Final = "register it there, declare its id (label schemaid), or set register_schemas: true"


class UnregisteredError(Exception):
    """A schema without an id; the message says which, and ``hint`` how to fix it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class WrittenFrame:
    """The bytes that a definition's bodies begin with; ``plain`` marks a family whose bodies are text."""

    head: bytes
    plain: bool


class SinkFrames:
    """The frames of a plan's sinks that write them; computed once."""

    def __init__(self, settings: Settings, catalog: Catalog) -> None:
        self._settings = settings
        self._catalog = catalog
        self._rule = SchemaIdRule(catalog.schemas)
        self._found: dict[str, Mapping[str, WrittenFrame]] = {}

    def frames_for(self, name: str, xids: Iterable[str], *, register: bool = True) -> Mapping[str, WrittenFrame]:
        """Return the frames of these definitions at a Kafka sink; empty for one that writes none.

        Schemas missing in the registry are registered if the settings say so, unless *register* is False: then such a
        definition has no frame.

        Raises:
            SinkError: a schema has no id, or the registry does not answer now.
        """
        sink = self._settings.sinks[name]
        settings = sink.framed
        if settings is None:
            return {}
        if name not in self._found:
            definitions = [self._catalog.definitions[xid] for xid in dict.fromkeys(xids)]
            try:
                frames = dict(
                    _FrameFinder(self._settings, self._catalog, self._rule, settings, register).iter_frames(definitions)
                )
            except UnregisteredError as error:
                raise SinkError(name, str(error), hint=error.hint) from error
            except RegistryUnavailableError as error:
                raise SinkError(name, str(error), hint="it is retried with growing pauses") from error
            if not register:
                return frames
            self._found[name] = frames
        return self._found[name]


class _FrameFinder:
    """Finds the frames for one sink."""

    def __init__(
        self, settings: Settings, catalog: Catalog, rule: SchemaIdRule, sink: KafkaSink, register: bool
    ) -> None:
        name = sink.schema_registry or find_default_registry(settings.schema_registries) or ""
        self._address = registry_address(settings, name)
        self._client: SchemaIdRegistry = self._address.client()
        self._files = SchemaIdCache(registry_folder(settings, name), self._address.url)
        self._catalog = catalog
        self._library = CatalogLibrary(catalog.schemas)
        self._rule = rule
        self._sink = sink
        self._register = register
        self._ids = RegistryIds(self._address, None)

    def iter_frames(self, definitions: Iterable[Definition]) -> Iterator[tuple[str, WrittenFrame]]:
        """Yield the frames of definitions whose schemas have any.

        Raises:
            UnregisteredError: one has no id.
            RegistryUnavailableError: the registry does not answer now.
        """
        for definition in definitions:
            source = schema_source(definition, self._catalog.schemas)
            if source is None or source.family not in TYPES:
                continue
            schema_id = self._find_id(definition, source)
            if schema_id is not None:
                yield definition.xid, frame_with_id(definition, source, self._library, schema_id)

    def _find_id(self, definition: Definition, source: SchemaSource) -> str | None:
        declared = self._rule.declared_ids(definition, self._ids)
        if declared is not None and len(declared.ids) == 1:
            return next(iter(declared.ids))
        subject, version = declared.subject if declared is not None and declared.subject else (None, None)
        subject = subject or self._subject_name(definition, source)
        schema = self._registered_form(definition, source)
        digest = hashlib.sha256(f"{subject}\0{version}\0{schema}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        known = self._files.find_id(digest)
        if known is not None:
            return known
        client = self._client
        found = client.get_version(subject, version) if version is not None else client.find_version(subject, schema)
        if found is not None and found.id:
            schema_id = found.id
        elif self._sink.register_schemas and version is None:
            if not self._register:
                return None
            try:
                schema_id = self._client.register(subject, schema)
            except RegistrationError as error:
                text = f"the schema of {definition.xid} cannot be registered in subject {subject}: {error}"
                raise UnregisteredError(text, "make it compatible, or register it manually") from error
        else:
            which = f"version {version} of subject {subject}" if version is not None else f"subject {subject}"
            text = f"{which} of schema registry {self._address.name} does not have the schema of {definition.xid}"
            raise UnregisteredError(text, _UNREGISTERED)
        self._files.store_found_id(digest, subject, schema_id)
        return schema_id

    def _registered_form(self, definition: Definition, source: SchemaSource) -> RegisteredSchema:
        """Return the schema in the registry's form; what it refers to must be from that registry."""
        entry = self._catalog.schemas[source.uri]
        document = entry["document"]
        text = document if isinstance(document, str) else msgspec.json.encode(document).decode()
        references: list[Reference] = []
        for name, key in sorted(entry.get("references", {}).items()):
            base, found, rest = key.partition("?")[0].rpartition(_SUBJECTS)
            subject, _, version = rest.partition("/versions/")
            if not found or base != self._address.url or not version.isdecimal():
                problem = f"the schema of {definition.xid} refers to {name}, which is not from the schema registry"
                raise UnregisteredError(problem, "declare the id of the schema by its label schemaid")
            references.append(Reference(name, unquote(subject), int(version)))
        return RegisteredSchema(text, TYPES[source.family], tuple(references))

    def _subject_name(self, definition: Definition, source: SchemaSource) -> str:
        topic = ""
        if self._sink.subject_names != "record":
            topic = self._sink.topic or self._topic_of(definition)
            if not topic or "{" in topic:
                problem = f"{definition.xid} has no single topic to name its subject after"
                raise UnregisteredError(problem, "set subject_names: record, or declare the id of the schema")
            if self._sink.subject_names == "topic":
                return f"{topic}-value"
        try:
            names = family_of(source.family).names_of(source, self._library)
        except SchemaError as error:
            raise UnregisteredError(f"the schema of {definition.xid} cannot be used: {error}", "correct it") from error
        name = names.get(_TITLE) or next(iter(names.values()), "")
        if not name:
            problem = f"the schema of {definition.xid} has no name to name its subject after"
            raise UnregisteredError(problem, "name the schema, set subject_names: topic, or declare its id")
        return f"{topic}-{name}" if topic else name

    def _topic_of(self, definition: Definition) -> str:
        endpoint = self._catalog.endpoints.get(self._sink.endpoint or "")
        own = next((str(each.value) for each in definition.protocoloptions if each.name == "topic" and each.value), "")
        return own or str((endpoint.options if endpoint is not None else {}).get("topic") or "")


def frame_with_id(
    definition: Definition, source: SchemaSource, library: CatalogLibrary, schema_id: str
) -> WrittenFrame:
    """Return the frame with an id.

    Raises:
        UnregisteredError: no Confluent frame can hold such an id, or the schema cannot be used.
    """
    number = number_of(schema_id)
    if number is None or number > _MAX_ID:
        text = f"id {schema_id} of {definition.xid} does not fit into four bytes"
        raise UnregisteredError(text, "set the id that Confluent's serializers would write")
    head = struct.pack(">bI", 0, number)
    try:
        head += family_of(source.family).message_indexes(source, library)
    except SchemaError as error:
        raise UnregisteredError(f"the schema of {definition.xid} cannot be used: {error}", "correct it") from error
    return WrittenFrame(head, source.family == "JsonSchema")


def declared_id(catalog: Catalog, definition: Definition) -> str | None:
    """Return the one id that a definition declares, by label or address; None where there is none, or several."""
    declared = SchemaIdRule(catalog.schemas).declared_ids(definition, None)
    return next(iter(declared.ids)) if declared is not None and len(declared.ids) == 1 else None
