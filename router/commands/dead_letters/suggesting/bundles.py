"""From samples to bundles: the records that one draft is for, distinguished by address, names or a single value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalog.protocols.properties import is_dotted
from router.commands.dead_letters.suggesting.bodies import commonest, labels_of, numbered, purity
from router.commands.dead_letters.suggesting.clusters import Pattern, clusters_of
from router.commands.dead_letters.suggesting.sampling import RecordShape, Reservoir
from router.commands.dead_letters.suggesting.traits import Traits
from router.commands.dead_letters.suggesting.words import looks_like_id, words_of

_MOST_VALUES: Final = 20
_FEW_VALUES: Final = 5
_ENOUGH: Final = 20
_EACH: Final = 3
_PURE: Final = 0.95
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
    """Tell whether groups of labels differ by label, and are pure."""
    return len({commonest(labels) for labels in groups}) > 1 and purity(groups) >= _PURE


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
    """Tell whether values can stand for kinds: few, none missing, each seen some times.

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
