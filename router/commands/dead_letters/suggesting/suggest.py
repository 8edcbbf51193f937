"""From letters to drafts: sample, bundle, draft, try, and correct by what trials show; :func:`suggest` is the order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from catalog.convert import json_text, yaml_text
from catalog.model import Catalog
from catalog.parsing.pointers import steps_of
from catalog.record import Record
from catalog.templates import tokens_of
from catalog.values import text_of, whole_number
from router.commands.arguments import require_absent, write_text
from router.commands.dead_letters.suggesting.bundles import Bundle, bundles_of, joined
from router.commands.dead_letters.suggesting.drafts import Draft, draft_of
from router.commands.dead_letters.suggesting.fragment import (
    ENDPOINT,
    FRAGMENT,
    Basis,
    PlacedDraft,
    Placement,
    attachments,
    fragment_of,
    placed,
    placement_of,
)
from router.commands.dead_letters.suggesting.sampling import Hides, Sampler, never, traits_of
from router.commands.emit.producer import EmitError, MessageProducer, record_line
from router.dead_letters.dead_letter import DeadLetter, printable
from router.dead_letters.reading import (
    Endpoints,
    Filter,
    Messages,
    Reasons,
    Since,
    Until,
    filter_of,
    read_letters,
    standing_of,
    with_entries,
)
from router.dead_letters.redaction import Redactor, SensitiveMarks, marks_of, marks_of_settings
from router.matching.records import CHUNK, RecordMatcher
from router.settings import Settings, load_settings
from router.settings.catalogs import fetcher_of
from router.state.ledger import LetterLedger
from router.terminal import print_row, print_text, terminal

# Trying drafts before anybody adds them: by the matcher of ``match`` and ``run``, on the catalog with them in it.

TRIED: Final = 2_000
"""Records of one draft that are tried."""
MOST_DEFINITIONS: Final = 300
_EQUAL: Final = "equally specific: "
_NOW: Final = "2026-01-02T03:04:05Z"


@dataclass(slots=True)
class DraftTrial:
    """What became of the records of one draft.

    ``own`` were matched by it, ``other`` by other drafts or definitions (by xid); ``tied`` counts sets of definitions
    that matched equally well, ``failed`` the reasons of the rest.
    """

    tried: int = 0
    own: int = 0
    other: Counter[str] = field(default_factory=Counter)
    tied: Counter[tuple[str, ...]] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def matched(self) -> float:
        """The share of records that some definition matched."""
        return (self.own + self.other.total()) / self.tried if self.tried else 0.0

    def count(self, outcome: dict[str, Any], xid: str) -> None:
        """Count one outcome, as ``match`` gives it."""
        self.tried += 1
        if outcome["outcome"] == "routed":
            if outcome["message"] == xid:
                self.own += 1
            else:
                self.other[outcome["message"]] += 1
        elif outcome["outcome"] == "dead-letter" and outcome["reason"] == "ambiguous":
            self.tied[tuple(sorted(outcome["detail"].removeprefix(_EQUAL).split(", ")))] += 1
        else:
            self.failed[outcome.get("reason", outcome["outcome"])] += 1


def tried(drafts: Sequence[PlacedDraft], catalog: Catalog) -> list[DraftTrial]:
    """Match the records of each draft against *catalog*, which has the drafts; the trials are in their order."""
    matcher = RecordMatcher(catalog)
    trials: list[DraftTrial] = []
    for each in drafts:
        trial = DraftTrial()
        lines = [record_line(traits.record) for traits in each.draft.bundle.records[:TRIED]]
        for start in range(0, len(lines), CHUNK):
            for outcome in matcher.decide(list(lines[start : start + CHUNK])):
                trial.count(outcome, each.xid)
        trials.append(trial)
    return trials


def losses(before: Catalog, after: Catalog, endpoints: Iterable[str]) -> dict[str, str]:
    """Return the definitions of these endpoints whose own records go elsewhere *after*, and where to.

    One record of each of the first :data:`MOST_DEFINITIONS` is made, as ``emit`` makes it, and matched in both.
    """
    lost: dict[str, str] = {}
    samples: list[tuple[str, bytes]] = []
    for endpoint in endpoints:
        known = before.endpoints.get(endpoint)
        for xid in known.candidates if known is not None else ():
            if len(samples) < MOST_DEFINITIONS:
                samples += [(xid, line) for line in _line(before, xid, endpoint)]
    lines: list[bytes | str] = [line for _, line in samples]
    was, becomes = RecordMatcher(before).decide(lines), RecordMatcher(after).decide(lines)
    for (xid, _), old, new in zip(samples, was, becomes, strict=True):
        if old.get("message") == xid and new.get("message") != xid:
            lost[xid] = new.get("message") or new.get("detail") or new["outcome"]
    return lost


def _line(catalog: Catalog, xid: str, endpoint: str) -> list[bytes]:
    """Return one record of a definition as a line; nothing for one that no record can be made of."""
    definition = catalog.definitions.get(xid)
    if definition is None:
        return []
    context: dict[str, str] = {}
    for prop in (*definition.envelopemetadata, *definition.protocoloptions):
        if prop.value is not None:
            context.update(dict.fromkeys(tokens_of(text_of(prop.value))[1::2], "7"))
    try:
        producer = MessageProducer(catalog, xid, endpoint=endpoint, context=context, seed=0, clock=lambda: _NOW)
        return [record_line(producer.record())]
    except EmitError:
        return []  # it cannot be produced as it stands, so there is nothing to compare


# Trying drafts and changing what the trial shows: what lint warns of, what ties, what misses its own records.

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


# ``xrouter dead-letters suggest``: message definitions drafted for dead letters that none matched.

_COLUMNS: Final = ("draft", "letters", "matched", "address or type", "properties")


class SuggestFormat(StrEnum):
    """What the document is written as."""

    yaml = "yaml"
    json = "json"


def suggest_definitions(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file.")],
    reason: Reasons = None,
    endpoint: Endpoints = None,
    message: Messages = None,
    since: Since = None,
    until: Until = None,
    sink: Annotated[
        list[str] | None, typer.Option("--sink", metavar="NAME", help="Only dead letters of this sink; repeatable.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Message group of the drafts; by default one of the endpoint.")
    ] = None,
    least: Annotated[int, typer.Option("--min", metavar="N", min=1, help="Minimum dead letters per draft.")] = LEAST,
    form: Annotated[
        SuggestFormat | None, typer.Option("--format", help="By default from the suffix of --output, else yaml.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Output file; standard output by default.")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Write the whole catalog including the drafts, as one document.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Draft message definitions for open dead letters that match none, as a fragment to add to the catalog.

    Each draft is tested with the router's matcher on its dead letters. Review drafts before use: literals and
    placeholders are inferred. Only the output file is written.

    Example: xrouter dead-letters suggest router.yaml --output draft.xreg.json
    """
    require_absent(output, force=force)
    settings = load_settings(config)
    reasons = reason or sorted(DRAFTABLE)
    selection = filter_of(
        reasons=reasons, endpoints=endpoint, messages=message, since=since, until=until, standings=("open",)
    )
    basis = Basis(settings.catalog.source, fetcher_of(settings))
    with LetterLedger.open(Path(settings.state), create=False) as ledger:
        records = _records(read_letters(settings, sinks=sink or ()), ledger, selection)
        suggestion = suggest(records, basis, group=group, least=least, hides=_hides(settings, basis))
    if suggestion.drafts:
        document = _merged(suggestion, basis) if merge else suggestion.fragment
        text = yaml_text(document) if _form(form, output) is SuggestFormat.yaml else json_text(document)
        write_text(text, output)
    _report(suggestion, settings, output, merge=merge)


def _merged(suggestion: Suggestion, basis: Basis) -> Mapping[str, Any]:
    document, left_out = basis.merged(suggestion.fragment, suggestion.attached)
    for xid in left_out:
        print_text(f"xrouter: warning: {xid} has an error and is left out", err=True)
    return document


def _records(letters: Iterable[DeadLetter], ledger: LetterLedger, selection: Filter) -> Iterator[Record]:
    for letter, entry in with_entries(letters, ledger):
        if selection.takes(letter, standing_of(entry)):
            yield letter.record()


def _hides(settings: Settings, basis: Basis) -> Hides:
    """Return a check for sensitive values: catalogs are published, and letters are not."""
    marks: SensitiveMarks = marks_of_settings(settings.dead_letters.redact) | marks_of(
        basis.declarations, basis.catalog
    )
    redactor = Redactor(marks)
    members = marks.members | {pointer.rpartition("/")[2] for pointer in marks.pointers}

    def hides(name: str, path: str) -> bool:
        return redactor.hides(name, path) or (not path and (name in members or "*" in members))

    return hides


def _form(form: SuggestFormat | None, output: Path | None) -> SuggestFormat:
    if form is not None:
        return form
    return SuggestFormat.json if output is not None and output.suffix.lower() == ".json" else SuggestFormat.yaml


def _report(suggestion: Suggestion, settings: Settings, output: Path | None, *, merge: bool) -> None:
    """Report what was drafted, on standard output unless the document is there."""
    aside = output is None
    console = terminal(err=aside)
    if suggestion.drafts and console.is_terminal:
        table = Table(*_COLUMNS, title=f"{len(suggestion.drafts)} drafts", title_justify="left")
        for each in suggestion.drafts:
            table.add_row(*_row(each))
        console.print(table)
    elif suggestion.drafts:
        for row in (_COLUMNS, *map(_row, suggestion.drafts)):
            print_row(row, err=aside)
    for line in _lines(suggestion, settings, output, merge=merge):
        print_text(printable(line), err=aside)


def _row(each: Suggested) -> tuple[str, ...]:
    properties = ", ".join(printable(name) for name in each.properties) or "-"
    return each.xid, str(each.letters), f"{each.matched:.1%}", printable(each.address, 80) or "-", properties


def _lines(suggestion: Suggestion, settings: Settings, output: Path | None, *, merge: bool) -> Iterator[str]:
    for each in suggestion.drafts:
        yield from (f"{each.xid}: {note}" for note in each.notes)
    yield from (f"lint: {finding}" for finding in suggestion.findings)
    yield from suggestion.notes
    for why, count in sorted(suggestion.left_out.items()):
        yield f"{count} letters left out: {why}"
    if not suggestion.drafts:
        yield "no letters to draft a definition from"
        return
    place = str(output) if output is not None else "the document"
    if merge:
        yield f"{place} is the whole catalog with the drafts; review it, and let catalog.source name it instead"
        return
    yield f"to use {place}, review it and add it to catalog.source: {' '.join(map(str, settings.catalog.source))}"
    for xid, groups in sorted(suggestion.attached.items()):
        yield f"{xid} has to list {', '.join(groups)} in its messagegroups; --merge writes a catalog in which it does"
