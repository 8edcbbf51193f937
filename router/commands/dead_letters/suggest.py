"""``xrouter dead-letters suggest``: message definitions drafted for unmatched dead letters, and tried on them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from catalog.documents.documents import Document, read_documents
from catalog.documents.fetching import Fetcher
from catalog.findings import Declarations, Findings
from catalog.load import build_catalog
from catalog.model import CLOUDEVENTS, Catalog, Finding
from catalog.record import Record
from router.commands import arguments
from router.commands.dead_letters.drafts import (
    Draft,
    FrequencyTable,
    Hides,
    extract_traits,
    find_unused,
)
from router.commands.emit.producer import encode_record_line
from router.dead_letters import reading
from router.dead_letters.dead_letter import DeadLetter, sanitize
from router.dead_letters.redaction import Redactor, find_marks, parse_marks
from router.errors import RouterError
from router.matching.records import CHUNK, RecordMatcher
from router.settings import Settings, load_settings
from router.settings.catalogs import make_catalog_fetcher
from router.state.ledger import LetterLedger
from router.terminal import print_table, print_text

# The catalog that drafts are added to: alone, and with a fragment as one more source.


class BaseCatalog:
    """A loaded catalog and its source documents.

    Raises:
        DocumentError: a source cannot be read.
    """

    def __init__(self, sources: Sequence[str | Path], fetcher: Fetcher) -> None:
        """Load *sources* and what they refer to."""
        self._fetcher = fetcher
        self._documents: list[Document] = read_documents(sources, Findings(), fetcher=fetcher)
        self.declarations = Declarations()
        self.catalog: Catalog = build_catalog(self._documents, Findings(), self.declarations, self._fetcher)
        self._known = {(each.rule, each.file, each.pointer) for each in self.catalog.findings}

    def with_fragment(self, fragment: Mapping[str, Any], attached: Mapping[str, Sequence[str]]) -> Catalog:
        """Load the catalog with a fragment as one more source.

        *attached* has groups by endpoint that are treated as if the endpoint listed them.
        """
        documents = [*self._documents, Document("the drafts", dict(fragment))]
        catalog = build_catalog(documents, Findings(), None, self._fetcher)
        endpoints = dict(catalog.endpoints)
        for xid, groups in attached.items():
            endpoint = endpoints[xid]
            # A group whose messages all have errors is not there.
            members = [member for group in groups for member in catalog.groups.get(group, ())]
            listed = dict.fromkeys((*endpoint.messagegroups, *groups))
            candidates = dict.fromkeys((*endpoint.candidates, *members))
            endpoints[xid] = replace(endpoint, messagegroups=tuple(listed), candidates=tuple(candidates))
        return replace(catalog, endpoints=endpoints)

    def new_findings(self, catalog: Catalog) -> list[Finding]:
        """Return the errors and warnings of *catalog* that the base catalog does not have."""
        return [
            each
            for each in catalog.findings
            if each.severity != "info" and (each.rule, each.file, each.pointer) not in self._known
        ]


# The group of a draft: if possible, a message group that its endpoint already lists.
#
# If two documents declare the same endpoint, the first counts and lint warns about the second. But if both declare the
# same group, their messages are merged. So a fragment that adds to a listed group takes effect without other changes;
# otherwise the endpoint must be changed to list the group of the drafts.

ENDPOINT: Final = re.compile(r"/endpoints/([^/?#{}\s]{1,128})")
_GROUP: Final = re.compile(r"#?/messagegroups/([A-Za-z0-9_][A-Za-z0-9._~@:\-]{0,127})/?")
_NOT_ID: Final = re.compile(r"[^A-Za-z0-9._-]+")


def choose_group(endpoint: str, protocol: str, basis: BaseCatalog, wanted: str | None = None) -> tuple[str, bool]:
    """Choose the group for drafts of one endpoint (``""``: none) and protocol; *wanted* is the requested group.

    Return it, and whether the endpoint must be changed to list it.

    Raises:
        RouterError: *wanted* is not a valid group id, or its envelope or protocol does not fit the drafts.
    """
    known, groups = basis.catalog.endpoints.get(endpoint), basis.declarations.groups
    folded = {xid.lower(): xid for xid in groups}
    listed: list[str] = []
    if known is not None:
        named = (_GROUP.fullmatch(each) for each in basis.declarations.endpoints[endpoint].messagegroups)
        missing = [xid for match in named if match and (xid := f"/messagegroups/{match[1]}").lower() not in folded]
        listed = [*missing, *known.messagegroups]

    def fits(group: str) -> bool:
        declared = groups.get(group)
        return declared is None or (declared.envelope in (None, CLOUDEVENTS) and declared.protocol in (None, protocol))

    if wanted is not None:
        match = _GROUP.fullmatch(f"/messagegroups/{wanted.removeprefix('/messagegroups/')}")
        if match is None:
            hint = "use letters, digits, . _ and -, such as --group Plant.Drafts"
            raise RouterError(f"--group {wanted!r} is no id of a message group", hint=hint)
        group = folded.get(match.group().lower(), match.group())
        if not fits(group):
            hint = "name another group, or leave --group out"
            raise RouterError(f"{group} is of another envelope or protocol than drafts for {protocol}", hint=hint)
        return group, known is not None and group not in listed
    others = basis.catalog.endpoints.values()
    # Best one that no other endpoint lists.
    fitting = sorted(filter(fits, listed), key=lambda group: sum(group in each.messagegroups for each in others))
    if fitting:
        return fitting[0], False
    name = _NOT_ID.sub("-", endpoint.rpartition("/")[2]).strip(".-")[:100]
    group = find_unused(f"/messagegroups/{name}.drafts" if name else "/messagegroups/drafts", "", folded)
    return group, known is not None


def make_fragment(drafts: Sequence[Draft], basis: BaseCatalog) -> dict[str, Any]:
    """Return the fragment of the drafts, with the endpoints that the catalog lacks."""
    groups: dict[str, dict[str, Any]] = {}
    endpoints: dict[str, dict[str, Any]] = {}
    for each in drafts:
        name, (endpoint, protocol) = each.group.rpartition("/")[2], each.kind[:2]
        declared = basis.declarations.groups.get(each.group)
        # Other defaults than those of the catalog's own group would have no effect.
        defaults = {} if declared is None else {"envelope": declared.envelope, "protocol": declared.protocol}
        written = {key: value for key, value in defaults.items() if value is not None}
        group = groups.setdefault(name, {"messagegroupid": name, **written, "messages": {}})
        group["messages"][each.messageid] = each.to_json()
        named = ENDPOINT.fullmatch(endpoint)
        if named and endpoint not in basis.catalog.endpoints:
            form: dict[str, Any] = {
                "endpointid": named[1],
                "usage": ["consumer"],
                "protocol": protocol,
                "messagegroups": [],
            }
            form = endpoints.setdefault(named[1], form)
            if form.get("protocol") != protocol:
                form.pop("protocol", None)  # an endpoint of several protocols has no default
            form["messagegroups"] += [] if each.group in form["messagegroups"] else [each.group]
    collections = {"endpoints": endpoints, "messagegroups": groups}
    return {"specversion": "1.0-rc4", **{key: members for key, members in collections.items() if members}}


# Drafting: sample what matches nothing, draft, and try each draft with the matcher of ``match`` and ``run``.

DRAFTABLE: Final = frozenset({"no-match", "no-candidates"})
FEWEST: Final = 3
"""Default minimum of dead letters per draft."""
UNMATCHED: Final = "whose draft would not match them"
UNRECOGNIZABLE: Final = "that have nothing in common to be recognised by"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """All drafts and their fragment.

    ``attached`` has groups by endpoint that the endpoint must list before the drafts take effect. ``left_out`` counts
    dead letters without a draft, by reason. ``findings`` are lint errors and warnings that only the catalog with the
    fragment has.
    """

    drafts: tuple[Draft, ...]
    fragment: Mapping[str, Any]
    attached: Mapping[str, Sequence[str]] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[str, ...] = ()


def suggest(
    records: Iterable[Record],
    basis: BaseCatalog,
    *,
    group: str | None = None,
    fewest: int = FEWEST,
    hides: Hides = lambda name, path: False,
) -> Suggestion:
    """Draft message definitions for *records* that no definition of the catalog matches.

    Records that the catalog matches now, or that are dead letters for another reason, are left out, and so are kinds
    with fewer than *fewest* records. Drafts contain no values that *hides* selects. The same records in the same order
    give the same suggestion.

    Raises:
        RouterError: *group* does not fit the drafts.
    """
    table = _count_unmatched(records, basis.catalog, hides)
    drafts, left_out = table.list_drafts(fewest), table.left_out
    attached: dict[str, list[str]] = {}
    taken = {xid.lower() for xid in basis.declarations.messages}
    for channel in sorted({each.kind[:2] for each in drafts}):
        chosen, unlisted = choose_group(*channel, basis, group)
        if unlisted and chosen not in attached.setdefault(channel[0], []):
            attached[channel[0]].append(chosen)
        for each in drafts:
            if each.kind[:2] == channel:
                each.group = chosen
                each.messageid = find_unused(each.xid, ".", taken).rpartition("/")[2]
                taken.add(each.xid.lower())
    while True:
        fragment = make_fragment(drafts, basis)
        catalog = basis.with_fragment(fragment, attached)
        matcher = RecordMatcher(catalog)
        useless = [_try_draft(each, matcher, drafts, basis) for each in drafts]
        for each, why in zip(drafts, useless, strict=True):
            left_out[why] += each.letters if why else 0
        if not any(useless):
            break
        drafts = [each for each, why in zip(drafts, useless, strict=True) if not why]
    findings = [
        f"{each.severity} {each.rule} at {each.pointer}: {each.message}" for each in basis.new_findings(catalog)
    ]
    used = {(each.kind.endpoint, each.group) for each in drafts}
    listing = {
        xid: kept for xid, groups in attached.items() if (kept := [each for each in groups if (xid, each) in used])
    }
    return Suggestion(tuple(drafts), fragment, listing, dict(+left_out), tuple(findings))


def _count_unmatched(records: Iterable[Record], catalog: Catalog, hides: Hides) -> FrequencyTable:
    """Return the table of the records that match no definition, which also counts the others."""
    table, matcher = FrequencyTable(), RecordMatcher(catalog)
    numbers = {xid: number for number, channel in enumerate(matcher.matcher.channels) for xid in channel.endpoints}
    everything = len(matcher.matcher.channels) - 1
    for record, outcome in _iter_outcomes(matcher, records):
        channel = numbers.get(record.endpoint, -1) if record.endpoint is not None else everything
        sniffs = partial(matcher.matcher.sniffs, channel)
        traits = _why_excluded(record, outcome) or extract_traits(record, sniffs, hides)
        if isinstance(traits, str):
            table.left_out[traits] += 1
        else:
            table.add(traits)
    return table


def _iter_outcomes(matcher: RecordMatcher, records: Iterable[Record]) -> Iterator[tuple[Record, Mapping[str, Any]]]:
    stream = iter(records)
    while chunk := list(islice(stream, CHUNK)):
        yield from zip(chunk, matcher.decide([encode_record_line(record) for record in chunk]), strict=True)


def _why_excluded(record: Record, outcome: Mapping[str, Any]) -> str:
    if outcome["outcome"] == "routed":
        return "matched by the catalog as it is now"
    if outcome["outcome"] != "dead-letter":
        return "a batch of events"
    if outcome["reason"] not in DRAFTABLE:
        return f"dead letters as {outcome['reason']}"
    if record.endpoint is not None and not ENDPOINT.fullmatch(record.endpoint):
        return "of an endpoint that has no xid"
    return ""


def _try_draft(each: Draft, matcher: RecordMatcher, drafts: Sequence[Draft], basis: BaseCatalog) -> str:
    """Match the records of a draft against the catalog with the drafts, and note the results.

    Return why the draft should be dropped; empty if it should not. One without required values would match everything,
    so it must be the only definition of its endpoint.
    """
    trial: Counter[tuple[str, str]] = Counter()
    for _, outcome in _iter_outcomes(matcher, (traits.record for traits in each.records)):
        reason = outcome.get("reason", outcome["outcome"])
        trial[reason, outcome.get("message") or (outcome["detail"] if reason == "ambiguous" else "")] += 1
    any_values = any(isinstance(value, str) for value in each.properties.values())
    each.matched = sum(count for (reason, _), count in trial.items() if reason == "routed") / trial.total()
    each.notes = tuple(_iter_notes(each, trial, any_values=any_values))
    if not trial["routed", each.xid]:
        return UNMATCHED
    endpoint = each.kind.endpoint
    known = basis.catalog.endpoints.get(endpoint)
    alone = endpoint and sum(one.kind.endpoint == endpoint for one in drafts) == 1 and not (known and known.candidates)
    return "" if any_values or alone else UNRECOGNIZABLE


def _iter_notes(each: Draft, trial: Counter[tuple[str, str]], *, any_values: bool) -> Iterator[str]:
    if not any_values:
        yield "asks for no value: it takes all that comes, which is right for a channel of one kind of message"
    for (reason, told), count in sorted(trial.items()):
        if reason == "routed" and told != each.xid:
            yield f"{count} of its records go to {told}, which is more specific"
        elif reason == "ambiguous":
            yield f"{count} of its records are ambiguous: {told}"
        elif reason != "routed":
            yield f"{count} of its records are still dead letters: {reason}"


# The command.

_COLUMNS: Final = ("draft", "letters", "matched", "address or type", "properties")


def suggest_definitions(
    config: arguments.ConfigArgument,
    reason: reading.Reasons = None,
    endpoint: reading.Endpoints = None,
    message: reading.Messages = None,
    since: reading.Since = None,
    until: reading.Until = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Message group of the drafts; by default one of the endpoint.")
    ] = None,
    fewest: Annotated[int, typer.Option("--min", metavar="N", min=1, help="Minimum dead letters per draft.")] = FEWEST,
    form: Annotated[
        arguments.DocumentFormat | None,
        typer.Option("--format", help="By default from the suffix of --output, else yaml."),
    ] = None,
    output: arguments.OutputFile = None,
    force: arguments.Force = False,
) -> None:
    """Draft message definitions for open dead letters that match none, as a fragment to add to the catalog.

    Each draft is tested with the router's matcher on its dead letters. Review drafts before use: literals and
    placeholders are inferred. Only the output file is written.

    Example: xrouter dead-letters suggest router.yaml --output draft.xreg.json
    """
    arguments.refuse_overwriting(output, force=force)
    settings = load_settings(config)
    reasons = reason or sorted(DRAFTABLE)
    selection = reading.build_filter(
        reasons=reasons, endpoints=endpoint, messages=message, since=since, until=until, standings=("open",)
    )
    basis = BaseCatalog(settings.catalog.source, make_catalog_fetcher(settings))
    redactor = Redactor(parse_marks(settings.dead_letters.redact) | find_marks(basis.declarations, basis.catalog))
    with LetterLedger.open(Path(settings.state), create=False) as ledger:
        records = _iter_records(reading.read_dead_letters(settings), ledger, selection)
        suggestion = suggest(records, basis, group=group, fewest=fewest, hides=redactor.hides)
    if suggestion.drafts:
        arguments.write_tree(suggestion.fragment, form, output, "yaml")
        title = f"{len(suggestion.drafts)} drafts"
        print_table(_COLUMNS, map(_make_row, suggestion.drafts), title=title, err=output is None)
    for line in _iter_lines(suggestion, settings, output):
        print_text(sanitize(line), err=output is None)


def _iter_records(
    letters: Iterable[DeadLetter], ledger: LetterLedger, selection: reading.DeadLetterFilter
) -> Iterator[Record]:
    for letter, entry in reading.join_ledger_entries(letters, ledger):
        if selection.matches(letter, reading.get_standing(entry)):
            yield letter.to_record()


def _make_row(each: Draft) -> tuple[str, ...]:
    properties = ", ".join(sanitize(key[2:]) for key in each.properties) or "-"
    return each.xid, str(each.letters), f"{each.matched:.1%}", sanitize(each.address, 80) or "-", properties


def _iter_lines(suggestion: Suggestion, settings: Settings, output: Path | None) -> Iterator[str]:
    for each in suggestion.drafts:
        yield from (f"{each.xid}: {note}" for note in each.notes)
    yield from (f"lint: {finding}" for finding in suggestion.findings)
    for why, count in sorted(suggestion.left_out.items()):
        yield f"{count} letters left out: {why}"
    if not suggestion.drafts:
        yield "no letters to draft a definition from"
        return
    place = str(output) if output is not None else "the document"
    yield f"to use {place}, review it and add it to catalog.source: {' '.join(map(str, settings.catalog.source))}"
    for xid, groups in sorted(suggestion.attached.items()):
        yield f"{xid} has to list {', '.join(groups)} in its messagegroups"
