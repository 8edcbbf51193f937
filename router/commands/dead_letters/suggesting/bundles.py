"""From samples to bundles: the records that one draft is for, distinguished by address, names or a single value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalog.protocols.properties import is_dotted
from router.commands.dead_letters.suggesting.sampling import (
    RecordShape,
    Reservoir,
    Traits,
    Words,
    commonest,
    is_unsafe,
    labels_of,
    looks_like_id,
    numbered,
    purity,
    words_of,
)

# Addresses of one structure, grouped into kinds: which words are literal and which stand for one instance or other.
#
# Words that look like ids are gaps from the start. The rest parts the addresses like a tree, by the column with the
# fewest words first; branches that turn out to differ in nothing but that column are joined again, as a gap. So a
# thousand devices give one kind, and three kinds of messages of a thousand devices each give three.

MOST_WORDS: Final = 20
"""Words of one column that can be kinds; more are instances."""
FEW_WORDS: Final = 5
_MANY: Final = 20
_SPARSE: Final = 3
_PURE: Final = 0.9
Pattern = tuple[str | None, ...]
"""Words of an address; None stands for a gap."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Addresses of one kind: their pattern, and the numbers of the rows that are of it."""

    pattern: Pattern
    rows: tuple[int, ...]


def clusters_of(rows: Sequence[Sequence[str]], labels: Sequence[int]) -> list[Cluster]:
    """Group rows of words, all equally long; *labels* are the kinds of their bodies, one a row.

    Every row is in exactly one cluster; no two clusters have one pattern. In order of the patterns.
    """
    masked: list[Pattern] = [
        tuple(None if looks_like_id(word) or is_unsafe(word) else word for word in row) for row in rows
    ]
    clusters = _parted(list(range(len(rows))), masked, labels)
    return sorted(_united(clusters), key=lambda cluster: tuple(word or "" for word in cluster.pattern))


def _parted(rows: list[int], masked: list[Pattern], labels: Sequence[int]) -> list[Cluster]:
    words = [{masked[row][column] for row in rows} for column in range(len(masked[rows[0]]))] if rows else []
    varying = [column for column, distinct in enumerate(words) if len(distinct) > 1]
    if not varying:
        return [Cluster(masked[rows[0]], tuple(rows))] if rows else []
    for column in varying:
        if "" in words[column]:  # no gap is ever empty, so these are of another kind
            halves = [[row for row in rows if (masked[row][column] == "") is empty] for empty in (True, False)]
            return [cluster for half in halves for cluster in _parted(half, masked, labels)]
    column = min(varying, key=lambda each: (len(words[each]), each))
    if len(words[column]) > MOST_WORDS:
        pattern = tuple(None if place in varying else word for place, word in enumerate(masked[rows[0]]))
        return [Cluster(pattern, tuple(rows))]
    branches: dict[str | None, list[int]] = {}
    for row in rows:
        branches.setdefault(masked[row][column], []).append(row)
    leaves = [leaf for branch in branches.values() for leaf in _parted(branch, masked, labels)]
    families: dict[Pattern, list[Cluster]] = {}
    for leaf in leaves:
        families.setdefault((*leaf.pattern[:column], *leaf.pattern[column + 1 :]), []).append(leaf)
    last = column == max(place for place in range(len(words)) if words[place] != {""})
    return [each for family in families.values() for each in _joined(family, column, labels, last=last)]


def _joined(family: list[Cluster], column: int, labels: Sequence[int], *, last: bool) -> Iterator[Cluster]:
    """Give the clusters of a family whose members differ in *column* only, joined where that column is no kind."""
    if len(family) == 1:
        yield family[0]
        return
    records = sum(len(each.rows) for each in family)
    label_lists = [[labels[row] for row in each.rows] for each in family]
    kinds: dict[int, list[Cluster]] = {}
    for each, of_each in zip(family, label_lists, strict=True):
        kinds.setdefault(commonest(of_each), []).append(each)
    sparse = len(family) >= FEW_WORDS and records < _SPARSE * len(family)
    named = all(each.pattern[column] is not None for each in family)
    if sparse or len(kinds) == 1 or purity(label_lists) < _PURE:
        few_of_many = last and named and len(family) <= FEW_WORDS and records >= _MANY * len(family)
        yield from family if few_of_many else [_gap(family, column)]
        return
    plural = [members for members in kinds.values() if len(members) > 1]
    if len(family) <= FEW_WORDS or len(plural) != 1:
        # Two kinds of which each has several words cannot both be a gap: both would match the same addresses.
        instances = len(plural) > 1 and not last and len(family) > FEW_WORDS
        yield from [_gap(family, column)] if instances else family
        return
    for members in kinds.values():
        yield from [_gap(members, column)] if len(members) > FEW_WORDS else members


def _gap(members: list[Cluster], column: int) -> Cluster:
    first = members[0].pattern
    rows = sorted(row for each in members for row in each.rows)
    return Cluster((*first[:column], None, *first[column + 1 :]), tuple(rows))


def _united(clusters: list[Cluster]) -> Iterator[Cluster]:
    """Join clusters that came to have one pattern."""
    by_pattern: dict[Pattern, list[int]] = {}
    for each in clusters:
        by_pattern.setdefault(each.pattern, []).extend(each.rows)
    for pattern, rows in by_pattern.items():
        yield Cluster(pattern, tuple(sorted(rows)))


_MOST_VALUES: Final = 20
_FEW_VALUES: Final = 5
_ENOUGH: Final = 20
_EACH: Final = 3
_PURE_SHARE: Final = 0.95
_DEPTH: Final = 2
_WHOLE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Bundle:
    """Records that one draft is for. ``pattern`` are the words of their address, None where it says nothing.

    ``pins`` are properties whose literal value distinguishes the bundle from others, by key. ``share`` is how many
    letters each record of the sample stands for. With ``pinned`` the draft asks for what it would otherwise leave out:
    of native records the content type as the protocol has it, of events the address. Keys in ``barred`` are not asked
    for.
    """

    shape: RecordShape
    records: tuple[Traits, ...]
    pattern: Pattern | None = None
    pins: tuple[tuple[str, str], ...] = ()
    share: float = _WHOLE
    pinned: bool = False
    barred: frozenset[str] = frozenset()

    @property
    def seen(self) -> int:
        """About how many letters the bundle stands for."""
        return round(len(self.records) * self.share)

    @property
    def channel(self) -> tuple[str, str, bool]:
        """What two bundles must share for their drafts to match the same records."""
        return self.shape.endpoint, self.shape.protocol, self.shape.event


def bundles_of(shape: RecordShape, sample: Reservoir) -> list[Bundle]:
    """Part the sample of a shape into bundles; each record is in exactly one."""
    share = sample.seen / len(sample.kept)
    whole = Bundle(shape, tuple(sample.kept), share=share)
    bundles: list[Bundle] = []
    for by_address in _by_address(whole):
        for by_names in _by_names(by_address):
            bundles.extend(_by_value(by_names, _DEPTH))
    return bundles


def joined(bundles: Sequence[Bundle]) -> Bundle:
    """Return one bundle of several that cannot be distinguished; their pattern has a gap wherever they differ."""
    first = bundles[0]
    patterns = [each.pattern for each in bundles]
    records = tuple(record for each in bundles for record in each.records)
    seen = sum(each.seen for each in bundles)
    common = set(first.pins).intersection(*(each.pins for each in bundles))
    return replace(
        first,
        shape=first.shape if len({each.shape.media for each in bundles}) == 1 else first.shape._replace(media=""),
        records=records,
        pattern=_common(patterns),
        pins=tuple(pin for pin in first.pins if pin in common),
        share=seen / len(records),
        pinned=False,
        barred=frozenset().union(*(each.barred for each in bundles)),
    )


def _common(patterns: Sequence[Pattern | None]) -> Pattern | None:
    whole = [pattern for pattern in patterns if pattern is not None]
    if len(whole) < len(patterns) or len({len(pattern) for pattern in whole}) > 1:
        return None
    return tuple(words[0] if len(set(words)) == 1 else None for words in zip(*whole, strict=True))


def _by_address(bundle: Bundle) -> Iterator[Bundle]:
    """Part by the kind of address; events only where their bodies go with it, since their type says the rest."""
    key = bundle.records[0].address
    texts = [each.properties.get(key) if key else None for each in bundle.records]
    if any(text is None for text in texts):
        yield bundle
        return
    labels = labels_of(bundle.records)
    addresses = [words_of(text or "", subject=is_dotted(bundle.shape.protocol, key[2:])) for text in texts]
    structures: dict[tuple[str, ...], list[int]] = {}
    for row, words in enumerate(addresses):
        structures.setdefault(words.delimiters, []).append(row)
    clustered: list[tuple[Pattern, tuple[int, ...]]] = []
    for _, alike in sorted(structures.items()):
        clusters = clusters_of([addresses[row].words for row in alike], [labels[row] for row in alike])
        clustered += [(each.pattern, tuple(alike[place] for place in each.rows)) for each in clusters]
    if bundle.shape.event and not _separates([[labels[row] for row in rows] for _, rows in clustered]):
        yield bundle
        return
    for pattern, rows in clustered:
        records = tuple(bundle.records[row] for row in rows)
        yield replace(bundle, records=records, pattern=pattern, pinned=bundle.shape.event)


def _separates(groups: Sequence[Sequence[int]]) -> bool:
    """Whether groups of labels differ by label, and are pure."""
    return len({commonest(labels) for labels in groups}) > 1 and purity(groups) >= _PURE_SHARE


def _by_names(bundle: Bundle) -> Iterator[Bundle]:
    """Part native records whose properties have little in common; of events the type says what they are."""
    if bundle.shape.event:
        yield bundle
        return
    names = [frozenset(each.properties) - {each.address} for each in bundle.records]
    counted = sorted(Counter(names).items(), key=lambda item: (-item[1], sorted(item[0])))
    numbers = numbered([each for each, _ in counted])
    parts: dict[int, list[Traits]] = {}
    for record, named in zip(bundle.records, names, strict=True):
        parts.setdefault(numbers[named], []).append(record)
    for _, records in sorted(parts.items()):
        yield replace(bundle, records=tuple(records))


def _by_value(bundle: Bundle, depth: int) -> Iterator[Bundle]:
    """Part by the property whose few values go with different bodies; not at all when there is none."""
    key = _telling(bundle) if depth and len(bundle.records) >= _ENOUGH else None
    if key is None:
        yield bundle
        return
    parts: dict[str, list[Traits]] = {}
    for each in bundle.records:
        parts.setdefault(each.properties[key] or "", []).append(each)
    for value, records in sorted(parts.items()):
        part = replace(bundle, records=tuple(records), pins=(*bundle.pins, (key, value)))
        yield from _by_value(part, depth - 1)


def _telling(bundle: Bundle) -> str | None:
    """Return the key of the property whose values separate bodies best; None when none does."""
    labels = labels_of(bundle.records)
    if len(set(labels)) == 1:
        return None
    ranked: list[tuple[int, int, str]] = []
    for key in sorted(bundle.records[0].properties):
        if key == bundle.records[0].address:
            continue
        groups: dict[str | None, list[int]] = {}
        for each, label in zip(bundle.records, labels, strict=True):
            groups.setdefault(each.properties.get(key), []).append(label)
            if len(groups) > _MOST_VALUES:
                break
        if _are_kinds(groups) and _separates(list(groups.values())):
            ranked.append((-len({commonest(members) for members in groups.values()}), len(groups), key))
    return min(ranked)[2] if ranked else None


def _are_kinds(groups: dict[str | None, list[int]]) -> bool:
    """Whether values can stand for kinds: few, none missing, each seen some times.

    What looks like an id may be a number of a version, if there are very few.
    """
    if len(groups) > _MOST_VALUES:
        return False
    few_of_many = len(groups) <= _FEW_VALUES
    return all(
        bool(value)
        and value is not None
        and "{" not in value
        and len(members) >= (_ENOUGH if few_of_many and looks_like_id(value) else _EACH)
        and (few_of_many or not looks_like_id(value))
        for value, members in groups.items()
    )


# One property over the records of a bundle: what all its values have in common, word by word.

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
