"""Values that are valid for a property of that type; everything random comes from the generator handed in."""

from __future__ import annotations

import base64
import random
import uuid

from catalog.model import Definition, PropertyType
from catalog.protocols.properties import CONTENT_TYPES
from catalog.schemas.filling.filling import WORDS
from catalog.schemas.formats import inferred_content_type
from catalog.templates import parse


def value_of(kind: PropertyType, random: random.Random, now: str) -> str:
    """Return a value that is valid for a property type, as text; *now* is the time as RFC 3339 text."""
    word = f"{random.choice(WORDS)}-{random.randrange(10_000)}"
    if kind in ("uri", "urireference", "uritemplate"):
        return f"https://example.com/{word}"
    if kind == "binary":
        return base64.b64encode(random.randbytes(9)).decode("ascii")
    return {
        "boolean": random.choice(("true", "false")),
        "duration": f"PT{random.randrange(1, 60)}S",
        "integer": str(random.randrange(1, 1000)),
        "number": str(random.randrange(1, 100_000) / 100),
        "timestamp": now,
    }.get(kind, word)


def event_id(random: random.Random) -> str:
    """Return an id in the form of a version 4 UUID."""
    return str(uuid.UUID(int=random.getrandbits(128), version=4))


def content_type_of(definition: Definition, family: str | None) -> str:
    """Return the content type of a definition's data: the declared one, what its schema's family implies, else JSON.

    A declared one with placeholders says nothing that data could be made by.
    """
    declared = {prop.name: prop.value for prop in (*definition.protocoloptions, *definition.envelopemetadata)}
    native = (declared.get(name) for name in CONTENT_TYPES)
    for value in (definition.datacontenttype, declared.get("datacontenttype"), *native):
        if (
            isinstance(value, str)
            and value
            and not value.startswith("application/cloudevents")
            and parse(value).is_literal
        ):
            return value
    return inferred_content_type(family or definition.dataschemaformat) or "application/json"
