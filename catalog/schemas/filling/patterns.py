"""Texts that match a regular expression, for the plain expressions that schemas write.

Read are literals, classes, ``.``, groups, alternatives, greedy and lazy counts, anchors and the escapes that ECMA 262
and XSD share. What looks around, refers back or names Unicode properties is not; such a pattern gives no text.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from catalog.schemas.filling.filling import Filling

_MORE: Final = 3
"""How far past its lower bound a count without upper bound goes."""
_MAX_COUNT: Final = 1_000
_MAX_DEPTH: Final = 50
_MAX_TEXT: Final = 100_000
"""Characters; an expression that may ask for more is taken for one that is not plain."""
_PRINTABLE: Final = "".join(chr(code) for code in range(0x21, 0x7F))
_WORD: Final = string.ascii_letters + string.digits + "_"
_CLASSES: Final = {"d": string.digits, "w": _WORD, "s": " ", "i": string.ascii_letters, "c": _WORD + "-."}
_NEGATED: Final = {"D": string.digits, "W": _WORD, "S": string.whitespace}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_CODE_LENGTHS: Final = {"x": 2, "u": 4}


class _Sampler(NamedTuple):
    """Makes texts of at most ``longest`` characters."""

    make: Callable[[Filling], str]
    longest: int


class _Unsupported(Exception):
    """The expression has something that is not read here, or is broken."""


def sample(pattern: str, filling: Filling, *, whole: bool = False) -> str | None:
    """Return a text that matches *pattern*, None when it is not one of the plain expressions.

    With *whole* the pattern is bound to the whole text, as XSD has it; else it may match a part, and the text is
    only as long as the pattern asks.
    """
    sampler = _compiled(pattern, whole)
    return sampler.make(filling) if sampler else None


@lru_cache(maxsize=1024)
def _compiled(pattern: str, whole: bool) -> _Sampler | None:
    parser = _Parser(pattern, anchors=not whole)
    try:
        return parser.whole()
    except (_Unsupported, IndexError):  # an index past the end: the expression breaks off
        return None


@dataclass(slots=True)
class _Parser:
    """A recursive descent over one expression; ``at`` is the place reached, ``anchors`` tells ECMA 262 from XSD."""

    text: str
    anchors: bool
    at: int = 0
    depth: int = 0

    def whole(self) -> _Sampler:
        sampler = self.alternatives()
        if self.at < len(self.text):
            raise _Unsupported
        return sampler

    def alternatives(self) -> _Sampler:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _Unsupported
        branches = [self.sequence()]
        while self._taken("|"):
            branches.append(self.sequence())
        self.depth -= 1
        if len(branches) == 1:
            return branches[0]
        return _Sampler(lambda filling: filling.pick(branches).make(filling), max(each.longest for each in branches))

    def sequence(self) -> _Sampler:
        terms: list[_Sampler] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            if self.anchors and self.text[self.at] in "^$":
                self._anchor(bool(terms))
            else:
                terms.append(self.counted(self.atom()))
        return _bounded(
            lambda filling: "".join(term.make(filling) for term in terms), sum(each.longest for each in terms)
        )

    def atom(self) -> _Sampler:
        mark = self._next()
        if mark == "(":
            return self.group()
        if mark == "[":
            return _one_of(self.members())
        if mark == ".":
            return _one_of(string.ascii_letters + string.digits)
        if mark == "\\":
            return _one_of(self.escaped())
        if mark in "*+?{":
            raise _Unsupported
        return _Sampler(lambda filling: mark, 1)

    def group(self) -> _Sampler:
        if self._taken("?") and not self._taken(":"):
            if not self._taken("<") or self.text[self.at] in "=!":
                raise _Unsupported  # looks around, or sets flags
            self.at = self._find(">") + 1
        inner = self.alternatives()
        if not self._taken(")"):
            raise _Unsupported
        return inner

    def counted(self, term: _Sampler) -> _Sampler:
        low, high = 1, 1
        mark = self.text[self.at] if self.at < len(self.text) else ""
        if mark and mark in "*+?":
            self.at += 1
            low, high = {"*": (0, _MORE), "+": (1, 1 + _MORE), "?": (0, 1)}[mark]
        elif mark == "{":
            low, high = self._braces()
        else:
            return term
        self._taken("?")  # a lazy count gives the same texts
        if not 0 <= low <= high <= _MAX_COUNT:
            raise _Unsupported
        return _bounded(
            lambda filling: "".join(term.make(filling) for _ in range(filling.random.randint(low, high))),
            max(term.longest, 1) * high,
        )

    def members(self) -> str:
        """Read a class up to its bracket; the characters it takes, printable ASCII for what it leaves open."""
        negated = self._taken("^")
        taken = ""
        while self.text[self.at] != "]":
            first = self._member()
            if len(first) == 1 and self.text[self.at] == "-" and self.text[self.at + 1] not in "[]":
                self.at += 1
                last = self._member()
                if len(last) != 1 or not first <= last:
                    raise _Unsupported
                taken += "".join(map(chr, range(ord(first), min(ord(last), ord(first) + _MAX_COUNT) + 1)))
            else:
                taken += first
        self.at += 1
        return "".join(each for each in _PRINTABLE if each not in taken) if negated else taken

    def escaped(self) -> str:
        """Read what follows a backslash; the characters that it stands for."""
        mark = self._next()
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
            raise _Unsupported  # refers back, or names a property or a boundary
        return mark

    def _member(self) -> str:
        mark = self._next()
        if mark == "[" and not self.anchors:
            raise _Unsupported  # XSD takes one class from another so
        return self.escaped() if mark == "\\" else mark

    def _anchor(self, later: bool) -> None:
        """Step over an anchor that is at the edge of its branch; anywhere else it would contradict what is there."""
        mark = self._next()
        following = self.text[self.at] if self.at < len(self.text) else "|"
        if (mark == "^" and later) or (mark == "$" and following not in "|)"):
            raise _Unsupported

    def _braces(self) -> tuple[int, int]:
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

    def _next(self) -> str:
        self.at += 1
        return self.text[self.at - 1]

    def _taken(self, mark: str) -> bool:
        if self.text.startswith(mark, self.at):
            self.at += 1
            return True
        return False


def _one_of(characters: str) -> _Sampler:
    if not characters:
        raise _Unsupported
    return _Sampler(lambda filling: filling.pick(characters), 1)


def _bounded(make: Callable[[Filling], str], longest: int) -> _Sampler:
    if longest > _MAX_TEXT:
        raise _Unsupported
    return _Sampler(make, longest)
