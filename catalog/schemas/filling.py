"""Random values for sample payloads: choices, numbers within bounds, and texts that match a pattern."""

from __future__ import annotations

import base64
import math
import random
import re
import string
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import lru_cache
from re import _constants as sre  # type: ignore[attr-defined, unused-ignore]  # private, and unchanged for decades
from re._parser import parse as parse_expression  # type: ignore[import-not-found]
from typing import Any, Final, Protocol, TypeVar

# The random choices for one payload, and how many optional parts it has.
#
# Each attempt at a payload has its own :class:`Chooser`, so that equal seeds give equal payloads.

T = TypeVar("T")
WORDS: Final = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "juniper")
MAX_LEVELS: Final = 24
"""Maximum nesting of a payload; deeper ones are given up, because their required parts never end."""
MAX_STEPS: Final = 100_000
"""Maximum number of values in a payload, and of subschemas visited for it; larger ones are given up."""
MAX_SIZE: Final = 100_000
"""Maximum characters or bytes of one value, and of what an expression may give."""
_OPTIONAL_LEVELS: Final = 6
_OPTIONAL_VALUES: Final = 300
"""Limits of levels and of values for optional parts, so that payloads of recursive schemas are small."""
_SPAN: Final = 100
"""The maximum distance of numbers from the bound, if there is only one."""
_LARGE: Final = 1_000


class UnsupportedSchema(Exception):
    """No payload can be made for a schema: it allows nothing, or requires what is not supported here.

    The message says why, without text of the schema. :class:`catalog.schemas.columns.PayloadMaker` catches it and
    reports a warning; another attempt with other random choices may succeed.
    """


class Chooser:
    """The random choices of one attempt at a payload. ``now`` is the time as RFC 3339 text in UTC.

    ``fullness`` is the probability, from 0 to 1, of an optional part near the top; it decreases with the level.
    """

    def __init__(self, rng: random.Random, now: str, fullness: float = 1.0) -> None:
        self.random = rng
        self.now = now
        self.fullness = fullness
        self._values = 0
        self._steps = 0

    def count_value(self, level: int) -> None:
        """Count one value at a nesting level.

        Raises:
            UnsupportedSchema: the payload exceeds the limits.
        """
        self._values += 1
        if level > MAX_LEVELS:
            raise UnsupportedSchema("what the schema requires never ends")
        self.count_step()

    def count_step(self) -> None:
        """Count one visited subschema; raises UnsupportedSchema if there are too many."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise UnsupportedSchema("what the schema requires never ends, or is far too large")

    def is_minimal(self, level: int) -> bool:
        """Whether to include only required parts, and to choose the flattest alternative."""
        return level >= _OPTIONAL_LEVELS or self._values >= _OPTIONAL_VALUES or self.fullness == 0

    def includes(self, level: int) -> bool:
        """Return whether to include an optional part at this level, at random."""
        if self.is_minimal(level):
            return False
        return self.random.random() < self.fullness * (1.0 if level < 2 else 0.6)

    def flip(self, probability: float) -> bool:
        """Return True with that probability."""
        return self.random.random() < probability

    def pick(self, choices: Sequence[T]) -> T:
        """Return a random one of *choices*, which must not be empty."""
        return choices[self.random.randrange(len(choices))]

    def pick_count(self, low: int, high: int | None, level: int) -> int:
        """Return a small random number of repetitions from *low* to *high*, preferably at least one."""
        if low > MAX_STEPS:
            raise UnsupportedSchema(f"the schema requires {low} values at once")
        if self.is_minimal(level):
            return low
        top = low + 2 if high is None else min(high, low + 2)
        return self.random.randint(min(max(low, 1), top), max(top, low))

    def make_word(self) -> str:
        """Return a short random text of lower-case ASCII letters, digits and a dash."""
        return f"{self.pick(WORDS)}-{self.random.randrange(10_000)}"

    def make_text(self, low: int = 0, high: int | None = None) -> str:
        """Return a text of *low* to *high* characters; raises UnsupportedSchema if *low* is too large."""
        _check_size(low)
        text = self.make_word()
        text += "".join(self.random.choices(string.ascii_lowercase, k=max(0, low - len(text))))
        return text if high is None else text[: max(high, 0)]

    def make_bytes(self, low: int = 0, high: int | None = None) -> bytes:
        """Return *low* to *high* bytes, about nine if possible; raises UnsupportedSchema if *low* is too large."""
        _check_size(low)
        size = max(low, 9)
        return self.random.randbytes(size if high is None else max(0, min(size, high)))

    def make_uuid(self) -> str:
        """Return a version 4 UUID as text."""
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def make_decimal(self, low: Decimal | None = None, high: Decimal | None = None, places: int = 2) -> Decimal:
        """Return a number between the bounds, excluding the bounds themselves if possible."""
        if low is None:
            low = Decimal(0) if high is None or high > 0 else high - _SPAN
        if high is None:
            high = low + _SPAN
        between = low + (high - low) * Decimal(repr(round(0.05 + 0.9 * self.random.random(), 6)))
        unit = Decimal(1).scaleb(-places)
        for rounding in (ROUND_FLOOR, ROUND_CEILING):
            rounded = between.quantize(unit, rounding) if between.adjusted() < 20 else between
            if low < rounded < high:
                return rounded
        return between

    def make_formatted(self, name: str) -> str | None:
        """Return a text in a format of JSON Schema; None if the format is unknown."""
        make = _FORMATS.get(name)
        return make(self) if make else None


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise UnsupportedSchema(f"the schema requires a value of size {size}")


def _make_duration(chooser: Chooser) -> str:
    return f"PT{chooser.random.randrange(1, 60)}S"


def _make_ipv6(chooser: Chooser) -> str:
    return "2001:db8::" + ":".join(f"{chooser.random.randrange(1, 0xFFFF):x}" for _ in range(2))


def _make_url(chooser: Chooser) -> str:
    return f"https://example.com/{chooser.make_word()}"


def _make_hostname(chooser: Chooser) -> str:
    return f"{chooser.make_word()}.example.com"


_FORMATS: Final[Mapping[str, Callable[[Chooser], str]]] = {
    "base64": lambda chooser: base64.b64encode(chooser.make_bytes()).decode("ascii"),
    "byte": lambda chooser: base64.b64encode(chooser.make_bytes()).decode("ascii"),
    "date": lambda chooser: chooser.now[:10],
    "date-time": lambda chooser: chooser.now,
    "duration": _make_duration,
    "email": lambda chooser: f"{chooser.make_word()}@example.com",
    "hostname": _make_hostname,
    "idn-email": lambda chooser: f"{chooser.make_word()}@example.com",
    "idn-hostname": _make_hostname,
    "ipv4": lambda chooser: f"192.0.2.{chooser.random.randrange(1, 255)}",
    "ipv6": _make_ipv6,
    "iri": _make_url,
    "iri-reference": _make_url,
    "json-pointer": lambda chooser: f"/{chooser.make_word()}",
    "regex": lambda chooser: f"^{chooser.make_word()}$",
    "relative-json-pointer": lambda chooser: f"{chooser.random.randrange(3)}/{chooser.make_word()}",
    "time": lambda chooser: chooser.now[11:],
    "uri": _make_url,
    "uri-reference": _make_url,
    "uri-template": _make_url,
    "url": _make_url,
    "uuid": lambda chooser: chooser.make_uuid(),
}


class PayloadSampler(Protocol):
    """Makes sample payloads for one schema. They should be valid, but callers must validate them."""

    def payload(self, chooser: Chooser, content_type: str) -> bytes:
        """Return one payload with the choices of *chooser*, in the encoding of *content_type*.

        Raises:
            UnsupportedSchema: these choices give no payload.
        """
        ...


# Numbers within the bounds of both JSON families.


def make_number_between(schema: Mapping[str, Any], chooser: Chooser, *, whole: bool) -> int | float:
    """Return a number that satisfies ``minimum``, ``exclusiveMinimum``, ``multipleOf`` and so on.

    ``exclusiveMinimum`` may be a number or the flag of draft-04.

    Raises:
        UnsupportedSchema: no number is between the bounds.
    """
    minimum, above = _read_bound(schema, "minimum", "exclusiveMinimum")
    maximum, below = _read_bound(schema, "maximum", "exclusiveMaximum")
    step = _to_decimal(schema.get("multipleOf"))
    if whole and (step is None or step <= 0):
        step = Decimal(1)
    if step is not None and step > 0:
        return _make_multiple(step, (minimum, maximum), (above, below), chooser, whole=whole)
    if minimum is not None and maximum is not None and (minimum > maximum or (minimum == maximum and (above or below))):
        raise UnsupportedSchema("no number is between the bounds")
    if minimum is not None and minimum == maximum:
        return float(minimum)
    return float(chooser.make_decimal(minimum, maximum))


def _read_bound(schema: Mapping[str, Any], plain: str, exclusive: str) -> tuple[Decimal | None, bool]:
    """Return a bound, and whether it is exclusive."""
    bound, edge = _to_decimal(schema.get(plain)), schema.get(exclusive)
    if isinstance(edge, bool):
        return bound, edge and bound is not None
    other = _to_decimal(edge)
    if other is None or bound is None:
        return (other, True) if other is not None else (bound, False)
    tighter = other >= bound if plain == "minimum" else other <= bound
    return (other, True) if tighter else (bound, False)


def _make_multiple(
    step: Decimal,
    bounds: tuple[Decimal | None, Decimal | None],
    edges: tuple[bool, bool],
    chooser: Chooser,
    *,
    whole: bool,
) -> int | float:
    low, high = (each if each is None or step == 1 else each / step for each in bounds)
    first = None if low is None else math.ceil(low) + (1 if edges[0] and low == math.ceil(low) else 0)
    last = None if high is None else math.floor(high) - (1 if edges[1] and high == math.floor(high) else 0)
    if first is not None and last is not None and first > last:
        raise UnsupportedSchema(f"no {'integer' if step == 1 else 'multiple'} is between the bounds")
    if first is None or last is None or last - first > _SPAN:  # real numbers are rarely near the ends of a type's range
        if first is not None and first > 0:
            last = first + _SPAN
        elif last is not None and last < 0:
            first = last - _SPAN
        else:
            first, last = 0, _LARGE if last is None else min(last, _LARGE)
    for _ in range(100):
        multiple = step * chooser.random.randint(first, last)
        if not whole or multiple == multiple.to_integral_value():
            return int(multiple) if multiple == multiple.to_integral_value() else float(multiple)
    raise UnsupportedSchema("no integer multiple was found between the bounds")


def _to_decimal(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    return exact if exact.is_finite() else None


# Texts that match simple regular expressions, as Python's own parser reads them.
#
# Supported are literals, classes, ``.``, groups, alternatives, greedy and lazy quantifiers and anchors; but not
# lookaround, backreferences and Unicode properties. Where ECMA 262 differs from Python, a text may not match, which its
# validator finds.

_MORE: Final = 3
"""The maximum number of repetitions beyond the minimum, for quantifiers without maximum."""
_MAX_RANGE: Final = 1_000
"""Characters of a range that are chosen from."""
_PRINTABLE: Final = "".join(chr(code) for code in range(0x21, 0x7F))
_WORD: Final = string.ascii_letters + string.digits + "_"
_CATEGORIES: Final[Mapping[Any, str]] = {
    sre.CATEGORY_DIGIT: string.digits,
    sre.CATEGORY_NOT_DIGIT: "".join(each for each in _PRINTABLE if each not in string.digits),
    sre.CATEGORY_WORD: _WORD,
    sre.CATEGORY_NOT_WORD: "".join(each for each in _PRINTABLE if each not in _WORD),
    sre.CATEGORY_SPACE: " ",
    sre.CATEGORY_NOT_SPACE: _PRINTABLE,
}
_NAMED_GROUP: Final = re.compile(r"\(\?<(?![=!])[^>]*>")


class _Unsupported(Exception):
    """The expression uses an unsupported feature, or gives very long texts."""


def make_matching_text(pattern: str, chooser: Chooser) -> str | None:
    """Return a text with a part that matches *pattern*; None if the pattern is not supported."""
    try:
        return _make_sequence(_parse_pattern(pattern), chooser, iter(range(MAX_SIZE)))
    except (_Unsupported, re.error, RecursionError, OverflowError):
        return None


@lru_cache(maxsize=1024)
def _parse_pattern(pattern: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sets that may have another meaning one day
        return parse_expression(_NAMED_GROUP.sub("(?:", pattern))


def _make_sequence(terms: Any, chooser: Chooser, steps: Iterator[int]) -> str:
    if next(steps, None) is None:  # also groups without terms may be repeated
        raise _Unsupported
    return "".join(_make_term(kind, value, chooser, steps) for kind, value in terms)


def _make_term(kind: Any, value: Any, chooser: Chooser, steps: Iterator[int]) -> str:
    if next(steps, None) is None:
        raise _Unsupported
    if kind is sre.AT:  # where it could never match, the validator finds it
        return ""
    if kind is sre.SUBPATTERN:
        return _make_sequence(value[3], chooser, steps)
    if kind is sre.BRANCH:
        return _make_sequence(chooser.pick(value[1]), chooser, steps)
    if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        low, high, inner = value
        count = chooser.random.randint(low, low + _MORE if high is sre.MAXREPEAT else high)
        return "".join(_make_sequence(inner, chooser, steps) for _ in range(count))
    return chooser.pick(_list_characters(kind, value))


def _list_characters(kind: Any, value: Any) -> str:
    """Return characters that a term of one character matches."""
    if kind is sre.LITERAL:
        return chr(value)
    if kind is sre.ANY:
        return string.ascii_letters + string.digits
    if kind is sre.RANGE:
        return "".join(map(chr, range(value[0], min(value[1], value[0] + _MAX_RANGE) + 1)))
    if kind is sre.CATEGORY:
        return _CATEGORIES[value]
    if kind is sre.NOT_LITERAL:
        kind, value = sre.IN, [(sre.NEGATE, None), (sre.LITERAL, value)]
    if kind is not sre.IN:
        raise _Unsupported
    negated = value[0][0] is sre.NEGATE
    characters = "".join(_list_characters(*each) for each in value[1 if negated else 0 :])
    characters = "".join(each for each in _PRINTABLE if each not in characters) if negated else characters
    if not characters:
        raise _Unsupported
    return characters
