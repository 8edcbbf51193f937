"""Avro schemas: reading a document, its named types, the one that is meant, and its fingerprint.

fastavro checks schemas and writes canonical forms. A document is tidied before, so that what real catalogs write
(``{"type": {"type": "string"}}``) is read, and what is no schema at all never gets that far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import msgspec
from fastavro.schema import SchemaParseException, UnknownType, fingerprint, parse_schema, to_parsing_canonical_form

from catalog.parsing.pointers import at_pointer
from catalog.schemas.avro.values import invalid_logical_type
from catalog.schemas.bodies import short
from catalog.schemas.contract import Library, SchemaError, SchemaFault, SchemaSource

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
MAX_SCHEMA_LEVELS: Final = 150
"""Levels of types within types; the parsers behind this are recursive."""
MAX_DOCUMENTS: Final = 500
_MEMBERS: Final = dict.fromkeys(("type", "name", "namespace", "logicalType", "precision", "scale"), "") | {
    "items": "array",
    "values": "map",
    "symbols": "enum",
    "size": "fixed",
}
"""What of a type decides over bodies, and the kind of type that it belongs to."""
_COMPARED: Final = 200
"""Characters of an unknown name, and names of types, that are compared for a hint."""
_LOGICAL: Final = frozenset({"logicalType", "precision", "scale"})
_HINT: Final = "correct the schema; the Avro specification, 'Schema Declaration', says what each type needs"
# What fastavro is known to raise for schemas that are none; test_avro.py holds it to that by fuzzing.
_REFUSALS: Final = (
    SchemaParseException,
    UnknownType,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema that is sound: its type, every named type by full name, and the CRC-64-AVRO of its canonical form.

    All names in it are full names. Logical types that are invalid for their type are not in it. ``fingerprint`` is as
    it stands in a body: eight bytes, little-endian.
    """

    root: Any
    named: Mapping[str, Any]
    canonical: str
    fingerprint: bytes


def read_schema(source: SchemaSource, library: Library) -> AvroSchema:
    """Read a schema and all that it refers to.

    Raises:
        SchemaError: it is no Avro schema, a name in it is not known, or it has not the type that is meant.
    """
    document = _document(source)
    named: dict[str, Any] = {}
    _parse_references(document, source.uri, library, named, {source.uri})
    parsed = _parse(document, named)
    root = _selected(source.name, parsed, named) if source.name else parsed
    return _described(root, named)


def parse_alone(document: Any) -> AvroSchema:
    """Read a schema that must not refer to others, such as the one in the header of an object container file.

    Raises:
        SchemaError: it is no Avro schema.
    """
    named: dict[str, Any] = {}
    return _described(_parse(_tidy(document), named), named)


def ignored_logical_types(source: SchemaSource) -> Sequence[SchemaFault]:
    """Return the logical types of a document that are invalid for their types, with their JSON pointers."""
    ignored: list[SchemaFault] = []
    try:
        _document(source, ignored)
    except SchemaError:
        pass  # what is no schema is reported where it is compiled
    return ignored


def missing_names(source: SchemaSource) -> Iterable[str]:
    """Give the full names that a document uses and does not define; none for what is no schema."""
    try:
        return _missing(_document(source))
    except SchemaError:
        return ()


def _document(source: SchemaSource, ignored: list[SchemaFault] | None = None) -> Any:
    tree = source.document
    if isinstance(tree, str) and tree not in PRIMITIVES:
        try:
            tree = msgspec.json.decode(tree.removeprefix("\ufeff"))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            hint = "Avro schemas are JSON; translate Avro IDL with `avro-tools idl2schemata`"
            raise SchemaError(f"the Avro schema is not JSON: {short(str(error))}", hint=hint) from error
    if source.pointer:
        try:
            tree = at_pointer(tree, source.pointer)
        except KeyError:
            raise SchemaError(f"the document has nothing at {source.pointer}", hint="correct the reference") from None
    if isinstance(tree, dict) and "protocol" in tree and isinstance(tree.get("types"), list):
        return _tidy(
            tree["types"] if len(tree["types"]) != 1 else tree["types"][0],
            ignored,
            f"{source.pointer}/types" + ("/0" if len(tree["types"]) == 1 else ""),
        )
    return _tidy(tree, ignored, source.pointer)


def _tidy(tree: Any, ignored: list[SchemaFault] | None = None, at: str = "", level: int = 0) -> Any:
    """Return the types of a tree alone, ``{"type": X}`` around a type that says nothing of its own taken away.

    Invalid logical types are left out, and noted in *ignored*; *at* is the JSON pointer to the tree.
    """
    if level > MAX_SCHEMA_LEVELS:
        raise SchemaError(f"the Avro schema nests more than {MAX_SCHEMA_LEVELS} levels", hint="name the inner types")
    if isinstance(tree, list):
        return [_tidy(branch, ignored, f"{at}/{index}", level + 1) for index, branch in enumerate(tree)]
    if not isinstance(tree, dict):
        if isinstance(tree, str):
            return tree
        raise SchemaError(f"{short(repr(tree))} is no Avro type", hint=_HINT)
    kind = tree.get("type")
    if not isinstance(kind, str) or kind not in PRIMITIVES | NAMED | {"array", "map"}:
        return _tidy(kind, ignored, f"{at}/type", level + 1)
    why = invalid_logical_type(tree)
    if why and ignored is not None:
        ignored.append(SchemaFault(f"{at}/logicalType", why))
    members = _MEMBERS if not why else _MEMBERS.keys() - _LOGICAL
    tidied = {key: value for key, value in tree.items() if key in members and _MEMBERS[key] in (kind, "")}
    for member in ("items", "values"):
        if member in tidied:
            tidied[member] = _tidy(tidied[member], ignored, f"{at}/{member}", level + 1)
    if kind == "enum" and isinstance(tree.get("symbols"), list) and tree.get("default") in tree["symbols"]:
        tidied["default"] = tree["default"]
    if isinstance(tree.get("aliases"), list) and kind in NAMED:
        tidied["aliases"] = [each for each in tree["aliases"] if isinstance(each, str)]
    if kind in ("record", "error"):
        fields = tree.get("fields")
        if not isinstance(fields, list) or not all(isinstance(each, dict) for each in fields):
            raise SchemaError(f"the record {short(str(tree.get('name')))} has no list of fields", hint=_HINT)
        tidied["fields"] = [
            {**each, "type": _tidy(each.get("type"), ignored, f"{at}/fields/{index}/type", level + 1)}
            for index, each in enumerate(fields)
        ]
    return tidied


def _missing(document: Any) -> list[str]:
    used: dict[str, None] = {}
    defined: set[str] = set()
    _collect(document, "", used, defined)
    return [name for name in used if name not in defined]


def _collect(tree: Any, namespace: str, used: dict[str, None], defined: set[str]) -> None:
    if isinstance(tree, str):
        if tree not in PRIMITIVES:
            used[_full(tree, namespace)] = None
    elif isinstance(tree, list):
        for branch in tree:
            _collect(branch, namespace, used, defined)
    else:
        if tree["type"] in NAMED and isinstance(tree.get("name"), str):
            given = tree.get("namespace")
            name = _full(tree["name"], given if isinstance(given, str) else namespace)
            defined.add(name)
            namespace = name.rpartition(".")[0]
        for inner in _inner(tree):
            _collect(inner, namespace, used, defined)


def _inner(tree: Mapping[str, Any]) -> Iterator[Any]:
    yield from (tree[member] for member in ("items", "values") if member in tree)
    yield from (field["type"] for field in tree.get("fields", ()))


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _parse_references(document: Any, base: str, library: Library, named: dict[str, Any], seen: set[str]) -> None:
    """Parse what defines the missing names, each document once and after what it needs itself."""
    for name in _missing(document):
        loaded = None if name in named else library.document(name, base)
        if loaded is None or loaded[0] in seen or len(seen) > MAX_DOCUMENTS:
            continue  # a name that stays unknown is reported where it is used
        uri, other = loaded
        seen.add(uri)
        tree = _document(SchemaSource("Avro", "", other, uri=uri))
        _parse_references(tree, uri, library, named, seen)
        _parse(tree, named)


def _parse(tree: Any, named: dict[str, Any]) -> Any:
    try:
        return parse_schema(tree, named, _write_hint=False)
    except UnknownType as error:
        hint = "define the type in the same document, or add the document that does; names of types are case-sensitive"
        name = str(error.name)
        near = get_close_matches(name.rpartition(".")[2][:_COMPARED], sorted(PRIMITIVES), 1) or get_close_matches(
            name[:_COMPARED], [*named][:_COMPARED], 1, 0.8
        )
        hint = f"did you mean {near[0]}? Else {hint}" if near else hint
        raise SchemaError(f"the Avro type {short(name)} is not known", hint=hint) from error
    except _REFUSALS as error:
        lacks = f"a type lacks {error}" if isinstance(error, KeyError) else str(error)
        raise SchemaError(f"not a valid Avro schema: {short(lacks)}", hint=_HINT) from error


def _selected(name: str, root: Any, named: Mapping[str, Any]) -> Any:
    if name in named:
        return named[name]
    same = [full for full in named if full.rpartition(".")[2] == name]
    if len(same) == 1:
        return named[same[0]]
    if same:
        raise SchemaError(f"{name} is the name of {', '.join(sorted(same))}", hint="use the full name")
    known = short(", ".join(sorted(named)) or repr(root))
    raise SchemaError(f"the Avro schema defines no type {short(name)}", hint=f"it defines {known}")


def _described(root: Any, named: Mapping[str, Any]) -> AvroSchema:
    try:
        canonical = to_parsing_canonical_form(_complete(root, named, set()))
        crc = bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
    except (*_REFUSALS, UnicodeError, RecursionError) as error:
        raise SchemaError(f"not a valid Avro schema: {short(str(error))}", hint=_HINT) from error
    return AvroSchema(root, named, canonical, crc)


def _complete(tree: Any, named: Mapping[str, Any], written: set[str]) -> Any:
    """Return a type with each named type written out where it is met first, so that it stands by itself."""
    if isinstance(tree, list):
        return [_complete(branch, named, written) for branch in tree]
    if isinstance(tree, str):
        return tree if tree in PRIMITIVES or tree in written else _complete(named[tree], named, written)
    if tree["type"] in NAMED:
        if tree["name"] in written:
            return tree["name"]
        written.add(tree["name"])
    whole = dict(tree)
    for member in ("items", "values"):
        if member in whole:
            whole[member] = _complete(whole[member], named, written)
    if "fields" in whole:
        whole["fields"] = [{**each, "type": _complete(each["type"], named, written)} for each in whole["fields"]]
    return whole
