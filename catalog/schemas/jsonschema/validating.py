"""JSON schemas of drafts 04 to 2020-12, by jsonschema-rs.

``format`` is an annotation in every draft. 2019-09 and later say so, earlier ones leave it to the implementation; and a
verdict decides here which definition a record has, which a date written a little differently should not change.
Regular expressions run on an engine that is linear but for look-around and back-references, and those are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final
from urllib.parse import quote, urljoin

import jsonschema_rs
import msgspec

from catalog.parsing.pointers import as_pointer, at_pointer
from catalog.schemas.contract import (
    MAX_FAULTS,
    Library,
    MissingTypeError,
    SchemaError,
    SchemaFault,
    SchemaSource,
    TooCostly,
    fault,
    json_value,
    short,
)
from catalog.schemas.json.references import HOLDERS, pointer_of
from catalog.schemas.jsonschema.work import MAX_LISTING, SchemaWork
from catalog.schemas.library import as_tree

BACKTRACK_LIMIT: Final = 100_000
"""Steps that one regular expression may take on one text; past it, the text does not match."""
REGEX_BYTES: Final = 4 * 1024 * 1024
_HOME: Final = "http://catalog.invalid/"
"""Stands before keys that are no URIs, so that relative references can be joined; nothing is ever fetched."""
REGEX_OPTIONS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=REGEX_BYTES)
_VALIDATORS: Final[Mapping[str, type[jsonschema_rs.Validator]]] = {
    "04": jsonschema_rs.Draft4Validator,
    "06": jsonschema_rs.Draft6Validator,
    "07": jsonschema_rs.Draft7Validator,
    "2019-09": jsonschema_rs.Draft201909Validator,
    "2020-12": jsonschema_rs.Draft202012Validator,
}
_DIALECTS: Final = {
    **{draft: f"http://json-schema.org/draft-{draft}/schema#" for draft in ("04", "06", "07")},
    **{draft: f"https://json-schema.org/draft/{draft}/schema" for draft in ("2019-09", "2020-12")},
}
_DRAFT: Final = re.compile(r"(2019-09|2020-12)|(?:^|draft[-_/ ]?)0?([467])(?!\d)", re.IGNORECASE)
_META: Final = re.compile(r"https?://json-schema\.org/(?:draft|schema)", re.IGNORECASE)
_ABSOLUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_MAPS: Final = frozenset({"properties", "patternProperties", "definitions", "$defs", "dependentSchemas"})
_NO_SCHEMAS: Final = frozenset({"enum", "const", "default", "examples", "example"})
_LATEST: Final = "2020-12"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def names_of(source: SchemaSource, library: Library) -> Mapping[str, str]:
    """Return ``title`` and ``$id`` of a schema, or of the one that was written, as far as it has them."""
    tree = source.document if source.written is None else as_tree(source.written.schema.document)
    if source.written is None and source.pointer:
        try:
            tree = at_pointer(tree, source.pointer)
        except KeyError:
            return {}
    members = tree if isinstance(tree, dict) else {}
    given = {"title": members.get("title"), "$id": members.get("$id", members.get("id"))}
    return {kind: text for kind, text in given.items() if isinstance(text, str) and text}


class JsonSchemaValidator:
    """Holds JSON bodies against one schema."""

    def __init__(self, validator: jsonschema_rs.Validator, work: SchemaWork) -> None:
        self._validator = validator
        self._work = work
        self._soon_judged = work.soon_judged

    def fault(self, body: bytes | None, content_type: str | None, *, at_any_cost: bool = False) -> SchemaFault | None:
        """Return why *body* is no JSON or does not conform; the first error when there are several.

        The content type is not asked: what claims to be something else and is such JSON conforms.

        Raises:
            TooCostly: the verdict, or finding the error, may take more than a moment, and *at_any_cost* was not given.
        """
        if body is not None and len(body) > self._soon_judged and not (at_any_cost or self._work.judges_soon(body)):
            raise TooCostly
        value = parse_body(body)
        if isinstance(value, SchemaFault):
            return value
        try:
            if self._validator.is_valid(value):
                return None
            if not at_any_cost and body is not None and not self._work.explains_soon(body):
                raise TooCostly(refused=True)
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return fault(error.message, as_pointer(error.instance_path))
        except (ValueError, TypeError, RecursionError) as failure:
            return fault(f"the body cannot be held against the schema: {failure}")
        return fault("the body does not conform to the schema")

    def faults(self, body: bytes | None, content_type: str | None) -> list[SchemaFault]:
        """Return all errors, at most MAX_FAULTS; only the first of a body that may have very many.

        Raises:
            TooCostly: as :meth:`fault`.
        """
        first = self.fault(body, content_type)
        if first is None or body is None or not self._work.explains_soon(body, MAX_LISTING):
            return [] if first is None else [first]
        value = parse_body(body)
        if isinstance(value, SchemaFault):
            return [first]
        try:
            errors = islice(self._validator.iter_errors(value), MAX_FAULTS)
            return [fault(error.message, as_pointer(error.instance_path)) for error in errors] or [first]
        except (ValueError, TypeError, RecursionError):
            return [first]


def parse_body(body: bytes | None, *, doubles: bool = False) -> Any:
    """Return the value of a JSON body, or the fault for what is none; a byte order mark before it is passed over.

    A string that is no Unicode text, or very deep nesting, is a fault too. *doubles* is as for
    :func:`catalog.schemas.contract.json_value`.
    """
    if body is None:
        return fault("there is no body, and JSON is expected")
    try:
        return json_value(body.removeprefix(_BYTE_ORDER_MARK), doubles=doubles)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return fault(f"the body is no JSON: {error}")
    except RecursionError:
        return fault("the body nests too deeply to be looked into")


def compile_schema(source: SchemaSource, library: Library) -> JsonSchemaValidator:
    """Compile a schema, or the part of it that the deep link names, with all documents that it refers to.

    Raises:
        MissingTypeError: it lacks the part that is named.
        SchemaError: no JSON schema, of an unusable regular expression, or with a reference that leads nowhere.
    """
    document = _checked(as_tree(source.document))
    draft = draft_of(document, source.version)
    pointer = _pointer_of(document, source)
    home = _home(source.uri)
    resources = dict(_resources(source.uri, document, library))
    schema: Any = document
    if pointer:
        base = _joined(home, _own_id(document)).partition("#")[0]
        resources[base] = document
        _check_part(document, pointer, draft)
        home, schema = f"{home}?part", {"$ref": f"{base}#{quote(pointer, safe='/~')}"}
    return JsonSchemaValidator(_compiled(schema, draft, home, resources), SchemaWork(schema, home, resources))


def references_of(source: SchemaSource) -> Iterable[str]:
    """Give the documents that ``$ref`` names, joined to a ``$id`` around it, without its own parts and meta-schemas."""
    return dict.fromkeys(reference for reference, _ in _references(as_tree(source.document)))


def draft_of(document: Any, version: str) -> str:
    """Return the draft: what ``$schema`` says, else the declared *version*, else the latest."""
    stated = document.get("$schema") if isinstance(document, dict) else None
    for text in (stated, version):
        match = _DRAFT.search(text) if isinstance(text, str) else None
        if match is not None:
            return match.group(1) or f"0{match.group(2)}"
    return _LATEST


def _compiled(schema: Any, draft: str, home: str, resources: Mapping[str, Any]) -> jsonschema_rs.Validator:
    def retrieve(uri: str) -> Any:
        return resources[uri.partition("#")[0]]

    try:
        return _VALIDATORS[draft](
            schema, validate_formats=False, base_uri=home, pattern_options=REGEX_OPTIONS, retriever=retrieve
        )
    except jsonschema_rs.ValidationError as error:
        raise SchemaError(
            f"this is no valid JSON schema: {error.message}", pointer=as_pointer(error.instance_path)
        ) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise SchemaError(short(f"the JSON schema cannot be used: {error}")) from error


def _checked(document: Any) -> Any:
    """Return a schema, without a ``$schema`` that names no draft: a meta-schema of somebody's own is not looked up."""
    if isinstance(document, dict):
        said = document.get("$schema")
        if said is None or (isinstance(said, str) and _META.match(said)):
            return document
        return {name: value for name, value in document.items() if name != "$schema"}
    if isinstance(document, bool):
        return document
    raise SchemaError("this is no JSON schema, which is an object", hint="write it as an object, or correct its format")


def _check_part(document: Any, pointer: str, draft: str) -> None:
    """Hold a part of a document against the meta-schema; what is around it need not be a schema at all.

    Raises:
        MissingTypeError: there is no such part.
        SchemaError: it is no schema.
    """
    try:
        part = at_pointer(document, pointer)
    except KeyError:
        raise MissingTypeError(f"the schema has nothing at {pointer}", hint="correct the reference") from None
    if isinstance(part, dict):
        part = {**part, "$schema": _DIALECTS[draft]}
    try:
        jsonschema_rs.meta.validate(part)
    except jsonschema_rs.ValidationError as error:
        at = pointer + as_pointer(error.instance_path)
        raise SchemaError(short(f"this is no valid JSON schema: {error.message}"), pointer=at) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise SchemaError(short(f"the JSON schema cannot be used: {error}"), pointer=pointer) from error


def start_of(source: SchemaSource) -> Any:
    """Return the part of a document that is meant, of a schema that compiles.

    Raises:
        MissingTypeError, KeyError: there is none.
    """
    return at_pointer(source.document, _pointer_of(source.document, source))


def _pointer_of(document: Any, source: SchemaSource) -> str:
    """Return the pointer of the part that the deep link names; empty for the whole document.

    Raises:
        MissingTypeError: there is no type of that name.
    """
    if source.pointer or not source.name:
        return source.pointer
    pointer = pointer_of(document, source.name)
    if pointer is None:
        members = document if isinstance(document, dict) else {}
        types = [members[holder] for holder in HOLDERS if isinstance(members.get(holder), dict)]
        known = sorted({key for each in types for key in each})
        hint = f"it has {', '.join(known[:8])}" if known else "leave the name out, or add it to $defs"
        raise MissingTypeError(f"the schema has no type {source.name}", hint=hint)
    return pointer


def _home(key: str) -> str:
    """Return the absolute URI that stands for the document *key*."""
    if "://" in key and "#" not in key:
        return key
    steps = ("up" if step == ".." else step for step in key.lstrip("/").split("/"))
    return _HOME + quote("/".join(steps), safe="/")


def _resources(key: str, document: Any, library: Library) -> Iterator[tuple[str, Any]]:
    """Give all documents that a schema refers to, by every URI that its references may come out as."""
    waiting, seen = [(key, document, {_home(key)})], {key}
    while waiting:
        base, tree, homes = waiting.pop()
        homes = {*homes, *(_joined(home, _own_id(tree)) for home in homes)}
        for reference, written in dict.fromkeys(_references(tree)):
            loaded = library.document(reference, base)
            if loaded is None:
                continue
            other = _checked(as_tree(loaded[1]))
            names = {_joined(home, each) for home in homes for each in (reference, written)}
            for name in names:
                yield name.partition("#")[0], other
            if loaded[0] not in seen:
                seen.add(loaded[0])
                waiting.append((loaded[0], other, names))


def _references(tree: Any) -> Iterator[tuple[str, str]]:
    """Give references to other documents: joined to an absolute ``$id`` around them if there is one, and as written."""
    references: list[tuple[str, str]] = []
    own: set[str] = set()
    waiting: list[tuple[Any, str, bool]] = [(tree, "", False)]
    while waiting:
        node, base, is_map = waiting.pop()
        if isinstance(node, list):
            waiting.extend((each, base, False) for each in node if isinstance(each, (dict, list)))
        if not isinstance(node, dict):
            continue
        if not is_map:
            identifier = _own_id(node)
            if identifier and (base or _ABSOLUTE.match(identifier)):
                base = _joined(base, identifier).partition("#")[0]
            own.update((base, identifier.partition("#")[0]))
            written = (node.get(keyword) for keyword in _REFERENCES)
            plain = (each.partition("#")[0] for each in written if isinstance(each, str) and not each.startswith("#"))
            references.extend((_joined(base, each) if base else each, each) for each in plain)
        for name, part in node.items():
            if isinstance(part, (dict, list)) and (is_map or name not in _NO_SCHEMAS):
                waiting.append((part, base, not is_map and name in _MAPS))
    return (pair for pair in references if pair[0] and pair[0] not in own and not _META.match(pair[0]))


def _joined(base: str, reference: str) -> str:
    """Join as RFC 3986 has it; what is no URI stays as it is, and will not be found."""
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _own_id(schema: Any) -> str:
    """Return ``$id``, or ``id`` of draft 04, where it is a text; else nothing."""
    if not isinstance(schema, dict):
        return ""
    own = schema.get("$id")
    if own is None and "draft-04" in str(schema.get("$schema")):
        own = schema.get("id")
    return own if isinstance(own, str) and not own.startswith("#") else ""
