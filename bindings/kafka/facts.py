"""What matching needs of a Kafka record, as selectors over the rows of Spark's Kafka source.

Most records are settled by these columns alone. Those that are not (an event in a JSON body, a batch, repeated or
malformed names, values that are no text) are *odd*: their whole row travels to the exact codec, which decides.
Being odd costs time and changes nothing else, so each condition here may err on that side only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from bindings.envelope import REQUIRED
from bindings.kafka.conditions import (
    All_,
    Any_,
    BytesContain,
    Equals,
    KeysContain,
    KeysMatch,
    KeysRepeat,
    Matches,
    Missing,
    Not,
    NotEmpty,
    NotText,
    OneOf,
    Unusable,
    ValuesAreText,
)
from bindings.kafka.layouts import attribute_headers
from bindings.kafka.selectors import Base64, Expression, Field, FirstBytes, Selected, Text

ENTRIES: Final = "headers"
SOURCE_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        (ENTRIES, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""Rows as the codec takes them: Spark's Kafka source with ``timestamp`` in milliseconds."""
HEADER: Final = "p.headers."
HEADER_BYTES: Final = "b.headers."
LAYOUT: Final = "layout"
"""The selected column with a row's header layout."""
ALWAYS: Final = ("e.specversion", "d", *(f"e.{name}" for name in REQUIRED))
"""Properties that are selected for every plan, because the condition of odd rows looks at them."""
# White space before a media type is whatever Python strips; here all that is no visible ASCII.
_CONTENT_TYPE: Final = Selected("d")
_VERSION: Final = Selected("e.specversion")


def selector(key: str) -> Expression | None:
    """Return where a property lies: ``e.NAME``, ``p.PATH``, ``b.PATH`` or ``d``; None for a property Kafka has not."""
    if key in ("e.datacontenttype", "d", "p.headers.content-type"):
        return Text(FirstBytes(ENTRIES, "content-type"))
    if key.startswith("e."):
        return Text(FirstBytes(ENTRIES, f"ce_{key[2:]}"))
    if key.startswith(HEADER):
        return Text(FirstBytes(ENTRIES, key.removeprefix(HEADER)))
    if key.startswith(HEADER_BYTES):
        return Base64(FirstBytes(ENTRIES, key.removeprefix(HEADER_BYTES)))
    if key == "p.topic":
        return Field("topic")
    if key == "p.partition":
        return Text(Field("partition"))
    if key == "p.key":
        return Text(Field("key"))
    if key in ("p.key_base64", "b.key"):
        return Base64(Field("key"))
    if key in ("b.topic", "b.partition"):
        return Base64(Text(Field(key[2:])))
    return None


def constrained_headers(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the headers among these properties, each once."""
    return tuple(sorted({key[len(HEADER) :] for key in keys if key.startswith((HEADER, HEADER_BYTES))}))


def odd(keys: Iterable[str], *, sniffs: bool, known: frozenset[str] = frozenset()) -> Expression:
    """Return the condition that a row needs the exact codec, over the source's columns and those of ``ALWAYS``.

    ``keys`` are the properties that candidates constrain; ``sniffs`` whether some channel lets an event in a JSON
    body count without its media type. ``known`` are plain layouts (:mod:`bindings.kafka.layouts`), of which names
    need no further look.
    """
    constrained = constrained_headers(key for key in keys if key.startswith(HEADER))
    texts = ("ce_specversion", "content-type", *constrained)
    unusable = [Unusable(ENTRIES, name, _selected(name)) for name in texts]
    attributes = [name for name in attribute_headers(known) if name[3:] not in ("specversion", *REQUIRED)]
    conditions: list[Expression] = [
        Matches(_CONTENT_TYPE, r"(?i)^[^!-~]*application/cloudevents"),
        *unusable,
        *(NotText(ENTRIES, name) for name in attributes),
        All_((Not(Missing(_VERSION)), Not(_sound()))),
        All_((Not(OneOf(Selected(LAYOUT), known)), _doubtful_names())),
    ]
    if any(key in ("p.key", "p.key_base64") for key in keys):
        conditions.append(All_((Not(Missing(Field("key"))), Missing(Text(Field("key"))))))
    if sniffs:
        conditions.append(_sniffable())
    return Any_(tuple(conditions))


def _selected(header: str) -> Expression:
    """Return the text of a header: the column that is selected anyway, where there is one."""
    if header == "ce_specversion":
        return _VERSION
    return _CONTENT_TYPE if header == "content-type" else Selected(f"p.headers.{header}")


def _doubtful_names() -> Expression:
    conditions: list[Expression] = [
        KeysMatch(ENTRIES, _odd_names()),
        KeysContain(ENTRIES, "\n"),
        # Of repeats the first that has a value counts.
        KeysRepeat(ENTRIES),
        All_((Not(Missing(_VERSION)), Not(ValuesAreText(ENTRIES)))),
        # Of a record that is no event, these may not travel on: they would speak for the event it becomes.
        All_((Missing(_VERSION), KeysMatch(ENTRIES, r"\nce_"))),
    ]
    return Any_(tuple(conditions))


def _odd_names() -> str:
    """Names that are no attribute names, ours, or content-type in any but lower case."""
    name = "content-type"
    either = [f"[{letter.upper()}{letter}]" if letter.isalpha() else letter for letter in name]
    spelled = [
        name[:at] + letter.upper() + "".join(either[at + 1 :]) for at, letter in enumerate(name) if letter.isalpha()
    ]
    return rf"\nce_[a-z0-9]*[^a-z0-9\n]|\nce_(data)?\n|\nxrouter-|\n(?:{'|'.join(spelled)})\n"


def _sound() -> Expression:
    return All_((Equals(_VERSION, "1.0"), *(NotEmpty(Selected(f"e.{name}")) for name in REQUIRED)))


def _sniffable() -> Expression:
    media = Any_((Missing(_CONTENT_TYPE), Matches(_CONTENT_TYPE, r"(?is)^[^!-~]*(application/json[^!-~]*(;.*)?)?$")))
    body = Field("value")
    mentions = Any_((BytesContain(body, "specversion"), BytesContain(body, "\\u")))
    return All_((Missing(_VERSION), media, mentions))
