"""JSON Structure schemas (draft 02, core and its extensions), by json-structure.

Its validator walks schema and body in Python: about 5,000 bodies of twenty members a second.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from json_structure import SchemaValidator

from catalog.parsing.pointers import at_pointer
from catalog.schemas.bodies import fault, short
from catalog.schemas.contract import (
    MAX_DIRECT_BYTES,
    Library,
    MissingTypeError,
    SchemaError,
    SchemaFault,
    SchemaSource,
    TooCostly,
)
from catalog.schemas.jsonschema.validating import parse_body
from catalog.schemas.jsonstructure.structures import MAX_STEPS, Structure, unusable_patterns
from catalog.schemas.library import as_tree

_IMPORTS: Final = ("$import", "$importdefs")
_PLACE: Final = re.compile(r" at (#[^\s,]*)")
_INDEX: Final = re.compile(r"\[(\d+)\]")
_HARMLESS: Final = frozenset(
    {
        "SCHEMA_ROOT_MISSING_ID",
        "SCHEMA_ROOT_MISSING_NAME",
        "SCHEMA_NAME_INVALID",
        "SCHEMA_CONSTRAINT_TYPE_MISMATCH",
        "SCHEMA_CONSTRAINT_INVALID_FOR_TYPE",
        "SCHEMA_CONSTRAINT_VALUE_INVALID",
        "SCHEMA_USES_UNKNOWN_EXTENSION",
        "SCHEMA_EXTENSION_KEYWORD_NOT_ENABLED",
        "SCHEMA_REF_NOT_IN_TYPE",
    }
)
"""What the library remarks upon and what leaves no doubt about what conforms, such as a unit on a nullable number."""
_HARMLESS_TEXTS: Final = re.compile(
    r"must have a 'name'|must be an absolute URI|for type '\w+' must be a string|is not in 'properties'"
    r"|must have 'properties'|duplicate value|identifier pattern|not a valid regular expression|'altnames'"
    r"|^'(?:identity|relations)'"
)
"""More of it, which comes without a code of its own; regular expressions are checked as ECMA-262 has them."""


class JsonStructureValidator:
    """Holds JSON bodies against one type of a JSON Structure document."""

    def __init__(self, document: dict[str, Any], part: Mapping[str, Any] | None) -> None:
        self._document = document
        self._part = part
        self._structure = Structure(document)

    def fault(self, body: bytes | None, content_type: str | None, *, at_any_cost: bool = False) -> SchemaFault | None:
        """Return why *body* is no JSON or does not conform; the first error when there are several.

        The content type is not asked: what claims to be something else and is such JSON conforms.

        Raises:
            TooCostly: it takes more than MAX_STEPS, and *at_any_cost* was not given.
        """
        return next(iter(self._faults(body, at_any_cost=at_any_cost)), None)

    def faults(self, body: bytes | None, content_type: str | None) -> list[SchemaFault]:
        """Return all errors, at most MAX_FAULTS; raises as :meth:`fault`."""
        return self._faults(body, at_any_cost=False)

    def _faults(self, body: bytes | None, *, at_any_cost: bool) -> list[SchemaFault]:
        if body is not None and len(body) > MAX_DIRECT_BYTES and not at_any_cost:
            raise TooCostly
        value = parse_body(body, doubles=True)
        if isinstance(value, SchemaFault):
            return [value]
        structure, part = self._structure, self._part
        if body is not None and b"$uses" in body:
            # Such a body switches extensions on, and the library writes that into the schema it was given.
            structure, part = Structure(copy.deepcopy(self._document)), copy.deepcopy(part)
        try:
            errors = structure.errors_of(value, part, steps=math.inf if at_any_cost else MAX_STEPS)
        except (TooCostly, MemoryError):
            raise
        except RecursionError:
            return [fault("the body nests too deeply to be looked into")]
        except Exception as failure:  # the library's own: what it stumbles over is no reason to end a stream
            return [fault(f"the body cannot be held against the schema: {failure!r}")]
        return [_fault_of(each) for each in errors]


def compile_schema(source: SchemaSource, library: Library) -> JsonStructureValidator:
    """Compile a document, for the type that the deep link names or else its root.

    Raises:
        MissingTypeError: it lacks the type that is named.
        SchemaError: no valid JSON Structure document, or an import that was not loaded.
    """
    document = as_tree(source.document)
    if not isinstance(document, dict):
        raise SchemaError("this is no JSON Structure document, which is an object", hint="write it as an object")
    try:
        document = _with_imports(document, source.uri, library, {source.uri})
        part = _part(document, source)
        _check(document, anywhere=part is not None)
        return JsonStructureValidator(document, part)
    except SchemaError:
        raise
    except RecursionError as error:
        raise SchemaError("the JSON Structure document nests too deeply") from error
    except Exception as error:  # the library's own, on documents of odd shape; whoever compiles reports it
        raise SchemaError(short(f"the JSON Structure document cannot be used: {error!r}")) from error


def references_of(source: SchemaSource) -> Iterable[str]:
    """Give the documents that are imported."""
    return dict.fromkeys(_imports(as_tree(source.document)))


def _imports(document: Any) -> Iterable[str]:
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield from (node[keyword] for keyword in _IMPORTS if isinstance(node.get(keyword), str))
            waiting.extend(each for each in node.values() if isinstance(each, (dict, list)))
        elif isinstance(node, list):
            waiting.extend(each for each in node if isinstance(each, (dict, list)))


def _with_imports(document: dict[str, Any], key: str, library: Library, within: set[str]) -> dict[str, Any]:
    """Return a document with the types that it imports, over any number of documents."""
    wanted = dict.fromkeys(_imports(document))
    if not wanted:
        return document
    externals = []
    for reference in wanted:
        loaded = library.document(reference, key)
        if loaded is None:
            raise SchemaError(f"it imports {reference}, which was not loaded", hint="correct the address")
        if loaded[0] in within:
            raise SchemaError(f"it imports {reference}, which imports it again", hint="remove one of the imports")
        external = as_tree(loaded[1])
        if not isinstance(external, dict):
            raise SchemaError(f"it imports {reference}, which is no JSON Structure document")
        whole = _with_imports(external, loaded[0], library, {*within, loaded[0]})
        externals.append({**whole, "$id": reference})
    imported = copy.deepcopy(document)
    failures = Structure(imported, allow_import=True, external_schemas=externals).errors
    if failures:
        raise SchemaError(short(failures[0]))
    return imported


def start_of(source: SchemaSource) -> Any:
    """Return the type that is meant, in a document that compiles; a ``$root`` is followed.

    Raises:
        MissingTypeError: there is none.
    """
    document = source.document
    if isinstance(document, Mapping) and (part := _part(document, source)) is not None:
        return part
    root = document.get("$root") if isinstance(document, Mapping) and "type" not in document else None
    return {"$ref": root} if isinstance(root, str) else document


def _part(document: Mapping[str, Any], source: SchemaSource) -> Mapping[str, Any] | None:
    """Return the type that the deep link names; None for the root.

    Raises:
        MissingTypeError: there is none.
    """
    pointers = [source.pointer] if source.pointer else [f"/definitions/{source.name}", f"/{source.name}"]
    if not (source.pointer or source.name) or source.name == document.get("name"):
        return None
    for pointer in pointers:
        try:
            part = at_pointer(document, pointer)
        except KeyError:
            continue
        if isinstance(part, dict):
            return part
    known = document.get("definitions")
    hint = f"it has {', '.join(sorted(known)[:8])}" if isinstance(known, dict) and known else "correct the reference"
    raise MissingTypeError(f"the schema has no type {source.name or source.pointer}", hint=hint)


def _check(document: dict[str, Any], *, anywhere: bool) -> None:
    """Raise SchemaError for what leaves in doubt what conforms; a root type is not asked for when a type is named."""
    for error in SchemaValidator(extended=True, allow_dollar=True).validate(copy.deepcopy(document)):
        harmless = error.code in _HARMLESS or _HARMLESS_TEXTS.search(error.message)
        if not harmless and not (anywhere and error.code == "SCHEMA_ROOT_MISSING_TYPE"):
            message = f"this is no valid JSON Structure document: {error.message}"
            raise SchemaError(short(message), pointer=_pointer(str(error.path)))
    for pattern in unusable_patterns(document):
        raise SchemaError(short(f"{pattern!r} is no regular expression"), hint="write it as ECMA-262 has it")


def _fault_of(message: str) -> SchemaFault:
    match = _PLACE.search(message)
    return fault(message, _pointer(match.group(1)) if match else "")


def _pointer(path: str) -> str:
    """Return the JSON pointer that the library's ``#/a/b[0]`` means."""
    return _INDEX.sub(r"/\1", path.removeprefix("#"))
