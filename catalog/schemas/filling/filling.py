"""The choices behind one payload: everything random, and how much of what is optional goes in.

One :class:`Filling` serves one attempt at one payload, so that equal seeds give equal payloads.
"""

from __future__ import annotations

import base64
import random
import string
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final, Protocol, TypeVar

T = TypeVar("T")
WORDS: Final = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "juniper")
MAX_LEVELS: Final = 24
"""Levels of nesting past which a payload is given up: what is required never ends."""
MAX_VALUES: Final = 20_000
"""Values past which a payload is given up, whatever is required."""
MAX_STEPS: Final = 100_000
"""Subschemas looked into, past which a payload is given up."""
MAX_SIZE: Final = 100_000
"""Characters or bytes of one value; what must be larger is given up."""
_OPTIONAL_LEVELS: Final = 6
_OPTIONAL_VALUES: Final = 300
"""Levels, and values in all, up to which optional parts go in at all, so that recursive schemas stay small."""
_SPAN: Final = 100
"""How far numbers lie from the one bound that is given."""


class Unfillable(Exception):
    """A schema that no payload is made for: it allows nothing, or asks for what this program cannot make up.

    The message says which, without the schema's own text. It is caught where payloads are made
    (:class:`catalog.schemas.making.PayloadMaker`) and becomes a warning; another attempt may choose otherwise.
    """


class Filling:
    """The choices of one attempt. ``now`` is the time as RFC 3339 text in UTC.

    ``fullness`` is the chance, from 0 to 1, of an optional part near the top; it falls with the level.
    """

    def __init__(self, chooser: random.Random, now: str, fullness: float = 1.0) -> None:
        self.random = chooser
        self.now = now
        self.fullness = fullness
        self._values = 0
        self._steps = 0

    def spend(self, level: int) -> None:
        """Count one value at that level of nesting.

        Raises:
            Unfillable: the payload has grown past all bounds.
        """
        self._values += 1
        if level > MAX_LEVELS or self._values > MAX_VALUES:
            raise Unfillable("what the schema requires never ends, or is far too large")

    def step(self) -> None:
        """Count one look into a subschema; raises Unfillable when there are too many."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise Unfillable("the schema refers to itself too often")

    def is_lean(self, level: int) -> bool:
        """Tell whether only what is required should still go in, and the flattest of several choices."""
        return level >= _OPTIONAL_LEVELS or self._values >= _OPTIONAL_VALUES or self.fullness == 0

    def wants(self, level: int) -> bool:
        """Decide whether an optional part at that level goes in."""
        if self.is_lean(level):
            return False
        return self.random.random() < self.fullness * (1.0 if level < 2 else 0.6)

    def chance(self, probability: float) -> bool:
        """Return True with that probability."""
        return self.random.random() < probability

    def pick(self, choices: Sequence[T]) -> T:
        """Choose one; *choices* must not be empty."""
        return choices[self.random.randrange(len(choices))]

    def count(self, low: int, high: int | None, level: int) -> int:
        """Choose how many of a repeated part there are: few, one at least where that is allowed and there is room."""
        if low > MAX_VALUES:
            raise Unfillable(f"the schema requires {low} values at once")
        if self.is_lean(level):
            return low
        most = low + 2 if high is None else min(high, low + 2)
        return self.random.randint(min(max(low, 1), most), max(most, low))

    def word(self) -> str:
        """Return a short lower-case text of ASCII letters, digits and a dash."""
        return f"{self.pick(WORDS)}-{self.random.randrange(10_000)}"

    def text(self, low: int = 0, high: int | None = None) -> str:
        """Return a text of *low* to *high* characters; raises Unfillable when that is too long."""
        _check_size(low)
        text = self.word()
        text += "".join(self.random.choices(string.ascii_lowercase, k=max(0, low - len(text))))
        return text if high is None else text[: max(high, 0)]

    def bytes(self, low: int = 0, high: int | None = None) -> bytes:
        """Return *low* to *high* bytes, some nine when that is allowed; raises Unfillable when that is too long."""
        _check_size(low)
        size = max(low, 9)
        return self.random.randbytes(size if high is None else max(0, min(size, high)))

    def uuid(self) -> str:
        """Return a version 4 UUID as text."""
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def integer(self, low: int | None = None, high: int | None = None) -> int:
        """Return an integer between the bounds, both included, near the one that is given; *low* when there is none."""
        if low is None:
            low = 0 if high is None or high >= 0 else high - _SPAN
        if high is None:
            high = low + _SPAN
        return self.random.randint(low, high) if low <= high else low

    def decimal(self, low: Decimal | None = None, high: Decimal | None = None, places: int = 2) -> Decimal:
        """Return a number between the bounds, the bounds themselves left out unless nothing else is there."""
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

    def formatted(self, name: str) -> str | None:
        """Return a text in a format of JSON Schema, by its name there; None for a format that is not known."""
        make = _FORMATS.get(name)
        return make(self) if make else None


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise Unfillable(f"the schema requires a value of size {size}")


def _seconds(filling: Filling) -> str:
    return f"PT{filling.random.randrange(1, 60)}S"


def _ipv6(filling: Filling) -> str:
    return "2001:db8::" + ":".join(f"{filling.random.randrange(1, 0xFFFF):x}" for _ in range(2))


def _url(filling: Filling) -> str:
    return f"https://example.com/{filling.word()}"


def _host(filling: Filling) -> str:
    return f"{filling.word()}.example.com"


_FORMATS: Final[Mapping[str, Callable[[Filling], str]]] = {
    "base64": lambda filling: base64.b64encode(filling.bytes()).decode("ascii"),
    "byte": lambda filling: base64.b64encode(filling.bytes()).decode("ascii"),
    "date": lambda filling: filling.now[:10],
    "date-time": lambda filling: filling.now,
    "duration": _seconds,
    "email": lambda filling: f"{filling.word()}@example.com",
    "hostname": _host,
    "idn-email": lambda filling: f"{filling.word()}@example.com",
    "idn-hostname": _host,
    "ipv4": lambda filling: f"192.0.2.{filling.random.randrange(1, 255)}",
    "ipv6": _ipv6,
    "iri": _url,
    "iri-reference": _url,
    "json-pointer": lambda filling: f"/{filling.word()}",
    "regex": lambda filling: f"^{filling.word()}$",
    "relative-json-pointer": lambda filling: f"{filling.random.randrange(3)}/{filling.word()}",
    "time": lambda filling: filling.now[11:],
    "uri": _url,
    "uri-reference": _url,
    "uri-template": _url,
    "url": _url,
    "uuid": lambda filling: filling.uuid(),
}


class Filler(Protocol):
    """Makes payloads that one schema should accept. Whoever uses one asks the schema's validator for the verdict."""

    def payload(self, filling: Filling, content_type: str) -> bytes:
        """Make one payload with the choices of *filling*, in the encoding that *content_type* asks for.

        Raises:
            Unfillable: with these choices there is no payload.
        """
        ...
