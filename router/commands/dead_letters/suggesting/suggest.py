"""Draft definitions from dead letters: sample, bundle, draft, try and correct, as :func:`suggest` does."""

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

from catalog.convert import to_json_text, to_yaml_text
from catalog.model import Catalog
from catalog.parsing.pointers import parse_pointer
from catalog.record import Record
from catalog.templates import split_tokens
from catalog.values import parse_whole_number, to_text
from router.commands.arguments import refuse_overwriting, write_text
from router.commands.dead_letters.suggesting.bundles import Bundle, join_bundles, split_into_bundles
from router.commands.dead_letters.suggesting.drafts import Draft, draft_definition
from router.commands.dead_letters.suggesting.fragment import (
    ENDPOINT,
    FRAGMENT,
    BaseCatalog,
    PlacedDraft,
    Placement,
    choose_placement,
    groups_to_list,
    make_fragment,
    place_drafts,
)
from router.commands.dead_letters.suggesting.sampling import Hides, Sampler, extract_traits, hide_nothing
from router.commands.emit.producer import EmitError, MessageProducer, encode_record_line
from router.dead_letters.dead_letter import DeadLetter, sanitize
from router.dead_letters.reading import (
    DeadLetterFilter,
    Endpoints,
    Messages,
    Reasons,
    Since,
    Until,
    build_filter,
    get_standing,
    join_ledger_entries,
    read_dead_letters,
)
from router.dead_letters.redaction import Redactor, SensitiveMarks, find_marks, parse_marks
from router.matching.records import CHUNK, RecordMatcher
from router.settings import Settings, load_settings
from router.settings.catalogs import make_catalog_fetcher
from router.state.ledger import LetterLedger
from router.terminal import print_row, print_text, terminal

# Trying drafts with the matcher of ``match`` and ``run``, on the catalog that includes them.

MAX_TRIED: Final = 2_000
"""Maximum records of one draft that are tried."""
MAX_DEFINITIONS: Final = 300
_EQUAL: Final = "equally specific: "
_NOW: Final = "2026-01-02T03:04:05Z"


@dataclass(slots=True)
class DraftTrial:
    """The outcomes of the records of one draft.

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
        """The share of records that any definition matched."""
        return (self.own + self.other.total()) / self.tried if self.tried else 0.0

    def count(self, outcome: dict[str, Any], xid: str) -> None:
        """Count one outcome in the form of ``match``."""
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


def run_trials(drafts: Sequence[PlacedDraft], catalog: Catalog) -> list[DraftTrial]:
    """Match the records of each draft against *catalog*, which includes the drafts; return one trial per draft."""
    matcher = RecordMatcher(catalog)
    trials: list[DraftTrial] = []
    for each in drafts:
        trial = DraftTrial()
        lines = [encode_record_line(traits.record) for traits in each.draft.bundle.records[:MAX_TRIED]]
        for start in range(0, len(lines), CHUNK):
            for outcome in matcher.decide(list(lines[start : start + CHUNK])):
                trial.count(outcome, each.xid)
        trials.append(trial)
    return trials


def find_losses(before: Catalog, after: Catalog, endpoints: Iterable[str]) -> dict[str, str]:
    """Return definitions of these endpoints whose records no longer match *after*, each with the new outcome.

    One record of each of the first :data:`MAX_DEFINITIONS` is generated as by ``emit``, and matched in both.
    """
    lost: dict[str, str] = {}
    samples: list[tuple[str, bytes]] = []
    for endpoint in endpoints:
        known = before.endpoints.get(endpoint)
        for xid in known.candidates if known is not None else ():
            if len(samples) < MAX_DEFINITIONS:
                samples += [(xid, line) for line in _make_sample_line(before, xid, endpoint)]
    lines: list[bytes | str] = [line for _, line in samples]
    was, becomes = RecordMatcher(before).decide(lines), RecordMatcher(after).decide(lines)
    for (xid, _), old, new in zip(samples, was, becomes, strict=True):
        if old.get("message") == xid and new.get("message") != xid:
            lost[xid] = new.get("message") or new.get("detail") or new["outcome"]
    return lost


def _make_sample_line(catalog: Catalog, xid: str, endpoint: str) -> list[bytes]:
    """Return one record of a definition as a line, in a list; empty if none can be generated."""
    definition = catalog.definitions.get(xid)
    if definition is None:
        return []
    context: dict[str, str] = {}
    for prop in (*definition.envelopemetadata, *definition.protocoloptions):
        if prop.value is not None:
            context.update(dict.fromkeys(split_tokens(to_text(prop.value))[1::2], "7"))
    try:
        producer = MessageProducer(catalog, xid, endpoint=endpoint, context=context, seed=0, clock=lambda: _NOW)
        return [encode_record_line(producer.make_record())]
    except EmitError:
        return []  # no record can be generated, so there is nothing to compare


# Correcting drafts after a trial: lint warnings, ties with other drafts, and records that are not matched.

UNMATCHED: Final = "that other drafts are for, or none can be"
UNRECOGNIZABLE: Final = "that have nothing in common to be recognised by"
_MAX_ROUNDS: Final = 12
_MIN_MATCHED: Final = 0.95
_PROPERTIES: Final = ("envelopemetadata", "protocoloptions")


@dataclass(frozen=True, slots=True)
class TriedDrafts:
    """Placed drafts, their fragment, the catalog with it, and the trial of each draft.

    ``dropped`` has bundles without a draft, each with the reason.
    """

    drafts: tuple[PlacedDraft, ...]
    fragment: Mapping[str, Any]
    catalog: Catalog
    trials: tuple[DraftTrial, ...]
    dropped: tuple[tuple[Bundle, str], ...] = ()


class DraftRefiner:
    """Makes drafts with *drafter*, places them by *placements* (by endpoint and protocol), and corrects them."""

    def __init__(
        self, basis: BaseCatalog, placements: Mapping[tuple[str, str], Placement], drafter: Callable[[Bundle], Draft]
    ) -> None:
        self._basis = basis
        self._placements = placements
        self._drafter = drafter

    def refine(self, bundles: Sequence[Bundle]) -> TriedDrafts:
        """Draft, try and correct until nothing is left to correct or the maximum of rounds is reached."""
        dropped: list[tuple[Bundle, str]] = []
        attempt = self._try_bundles(bundles)
        for _ in range(_MAX_ROUNDS):
            changed = self._bar_linted(attempt) or _separate_tied(attempt) or _widen_missing(attempt)
            if changed is None:
                useless = self._find_useless(attempt)
                if not any(useless):
                    break
                old = [each.draft.bundle for each in attempt.drafts]
                dropped += [(bundle, why) for bundle, why in zip(old, useless, strict=True) if why]
                changed = [bundle for bundle, why in zip(old, useless, strict=True) if not why]
            attempt = self._try_bundles(changed)
        return replace(attempt, dropped=tuple(dropped))

    def _try_bundles(self, bundles: Sequence[Bundle]) -> TriedDrafts:
        there = place_drafts([self._drafter(bundle) for bundle in bundles], self._placements, self._basis)
        fragment = make_fragment(there)
        catalog = self._basis.with_fragment(fragment, groups_to_list(each.placement for each in there))
        return TriedDrafts(tuple(there), fragment, catalog, tuple(run_trials(there, catalog)))

    def _bar_linted(self, attempt: TriedDrafts) -> list[Bundle] | None:
        """Return bundles without the properties that lint warns about; None if there are none."""
        doubtful: dict[str, set[str]] = {}
        for each in self._basis.new_findings(attempt.catalog):
            steps = ["", *parse_pointer(each.pointer)]
            if each.file == FRAGMENT and len(steps) > 6 and steps[1] == "messagegroups" and steps[5] in _PROPERTIES:
                xid = f"/messagegroups/{steps[2]}/messages/{steps[4]}"
                doubtful.setdefault(xid, set()).add(_property_key(attempt.fragment, steps))
        return _bar_keys(attempt, [frozenset(doubtful.get(each.xid, ())) for each in attempt.drafts])

    def _find_useless(self, attempt: TriedDrafts) -> list[str]:
        """Return for each draft why it should be dropped; empty if it should not.

        A draft without required values would match everything, so it must be the only definition of its channel.
        """
        channels = Counter(each.placement.endpoint for each in attempt.drafts)
        why: list[str] = []
        for each, trial in zip(attempt.drafts, attempt.trials, strict=True):
            known = self._basis.catalog.endpoints.get(each.placement.endpoint)
            alone = (
                channels[each.placement.endpoint] == 1 and each.placement.endpoint and not (known and known.candidates)
            )
            asks = any(asked.value is not None for asked in each.draft.properties)
            why.append(UNMATCHED if not trial.own else "" if asks or alone else UNRECOGNIZABLE)
        return why


def _bar_keys(attempt: TriedDrafts, keys: Sequence[frozenset[str]]) -> list[Bundle] | None:
    """Return the bundles with *keys* barred; None if all are barred already."""
    old = [each.draft.bundle for each in attempt.drafts]
    new = [replace(bundle, barred=bundle.barred | some) for bundle, some in zip(old, keys, strict=True)]
    return None if all(one.barred == other.barred for one, other in zip(old, new, strict=True)) else new


def _property_key(fragment: Mapping[str, Any], steps: Sequence[str]) -> str:
    """Return the key of the property that a finding points to."""
    if steps[5] == "envelopemetadata":
        return f"e.{steps[6]}"
    holder = fragment["messagegroups"][steps[2]]["messages"][steps[4]]["protocoloptions"].get(steps[6])
    if isinstance(holder, list) and len(steps) > 7 and parse_whole_number(steps[7]) is not None:
        return f"p.{steps[6]}.{holder[int(steps[7])]['name']}"
    nested = isinstance(holder, Mapping) and len(steps) > 7 and isinstance(holder.get(steps[7]), Mapping)
    return f"p.{steps[6]}.{steps[7]}" if nested else f"p.{steps[6]}"


def _separate_tied(attempt: TriedDrafts) -> list[Bundle] | None:
    """Separate or join drafts that match the same records equally well; None if there are none."""
    tied: dict[int, list[Bundle]] = {}
    for number, owner in enumerate(_find_tied_groups(attempt)):
        tied.setdefault(owner, []).append(attempt.drafts[number].draft.bundle)
    if len(tied) == len(attempt.drafts):
        return None
    return [each for bundles in tied.values() for each in (_separate_or_join(bundles) if len(bundles) > 1 else bundles)]


def _find_tied_groups(attempt: TriedDrafts) -> list[int]:
    """Return for each draft the first draft that it is tied with, directly or indirectly; may be itself."""
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


def _separate_or_join(bundles: list[Bundle]) -> list[Bundle]:
    """Separate bundles by their media types if that is possible and was not tried before; else join them."""
    medias = {each.shape.media for each in bundles}
    if len(medias) < len(bundles) or bundles[0].shape.event or any(each.pinned for each in bundles):
        return [join_bundles(bundles)]
    pinned = [
        replace(each, pinned=bool(each.shape.media) and all(one.typed and one.content_key for one in each.records))
        for each in bundles
    ]
    return pinned if any(each.pinned for each in pinned) else [join_bundles(bundles)]


def _widen_missing(attempt: TriedDrafts) -> list[Bundle] | None:
    """Reduce drafts that miss their own records to address, type and method; None if there are none."""
    keys: list[frozenset[str]] = []
    for each, trial in zip(attempt.drafts, attempt.trials, strict=True):
        bundle = each.draft.bundle
        kept = {bundle.records[0].address, "e.type", "p.method", *(key for key, _ in bundle.pins)}
        missed = trial.failed.total() > (1 - _MIN_MATCHED) * trial.tried
        keys.append(frozenset(asked.key for asked in each.draft.properties if missed and asked.key not in kept))
    return _bar_keys(attempt, keys)


DRAFTABLE: Final = frozenset({"no-match", "no-candidates"})
FEWEST: Final = 3
"""Default minimum of dead letters per draft."""


@dataclass(frozen=True, slots=True)
class SuggestedDraft:
    """One draft and the results of its trial.

    ``letters`` is the approximate number of its dead letters, ``tried`` the number of records tried, and ``matched``
    the share of them that became events. ``notes`` are for the reviewer.
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
    """All drafts, their fragment, and notes about them.

    ``attached`` has groups by endpoint that the endpoint must list before the drafts take effect. ``left_out`` counts
    dead letters without a draft, by reason. ``findings`` are lint errors and warnings that only the catalog with the
    fragment has.
    """

    drafts: tuple[SuggestedDraft, ...]
    fragment: Mapping[str, Any]
    attached: Mapping[str, Sequence[str]] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def suggest(
    records: Iterable[Record],
    basis: BaseCatalog,
    *,
    group: str | None = None,
    fewest: int = FEWEST,
    hides: Hides = hide_nothing,
    sampler: Sampler | None = None,
) -> Suggestion:
    """Draft message definitions for *records* that no definition of the catalog matches.

    Records that the catalog matches now, or that are dead letters for another reason, are left out, and so are shapes
    with fewer than *fewest* records. Drafts contain no values that *hides* selects. The same records in the same order
    give the same suggestion.

    Raises:
        RouterError: *group* does not fit the drafts.
    """
    sample = sampler if sampler is not None else Sampler()
    _sample_records(records, basis.catalog, sample, hides)
    left_out = Counter(sample.left_out)
    kept: list[Bundle] = []
    for bundle in _iter_bundles(sample):
        if bundle.letter_count < fewest:
            left_out[f"of a shape with fewer than {fewest} letters"] += bundle.letter_count
        else:
            kept.append(bundle)
    channels = {(bundle.shape.endpoint, bundle.shape.protocol) for bundle in kept}
    placements = {channel: choose_placement(*channel, basis, group) for channel in sorted(channels)}
    if not kept:
        return Suggestion((), make_fragment(()), left_out=dict(left_out))
    attempt = DraftRefiner(basis, placements, partial(draft_definition, hides=hides)).refine(kept)
    for bundle, why in attempt.dropped:
        left_out[why] += bundle.letter_count
    return _make_suggestion(attempt, placements, basis, left_out)


def _iter_bundles(sample: Sampler) -> Iterator[Bundle]:
    for shape, reservoir in sorted(sample.reservoirs.items(), key=lambda item: item[0]):
        yield from split_into_bundles(shape, reservoir)


def _sample_records(records: Iterable[Record], catalog: Catalog, sample: Sampler, hides: Hides) -> None:
    """Sample the records that match no definition, and count the others."""
    matcher = RecordMatcher(catalog)
    numbers = {xid: number for number, channel in enumerate(matcher.matcher.channels) for xid in channel.endpoints}
    everything = len(matcher.matcher.channels) - 1
    stream = iter(records)
    while chunk := list(itertools.islice(stream, CHUNK)):
        outcomes = matcher.decide([encode_record_line(record) for record in chunk])
        for record, outcome in zip(chunk, outcomes, strict=True):
            why = _exclusion_reason(record, outcome)
            if why:
                sample.left_out[why] += 1
                continue
            channel = numbers.get(record.endpoint, -1) if record.endpoint is not None else everything
            traits = extract_traits(record, partial(matcher.matcher.sniffs, channel), hides)
            if isinstance(traits, str):
                sample.left_out[traits] += 1
            else:
                sample.add(traits)


def _exclusion_reason(record: Record, outcome: Mapping[str, Any]) -> str:
    if outcome["outcome"] == "routed":
        return "matched by the catalog as it is now"
    if outcome["outcome"] != "dead-letter":
        return "a batch of events"
    if outcome["reason"] not in DRAFTABLE:
        return f"dead letters as {outcome['reason']}"
    if record.endpoint is not None and not ENDPOINT.fullmatch(record.endpoint):
        return "of an endpoint that has no xid"
    return ""


def _make_suggestion(
    attempt: TriedDrafts, placements: Mapping[tuple[str, str], Placement], basis: BaseCatalog, left_out: Counter[str]
) -> Suggestion:
    lost = find_losses(basis.catalog, attempt.catalog, sorted({endpoint for endpoint, _ in placements}))
    drafts = [
        SuggestedDraft(
            each.xid,
            each.draft.bundle.letter_count,
            trial.tried,
            trial.matched,
            each.draft.address,
            tuple(asked.key[2:] for asked in each.draft.properties),
            tuple(_iter_notes(each, trial)),
        )
        for each, trial in zip(attempt.drafts, attempt.trials, strict=True)
    ]
    used = [each.placement for each in attempt.drafts]
    notes = [f"records of {xid} now go to {where}" for xid, where in sorted(lost.items())]
    for placement in dict.fromkeys(used):
        if placement.others:
            notes.append(f"{', '.join(placement.others)} lists {placement.group} too, and will expect these messages")
    findings = tuple(
        f"{each.severity} {each.rule} at {each.pointer}: {each.message}" for each in basis.new_findings(attempt.catalog)
    )
    return Suggestion(tuple(drafts), attempt.fragment, groups_to_list(used), dict(left_out), findings, tuple(notes))


def _iter_notes(each: PlacedDraft, trial: DraftTrial) -> Iterator[str]:
    if not any(asked.value is not None for asked in each.draft.properties):
        yield "asks for no value: it takes all that comes, which is right for a channel of one kind of message"
    for xid, count in sorted(trial.other.items()):
        yield f"{count} of its records go to {xid}, which is more specific"
    for tie, count in sorted(trial.tied.items()):
        yield f"{count} of its records are ambiguous between {', '.join(tie)}"
    for reason, count in sorted(trial.failed.items()):
        yield f"{count} of its records are still dead letters: {reason}"


# ``xrouter dead-letters suggest``: message definitions drafted for unmatched dead letters.

_COLUMNS: Final = ("draft", "letters", "matched", "address or type", "properties")


class SuggestFormat(StrEnum):
    """Format of the written document."""

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
    fewest: Annotated[int, typer.Option("--min", metavar="N", min=1, help="Minimum dead letters per draft.")] = FEWEST,
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
    refuse_overwriting(output, force=force)
    settings = load_settings(config)
    reasons = reason or sorted(DRAFTABLE)
    selection = build_filter(
        reasons=reasons, endpoints=endpoint, messages=message, since=since, until=until, standings=("open",)
    )
    basis = BaseCatalog(settings.catalog.source, make_catalog_fetcher(settings))
    with LetterLedger.open(Path(settings.state), create=False) as ledger:
        records = _iter_records(read_dead_letters(settings, sinks=sink or ()), ledger, selection)
        suggestion = suggest(records, basis, group=group, fewest=fewest, hides=_make_is_hidden(settings, basis))
    if suggestion.drafts:
        document = _merge_into_catalog(suggestion, basis) if merge else suggestion.fragment
        text = to_yaml_text(document) if _choose_format(form, output) is SuggestFormat.yaml else to_json_text(document)
        write_text(text, output)
    _print_report(suggestion, settings, output, merge=merge)


def _merge_into_catalog(suggestion: Suggestion, basis: BaseCatalog) -> Mapping[str, Any]:
    document, left_out = basis.merge_fragment(suggestion.fragment, suggestion.attached)
    for xid in left_out:
        print_text(f"xrouter: warning: {xid} has an error and is left out", err=True)
    return document


def _iter_records(letters: Iterable[DeadLetter], ledger: LetterLedger, selection: DeadLetterFilter) -> Iterator[Record]:
    for letter, entry in join_ledger_entries(letters, ledger):
        if selection.matches(letter, get_standing(entry)):
            yield letter.to_record()


def _make_is_hidden(settings: Settings, basis: BaseCatalog) -> Hides:
    """Return the check for sensitive values, which must not be published with a catalog."""
    marks: SensitiveMarks = parse_marks(settings.dead_letters.redact) | find_marks(basis.declarations, basis.catalog)
    redactor = Redactor(marks)
    members = marks.members | {pointer.rpartition("/")[2] for pointer in marks.pointers}

    def hides(name: str, path: str) -> bool:
        return redactor.hides(name, path) or (not path and (name in members or "*" in members))

    return hides


def _choose_format(form: SuggestFormat | None, output: Path | None) -> SuggestFormat:
    if form is not None:
        return form
    return SuggestFormat.json if output is not None and output.suffix.lower() == ".json" else SuggestFormat.yaml


def _print_report(suggestion: Suggestion, settings: Settings, output: Path | None, *, merge: bool) -> None:
    """Print a summary, on standard error if the document is written to standard output."""
    aside = output is None
    console = terminal(err=aside)
    if suggestion.drafts and console.is_terminal:
        table = Table(*_COLUMNS, title=f"{len(suggestion.drafts)} drafts", title_justify="left")
        for each in suggestion.drafts:
            table.add_row(*_make_row(each))
        console.print(table)
    elif suggestion.drafts:
        for row in (_COLUMNS, *map(_make_row, suggestion.drafts)):
            print_row(row, err=aside)
    for line in _iter_lines(suggestion, settings, output, merge=merge):
        print_text(sanitize(line), err=aside)


def _make_row(each: SuggestedDraft) -> tuple[str, ...]:
    properties = ", ".join(sanitize(name) for name in each.properties) or "-"
    return each.xid, str(each.letters), f"{each.matched:.1%}", sanitize(each.address, 80) or "-", properties


def _iter_lines(suggestion: Suggestion, settings: Settings, output: Path | None, *, merge: bool) -> Iterator[str]:
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
