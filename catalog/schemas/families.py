"""The schema families and their formats. To add one, add a folder beside this file and an entry in ``FAMILIES``."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from catalog.schemas.contract import Library, SchemaError, SchemaFamily, SchemaSource, Validator

# Avro.

_MEMBERS: Final = {"record": "fields", "enum": "symbols", "fixed": "size"}


def _is_avro(document: Any) -> bool:
    """Whether a document is a named Avro type, or a union that contains one."""
    branches = document if isinstance(document, list) else [document]
    return any(isinstance(branch, dict) and _is_named_type(branch) for branch in branches)


def _is_named_type(tree: dict[str, Any]) -> bool:
    kind = tree.get("type")
    member = _MEMBERS.get(kind) if isinstance(kind, str) else None
    return member is not None and member in tree and "name" in tree


AVRO: Final = SchemaFamily(
    name="Avro",
    room="catalog.schemas.avro",
    spelling=re.compile(r"(?:apache[-_ ])?avro(?:[-_ ]?schema)?"),
    media_types=frozenset(
        {"application/avro", "application/vnd.apache.avro", "application/vnd.apache.avro+json", "avro/binary"}
    ),
    content_type="application/vnd.apache.avro",
    evident=_is_avro,
    compares=True,
    ignores=True,
    named=True,
    refers_by_name=True,
    resolves=True,
)


# JSON Schema.

JSON_SCHEMA: Final = SchemaFamily(
    name="JsonSchema",
    room="catalog.schemas.jsonschema",
    spelling=re.compile(r"(?:https?://)?json[-_ ]?schema(?:\.org)?"),
    media_types=frozenset({"application/json", "application/schema+json", "application/schema-instance+json"}),
    content_type="application/json",
    names_itself=True,
    compares=True,
    named=True,
)


# JSON Structure.

JSON_STRUCTURE: Final = SchemaFamily(
    name="JsonStructure",
    room="catalog.schemas.jsonstructure",
    spelling=re.compile(r"(?:https?://)?json[-_ ]?structure(?:\.org)?"),
    media_types=frozenset(),
    content_type="application/json",
    names_itself=True,
)


# Protobuf.

_TEXT: Final = re.compile(r"""^[ \t]*(?:syntax\s*=\s*["']proto|(?:message|enum)\s+\w+\s*\{)""", re.MULTILINE)


def _is_protobuf(document: Any) -> bool:
    return isinstance(document, str) and _TEXT.search(document) is not None


PROTOBUF: Final = SchemaFamily(
    name="Protobuf",
    room="catalog.schemas.protobuf",
    spelling=re.compile(r"(?:google[-_ ])?proto(?:col)?(?:[-_ ]?buf(?:fer)?s?)?"),
    media_types=frozenset(
        {"application/protobuf", "application/x-protobuf", "application/vnd.google.protobuf", "text/x-protobuf"}
    ),
    content_type="application/protobuf",
    evident=_is_protobuf,
    is_tree=False,
    named=True,
    resolves=True,
    frames="message",
)


# XML Schema.

_ELEMENT: Final = re.compile(
    r"/(?:(?:[\w.-]+:)?schema/|\*/|/)?(?:[\w.-]+:)?element\[\s*@name\s*=\s*(?P<quote>['\"])(?P<name>[^'\"]+)(?P=quote)\s*\]"
)
"""The supported XPath expressions: those that select a global element by name."""


def _is_xsd(document: Any) -> bool:
    return isinstance(document, str) and document.lstrip("\ufeff \t\r\n").startswith("<") and "XMLSchema" in document


def _element_name(name: str, pointer: str) -> tuple[str, str]:
    """Return name and pointer, with a supported XPath expression replaced by the name of its global element."""
    element = _ELEMENT.fullmatch(pointer)
    return (name, pointer) if element is None else (element["name"], "")


XSD: Final = SchemaFamily(
    name="XSD",
    room="catalog.schemas.xsd",
    spelling=re.compile(r"xsd|xml[-_ ]?schema(?:[-_ ]definition)?|https?://www\.w3\.org/2001/xmlschema"),
    media_types=frozenset({"application/xml", "application/xsd", "application/xsd+xml", "text/xml"}),
    content_type="application/xml",
    evident=_is_xsd,
    is_tree=False,
    frames="never",
    typed=False,
    deep_link=_element_name,
)


# The list of all families.

FAMILIES: Final[list[SchemaFamily]] = [JSON_SCHEMA, JSON_STRUCTURE, AVRO, PROTOBUF, XSD]


def family_of(name: str) -> SchemaFamily:
    """Return the family called *name*, as in :class:`~catalog.schemas.contract.SchemaSource`.

    Raises:
        KeyError: there is none.
    """
    for family in FAMILIES:
        if family.name == name:
            return family
    raise KeyError(name)


def family_names() -> str:
    """Return the names of all families for a hint: ``A, B or C``."""
    *first, last = (family.name for family in FAMILIES)
    return f"{', '.join(first)} or {last}"


# Schema formats in all spellings found in real catalogs, and detecting the family of a document.

_REST: Final = re.compile(r"[/\-_:, .#]+|(?=v?\d)|$")


@dataclass(frozen=True, slots=True)
class SchemaFormat:
    """A known format: its family, and the version in lower case (``draft-07``, ``1.11``), which may be empty."""

    family: str
    version: str = ""


@lru_cache(maxsize=1024)
def parse_format(text: str | None) -> SchemaFormat | None:
    """Parse a format: ``JsonSchema/draft-07``, ``AVRO``, ``proto3``, ``XSD/1.0``, a media type or a dialect's URI.

    Return None if it is missing or unknown.
    """
    name = (text or "").partition(";")[0].strip().lower()
    for family in FAMILIES:
        if name in family.media_types:
            return SchemaFormat(family.name)
        spelled = family.spelling.match(name)
        rest = _REST.match(name, spelled.end()) if spelled else None
        if rest is not None:
            return SchemaFormat(family.name, name[rest.end() :].removeprefix("v"))
    return None


def inferred_content_type(schema_format: str | None) -> str | None:
    """Return the content type of bodies that a schema format implies; None if the format is unknown."""
    known = parse_format(schema_format)
    return family_of(known.family).content_type if known is not None else None


def evident_family(document: Any) -> str | None:
    """Return the family that a document certainly has, by ``$schema``, the form of Avro types, or its syntax."""
    declared = document.get("$schema") if isinstance(document, dict) else None
    if isinstance(declared, str):
        named = parse_format(declared.strip())
        return named.family if named and family_of(named.family).names_itself else None
    # The last match counts: a comment in an XML Schema may look like Protobuf, but not vice versa.
    return next((family.name for family in reversed(FAMILIES) if family.evident(document)), None)


# Compiling schemas of any family, with a cache per thread.

MAX_COMPILED: Final = 2048
"""Maximum number of compiled schemas cached per thread, and per catalog; the least recently used is dropped."""


_thread: Final = threading.local()
"""The thread's compiled schemas and errors, by fingerprint; validators are not thread-safe."""


def compile_schema(source: SchemaSource, library: Library) -> Validator:
    """Compile a schema, or return or raise the cached result for the same content.

    Raises:
        SchemaError: the schema is not valid.
    """
    outcomes: OrderedDict[bytes, Validator | SchemaError] = _thread.__dict__.setdefault("outcomes", OrderedDict())
    key = fingerprint(source, library)
    outcome = outcomes.get(key)
    if outcome is None:
        try:
            outcome = family_of(source.family).compile_schema(source, library)
        except SchemaError as error:
            outcome = error
        outcomes[key] = outcome
        while len(outcomes) > MAX_COMPILED:
            outcomes.popitem(last=False)
    outcomes.move_to_end(key)
    if isinstance(outcome, SchemaError):
        raise outcome.with_traceback(None)
    return outcome


def fingerprint(source: SchemaSource, library: Library) -> bytes:
    """Return a hash of everything that compiling depends on: the schema, all documents that it refers to, and the
    writer's schema.
    """
    digest = hashlib.sha256()
    if source.written is not None:
        schema, message = source.written.schema, source.written.message
        known = [schema.id, schema.family, schema.document, dict(schema.references), schema.subjects, message]
        digest.update(json.dumps(known, sort_keys=True).encode())
    own = [source.family, source.version, source.name, source.pointer, source.document]
    found = documents_of(source, library)
    links = sorted((reference, uri) for reference, (uri, _) in found.items())
    digest.update(json.dumps([own, links, sorted(dict(found.values()).items())]).encode())  # each document once
    return digest.digest()


class KnownDocuments(NamedTuple):
    """A library of documents by base and reference."""

    documents: Mapping[tuple[str, str], tuple[str, Any]]

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return URI and document of a reference."""
        return self.documents.get((base, reference))


def documents_of(source: SchemaSource, library: Library) -> dict[tuple[str, str], tuple[str, Any]]:
    """Return all documents that *source* refers to, by base and reference, as the library has them."""
    documents: dict[tuple[str, str], tuple[str, Any]] = {}
    waiting, seen = [source], {source.uri}
    while waiting:
        current = waiting.pop()
        for each in family_of(current.family).references_of(current):
            entry = library.document(each.strip(), current.uri) or library.document(each, current.uri)
            if entry is None:
                continue
            documents[(current.uri, each)] = documents[(current.uri, each.strip())] = entry
            if entry[0] not in seen:
                seen.add(entry[0])
                waiting.append(SchemaSource(current.family, current.version, entry[1], uri=entry[0]))
    return documents
