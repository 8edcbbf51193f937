"""One property over the records of a bundle: what all its values have in common, word by word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from catalog.protocols.properties import is_dotted
from router.commands.dead_letters.suggesting.clusters import Pattern
from router.commands.dead_letters.suggesting.words import Words, is_unsafe, looks_like_id, words_of

FEW: Final = 20
"""Fewer records than this do not make what looks like an id a literal."""
ENOUGH: Final = 5
"""From so many records on, a value that is always the same is asked for, outside of addresses."""
MOST_LITERAL: Final = 128
_FLAGS: Final = frozenset({"true", "false"})
_ALWAYS_LITERAL: Final = frozenset({"e.type", "e.dataschema", "p.method", "p.topic", "p.status"})


@dataclass(frozen=True, slots=True)
class Gap:
    """A word that varies, or may: the values it has, one a record, and the literal word before it."""

    values: tuple[str, ...]
    before: str
    varies: bool


@dataclass(frozen=True, slots=True)
class Column:
    """One property. ``pieces`` are literal texts and gaps in order, None when values have no structure in common.

    ``always`` is True when every record has the property, ``share`` is how many of them do; ``askable`` is False when a
    value is no text, ``identity`` True when all look like ids.
    """

    key: str
    always: bool
    askable: bool
    pieces: tuple[str | Gap, ...] | None = None
    share: float = 1.0
    identity: bool = False

    @property
    def literal(self) -> str | None:
        """The value, when it is always the same and no gap is in it."""
        if self.pieces is None or any(isinstance(piece, Gap) for piece in self.pieces):
            return None
        return "".join(piece for piece in self.pieces if isinstance(piece, str))

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The gaps, in order."""
        return tuple(piece for piece in self.pieces or () if isinstance(piece, Gap))

    @property
    def says_something(self) -> bool:
        """Whether a literal part of the value is more than punctuation."""
        literals = [piece for piece in self.pieces or () if isinstance(piece, str)]
        return any(character.isalnum() for piece in literals for character in piece)


def column_of(
    key: str,
    texts: Sequence[str | None],
    missing: int,
    protocol: str,
    *,
    pattern: Pattern | None = None,
    pinned: bool = False,
) -> Column:
    """Look at the values of one property; *texts* are those of the records that have it, *missing* how many have not.

    *pattern* are the words of the address, for the property that is the address; one that is *pinned* has one value.
    """
    records = len(texts) + missing
    share = len(texts) / records
    present = [text for text in texts if text is not None]
    if len(present) < len(texts):
        return Column(key, not missing, False, share=share)
    identity = all(map(looks_like_id, present))
    if missing:
        return Column(key, False, True, share=share, identity=identity)
    pieces = (present[0],) if pinned else _pieces(key, present, protocol, pattern)
    return Column(key, True, True, pieces, identity=identity)


def _pieces(key: str, texts: list[str], protocol: str, pattern: Pattern | None) -> tuple[str | Gap, ...] | None:
    first = texts[0]
    same = all(text == first for text in texts)
    if pattern is None and same and first.lower() in _FLAGS:
        return None  # a flag: the other value may come
    if same and _is_literal(key, first, len(texts), address=pattern is not None):
        return (first,)
    if pattern is None and any(" " in text for text in texts):
        return None  # prose, whose words in common say nothing
    subject = is_dotted(protocol, key.removeprefix("p."))
    addresses = [words_of(text, subject=subject) for text in texts]
    if any(each.delimiters != addresses[0].delimiters for each in addresses):
        return None
    pieces = _compared(addresses, pattern)
    few = pattern is None and pieces is not None and not any(isinstance(piece, Gap) for piece in pieces)
    return None if few else pieces


def _is_literal(key: str, text: str, records: int, *, address: bool) -> bool:
    if not text or len(text) > MOST_LITERAL or is_unsafe(text):
        return False
    if key in _ALWAYS_LITERAL or records >= FEW:
        return True
    return not any(map(looks_like_id, words_of(text).words)) and (address or records >= ENOUGH)


def _compared(addresses: list[Words], pattern: Pattern | None) -> tuple[str | Gap, ...] | None:
    """Compare word by word; None when a gap could be empty, which no placeholder is."""
    pieces: list[str | Gap] = []
    before = ""
    for place, words in enumerate(zip(*(each.words for each in addresses), strict=True)):
        if place:
            pieces.append(addresses[0].delimiters[place - 1])
        word = words[0]
        varies = any(each != word for each in words)
        gap_wanted = pattern[place] is None if pattern is not None and place < len(pattern) else False
        if (
            not varies
            and not is_unsafe(word)
            and not (_instance(word, len(words)) or (gap_wanted and len(words) < FEW))
        ):
            pieces.append(word)
            before = word or before
        elif all(words):
            pieces.append(Gap(words, before, varies))
            before = ""
        else:
            return None
    if any(isinstance(piece, str) and ("{" in piece or "}" in piece) for piece in pieces):
        return None
    return _condensed(pieces)


def _instance(word: str, records: int) -> bool:
    return records < FEW and looks_like_id(word)


def _condensed(pieces: list[str | Gap]) -> tuple[str | Gap, ...]:
    """Join literal texts that stand side by side."""
    joined: list[str | Gap] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if isinstance(piece, str) and isinstance(last, str):
            joined[-1] = last + piece
        elif piece != "":
            joined.append(piece)
    return tuple(joined)
