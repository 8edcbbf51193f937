"""Random values for sample payloads: choices, numbers within bounds, and texts that match a pattern."""

from __future__ import annotations

import base64
import math
import random
import string
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, TypeVar

# The random choices for one payload, and how many optional parts it has.
#
# Each attempt at a payload has its own :class:`Chooser`, so that equal seeds give equal payloads.

T = TypeVar("T")
WORDS: Final = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "juniper")
MAX_LEVELS: Final = 24
"""Maximum nesting of a payload; deeper ones are given up, because their required parts never end."""
MAX_VALUES: Final = 20_000
"""Maximum number of values in a payload; larger ones are given up."""
MAX_STEPS: Final = 100_000
"""Maximum number of subschemas visited for a payload."""
MAX_SIZE: Final = 100_000
"""Maximum characters or bytes of one value."""
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
        if level > MAX_LEVELS or self._values > MAX_VALUES:
            raise UnsupportedSchema("what the schema requires never ends, or is far too large")

    def count_step(self) -> None:
        """Count one visited subschema; raises UnsupportedSchema if there are too many."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise UnsupportedSchema("the schema refers to itself too often")

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
        if low > MAX_VALUES:
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

    def make_integer(self, low: int | None = None, high: int | None = None) -> int:
        """Return an integer within the inclusive bounds, near the bound if there is only one; *low* if none fits."""
        if low is None:
            low = 0 if high is None or high >= 0 else high - _SPAN
        if high is None:
            high = low + _SPAN
        return self.random.randint(low, high) if low <= high else low

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
    if step is not None and step > 0:
        return _make_multiple(step, _complete_span(minimum, maximum, step), chooser, whole=whole, edges=(above, below))
    if whole:
        first = None if minimum is None else math.ceil(minimum) + (1 if above and minimum == math.ceil(minimum) else 0)
        last = None if maximum is None else math.floor(maximum) - (1 if below and maximum == math.floor(maximum) else 0)
        if first is not None and last is not None and first > last:
            raise UnsupportedSchema("no integer is between the bounds")
        # Real numbers are rarely near the ends of a type's range.
        if first is not None and last is not None and last - first > _SPAN:
            first, last = (max(first, 0), min(last, _LARGE)) if first <= 0 <= last else (first, last)
            first, last = (first, first + _SPAN) if first > 0 else (last - _SPAN, last) if last < 0 else (first, last)
        return chooser.make_integer(first, last)
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


def _complete_span(minimum: Decimal | None, maximum: Decimal | None, step: Decimal) -> tuple[Decimal, Decimal]:
    if minimum is None and maximum is None:
        return Decimal(0), 100 * step
    if minimum is None and maximum is not None:
        return (Decimal(0) if maximum >= 0 else maximum - 100 * step), maximum
    assert minimum is not None
    return minimum, maximum if maximum is not None else minimum + 100 * step


def _make_multiple(
    step: Decimal, span: tuple[Decimal, Decimal], chooser: Chooser, *, whole: bool, edges: tuple[bool, bool]
) -> int | float:
    first, last = math.ceil(span[0] / step), math.floor(span[1] / step)
    first += 1 if edges[0] and first * step == span[0] else 0
    last -= 1 if edges[1] and last * step == span[1] else 0
    if first > last:
        raise UnsupportedSchema("no multiple is between the bounds")
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


# Texts that match simple regular expressions.
#
# Supported are literals, classes, ``.``, groups, alternatives, greedy and lazy quantifiers, anchors and escapes that
# ECMA 262 has; but not lookaround, backreferences and Unicode properties.

_MORE: Final = 3
"""The maximum number of repetitions beyond the minimum, for quantifiers without maximum."""
_MAX_COUNT: Final = 1_000
_MAX_DEPTH: Final = 50
_MAX_TEXT: Final = 100_000
"""Maximum characters; expressions that may give more are not supported."""
_PRINTABLE: Final = "".join(chr(code) for code in range(0x21, 0x7F))
_WORD: Final = string.ascii_letters + string.digits + "_"
_CLASSES: Final = {"d": string.digits, "w": _WORD, "s": " ", "i": string.ascii_letters, "c": _WORD + "-."}
_NEGATED: Final = {"D": string.digits, "W": _WORD, "S": string.whitespace}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_CODE_LENGTHS: Final = {"x": 2, "u": 4}


class _TextMaker(NamedTuple):
    """Makes texts of at most ``longest`` characters."""

    make: Callable[[Chooser], str]
    longest: int


class _Unsupported(Exception):
    """The expression is invalid, or uses an unsupported feature."""


def make_matching_text(pattern: str, chooser: Chooser) -> str | None:
    """Return a text with a part that matches *pattern*; None if the pattern is not supported."""
    sampler = _compile_pattern(pattern)
    return sampler.make(chooser) if sampler else None


@lru_cache(maxsize=1024)
def _compile_pattern(pattern: str) -> _TextMaker | None:
    parser = _PatternParser(pattern)
    try:
        return parser.parse()
    except (_Unsupported, IndexError):  # IndexError: the expression ends too early
        return None


@dataclass(slots=True)
class _PatternParser:
    """A recursive descent parser of one expression."""

    text: str
    at: int = 0
    depth: int = 0

    def parse(self) -> _TextMaker:
        sampler = self.parse_alternatives()
        if self.at < len(self.text):
            raise _Unsupported
        return sampler

    def parse_alternatives(self) -> _TextMaker:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _Unsupported
        branches = [self.parse_sequence()]
        while self._skip_if("|"):
            branches.append(self.parse_sequence())
        self.depth -= 1
        if len(branches) == 1:
            return branches[0]
        return _TextMaker(lambda chooser: chooser.pick(branches).make(chooser), max(each.longest for each in branches))

    def parse_sequence(self) -> _TextMaker:
        terms: list[_TextMaker] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            if self.text[self.at] in "^$":
                self._skip_anchor(bool(terms))
            else:
                terms.append(self.parse_count(self.parse_atom()))
        return _limit_length(
            lambda chooser: "".join(term.make(chooser) for term in terms), sum(each.longest for each in terms)
        )

    def parse_atom(self) -> _TextMaker:
        mark = self._next_character()
        if mark == "(":
            return self.parse_group()
        if mark == "[":
            return _character_maker(self.parse_class())
        if mark == ".":
            return _character_maker(string.ascii_letters + string.digits)
        if mark == "\\":
            return _character_maker(self.parse_escape())
        if mark in "*+?{":
            raise _Unsupported
        return _TextMaker(lambda chooser: mark, 1)

    def parse_group(self) -> _TextMaker:
        if self._skip_if("?") and not self._skip_if(":"):
            if not self._skip_if("<") or self.text[self.at] in "=!":
                raise _Unsupported  # lookaround or flags
            self.at = self._find(">") + 1
        inner = self.parse_alternatives()
        if not self._skip_if(")"):
            raise _Unsupported
        return inner

    def parse_count(self, term: _TextMaker) -> _TextMaker:
        low, high = 1, 1
        mark = self.text[self.at] if self.at < len(self.text) else ""
        if mark and mark in "*+?":
            self.at += 1
            low, high = {"*": (0, _MORE), "+": (1, 1 + _MORE), "?": (0, 1)}[mark]
        elif mark == "{":
            low, high = self._parse_braces()
        else:
            return term
        self._skip_if("?")  # lazy quantifiers match the same texts
        if not 0 <= low <= high <= _MAX_COUNT:
            raise _Unsupported
        return _limit_length(
            lambda chooser: "".join(term.make(chooser) for _ in range(chooser.random.randint(low, high))),
            max(term.longest, 1) * high,
        )

    def parse_class(self) -> str:
        """Parse a character class up to its bracket, and return its characters; negated ones give printable ASCII."""
        negated = self._skip_if("^")
        characters = ""
        while self.text[self.at] != "]":
            first = self._parse_member()
            if len(first) == 1 and self.text[self.at] == "-" and self.text[self.at + 1] not in "[]":
                self.at += 1
                last = self._parse_member()
                if len(last) != 1 or not first <= last:
                    raise _Unsupported
                characters += "".join(map(chr, range(ord(first), min(ord(last), ord(first) + _MAX_COUNT) + 1)))
            else:
                characters += first
        self.at += 1
        return "".join(each for each in _PRINTABLE if each not in characters) if negated else characters

    def parse_escape(self) -> str:
        """Parse what follows a backslash, and return the characters that it matches."""
        mark = self._next_character()
        if mark in _CLASSES:
            return _CLASSES[mark]
        if mark in _NEGATED:
            return "".join(each for each in _PRINTABLE if each not in _NEGATED[mark])
        if mark in _CONTROLS:
            return _CONTROLS[mark]
        if mark in _CODE_LENGTHS:
            digits = self.text[self.at : self.at + _CODE_LENGTHS[mark]]
            if len(digits) < _CODE_LENGTHS[mark] or not set(digits) <= set(string.hexdigits):
                raise _Unsupported
            self.at += len(digits)
            return chr(int(digits, 16))
        if mark.isalnum():
            raise _Unsupported  # a backreference, property or boundary
        return mark

    def _parse_member(self) -> str:
        mark = self._next_character()
        return self.parse_escape() if mark == "\\" else mark

    def _skip_anchor(self, later: bool) -> None:
        """Skip an anchor at the start or end of its branch; elsewhere it could never match."""
        mark = self._next_character()
        following = self.text[self.at] if self.at < len(self.text) else "|"
        if (mark == "^" and later) or (mark == "$" and following not in "|)"):
            raise _Unsupported

    def _parse_braces(self) -> tuple[int, int]:
        end = self._find("}")
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        self.at = end + 1
        if not low.isdecimal() or len(low) > 4 or (high and not (high.isdecimal() and len(high) <= 4)):
            raise _Unsupported
        least = int(low)
        return least, int(high) if high else least + _MORE if comma else least

    def _find(self, mark: str) -> int:
        place = self.text.find(mark, self.at)
        if place < 0:
            raise _Unsupported
        return place

    def _next_character(self) -> str:
        self.at += 1
        return self.text[self.at - 1]

    def _skip_if(self, mark: str) -> bool:
        if self.text.startswith(mark, self.at):
            self.at += 1
            return True
        return False


def _character_maker(characters: str) -> _TextMaker:
    if not characters:
        raise _Unsupported
    return _TextMaker(lambda chooser: chooser.pick(characters), 1)


def _limit_length(make: Callable[[Chooser], str], longest: int) -> _TextMaker:
    if longest > _MAX_TEXT:
        raise _Unsupported
    return _TextMaker(make, longest)
