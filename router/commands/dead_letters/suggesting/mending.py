"""Trying drafts and changing what the trial shows: what lint warns of, what ties, what misses its own records."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from catalog.model import Catalog
from catalog.parsing.pointers import steps_of
from catalog.values import whole_number
from router.commands.dead_letters.suggesting.basis import FRAGMENT, Basis
from router.commands.dead_letters.suggesting.bundles import Bundle, joined
from router.commands.dead_letters.suggesting.drafts import Draft
from router.commands.dead_letters.suggesting.fragment import PlacedDraft, attachments, fragment_of, placed
from router.commands.dead_letters.suggesting.placement import Placement
from router.commands.dead_letters.suggesting.verification import DraftTrial, tried

UNMATCHED: Final = "that other drafts are for, or none can be"
AIMLESS: Final = "that have nothing in common to be recognised by"
_ROUNDS: Final = 12
_GOOD: Final = 0.95
_PROPERTIES: Final = ("envelopemetadata", "protocoloptions")


@dataclass(frozen=True, slots=True)
class Attempt:
    """Drafts as they are placed, the fragment they make, the catalog with it, and their trials in the same order.

    ``dropped`` are bundles that no draft is for in the end, each with why.
    """

    drafts: tuple[PlacedDraft, ...]
    fragment: Mapping[str, Any]
    catalog: Catalog
    trials: tuple[DraftTrial, ...]
    dropped: tuple[tuple[Bundle, str], ...] = ()


class Mender:
    """Makes drafts by *drafter*, puts them where *placements* says by endpoint and protocol, and corrects them."""

    def __init__(
        self,
        basis: Basis,
        placements: Mapping[tuple[str, str], Placement],
        drafter: Callable[[Bundle], Draft],
    ) -> None:
        self._basis = basis
        self._placements = placements
        self._drafter = drafter

    def mended(self, bundles: Sequence[Bundle]) -> Attempt:
        """Draft, try and correct until there is nothing more to correct, or it has gone on for too long."""
        dropped: list[tuple[Bundle, str]] = []
        attempt = self._attempt(bundles)
        for _ in range(_ROUNDS):
            changed = self._linted(attempt) or _untied(attempt) or _widened(attempt)
            if changed is None:
                useless = self._useless(attempt)
                if not any(useless):
                    break
                old = [each.draft.bundle for each in attempt.drafts]
                dropped += [(bundle, why) for bundle, why in zip(old, useless, strict=True) if why]
                changed = [bundle for bundle, why in zip(old, useless, strict=True) if not why]
            attempt = self._attempt(changed)
        return replace(attempt, dropped=tuple(dropped))

    def _attempt(self, bundles: Sequence[Bundle]) -> Attempt:
        there = placed([self._drafter(bundle) for bundle in bundles], self._placements, self._basis)
        fragment = fragment_of(there)
        catalog = self._basis.beside(fragment, attachments(each.placement for each in there))
        return Attempt(tuple(there), fragment, catalog, tuple(tried(there, catalog)))

    def _linted(self, attempt: Attempt) -> list[Bundle] | None:
        """Bar properties that lint warns of; None when there are none."""
        doubtful: dict[str, set[str]] = {}
        for each in self._basis.news(attempt.catalog):
            steps = ["", *steps_of(each.pointer)]
            if each.file == FRAGMENT and len(steps) > 6 and steps[1] == "messagegroups" and steps[5] in _PROPERTIES:
                xid = f"/messagegroups/{steps[2]}/messages/{steps[4]}"
                doubtful.setdefault(xid, set()).add(_key(attempt.fragment, steps))
        return _barred(attempt, [frozenset(doubtful.get(each.xid, ())) for each in attempt.drafts])

    def _useless(self, attempt: Attempt) -> list[str]:
        """Return for each draft why it is better left out; empty when it is not.

        One that asks for nothing would take whatever comes later, so it has to be all that there is on its channel.
        """
        channels = Counter(each.placement.endpoint for each in attempt.drafts)
        why: list[str] = []
        for each, trial in zip(attempt.drafts, attempt.trials, strict=True):
            known = self._basis.catalog.endpoints.get(each.placement.endpoint)
            alone = (
                channels[each.placement.endpoint] == 1 and each.placement.endpoint and not (known and known.candidates)
            )
            asks = any(asked.value is not None for asked in each.draft.asked)
            why.append(UNMATCHED if not trial.own else "" if asks or alone else AIMLESS)
        return why


def _barred(attempt: Attempt, keys: Sequence[frozenset[str]]) -> list[Bundle] | None:
    """Return the bundles with *keys* barred, None when they are so already."""
    old = [each.draft.bundle for each in attempt.drafts]
    new = [replace(bundle, barred=bundle.barred | some) for bundle, some in zip(old, keys, strict=True)]
    return None if all(one.barred == other.barred for one, other in zip(old, new, strict=True)) else new


def _key(fragment: Mapping[str, Any], steps: Sequence[str]) -> str:
    """Return the key of the property that a finding points to; entries of lists are named in them."""
    if steps[5] == "envelopemetadata":
        return f"e.{steps[6]}"
    holder = fragment["messagegroups"][steps[2]]["messages"][steps[4]]["protocoloptions"].get(steps[6])
    if isinstance(holder, list) and len(steps) > 7 and whole_number(steps[7]) is not None:
        return f"p.{steps[6]}.{holder[int(steps[7])]['name']}"
    nested = isinstance(holder, Mapping) and len(steps) > 7 and isinstance(holder.get(steps[7]), Mapping)
    return f"p.{steps[6]}.{steps[7]}" if nested else f"p.{steps[6]}"


def _untied(attempt: Attempt) -> list[Bundle] | None:
    """Distinguish, or else join, drafts that match the same records equally well; None when there are none."""
    tied: dict[int, list[Bundle]] = {}
    for number, owner in enumerate(_owners(attempt)):
        tied.setdefault(owner, []).append(attempt.drafts[number].draft.bundle)
    if len(tied) == len(attempt.drafts):
        return None
    return [each for bundles in tied.values() for each in (_apart(bundles) if len(bundles) > 1 else bundles)]


def _owners(attempt: Attempt) -> list[int]:
    """Return for each draft the first one that it is tied with, over any number of others; itself when with none."""
    numbers = {each.xid: number for number, each in enumerate(attempt.drafts)}
    owners = list(range(len(attempt.drafts)))
    for trial in attempt.trials:
        for tie in trial.tied:
            among = [numbers[xid] for xid in tie if xid in numbers]
            for one, other in itertools.pairwise(among):
                if attempt.drafts[one].draft.bundle.channel == attempt.drafts[other].draft.bundle.channel:
                    lower, upper = sorted((owners[one], owners[other]))
                    owners = [lower if each == upper else each for each in owners]
    return owners


def _apart(bundles: list[Bundle]) -> list[Bundle]:
    """Pin what distinguishes the bundles, if there is such a thing and it was not tried already; else join them."""
    medias = {each.shape.media for each in bundles}
    if len(medias) < len(bundles) or bundles[0].shape.event or any(each.pinned for each in bundles):
        return [joined(bundles)]
    pinned = [
        replace(each, pinned=bool(each.shape.media) and all(one.typed and one.content_key for one in each.records))
        for each in bundles
    ]
    return pinned if any(each.pinned for each in pinned) else [joined(bundles)]


def _widened(attempt: Attempt) -> list[Bundle] | None:
    """Ask no more than address, type and method of drafts that miss their own records; None when all is well."""
    keys: list[frozenset[str]] = []
    for each, trial in zip(attempt.drafts, attempt.trials, strict=True):
        bundle = each.draft.bundle
        kept = {bundle.records[0].address, "e.type", "p.method", *(key for key, _ in bundle.pins)}
        missed = trial.failed.total() > (1 - _GOOD) * trial.tried
        keys.append(frozenset(asked.key for asked in each.draft.asked if missed and asked.key not in kept))
    return _barred(attempt, keys)
