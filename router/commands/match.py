"""``xrouter match``: read native records from standard input, and print one outcome per line, or an explanation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer

from catalog.findings import DocumentError, escape_json_controls, to_one_line
from catalog.model import Catalog
from catalog.parsing.texts import parse_text, parse_yaml
from catalog.schemas.ids.client import Framing
from catalog.schemas.ids.deciding import FrameSettings
from router.commands import arguments
from router.commands.test.cases import LINES, MAX_PROBLEMS, iter_outcome_faults, read_case_bytes
from router.commands.test.runner import SHOWN, describe_difference, iter_differences, make_difference
from router.errors import GOOD, WRONG, RouterError, hint_near
from router.matching.explanation import BEST, FITS, EventExplanation, ExplainedCandidate, Explainer, RecordExplanation
from router.matching.nearest import ConstraintResult
from router.matching.records import RecordMatcher, encode_outcome
from router.matching.tie_breaker import Ambiguous
from router.settings.routes import Validate
from router.terminal import plural, print_text, terminal, to_text

# Output of ``xrouter match --explain``: colored on a terminal, plain elsewhere.

_MODES: Final = {
    "native": "no CloudEvent",
    "binary": "a CloudEvent in binary mode",
    "structured": "a CloudEvent in structured mode",
    "undecodable": "undecodable",
}
Line = tuple[str, str]
"""A line and its style."""


class ExplanationWriter:
    """Writes explanations to a stream, with symbols and text that its encoding can represent."""

    def __init__(self, output: TextIO | None = None) -> None:
        self._output = output if output is not None else sys.stdout
        self._console = terminal(file=self._output, soft_wrap=True)
        self._encoding = self._output.encoding or "utf-8"
        try:
            "✓✗…".encode(self._encoding)
            self._yes, self._no, self._cut = "✓", "✗", "…"
        except UnicodeEncodeError:
            self._yes, self._no, self._cut = "+", "-", "..."

    def write(self, explained: RecordExplanation) -> None:
        """Write one record's explanation, and an empty line."""
        for text, style in (*self._iter_record(explained), ("", "")):
            safe = to_one_line(text).encode(self._encoding, "backslashreplace").decode(self._encoding)
            self._console.print(to_text((safe, style)))

    def _iter_record(self, explained: RecordExplanation) -> Iterator[Line]:
        at = f" at {self._shorten(explained.endpoint)}" if explained.endpoint else ""
        yield f"record {explained.number}: {self._shorten(explained.protocol) or 'no record'}{at}", "bold"
        if explained.error:
            yield f"  {self._no} {self._shorten(explained.error)}", "red"
            return
        main = [f"{name.rpartition('.')[2]} {self._quote(text)}" for name, text in explained.main]
        size = "no body" if explained.size is None else f"{explained.size} bytes of body"
        yield "  " + ", ".join((*main, size)), ""
        if not explained.events:
            yield "  a batch without events", ""
        for event in explained.events:
            yield from self._iter_event(event)

    def _iter_event(self, event: EventExplanation) -> Iterator[Line]:
        if event.place >= 0:
            yield f"  event {event.place} of the batch", "bold"
        yield f"  envelope: {_MODES.get(event.mode, event.mode)}", ""
        for fault in event.faults:
            yield f"    {self._no} {self._shorten(fault)}", "red"
        for candidate in event.candidates:
            yield from self._iter_candidate(candidate)
        if event.more:
            yield f"  and {event.more} more candidate{'' if event.more == 1 else 's'} (--all shows all)", "dim"
        if event.why:
            yield f"  why: {event.why}", ""
        yield from self._iter_outcome(event.outcome)

    def _iter_candidate(self, candidate: ExplainedCandidate) -> Iterator[Line]:
        good = candidate.matches and candidate.schema in ((), FITS)
        style = "bold green" if candidate.wins else "green" if good else "yellow"
        sign = self._yes if good else self._no
        specific = f" ({plural(candidate.literals, 'literal')}, {plural(candidate.characters, 'character')})"
        yield f"  {sign} {candidate.message}: {candidate.verdict}{specific if candidate.matches else ''}", style
        for check in candidate.checks:
            yield self._format_check(check)
        fits = candidate.schema == FITS
        for verdict in candidate.schema:
            yield f"      {self._yes if fits else self._no} schema: {self._shorten(verdict)}", "" if fits else "red"

    def _format_check(self, check: ConstraintResult) -> Line:
        name = self._shorten(check.property)
        value = "nothing" if check.actual is None else self._quote(check.actual)
        # ``expected`` is a description there, and the value or template elsewhere.
        described = check.constraint is not None and check.constraint.kind in ("present", "optional")
        expected = check.expected or "" if described else self._quote(check.expected or "")
        if not check.holds:
            return f"      {self._no} {name}: expected {expected}, found {value}", "red"
        if check.actual is None:
            return f"      {self._yes} {name}: absent (optional)", ""
        return f"      {self._yes} {name}: {value}" + ("" if check.actual == check.expected else f", as {expected}"), ""

    def _iter_outcome(self, outcome: Mapping[str, Any]) -> Iterator[Line]:
        if outcome["outcome"] != "routed":
            # The candidates above already show the detail of this reason.
            detail = "" if outcome["reason"] == "no-match" else f": {self._shorten(outcome['detail'])}"
            yield f"  dead letter, {outcome['reason']}{detail}", "bold red"
            return
        yield f"  routed to {outcome['message']}", "bold green"
        for name in ("context", "cloudevent"):
            pairs = [f"{self._shorten(key)}={self._quote(text)}" for key, text in outcome[name].items()]
            yield f"    {name}: {', '.join(pairs) or 'none'}", ""

    def _quote(self, text: str) -> str:
        return f"'{self._shorten(text)}'"

    def _shorten(self, text: str | None) -> str:
        """Return an untrusted text without control characters, truncated."""
        shown = text or ""
        return to_one_line(shown if len(shown) <= SHOWN else shown[:SHOWN] + self._cut)


# ``xrouter match --expect``: compare outcomes with expected ones, in the format of cases of ``xrouter test``.

OPTION: Final = "--expect"


class Expectation:
    """The expected outcomes: one for all records, or one per record. Counts differences."""

    def __init__(self, forms: list[Mapping[str, Any]], *, each: bool) -> None:
        """With *each*, the only form applies to every record."""
        self._forms = forms
        self._each = each
        self._records = 0
        self._wrong = 0

    def compare_next(self, outcome: Mapping[str, Any]) -> Iterator[str]:
        """Compare the outcome of the next record, and yield a line per difference."""
        expected = self._forms[:1] if self._each else self._forms[self._records : self._records + 1]
        self._records += 1
        beyond = make_difference("/", None, {"outcome": outcome["outcome"]})
        wrong = [*iter_differences(expected[0], outcome, "")] if expected else [beyond]
        self._wrong += bool(wrong)
        if self._wrong <= MAX_PROBLEMS:
            yield from (f"record {self._records}: {to_one_line(describe_difference(each))}" for each in wrong)

    def summarize(self) -> tuple[str, bool]:
        """Return a summary line, and whether all outcomes and the number of records are as expected."""
        missing = 0 if self._each else max(0, len(self._forms) - self._records)
        text = f"{self._records - self._wrong} of {plural(self._records, 'record')} as expected"
        text += f"; {plural(missing, 'record')} missing" if missing else ""
        return text, bool(self._records) and not self._wrong and not missing


def parse_expectation(text: str) -> Expectation:
    """Parse ``--expect``: an outcome or a list of outcomes, inline or in a file.

    Raises:
        typer.BadParameter: it is none; names each fault and its place.
    """
    try:
        tree = parse_yaml(OPTION, text).tree if text.lstrip()[:1] in ("{", "[") else _read_tree(Path(text))
    except DocumentError as error:
        raise typer.BadParameter(f"{OPTION}: {error}") from error
    forms = tree if isinstance(tree, list) else [tree]
    if not forms:
        raise typer.BadParameter(f"{OPTION}: {OPTION} is an empty list, which expects nothing")
    faults = [
        f"{f'/{number}' if isinstance(tree, list) else ''}{at or '/'} {fault}"
        for number, form in enumerate(forms)
        for at, fault in iter_outcome_faults(form)
    ]
    if faults:
        raise typer.BadParameter("\n".join((f"{OPTION}: {faults[0]}", *faults[1:MAX_PROBLEMS])))
    return Expectation(forms, each=not isinstance(tree, list))


def _read_tree(path: Path) -> Any:
    try:
        data = read_case_bytes(path)
    except DocumentError as error:
        hint = "give a file, or an outcome in braces such as '{outcome: routed}'"
        raise DocumentError(f"{error}; {hint}") from error
    if path.suffix.lower() not in LINES:
        return parse_text(str(path), data).tree
    lines = enumerate(data.split(b"\n"), 1)
    return [parse_text(f"{path}:{number}", line.strip()).tree for number, line in lines if line.strip()]


def match(
    catalog: arguments.CatalogOption,
    more: arguments.MorePaths = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="XID", help="For all records, use the candidates of this endpoint.")
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="XID", help="For all records, use this message group as candidates; repeatable."),
    ] = None,
    validate: Annotated[
        Validate, typer.Option(help="When to validate bodies against their schemas; routes are ignored.")
    ] = "ambiguous",
    explain: Annotated[bool, typer.Option("--explain", help="Explain each outcome as text instead of JSON.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help=f"With --explain: show all candidates, not only the best {BEST}.")
    ] = False,
    allow: arguments.AllowAddresses = None,
    base_uri: arguments.BaseUri = "",
    logins: arguments.LoginsOption = None,
    ambiguous: Annotated[
        Ambiguous, typer.Option(help="Outcome of a record that several definitions match equally well.")
    ] = "dead-letter",
    framing: Annotated[
        Framing, typer.Option(help="Kafka: schema id framing of bodies; `auto`: `confluent` where present.")
    ] = "auto",
    expect: Annotated[
        str | None,
        typer.Option(
            OPTION,
            metavar="OUTCOME|FILE",
            help="Expected outcome, as in cases of `xrouter test`; a list has one per record.",
        ),
    ] = None,
) -> None:
    """Match native records on standard input to definitions, and print one outcome per record.

    Candidates are those of --endpoint or --group, else of the record's own endpoint, else all definitions.
    With --expect, differences are printed on standard error, and the exit code is 1 if there are any.

    Example: xrouter match --catalog catalog.xreg.json --endpoint /endpoints/garden --explain <records.jsonl
    """
    if endpoint is not None and group:
        raise typer.BadParameter("--endpoint and --group exclude each other; give one of them")
    if everything and not explain:
        raise typer.BadParameter("--all requires --explain")
    if explain and expect is not None:
        raise typer.BadParameter(f"--explain and {OPTION} exclude each other; give one of them")
    expected = None if expect is None else parse_expectation(expect)
    loaded = arguments.load_usable(
        [*catalog, *(more or [])], arguments.make_fetcher(logins, allow or ()), base_uri=base_uri
    )
    if endpoint is not None:
        _require_xid(endpoint, loaded.endpoints, "endpoint")
    factory = partial(RecordMatcher, validation=validate, frames=FrameSettings(framing), ambiguous=ambiguous)
    matcher = _make_matcher(factory, loaded, endpoint, group or [])
    if explain:
        explainer, writer = Explainer(matcher, everything=everything), ExplanationWriter()
        for number, line in enumerate((line for line in sys.stdin.buffer if line.strip()), 1):
            writer.write(explainer.explain(number, line))
        return
    output = sys.stdout.buffer
    for outcome in matcher.outcomes(sys.stdin.buffer):
        output.write(escape_json_controls(encode_outcome(outcome)))
        for line in () if expected is None else expected.compare_next(outcome):
            print_text(line, err=True)
    output.flush()
    if expected is not None:
        text, good = expected.summarize()
        print_text(text, err=True)
        raise typer.Exit(GOOD if good else WRONG)


def _make_matcher(
    factory: Callable[..., RecordMatcher], catalog: Catalog, endpoint: str | None, groups: list[str]
) -> RecordMatcher:
    """Return the matcher; the candidates of several groups are combined."""
    for xid in groups:
        _require_xid(xid, catalog.groups, "message group")
    if not groups:
        return factory(catalog, endpoint=endpoint)
    union = tuple(dict.fromkeys(member for xid in groups for member in catalog.groups[xid]))
    return factory(replace(catalog, groups={groups[0]: union}), group=groups[0])


def _require_xid(xid: str, among: Mapping[str, Any], what: str) -> None:
    if xid in among:
        return
    hint = hint_near(xid, among, f"the catalog has {', '.join(among) or 'none'}")
    raise RouterError(f"the catalog has no {what} {xid}", hint=hint)
