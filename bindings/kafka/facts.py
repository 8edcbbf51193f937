"""What matching needs of a Kafka record, as selectors over the rows of Spark's Kafka source.

Most records are settled by these columns alone. Those that are not (an event in a JSON body, a batch, repeated or
malformed names, values that are no text) are *odd*: their whole row travels to the exact codec, which decides.
Being odd costs time and changes nothing else, so each condition here may err on that side only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bindings.selectors import (
    All_,
    Any_,
    Base64,
    BytesContain,
    Equals,
    Expression,
    Field,
    FirstBytes,
    KeysContain,
    KeysMatch,
    Matches,
    Missing,
    Not,
    NotText,
    Repeats,
    Text,
    ValueMissing,
    ValuesAreText,
)

ENTRIES: Final = "headers"
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""The columns of the source that the codec needs; ``timestamp`` in milliseconds."""
_CONTENT_TYPE: Final = Text(FirstBytes(ENTRIES, "content-type"))
# White space before a media type is whatever Python strips; here all that is no visible ASCII.
_VERSION: Final = Text(FirstBytes(ENTRIES, "ce_specversion"))


def selector(key: str) -> Expression | None:
    """Return where a property lies: ``e.NAME``, ``p.PATH`` or ``d``; None for a property Kafka has not."""
    if key in ("e.datacontenttype", "d", "p.headers.content-type"):
        return _CONTENT_TYPE
    if key.startswith("e."):
        return Text(FirstBytes(ENTRIES, f"ce_{key[2:]}"))
    if key.startswith("p.headers."):
        return Text(FirstBytes(ENTRIES, key.removeprefix("p.headers.")))
    if key == "p.topic":
        return Field("topic")
    if key == "p.partition":
        return Text(Field("partition"))
    if key == "p.key":
        return Text(Field("key"))
    if key == "p.key_base64":
        return Base64(Field("key"))
    return None


def odd(keys: Iterable[str], *, sniffs: bool) -> Expression:
    """Return the condition that a row needs the exact codec.

    ``keys`` are the properties that candidates constrain; ``sniffs`` whether some channel lets an event in a JSON
    body count without its media type.
    """
    conditions: list[Expression] = [
        Matches(_CONTENT_TYPE, r"(?i)^[^!-~]*application/cloudevents"),
        KeysMatch(ENTRIES, _odd_names()),
        KeysContain(ENTRIES, "\n"),
        NotText(ENTRIES, "ce_specversion"),
        NotText(ENTRIES, "content-type"),
        All_((Not(Missing(_VERSION)), Any_((Not(_sound()), Not(ValuesAreText(ENTRIES)))))),
        # Of a record that is no event, these may not travel on: they would speak for the event it becomes.
        All_((Missing(_VERSION), Any_((KeysMatch(ENTRIES, r"\nce_"), Repeats(ENTRIES, "content-type"))))),
    ]
    repeated = sorted({key.removeprefix("p.headers.") for key in keys if key.startswith("p.headers.")})
    for name in repeated:
        conditions += [Repeats(ENTRIES, name), ValueMissing(ENTRIES, name), NotText(ENTRIES, name)]
    if any(key in ("p.key", "p.key_base64") for key in keys):
        conditions.append(All_((Not(Missing(Field("key"))), Missing(Text(Field("key"))))))
    if sniffs:
        conditions.append(_sniffable())
    return Any_(tuple(conditions))


def _odd_names() -> str:
    """Names that are no attribute names, ours, or content-type in any but lower case."""
    name = "content-type"
    either = [f"[{letter.upper()}{letter}]" if letter.isalpha() else letter for letter in name]
    spelled = [
        name[:at] + letter.upper() + "".join(either[at + 1 :]) for at, letter in enumerate(name) if letter.isalpha()
    ]
    return rf"\nce_[a-z0-9]*[^a-z0-9\n]|\nce_\n|\nxrouter-|\n(?:{'|'.join(spelled)})\n"


def _sound() -> Expression:
    required = tuple(Matches(Text(FirstBytes(ENTRIES, f"ce_{name}")), r"(?s).") for name in ("id", "source", "type"))
    return All_((Equals(_VERSION, "1.0"), *required))


def _sniffable() -> Expression:
    media = Any_((Missing(_CONTENT_TYPE), Matches(_CONTENT_TYPE, r"(?is)^[^!-~]*(application/json[^!-~]*(;.*)?)?$")))
    body = Field("value")
    mentions = Any_((BytesContain(body, "specversion"), BytesContain(body, "\\u")))
    return All_((Missing(_VERSION), media, mentions))
