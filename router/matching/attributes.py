"""What CloudEvents 1.0.2 lets an attribute be: the last look before a mapped event leaves (JUDGING.md#mapping).

Names are lower-case letters and digits, a String holds neither control characters nor noncharacters, the core
attributes are not empty, and each value is of its type: the one CloudEvents gives, and the one declared. What breaks a
rule must never leave, so constants are looked at once, when a definition is compiled, and of the rest only values of
types that can be broken; text that is plain ASCII passes by two reductions over a whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.texts import printable
from bindings.envelope import ATTRIBUTE_NAME
from bindings.events import FORBIDDEN
from catalog.model import PropertyType
from catalog.schemas.addresses import is_absolute
from catalog.values import is_valid

Bool = npt.NDArray[np.bool_]
Types = tuple[str, ...]
"""The types that a value must be valid for; ``VERSION`` and ``ABSOLUTE`` are of our own."""
VERSION: Final = "specversion"
ABSOLUTE: Final = "absolute URI"
"""The type of ``dataschema``: in a catalog a URI may be relative, in an event that leaves it may not."""
CORE_TYPES: Final = {"source": "urireference", "dataschema": ABSOLUTE, "time": "timestamp", VERSION: VERSION}
NOT_EMPTY: Final = frozenset({"id", "type", "subject", "datacontenttype", *CORE_TYPES})
RESERVED: Final = frozenset({"data", "data_base64"})
"""Members of the JSON format, and so no names of attributes."""
_SHOWN: Final = 60
_ANY_TEXT: Final = frozenset({"any", "string"})
_SURE_REFERENCE: Final = (
    r"^(?:[A-Za-z][A-Za-z0-9+.\-]*:(?://)?[A-Za-z0-9\-._~/]*|/?[A-Za-z0-9\-._~]+(?:/[A-Za-z0-9\-._~]*)*)$"
)
_SURE: Final = {
    "uri": _SURE_REFERENCE,
    ABSOLUTE: r"^[A-Za-z][A-Za-z0-9+\-]*:(?://)?[A-Za-z0-9\-._~/]+$",
    "urireference": _SURE_REFERENCE,
    "uritemplate": _SURE_REFERENCE,
    "timestamp": (
        r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?"
        r"(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$"
    ),
    "symbol": r"^[!-~]*$",
}
"""Expressions for values that are valid beyond doubt; the rest is asked one by one."""


def name_fault(name: str) -> str:
    """Return what is wrong with an attribute's name; empty when nothing is."""
    if name in RESERVED:
        return "the name is reserved for data"
    return "" if ATTRIBUTE_NAME.fullmatch(name) else "no attribute name; those are lower-case letters and digits"


def types_of(name: str, declared: PropertyType) -> Types:
    """Return the types that values of an attribute must be valid for, other than any text."""
    return tuple(dict.fromkeys(each for each in (CORE_TYPES.get(name), declared) if each and each not in _ANY_TEXT))


def value_fault(name: str, types: Types, text: str) -> str:
    """Return what is wrong with an attribute's value; empty when nothing is."""
    if not text and name in NOT_EMPTY:
        return "must not be empty"
    if FORBIDDEN.search(text):
        return f"{_quoted(text)} holds a control character or a noncharacter"
    for each in types:
        if not _of_type(each, text):
            return f"{_quoted(text)} is no valid {each}"
    return ""


def always_valid(name: str, types: Types, text_with: Sequence[str]) -> bool:
    """Tell whether a template that encodes all it takes gives valid values only.

    ``text_with`` are its expansions with a letter and with an escape for every placeholder. An encoded value has only
    those and other characters that URIs allow wherever they allow both.
    """
    uris = all(each in ("uri", "urireference", "uritemplate", ABSOLUTE) for each in types)
    return uris and not any(value_fault(name, types, text) for text in text_with)


def usable(values: pa.StringArray) -> pa.StringArray:
    """Return values without those that no attribute may be; a Kafka key of control characters is no text key."""
    return pc.if_else(pc.and_(printable(values), pc.not_equal(values, "")), values, pa.scalar(None, pa.string()))


def of_types(values: pa.StringArray, types: Types) -> pa.BooleanArray:
    """Tell which values are valid for all of these types; null for a null."""
    held = pa.array(np.ones(len(values), bool))
    for each in types:
        sure = pc.match_substring_regex(values, _SURE[each]) if each in _SURE else pc.equal(values, "1.0")
        held = pc.and_(held, _settled(values, sure, each))
    return held


def _settled(values: pa.StringArray, sure: pa.BooleanArray, kind: str) -> pa.BooleanArray:
    """Ask for the values that are not surely valid, each distinct one once."""
    if pc.all(sure, min_count=0).as_py():
        return sure
    doubtful = pc.dictionary_encode(values.filter(pc.invert(sure)))
    verdicts = pa.array([_of_type(kind, text) for text in doubtful.dictionary.to_pylist()], pa.bool_())
    return pc.replace_with_mask(sure, pc.fill_null(pc.invert(sure), False), verdicts.take(doubtful.indices.drop_null()))


def _of_type(kind: str, text: str) -> bool:
    if kind == ABSOLUTE:
        return is_absolute(text) and is_valid("uri", text)
    return text == "1.0" if kind == VERSION else is_valid(kind, text, bits32=True)


def _quoted(text: str) -> str:
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return repr(shown)
