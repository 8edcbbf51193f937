"""From letters to drafts: sample, bundle, draft, try, and correct by what trials show; :func:`suggest` is the order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from catalog.model import Catalog
from catalog.record import Record
from router.commands.dead_letters.suggesting.basis import Basis
from router.commands.dead_letters.suggesting.bundles import Bundle, bundles_of
from router.commands.dead_letters.suggesting.drafts import draft_of
from router.commands.dead_letters.suggesting.fragment import PlacedDraft, attachments, fragment_of
from router.commands.dead_letters.suggesting.mending import Attempt, Mender
from router.commands.dead_letters.suggesting.placement import ENDPOINT, Placement, placement_of
from router.commands.dead_letters.suggesting.sampling import Sampler
from router.commands.dead_letters.suggesting.traits import Hides, never, traits_of
from router.commands.dead_letters.suggesting.verification import DraftTrial, losses
from router.commands.emit.producer import record_line
from router.matching.records import CHUNK, RecordMatcher

DRAFTABLE: Final = frozenset({"no-match", "no-candidates"})
LEAST: Final = 3
"""Letters that make a draft by default; fewer are strays."""


@dataclass(frozen=True, slots=True)
class Suggested:
    """One draft and what its trial showed.

    ``letters`` is about how many letters it stands for, ``tried`` how many of the sample were matched again and
    ``matched`` the share of those that became events. ``notes`` are for the reviewer.
    """

    xid: str
    letters: int
    tried: int
    matched: float
    address: str
    properties: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Suggestion:
    """All drafts, the fragment that holds them, and what there is to know.

    ``attached`` are groups, by endpoint, that the endpoint has to list before the drafts take effect; ``left_out``
    counts letters that no draft is for, by why. ``findings`` are the errors and warnings that lint has for the catalog
    with the fragment, and has not without it.
    """

    drafts: tuple[Suggested, ...]
    fragment: Mapping[str, Any]
    attached: Mapping[str, Sequence[str]] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def suggest(
    records: Iterable[Record],
    basis: Basis,
    *,
    group: str | None = None,
    least: int = LEAST,
    hides: Hides = never,
    sampler: Sampler | None = None,
) -> Suggestion:
    """Draft message definitions for *records* that no definition of the catalog matches; each is looked at once.

    Records that the catalog does match by now, or that are dead letters for another reason, are left out, and so are
    shapes with fewer than *least* letters. A draft shows no value of what *hides* names. The same records in the
    same order give the same suggestion.

    Raises:
        RouterError: *group* cannot take the drafts.
    """
    sample = sampler if sampler is not None else Sampler()
    _sampled(records, basis.catalog, sample, hides)
    left_out = Counter(sample.left_out)
    kept: list[Bundle] = []
    for bundle in _bundles(sample):
        if bundle.seen < least:
            left_out[f"of a shape with fewer than {least} letters"] += bundle.seen
        else:
            kept.append(bundle)
    channels = {(bundle.shape.endpoint, bundle.shape.protocol) for bundle in kept}
    placements = {channel: placement_of(*channel, basis, group) for channel in sorted(channels)}
    if not kept:
        return Suggestion((), fragment_of(()), left_out=dict(left_out))
    attempt = Mender(basis, placements, partial(draft_of, hides=hides)).mended(kept)
    for bundle, why in attempt.dropped:
        left_out[why] += bundle.seen
    return _suggestion(attempt, placements, basis, left_out)


def _bundles(sample: Sampler) -> Iterator[Bundle]:
    for shape, reservoir in sorted(sample.reservoirs.items(), key=lambda item: item[0]):
        yield from bundles_of(shape, reservoir)


def _sampled(records: Iterable[Record], catalog: Catalog, sample: Sampler, hides: Hides) -> None:
    """Take the records that are dead letters for want of a definition, and count the others."""
    matcher = RecordMatcher(catalog)
    numbers = {xid: number for number, channel in enumerate(matcher.matcher.channels) for xid in channel.endpoints}
    everything = len(matcher.matcher.channels) - 1
    stream = iter(records)
    while chunk := list(itertools.islice(stream, CHUNK)):
        outcomes = matcher.decide([record_line(record) for record in chunk])
        for record, outcome in zip(chunk, outcomes, strict=True):
            why = _why_not(record, outcome)
            if why:
                sample.left_out[why] += 1
                continue
            channel = numbers.get(record.endpoint, -1) if record.endpoint is not None else everything
            traits = traits_of(record, partial(matcher.matcher.sniffs, channel), hides)
            if isinstance(traits, str):
                sample.left_out[traits] += 1
            else:
                sample.add(traits)


def _why_not(record: Record, outcome: Mapping[str, Any]) -> str:
    if outcome["outcome"] == "routed":
        return "matched by the catalog as it is now"
    if outcome["outcome"] != "dead-letter":
        return "a batch of events"
    if outcome["reason"] not in DRAFTABLE:
        return f"dead letters as {outcome['reason']}"
    if record.endpoint is not None and not ENDPOINT.fullmatch(record.endpoint):
        return "of an endpoint that has no xid"
    return ""


def _suggestion(
    attempt: Attempt, placements: Mapping[tuple[str, str], Placement], basis: Basis, left_out: Counter[str]
) -> Suggestion:
    lost = losses(basis.catalog, attempt.catalog, sorted({endpoint for endpoint, _ in placements}))
    drafts = [
        Suggested(
            each.xid,
            each.draft.bundle.seen,
            trial.tried,
            trial.matched,
            each.draft.address,
            tuple(asked.key[2:] for asked in each.draft.asked),
            tuple(_notes(each, trial)),
        )
        for each, trial in zip(attempt.drafts, attempt.trials, strict=True)
    ]
    used = [each.placement for each in attempt.drafts]
    notes = [f"records of {xid} now go to {where}" for xid, where in sorted(lost.items())]
    for placement in dict.fromkeys(used):
        if placement.others:
            notes.append(f"{', '.join(placement.others)} lists {placement.group} too, and will expect these messages")
    findings = tuple(
        f"{each.severity} {each.rule} at {each.pointer}: {each.message}" for each in basis.news(attempt.catalog)
    )
    return Suggestion(tuple(drafts), attempt.fragment, attachments(used), dict(left_out), findings, tuple(notes))


def _notes(each: PlacedDraft, trial: DraftTrial) -> Iterator[str]:
    if not any(asked.value is not None for asked in each.draft.asked):
        yield "asks for no value: it takes all that comes, which is right for a channel of one kind of message"
    for xid, count in sorted(trial.other.items()):
        yield f"{count} of its records go to {xid}, which is more specific"
    for tie, count in sorted(trial.tied.items()):
        yield f"{count} of its records are ambiguous between {', '.join(tie)}"
    for reason, count in sorted(trial.failed.items()):
        yield f"{count} of its records are still dead letters: {reason}"
