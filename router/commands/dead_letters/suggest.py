"""``xrouter dead-letters suggest``: message definitions drafted for unmatched dead letters, and tried on them."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from catalog.documents.documents import Document, read_documents
from catalog.documents.fetching import Fetcher
from catalog.findings import Declarations, Findings
from catalog.load import build_catalog
from catalog.model import CLOUDEVENTS, Catalog, Finding
from catalog.record import Record
from router.commands.arguments import (
    ConfigArgument,
    DocumentFormat,
    Force,
    OutputFile,
    choose_document_format,
    format_document,
    refuse_overwriting,
    write_text,
)
from router.commands.dead_letters.drafts import (
    FORMAT,
    Bundle,
    Draft,
    FrequencyTable,
    Hides,
    draft_definition,
    extract_traits,
    hide_nothing,
)
from router.commands.emit.producer import encode_record_line
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


@dataclass(frozen=True, slots=True)
class Placement:
    """The group of the drafts of one endpoint, with the group's defaults of envelope and protocol.

    The fragment declares the endpoint if it is ``new``, and the endpoint must be changed to list the group if that is
    ``unlisted``.
    """

    endpoint: str
    group: str
    new: bool
    unlisted: bool
    envelope: str | None
    protocol: str | None


def choose_placement(endpoint: str, protocol: str, basis: BaseCatalog, wanted: str | None = None) -> Placement:
    """Choose the group for drafts of one endpoint (``""``: none) and protocol; *wanted* is the requested group.

    Raises:
        RouterError: *wanted* is not a valid group id, or its envelope or protocol does not fit the drafts.
    """
    known, groups = basis.catalog.endpoints.get(endpoint), basis.declarations.groups
    folded = {xid.lower(): xid for xid in groups}
    listed = [] if known is None else [group for group in known.messagegroups if group in groups]
    references = () if known is None else basis.declarations.endpoints[endpoint].messagegroups
    named = [f"/messagegroups/{match.group(1)}" for each in references if (match := _GROUP.fullmatch(each))]
    missing = [group for group in named if group.lower() not in folded]

    def fits(group: str) -> bool:
        declared = groups.get(group)
        return declared is None or (declared.envelope in (None, CLOUDEVENTS) and declared.protocol in (None, protocol))

    def count_endpoints(group: str) -> int:
        others = basis.catalog.endpoints.values()
        return sum(group in each.messagegroups and each.protocol in (None, protocol) for each in others)

    fitting = sorted(filter(fits, listed), key=count_endpoints)
    if wanted is not None:
        match = _GROUP.fullmatch(f"/messagegroups/{wanted.removeprefix('/messagegroups/')}")
        if match is None:
            hint = "use letters, digits, . _ and -, such as --group Plant.Drafts"
            raise RouterError(f"--group {wanted!r} is no id of a message group", hint=hint)
        group = folded.get(match.group().lower(), match.group())
        if not fits(group):
            hint = "name another group, or leave --group out"
            raise RouterError(f"{group} is of another envelope or protocol than drafts for {protocol}", hint=hint)
    else:
        group = next(iter((*missing, *fitting)), "")
    if not group:
        name = _NOT_ID.sub("-", endpoint.rpartition("/")[2]).strip(".-")[:100]
        base = f"/messagegroups/{name}.drafts" if name else "/messagegroups/drafts"
        unused = itertools.chain([base], (f"{base}{number}" for number in itertools.count(2)))
        group = next(each for each in unused if each.lower() not in folded)
    declared = groups.get(group)
    return Placement(
        endpoint,
        group,
        new=known is None and ENDPOINT.fullmatch(endpoint) is not None,
        unlisted=known is not None and group not in (*listed, *missing),
        envelope=declared.envelope if declared is not None else CLOUDEVENTS,
        protocol=declared.protocol if declared is not None else protocol,
    )


@dataclass(frozen=True, slots=True)
class PlacedDraft:
    """A draft with its id, in the group that it goes into."""

    draft: Draft
    placement: Placement

    @property
    def xid(self) -> str:
        """The xid of the drafted definition."""
        return f"{self.placement.group}/messages/{self.draft.messageid}"


def place_drafts(
    bundles: Iterable[Bundle], placements: Mapping[tuple[str, str], Placement], basis: BaseCatalog
) -> list[PlacedDraft]:
    """Draft each bundle, with a group and an unused id; *placements* are by endpoint and protocol."""
    taken = {xid.lower() for xid in basis.declarations.messages}
    placed: list[PlacedDraft] = []
    for draft in map(draft_definition, bundles):
        placement = placements[draft.bundle.kind[:2]]
        names = itertools.chain([draft.messageid], (f"{draft.messageid}.{number}" for number in itertools.count(2)))
        chosen = next(name for name in names if f"{placement.group}/messages/{name}".lower() not in taken)
        placed.append(PlacedDraft(replace(draft, messageid=chosen), placement))
        taken.add(placed[-1].xid.lower())
    return placed


def make_fragment(drafts: Sequence[PlacedDraft]) -> dict[str, Any]:
    """Return the fragment of the drafts; equal schemas of a group are written once."""
    groups: dict[str, dict[str, Any]] = {}
    schemas: dict[str, dict[str, Any]] = {}
    endpoints: dict[str, dict[str, Any]] = {}
    known: dict[tuple[str, bytes], str] = {}
    for each in drafts:
        placement, name, message = each.placement, each.placement.group.rpartition("/")[2], each.draft.messageid
        schemaxid = None
        if each.draft.schema is not None:
            key = (name, msgspec.json.encode(each.draft.schema, order="deterministic"))
            if key not in known:
                version = {"versionid": "1", "format": FORMAT, "schema": each.draft.schema}
                group = schemas.setdefault(name, {"schemagroupid": name, "schemas": {}})
                group["schemas"][message] = {"schemaid": message, "format": FORMAT, "versions": {"1": version}}
                known[key] = f"/schemagroups/{name}/schemas/{message}"
            schemaxid = known[key]
        protocols = {one.placement.protocol for one in drafts if one.placement.group == placement.group}
        defaults = {"envelope": placement.envelope, "protocol": placement.protocol if len(protocols) == 1 else None}
        written = {key: value for key, value in defaults.items() if value is not None}
        group = groups.setdefault(name, {"messagegroupid": name, **written, "messages": {}})
        group["messages"][message] = each.draft.to_json(schemaxid)
        if placement.new:
            _add_endpoint(endpoints, placement, name, each.draft.bundle.kind.protocol)
    collections = {"endpoints": endpoints, "messagegroups": groups, "schemagroups": schemas}
    return {"specversion": "1.0-rc4", **{key: members for key, members in collections.items() if members}}


def _add_endpoint(endpoints: dict[str, dict[str, Any]], placement: Placement, group: str, protocol: str) -> None:
    name = placement.endpoint.rpartition("/")[2]
    form = endpoints.setdefault(
        name, {"endpointid": name, "usage": ["consumer"], "protocol": protocol, "messagegroups": []}
    )
    if form.get("protocol", protocol) != protocol:
        del form["protocol"]  # an endpoint with several protocols has no default
    if f"/messagegroups/{group}" not in form["messagegroups"]:
        form["messagegroups"].append(f"/messagegroups/{group}")


# Drafting: sample what matches nothing, draft, and try each draft with the matcher of ``match`` and ``run``.

DRAFTABLE: Final = frozenset({"no-match", "no-candidates"})
FEWEST: Final = 3
"""Default minimum of dead letters per draft."""
UNMATCHED: Final = "whose draft would not match them"
UNRECOGNIZABLE: Final = "that have nothing in common to be recognised by"


@dataclass(frozen=True, slots=True)
class SuggestedDraft:
    """One draft and the results of its trial.

    ``letters`` is the number of its dead letters, ``tried`` the number of records tried, and ``matched`` the share of
    them that became events. ``notes`` are for the reviewer.
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
    """All drafts and their fragment.

    ``attached`` has groups by endpoint that the endpoint must list before the drafts take effect. ``left_out`` counts
    dead letters without a draft, by reason. ``findings`` are lint errors and warnings that only the catalog with the
    fragment has.
    """

    drafts: tuple[SuggestedDraft, ...]
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
    hides: Hides = hide_nothing,
) -> Suggestion:
    """Draft message definitions for *records* that no definition of the catalog matches.

    Records that the catalog matches now, or that are dead letters for another reason, are left out, and so are kinds
    with fewer than *fewest* records. Drafts contain no values that *hides* selects. The same records in the same order
    give the same suggestion.

    Raises:
        RouterError: *group* does not fit the drafts.
    """
    table = FrequencyTable()
    _count_unmatched(records, basis.catalog, table, hides)
    left_out, bundles = table.left_out, table.list_bundles()
    left_out[f"of a shape with fewer than {fewest} letters"] += sum(
        each.letters for each in bundles if each.letters < fewest
    )
    kept = [each for each in bundles if each.letters >= fewest]
    channels = sorted({each.kind[:2] for each in kept})
    placements = {channel: choose_placement(*channel, basis, group) for channel in channels}
    while True:
        placed = place_drafts(kept, placements, basis)
        fragment, attached = make_fragment(placed), _find_unlisted(placed)
        catalog = basis.with_fragment(fragment, attached)
        trials = _try_drafts(placed, catalog)
        useless = [_why_useless(each, trial, placed, basis) for each, trial in zip(placed, trials, strict=True)]
        for bundle, why in zip(kept, useless, strict=True):
            left_out[why] += bundle.letters if why else 0
        if not any(useless):
            break
        kept = [bundle for bundle, why in zip(kept, useless, strict=True) if not why]
    findings = [
        f"{each.severity} {each.rule} at {each.pointer}: {each.message}" for each in basis.new_findings(catalog)
    ]
    drafts = [_to_suggested(each, trial) for each, trial in zip(placed, trials, strict=True)]
    return Suggestion(tuple(drafts), fragment, attached, dict(+left_out), tuple(findings))


def _count_unmatched(records: Iterable[Record], catalog: Catalog, table: FrequencyTable, hides: Hides) -> None:
    """Add the records that match no definition to the table, and count the others."""
    matcher = RecordMatcher(catalog)
    numbers = {xid: number for number, channel in enumerate(matcher.matcher.channels) for xid in channel.endpoints}
    everything = len(matcher.matcher.channels) - 1
    stream = iter(records)
    while chunk := list(itertools.islice(stream, CHUNK)):
        outcomes = matcher.decide([encode_record_line(record) for record in chunk])
        for record, outcome in zip(chunk, outcomes, strict=True):
            channel = numbers.get(record.endpoint, -1) if record.endpoint is not None else everything
            traits = _why_excluded(record, outcome) or extract_traits(
                record, partial(matcher.matcher.sniffs, channel), hides
            )
            if isinstance(traits, str):
                table.left_out[traits] += 1
            else:
                table.add(traits)


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


def _find_unlisted(placed: Iterable[PlacedDraft]) -> dict[str, list[str]]:
    """Return by endpoint the groups that the endpoint must be changed to list."""
    groups: dict[str, list[str]] = {}
    for each in placed:
        if each.placement.unlisted and each.placement.group not in groups.setdefault(each.placement.endpoint, []):
            groups[each.placement.endpoint].append(each.placement.group)
    return groups


def _try_drafts(placed: Sequence[PlacedDraft], catalog: Catalog) -> list[Counter[tuple[str, str]]]:
    """Match the records of each draft against *catalog*, which has the drafts.

    Return for each draft the counts of definitions (``"routed"`` and the xid) and of reasons and details of the rest.
    """
    matcher = RecordMatcher(catalog)
    trials: list[Counter[tuple[str, str]]] = []
    for each in placed:
        trial: Counter[tuple[str, str]] = Counter()
        lines = [encode_record_line(traits.record) for traits in each.draft.bundle.records]
        for start in range(0, len(lines), CHUNK):
            for outcome in matcher.decide(list(lines[start : start + CHUNK])):
                reason = outcome.get("reason", outcome["outcome"])
                told = outcome.get("message") or (outcome["detail"] if reason == "ambiguous" else "")
                trial[reason, told] += 1
        trials.append(trial)
    return trials


def _why_useless(
    each: PlacedDraft, trial: Counter[tuple[str, str]], placed: Sequence[PlacedDraft], basis: BaseCatalog
) -> str:
    """Return why a draft should be dropped; empty if it should not.

    One without required values would match everything, so it must be the only definition of its endpoint.
    """
    if not trial["routed", each.xid]:
        return UNMATCHED
    endpoint = each.placement.endpoint
    known = basis.catalog.endpoints.get(endpoint)
    alone = bool(endpoint) and sum(one.placement.endpoint == endpoint for one in placed) == 1
    alone = alone and not (known is not None and known.candidates)
    return "" if each.draft.has_values or alone else UNRECOGNIZABLE


def _to_suggested(each: PlacedDraft, trial: Counter[tuple[str, str]]) -> SuggestedDraft:
    draft, tried = each.draft, trial.total()
    matched = sum(count for (reason, _), count in trial.items() if reason == "routed") / tried
    names = tuple(asked.key[2:] for asked in draft.properties)
    return SuggestedDraft(
        each.xid, draft.bundle.letters, tried, matched, draft.address, names, tuple(_iter_notes(each, trial))
    )


def _iter_notes(each: PlacedDraft, trial: Counter[tuple[str, str]]) -> Iterator[str]:
    if not each.draft.has_values:
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
    config: ConfigArgument,
    reason: Reasons = None,
    endpoint: Endpoints = None,
    message: Messages = None,
    since: Since = None,
    until: Until = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Message group of the drafts; by default one of the endpoint.")
    ] = None,
    fewest: Annotated[int, typer.Option("--min", metavar="N", min=1, help="Minimum dead letters per draft.")] = FEWEST,
    form: Annotated[
        DocumentFormat | None, typer.Option("--format", help="By default from the suffix of --output, else yaml.")
    ] = None,
    output: OutputFile = None,
    force: Force = False,
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
    redactor = Redactor(parse_marks(settings.dead_letters.redact) | find_marks(basis.declarations, basis.catalog))
    with LetterLedger.open(Path(settings.state), create=False) as ledger:
        records = _iter_records(read_dead_letters(settings), ledger, selection)
        suggestion = suggest(records, basis, group=group, fewest=fewest, hides=redactor.hides)
    if suggestion.drafts:
        write_text(format_document(suggestion.fragment, choose_document_format(form, output, "yaml")), output)
    aside = output is None
    if suggestion.drafts:
        title = f"{len(suggestion.drafts)} drafts"
        print_table(_COLUMNS, map(_make_row, suggestion.drafts), title=title, err=aside)
    for line in _iter_lines(suggestion, settings, output):
        print_text(sanitize(line), err=aside)


def _iter_records(letters: Iterable[DeadLetter], ledger: LetterLedger, selection: DeadLetterFilter) -> Iterator[Record]:
    for letter, entry in join_ledger_entries(letters, ledger):
        if selection.matches(letter, get_standing(entry)):
            yield letter.to_record()


def _make_row(each: SuggestedDraft) -> tuple[str, ...]:
    properties = ", ".join(sanitize(name) for name in each.properties) or "-"
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
