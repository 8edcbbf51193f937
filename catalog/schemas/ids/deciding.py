"""Which definitions take a body whose frame has an id (JUDGING.md#schema-ids).

A definition that declares its ids takes those and no others. Else the registry's schema and the definition's must be of
one name, where both have one. Else nothing is known, and the id decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import unquote

from catalog.model import Definition
from catalog.schemas.compiling import documents_of
from catalog.schemas.contract import MessagePlace, SchemaError, SchemaSource, Written, written_as
from catalog.schemas.families import family_of
from catalog.schemas.ids.contract import SchemaIds, WrittenSchema
from catalog.schemas.library import CatalogLibrary, schema_source

PROPERTY: Final = "schemaid"
"""The option of Kafka that a definition may constrain."""
MAX_KNOWN: Final = 4096
_JSON: Final = frozenset({"JsonSchema", "JsonStructure"})
_SUBJECTS: Final = "/subjects/"
_IDS: Final = "/schemas/ids/"
DIGITS: Final = re.compile(r"[0-9]+")
_LONGEST: Final = 64
"""Characters of an id."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The ids that a definition declares: by themselves, as those of a subject (of any version: None), or by a
    constraint, which matching has held them against before.
    """

    ids: frozenset[str] = frozenset()
    subject: tuple[str, int | None] | None = None
    constrained: bool = False

    def takes(self, schema_id: str, written: WrittenSchema | None) -> bool:
        """Return whether an id is one of them."""
        if schema_id in self.ids or (self.constrained and not self.ids and self.subject is None):
            return True
        if self.subject is None or written is None:
            return False
        name, version = self.subject
        return any(subject == name and version in (None, number) for subject, number in written.subjects)

    def __str__(self) -> str:
        known = sorted(self.ids)
        if self.subject is not None:
            name, version = self.subject
            known.append(f"an id of {name}" + ("" if version is None else f" version {version}"))
        return " or ".join(known)


@dataclass(frozen=True, slots=True)
class Asked:
    """A frame that some bodies have: its id, what the source's registry has under it, and for Protobuf the message.

    ``known`` is False where there is no registry, or it has nothing. ``required`` refuses what nothing resolves.
    """

    id: str
    registry: SchemaIds | None = None
    written: WrittenSchema | None = None
    place: MessagePlace | None = None
    required: bool = False

    def __str__(self) -> str:
        return written_as(self.id, self.written).removeprefix("schema id ")


Unread = Literal["", "id", "message"]
DecidedBy = Literal["declared", "name", "nothing"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a definition takes bodies of a frame. ``expected`` and ``found`` say why, as a mismatch does.

    ``unread`` tells a frame that nobody can read: its ``id`` is unknown, or it names no ``message``. ``by`` says
    what decided: nothing, where ids of other types may be among those that are taken.
    """

    takes: bool
    expected: str
    found: str
    unread: Unread = ""
    by: DecidedBy = "nothing"


class SchemaIdRule:
    """Decides, by what is declared and by names: from the catalog and what registries have, and nothing else."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._library = CatalogLibrary(schemas)
        self._sources: dict[str, SchemaSource | None] = {}
        self._names: dict[str, Mapping[str, str]] = {}
        self._written: dict[tuple[str, str, MessagePlace | None], Mapping[str, str]] = {}

    def framed(self, definition: Definition) -> bool:
        """Return whether a definition has a schema whose bodies may have frames."""
        source = self._source(definition)
        return source is not None and family_of(source.family).frames != "never"

    def is_json(self, definition: Definition) -> bool:
        """Return whether bodies of a definition are JSON by its schema."""
        source = self._source(definition)
        return source is not None and source.family in _JSON

    def names_message(self, definition: Definition) -> bool:
        """Return whether frames of a definition's bodies name a message."""
        source = self._source(definition)
        return source is not None and family_of(source.family).frames == "message"

    def declared(self, definition: Definition, registry: SchemaIds | None) -> Declared | None:
        """Return the ids that a definition declares, for bodies of a source with this registry; None for no such."""
        entry = self._schemas.get(definition.schemakey or "", {})
        ids = {normal(text) for text in entry.get("schemaids", ())}
        address = (definition.dataschemauri or "").partition("#")[0].partition("?")[0].rstrip("/")
        subject = None
        base, found, rest = address.rpartition(_IDS)
        if found and (registry is None or base == registry.url):
            ids.add(normal(rest.partition("/")[0].partition(":")[0]))
        base, found, rest = address.rpartition(_SUBJECTS)
        if found and registry is not None and base == registry.url:
            subject = _subject(rest)
        constrained = any(each.name == PROPERTY and each.value is not None for each in definition.protocoloptions)
        declared = Declared(frozenset(ids), subject, constrained)
        return None if declared == Declared() else declared

    def decide(self, definition: Definition, asked: Asked) -> Decision:
        """Decide whether a definition takes bodies whose frame is *asked* for."""
        declared = self.declared(definition, asked.registry)
        if declared is not None:
            if not declared.takes(asked.id, asked.written):
                return Decision(False, str(declared), str(asked))
            by_message = self._by_message(definition, asked)
            return by_message or Decision(True, str(declared) or "as constrained", str(asked), by="declared")
        if not self.framed(definition):
            return Decision(True, "any: it has no schema that bodies with frames may have", str(asked))
        if asked.written is not None:
            return self._by_name(definition, asked, asked.written)
        if asked.registry is not None:
            why = f"an id that the registry {asked.registry.name} knows"
            return Decision(False, why, str(asked), unread="id")
        if asked.required:
            return Decision(False, "an id that a definition declares or a registry resolves", str(asked), unread="id")
        return self._by_message(definition, asked) or Decision(True, "any: nothing is known of ids", str(asked))

    def _by_name(self, definition: Definition, asked: Asked, written: WrittenSchema) -> Decision:
        source = self._source(definition)
        own, theirs = self._names_of(definition), self._names_written(written, asked.place)
        assert source is not None  # who asks has seen that there is one
        if written.fault:
            return Decision(True, "any: the registry's schema cannot be used", f"{asked}, which cannot be used")
        if source.family != written.family and not {source.family, written.family} <= _JSON:
            return Decision(False, f"an id of {source.family}", f"{asked} of {written.family}")
        if family_of(source.family).frames == "message" and asked.place is not None and not theirs:
            return Decision(
                False, _listed(own), f"{asked}, of whose file the message indexes lead nowhere", unread="message"
            )
        kind = next((kind for kind in own if kind in theirs), None)
        if kind is None:
            return Decision(True, "any: there are no names to compare", str(asked))
        takes = own[kind] == theirs[kind]
        return Decision(takes, f"an id of {own[kind]}", f"{asked} of {theirs[kind]}", by="name")

    def _by_message(self, definition: Definition, asked: Asked) -> Decision | None:
        """Return the decision where the message that a frame names is not the definition's; None where it may be."""
        source = self._source(definition)
        if source is None or asked.place is None or family_of(source.family).frames != "message":
            return None
        own = self._names_of(definition)
        theirs = (
            self._names_in(definition, source, asked.place)
            if asked.written is None
            else self._names_written(asked.written, asked.place)
        )
        if own == theirs or not own:
            return None
        if not theirs:
            found = f"{asked}, of whose file the message indexes lead nowhere"
            return Decision(False, _listed(own), found, unread="message")
        return Decision(False, _listed(own), f"{asked}, {_listed(theirs)}")

    def _source(self, definition: Definition) -> SchemaSource | None:
        if definition.xid not in self._sources:
            self._sources[definition.xid] = schema_source(definition, self._schemas)
        return self._sources[definition.xid]

    def _names_of(self, definition: Definition) -> Mapping[str, str]:
        if definition.xid not in self._names:
            source = self._source(definition)
            self._names[definition.xid] = {} if source is None else _names(source, self._library)
        return self._names[definition.xid]

    def _names_in(self, definition: Definition, source: SchemaSource, place: MessagePlace) -> Mapping[str, str]:
        """Return the name of the message at a place in a definition's own file."""
        references = {name: text for name, text in _imported(source, self._library).items() if isinstance(text, str)}
        return self._names_written(WrittenSchema(definition.xid, source.family, source.document, references), place)

    def _names_written(self, written: WrittenSchema, place: MessagePlace | None) -> Mapping[str, str]:
        key = (written.id, written.document, place)
        if key not in self._written:
            if len(self._written) >= MAX_KNOWN:
                self._written.clear()
            source = SchemaSource(written.family, "", written.document, written=Written(written, place or (0,)))
            self._written[key] = _names(source, self._library) if written.family else {}
        return self._written[key]


def normal(schema_id: str) -> str:
    """Return an id as frames have it: a number without zeros before it, a UUID in small letters."""
    text = schema_id.strip()[:_LONGEST]
    return str(int(text)) if DIGITS.fullmatch(text) else text.lower()


def _subject(rest: str) -> tuple[str, int | None]:
    """Read ``S``, ``S/versions/V`` or ``S/versions/latest``, which is any: the latest is another tomorrow."""
    name, _, path = rest.partition("/")
    version = path.removeprefix("versions/").partition("/")[0].partition(":")[0]
    if not path:
        name = name.partition(":")[0]
    return unquote(name), int(version) if DIGITS.fullmatch(version) and len(version) < 10 else None


def _names(source: SchemaSource, library: CatalogLibrary) -> Mapping[str, str]:
    try:
        return family_of(source.family).names_of(source, library)
    except SchemaError:
        return {}


def _imported(source: SchemaSource, library: CatalogLibrary) -> dict[str, Any]:
    return {reference: document for (_, reference), (_, document) in documents_of(source, library).items()}


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(f"{kind} {name}" for kind, name in names.items())
