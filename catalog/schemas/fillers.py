"""From a schema that was found to what makes payloads for it; each family is imported when it is first met."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from catalog.schemas.contract import Family, Library, SchemaError, SchemaSource
from catalog.schemas.filling.filling import Filler, Unfillable
from catalog.schemas.library import as_pointer, at_pointer

_DEFINITIONS: Final = ("definitions", "$defs")


def open_filler(source: SchemaSource, library: Library) -> Filler:
    """Return what makes payloads for a schema.

    Raises:
        Unfillable: the schema cannot be read, or lacks the type that is meant.
    """
    try:
        return _OPENERS[source.family](source, library)
    except SchemaError as error:
        raise Unfillable(str(error)) from error


def _json_schema(source: SchemaSource, library: Library) -> Filler:
    from catalog.schemas.jsonschema.filling import JsonSchemaFiller

    return JsonSchemaFiller(source, library, _part(source))


def _json_structure(source: SchemaSource, library: Library) -> Filler:
    from catalog.schemas.jsonstructure.filling import JsonStructureFiller

    start = _part(source)
    root = start.get("$root") if isinstance(start, Mapping) and "type" not in start else None
    if isinstance(root, str):
        start = {"$ref": root}
    return JsonStructureFiller(source, library, start)


def _avro(source: SchemaSource, library: Library) -> Filler:
    from catalog.schemas.avro.filling import AvroFiller
    from catalog.schemas.avro.types import read_schema

    return AvroFiller(read_schema(source, library))


def _protobuf(source: SchemaSource, library: Library) -> Filler:
    from catalog.schemas.protobuf.filling import ProtobufFiller
    from catalog.schemas.protobuf.validating import compile_schema

    return ProtobufFiller(compile_schema(source, library).message)


def _xsd(source: SchemaSource, library: Library) -> Filler:
    from catalog.schemas.xsd.filling import XsdFiller

    return XsdFiller(source, library)


_OPENERS: Final[Mapping[Family, Callable[[SchemaSource, Library], Filler]]] = {
    "JsonSchema": _json_schema,
    "JsonStructure": _json_structure,
    "Avro": _avro,
    "Protobuf": _protobuf,
    "XSD": _xsd,
}


def _part(source: SchemaSource) -> Any:
    """Return the part of a JSON document that is meant: by pointer, by the name of a definition, or all of it."""
    document = source.document
    pointers = [source.pointer] if source.pointer else []
    if source.name:
        pointers = [as_pointer([holder, source.name]) for holder in _DEFINITIONS]
        pointers += [f"/{source.name}", *(f"/{holder}/{source.name}" for holder in _DEFINITIONS)]
    for pointer in pointers:
        try:
            return at_pointer(document, pointer)
        except KeyError:
            continue
    return document
