"""Sample payloads for JSON Structure, with all its types: those of the JSON schema that a type is translated to."""

# Small: the translation does the work, and a family has a module for its samples.

from __future__ import annotations

from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.filling import PayloadSampler
from catalog.schemas.jsonschema.filling import JsonSchemaSampler
from catalog.schemas.jsonstructure.validating import translate


def open_sampler(source: SchemaSource, library: Library) -> PayloadSampler:
    """Return the generator of sample payloads for a schema."""
    schema = translate(source, library)
    return JsonSchemaSampler(SchemaSource("JsonSchema", "", schema), library, schema)
