"""Compiles schemas of any family, each content once per thread."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from catalog.schemas.contract import Library, SchemaError, SchemaSource, Validator
from catalog.schemas.families import family_of

MAX_COMPILED: Final = 2048
"""Compiled schemas that a thread remembers; past it, the one not used for longest is forgotten."""


class _Memory(threading.local):
    """Outcomes by fingerprint; of each thread its own, because validators are not shared between threads."""

    def __init__(self) -> None:
        self.outcomes: OrderedDict[bytes, Validator | SchemaError] = OrderedDict()


_memory: Final = _Memory()


def compile_schema(source: SchemaSource, library: Library) -> Validator:
    """Compile a schema, or return what compiling the same content gave before; failures are remembered too.

    Raises:
        SchemaError: it can never be used.
    """
    outcomes = _memory.outcomes
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


def references_of(source: SchemaSource) -> Iterable[str]:
    """Give the references to other documents that compiling *source* needs, as written."""
    return family_of(source.family).references_of(source)


def fingerprint(source: SchemaSource, library: Library) -> bytes:
    """Return a hash of all that compiling depends on: the schema, every document that it refers to, and what bodies
    were written with.
    """
    digest = hashlib.sha256()
    if source.written is not None:
        schema, message = source.written.schema, source.written.message
        known = [schema.id, schema.family, schema.document, dict(schema.references), schema.subjects, message]
        digest.update(json.dumps(known, sort_keys=True).encode())
    waiting, seen = [("", source)], {source.uri}
    while waiting:
        reference, current = waiting.pop()
        parts = [reference, current.family, current.version, current.name, current.pointer, current.document]
        digest.update(json.dumps(parts).encode())
        for each in references_of(current):
            entry = library.document(each, current.uri)
            digest.update(json.dumps([each, entry[0] if entry else None]).encode())
            if entry is not None and entry[0] not in seen:
                seen.add(entry[0])
                waiting.append((each, SchemaSource(current.family, current.version, entry[1], uri=entry[0])))
    return digest.digest()


def documents_of(source: SchemaSource, library: Library) -> dict[tuple[str, str], tuple[str, Any]]:
    """Return what the library answers to every reference that compiling *source* asks for, by base and reference."""
    documents: dict[tuple[str, str], tuple[str, Any]] = {}
    waiting, seen = [source], {source.uri}
    while waiting:
        current = waiting.pop()
        for each in references_of(current):
            entry = library.document(each.strip(), current.uri) or library.document(each, current.uri)
            if entry is None:
                continue
            documents[(current.uri, each)] = documents[(current.uri, each.strip())] = entry
            if entry[0] not in seen:
                seen.add(entry[0])
                waiting.append(SchemaSource(current.family, current.version, entry[1], uri=entry[0]))
    return documents
