"""Split samples into bundles, each with the records of one draft, by address, property names or one value."""

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
    find_commonest,
    is_unsafe,
    label_bodies,
    looks_like_id,
    measure_purity,
    number_looks,
    split_words,
)

# Clusters of addresses with the same structure: which words are literal, and which vary between instances.
#
# Words that look like ids are gaps from the start. The other words split the addresses like a tree, beginning with the
# column with the fewest words; branches that differ only in that column are joined again, with a gap. So a thousand
# devices give one cluster, and three kinds of messages of a thousand devices each give three.

MAX_WORDS: Final = 20
"""Maximum different words of a column that names kinds; if there are more, they are instances."""
FEW_WORDS: Final = 5
_MANY_RECORDS: Final = 20
_MIN_ROWS_EACH: Final = 3
_MIN_PURITY: Final = 0.9
Pattern = tuple[str | None, ...]
"""Words of an address; None is a gap."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Addresses of one kind: their pattern, and the numbers of their rows."""

    pattern: Pattern
    rows: tuple[int, ...]


def cluster_rows(rows: Sequence[Sequence[str]], labels: Sequence[int]) -> list[Cluster]:
    """Cluster rows of words, all equally long; *labels* has the kind of each row's body.

    Every row is in exactly one cluster; all patterns differ. The result is sorted by pattern.
    """
    masked: list[Pattern] = [
        tuple(None if looks_like_id(word) or is_unsafe(word) else word for word in row) for row in rows
    ]
    clusters = _split_by_column(list(range(len(rows))), masked, labels)
    return sorted(_join_equal_patterns(clusters), key=lambda cluster: tuple(word or "" for word in cluster.pattern))


def _split_by_column(rows: list[int], masked: list[Pattern], labels: Sequence[int]) -> list[Cluster]:
    words = [{masked[row][column] for row in rows} for column in range(len(masked[rows[0]]))] if rows else []
    varying = [column for column, distinct in enumerate(words) if len(distinct) > 1]
    if not varying:
        return [Cluster(masked[rows[0]], tuple(rows))] if rows else []
    for column in varying:
        if "" in words[column]:  # no gap is ever empty, so these are of another kind
            halves = [[row for row in rows if (masked[row][column] == "") is empty] for empty in (True, False)]
            return [cluster for half in halves for cluster in _split_by_column(half, masked, labels)]
    column = min(varying, key=lambda each: (len(words[each]), each))
    if len(words[column]) > MAX_WORDS:
        pattern = tuple(None if place in varying else word for place, word in enumerate(masked[rows[0]]))
        return [Cluster(pattern, tuple(rows))]
    branches: dict[str | None, list[int]] = {}
    for row in rows:
        branches.setdefault(masked[row][column], []).append(row)
    leaves = [leaf for branch in branches.values() for leaf in _split_by_column(branch, masked, labels)]
    families: dict[Pattern, list[Cluster]] = {}
    for leaf in leaves:
        families.setdefault((*leaf.pattern[:column], *leaf.pattern[column + 1 :]), []).append(leaf)
    last = column == max(place for place in range(len(words)) if words[place] != {""})
    return [each for family in families.values() for each in _join_family(family, column, labels, last=last)]


def _join_family(family: list[Cluster], column: int, labels: Sequence[int], *, last: bool) -> Iterator[Cluster]:
    """Yield the clusters of a family that differs in *column* only, joined if that column does not name kinds."""
    if len(family) == 1:
        yield family[0]
        return
    records = sum(len(each.rows) for each in family)
    label_lists = [[labels[row] for row in each.rows] for each in family]
    kinds: dict[int, list[Cluster]] = {}
    for each, of_each in zip(family, label_lists, strict=True):
        kinds.setdefault(find_commonest(of_each), []).append(each)
    sparse = len(family) >= FEW_WORDS and records < _MIN_ROWS_EACH * len(family)
    named = all(each.pattern[column] is not None for each in family)
    if sparse or len(kinds) == 1 or measure_purity(label_lists) < _MIN_PURITY:
        few_of_many = last and named and len(family) <= FEW_WORDS and records >= _MANY_RECORDS * len(family)
        yield from family if few_of_many else [_replace_by_gap(family, column)]
        return
    plural = [members for members in kinds.values() if len(members) > 1]
    if len(family) <= FEW_WORDS or len(plural) != 1:
        # Two kinds of which each has several words cannot both be a gap: both would match the same addresses.
        instances = len(plural) > 1 and not last and len(family) > FEW_WORDS
        yield from [_replace_by_gap(family, column)] if instances else family
        return
    for members in kinds.values():
        yield from [_replace_by_gap(members, column)] if len(members) > FEW_WORDS else members


def _replace_by_gap(members: list[Cluster], column: int) -> Cluster:
    first = members[0].pattern
    rows = sorted(row for each in members for row in each.rows)
    return Cluster((*first[:column], None, *first[column + 1 :]), tuple(rows))


def _join_equal_patterns(clusters: list[Cluster]) -> Iterator[Cluster]:
    """Join clusters with the same pattern."""
    by_pattern: dict[Pattern, list[int]] = {}
    for each in clusters:
        by_pattern.setdefault(each.pattern, []).extend(each.rows)
    for pattern, rows in by_pattern.items():
        yield Cluster(pattern, tuple(sorted(rows)))


_MOST_VALUES: Final = 20
_FEW_VALUES: Final = 5
_MIN_RECORDS: Final = 20
_MIN_RECORDS_EACH: Final = 3
_MIN_PURITY_OF_SPLIT: Final = 0.95
_MAX_SPLITS: Final = 2
_WHOLE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Bundle:
    """The records of one draft. ``pattern`` has the words of their address; None if the address is irrelevant.

    ``pins`` are properties whose literal value distinguishes the bundle from others, by key. ``share`` is the number of
    dead letters per record of the sample. With ``pinned`` the draft also requires what it would otherwise leave out:
    the native content type of native records, the address of events. Keys in ``barred`` are never required.
    """

    shape: RecordShape
    records: tuple[Traits, ...]
    pattern: Pattern | None = None
    pins: tuple[tuple[str, str], ...] = ()
    share: float = _WHOLE
    pinned: bool = False
    barred: frozenset[str] = frozenset()

    @property
    def letter_count(self) -> int:
        """The approximate number of dead letters of the bundle."""
        return round(len(self.records) * self.share)

    @property
    def channel(self) -> tuple[str, str, bool]:
        """The endpoint, protocol and kind of records; only drafts that share them can match the same records."""
        return self.shape.endpoint, self.shape.protocol, self.shape.event


def split_into_bundles(shape: RecordShape, sample: Reservoir) -> list[Bundle]:
    """Split the sample of a shape into bundles; each record is in exactly one."""
    share = sample.seen_records / len(sample.sampled)
    whole = Bundle(shape, tuple(sample.sampled), share=share)
    bundles: list[Bundle] = []
    for by_address in _split_by_address(whole):
        for by_names in _split_by_names(by_address):
            bundles.extend(_split_by_value(by_names, _MAX_SPLITS))
    return bundles


def join_bundles(bundles: Sequence[Bundle]) -> Bundle:
    """Join bundles that cannot be distinguished; the pattern has a gap wherever theirs differ."""
    first = bundles[0]
    patterns = [each.pattern for each in bundles]
    records = tuple(record for each in bundles for record in each.records)
    seen = sum(each.letter_count for each in bundles)
    common = set(first.pins).intersection(*(each.pins for each in bundles))
    return replace(
        first,
        shape=first.shape if len({each.shape.media for each in bundles}) == 1 else first.shape._replace(media=""),
        records=records,
        pattern=_common_pattern(patterns),
        pins=tuple(pin for pin in first.pins if pin in common),
        share=seen / len(records),
        pinned=False,
        barred=frozenset().union(*(each.barred for each in bundles)),
    )


def _common_pattern(patterns: Sequence[Pattern | None]) -> Pattern | None:
    whole = [pattern for pattern in patterns if pattern is not None]
    if len(whole) < len(patterns) or len({len(pattern) for pattern in whole}) > 1:
        return None
    return tuple(words[0] if len(set(words)) == 1 else None for words in zip(*whole, strict=True))


def _split_by_address(bundle: Bundle) -> Iterator[Bundle]:
    """Split by kind of address; events only if their bodies differ with it, since their type says the rest."""
    key = bundle.records[0].address
    texts = [each.properties.get(key) if key else None for each in bundle.records]
    if any(text is None for text in texts):
        yield bundle
        return
    labels = label_bodies(bundle.records)
    addresses = [split_words(text or "", subject=is_dotted(bundle.shape.protocol, key[2:])) for text in texts]
    structures: dict[tuple[str, ...], list[int]] = {}
    for row, words in enumerate(addresses):
        structures.setdefault(words.delimiters, []).append(row)
    clustered: list[tuple[Pattern, tuple[int, ...]]] = []
    for _, alike in sorted(structures.items()):
        clusters = cluster_rows([addresses[row].words for row in alike], [labels[row] for row in alike])
        clustered += [(each.pattern, tuple(alike[place] for place in each.rows)) for each in clusters]
    if bundle.shape.event and not _is_separating([[labels[row] for row in rows] for _, rows in clustered]):
        yield bundle
        return
    for pattern, rows in clustered:
        records = tuple(bundle.records[row] for row in rows)
        yield replace(bundle, records=records, pattern=pattern, pinned=bundle.shape.event)


def _is_separating(groups: Sequence[Sequence[int]]) -> bool:
    """Whether each group of labels has mostly one label, and not all groups the same."""
    return len({find_commonest(labels) for labels in groups}) > 1 and measure_purity(groups) >= _MIN_PURITY_OF_SPLIT


def _split_by_names(bundle: Bundle) -> Iterator[Bundle]:
    """Split native records whose property names have little in common; events are distinguished by type."""
    if bundle.shape.event:
        yield bundle
        return
    names = [frozenset(each.properties) - {each.address} for each in bundle.records]
    counted = sorted(Counter(names).items(), key=lambda item: (-item[1], sorted(item[0])))
    numbers = number_looks([each for each, _ in counted])
    parts: dict[int, list[Traits]] = {}
    for record, named in zip(bundle.records, names, strict=True):
        parts.setdefault(numbers[named], []).append(record)
    for _, records in sorted(parts.items()):
        yield replace(bundle, records=tuple(records))


def _split_by_value(bundle: Bundle, depth: int) -> Iterator[Bundle]:
    """Split by the property whose few values correlate with different bodies, if there is one."""
    key = _find_separating_key(bundle) if depth and len(bundle.records) >= _MIN_RECORDS else None
    if key is None:
        yield bundle
        return
    parts: dict[str, list[Traits]] = {}
    for each in bundle.records:
        parts.setdefault(each.properties[key] or "", []).append(each)
    for value, records in sorted(parts.items()):
        part = replace(bundle, records=tuple(records), pins=(*bundle.pins, (key, value)))
        yield from _split_by_value(part, depth - 1)


def _find_separating_key(bundle: Bundle) -> str | None:
    """Return the key of the property whose values separate bodies best; None if there is none."""
    labels = label_bodies(bundle.records)
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
        if _can_be_kinds(groups) and _is_separating(list(groups.values())):
            ranked.append((-len({find_commonest(members) for members in groups.values()}), len(groups), key))
    return min(ranked)[2] if ranked else None


def _can_be_kinds(groups: dict[str | None, list[int]]) -> bool:
    """Whether values can be kinds: they are few, none is missing, and each occurs several times.

    Values that look like ids may be version numbers if there are very few.
    """
    if len(groups) > _MOST_VALUES:
        return False
    few_of_many = len(groups) <= _FEW_VALUES
    return all(
        bool(value)
        and value is not None
        and "{" not in value
        and len(members) >= (_MIN_RECORDS if few_of_many and looks_like_id(value) else _MIN_RECORDS_EACH)
        and (few_of_many or not looks_like_id(value))
        for value, members in groups.items()
    )


# One property of all records of a bundle: the structure that its values share, word by word.

MIN_LITERAL_RECORDS: Final = 20
"""Minimum records for a word that looks like an id to become a literal."""
MIN_FIXED_RECORDS: Final = 5
"""Minimum records for a constant value to be required, outside of addresses."""
MAX_LITERAL: Final = 128
_FLAGS: Final = frozenset({"true", "false"})
_ALWAYS_LITERAL: Final = frozenset({"e.type", "e.dataschema", "p.method", "p.topic", "p.status"})


@dataclass(frozen=True, slots=True)
class Gap:
    """A word that varies or may vary: its value in each record, and the literal word before it."""

    values: tuple[str, ...]
    before: str
    varies: bool


@dataclass(frozen=True, slots=True)
class Column:
    """One property. ``pieces`` are literal texts and gaps in order; None if the values share no structure.

    ``always`` is True when every record has the property, ``share`` is how many of them do; ``askable`` is False when a
    value is no text, ``identity`` True when all look like ids.
    """

    key: str
    is_in_all: bool
    is_text: bool
    pieces: tuple[str | Gap, ...] | None = None
    share: float = 1.0
    is_id: bool = False

    @property
    def literal(self) -> str | None:
        """The value if it is constant and has no gap, else None."""
        if self.pieces is None or any(isinstance(piece, Gap) for piece in self.pieces):
            return None
        return "".join(piece for piece in self.pieces if isinstance(piece, str))

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The gaps, in order."""
        return tuple(piece for piece in self.pieces or () if isinstance(piece, Gap))

    @property
    def has_literal_word(self) -> bool:
        """Whether a literal part of the value has a letter or digit."""
        literals = [piece for piece in self.pieces or () if isinstance(piece, str)]
        return any(character.isalnum() for piece in literals for character in piece)


def analyze_property(
    key: str,
    texts: Sequence[str | None],
    missing: int,
    protocol: str,
    *,
    pattern: Pattern | None = None,
    pinned: bool = False,
) -> Column:
    """Analyze one property; *texts* are its values in records that have it, *missing* counts the other records.

    *pattern* has the words of the address if the property is the address. A *pinned* property has one value.
    """
    records = len(texts) + missing
    share = len(texts) / records
    present = [text for text in texts if text is not None]
    if len(present) < len(texts):
        return Column(key, not missing, False, share=share)
    identity = all(map(looks_like_id, present))
    if missing:
        return Column(key, False, True, share=share, is_id=identity)
    pieces = (present[0],) if pinned else _find_pieces(key, present, protocol, pattern)
    return Column(key, True, True, pieces, is_id=identity)


def _find_pieces(key: str, texts: list[str], protocol: str, pattern: Pattern | None) -> tuple[str | Gap, ...] | None:
    first = texts[0]
    same = all(text == first for text in texts)
    if pattern is None and same and first.lower() in _FLAGS:
        return None  # a flag: the other value may occur later
    if same and _is_literal(key, first, len(texts), address=pattern is not None):
        return (first,)
    if pattern is None and any(" " in text for text in texts):
        return None  # prose, whose common words are irrelevant
    subject = is_dotted(protocol, key.removeprefix("p."))
    addresses = [split_words(text, subject=subject) for text in texts]
    if any(each.delimiters != addresses[0].delimiters for each in addresses):
        return None
    pieces = _compare_words(addresses, pattern)
    few = pattern is None and pieces is not None and not any(isinstance(piece, Gap) for piece in pieces)
    return None if few else pieces


def _is_literal(key: str, text: str, records: int, *, address: bool) -> bool:
    if not text or len(text) > MAX_LITERAL or is_unsafe(text):
        return False
    if key in _ALWAYS_LITERAL or records >= MIN_LITERAL_RECORDS:
        return True
    return not any(map(looks_like_id, split_words(text).words)) and (address or records >= MIN_FIXED_RECORDS)


def _compare_words(addresses: list[Words], pattern: Pattern | None) -> tuple[str | Gap, ...] | None:
    """Compare values word by word; return None if a gap may be empty, since placeholders never are."""
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
            and not (len(words) < MIN_LITERAL_RECORDS and (gap_wanted or looks_like_id(word)))
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
    return _merge_literals(pieces)


def _merge_literals(pieces: list[str | Gap]) -> tuple[str | Gap, ...]:
    """Merge adjacent literal texts."""
    joined: list[str | Gap] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if isinstance(piece, str) and isinstance(last, str):
            joined[-1] = last + piece
        elif piece != "":
            joined.append(piece)
    return tuple(joined)
