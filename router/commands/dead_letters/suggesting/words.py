"""Values as words between delimiters, and which words name one instance of something rather than a kind."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_DELIMITER: Final = re.compile(r"([/.:;,=&?#|@ ])")
_SUBJECT: Final = re.compile(r"([/.])")
_SEGMENT: Final = re.compile(r"([/?#&=;, |@])")
_UNSAFE: Final = re.compile(r"[{}+#*>]")
_HEX_DIGITS: Final = 8
_OPAQUE: Final = 16
_ATOM: Final = re.compile(
    r"""
    [-+]?\d+(?:\.\d+)*                                              # a number, an address of IPv4
    | v\d+(?:\.\d+)+                                                # a version
    | \d{4}-\d{2}(?:-\d{2}(?:[Tt ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:[Zz]|[-+]\d{2}:?\d{2})?)?)?
    """,
    re.VERBOSE | re.ASCII,
)
_VERSION: Final = re.compile(r"v\d+(?:\.\d+)*", re.IGNORECASE | re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE)
_HEX: Final = re.compile(r"(?:0x)?[0-9a-f]+", re.IGNORECASE)
_NUMBERED: Final = re.compile(r"[A-Za-z_-]*[A-Za-z](?:\d{2,}|[-_]\d+)", re.ASCII)
_OPAQUE_WORD: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9_\-%~+]+", re.ASCII)
_NAMES: Final = frozenset({"sha256", "sha512", "utf16", "x509", "oauth20", "iso8601", "base64", "k8s"})
"""Words that end in digits and are names of kinds all the same."""


class Words(NamedTuple):
    """A value taken apart: ``words[0] delimiters[0] words[1] ...``; words may be empty, delimiters are characters."""

    words: tuple[str, ...]
    delimiters: tuple[str, ...]


def words_of(text: str, *, subject: bool = False) -> Words:
    """Take a value apart; a NATS *subject* only where its tokens end, since a placeholder there ends at any dot.

    A segment that is as a whole a number, a version or a date is one word.
    """
    if subject:
        pieces = _SUBJECT.split(text)
        return Words(tuple(pieces[::2]), tuple(pieces[1::2]))
    words: list[str] = []
    delimiters: list[str] = []
    for place, piece in enumerate(_SEGMENT.split(text)):
        if place % 2:
            delimiters.append(piece)
        elif _ATOM.fullmatch(piece):
            words.append(piece)
        else:
            inner = _DELIMITER.split(piece)
            words.extend(inner[::2])
            delimiters.extend(inner[1::2])
    return Words(tuple(words), tuple(delimiters))


def looks_like_id(word: str) -> bool:
    """Tell a word that names one instance: a number, date, UUID, hexadecimal or other opaque text, or ``pump-17``."""
    if not word or not any(character.isdecimal() for character in word) or _VERSION.fullmatch(word):
        return False
    if _ATOM.fullmatch(word) or _UUID.fullmatch(word) or word[0].isdecimal():
        return True
    if len(word) >= _HEX_DIGITS and _HEX.fullmatch(word):
        return True
    if _NUMBERED.fullmatch(word):
        return word.lower() not in _NAMES
    return len(word) >= _OPAQUE and _OPAQUE_WORD.fullmatch(word) is not None


def is_unsafe(text: str) -> bool:
    """Tell a text that no template can hold as it is: it has braces, or wildcards of subscriptions."""
    return _UNSAFE.search(text) is not None


def singular(word: str) -> str:
    """Return the singular of an English plural; any other word as it is."""
    lower = word.lower()
    if len(word) > 4 and lower.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and lower.endswith(("sses", "xes", "ches", "shes", "zzes")):
        return word[:-2]
    if len(word) > 3 and lower.endswith("s") and not lower.endswith(("ss", "us", "is")):
        return word[:-1]
    return word
