"""``xrouter match``: read native records from standard input, and print one outcome per line, or an explanation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer

from catalog.findings import DocumentError, escaped_json, one_line
from catalog.model import Catalog
from catalog.parsing.regular import open_input
from catalog.parsing.texts import parse_text, parse_yaml
from catalog.schemas.ids.deciding import Frames
from router.commands.arguments import (
    AllowAddresses,
    BaseUri,
    CatalogOption,
    LoginsOption,
    MorePaths,
    fetcher,
    usable_catalog,
)
from router.commands.test.cases import LINES, MAX_BYTES, outcome_faults
from router.commands.test.runner import ValueMismatch, differences
from router.errors import RouterError
from router.matching.explanation import BEST, FITS, EventExplanation, ExplainedCandidate, Explainer, RecordExplanation
from router.matching.nearest import ConstraintResult
from router.matching.records import RecordMatcher, to_line
from router.terminal import counted, print_text, shown_value, styled, terminal

# Output of ``xrouter match --explain``: colored on a terminal, plain elsewhere.

_SHOWN: Final = 300
"""Maximum characters of a value."""
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
        fancy = self._shows("✓✗…")
        self._yes, self._no, self._cut = ("✓", "✗", "…") if fancy else ("+", "-", "...")

    def write(self, explained: RecordExplanation) -> None:
        """Write one record's explanation, and an empty line."""
        for text, style in (*self._record(explained), ("", "")):
            safe = one_line(text).encode(self._encoding, "backslashreplace").decode(self._encoding)
            self._console.print(styled((safe, style)))

    def _shows(self, signs: str) -> bool:
        try:
            signs.encode(self._encoding)
        except UnicodeEncodeError:
            return False
        return True

    def _record(self, explained: RecordExplanation) -> Iterator[Line]:
        at = f" at {self._text(explained.endpoint)}" if explained.endpoint else ""
        yield f"record {explained.number}: {self._text(explained.protocol) or 'no record'}{at}", "bold"
        if explained.error:
            yield f"  {self._no} {self._text(explained.error)}", "red"
            return
        main = [f"{name.rpartition('.')[2]} {self._quoted(text)}" for name, text in explained.main]
        size = "no body" if explained.size is None else f"{explained.size} bytes of body"
        yield "  " + ", ".join((*main, size)), ""
        if not explained.events:
            yield "  a batch without events", ""
        for event in explained.events:
            yield from self._event(event)

    def _event(self, event: EventExplanation) -> Iterator[Line]:
        if event.place >= 0:
            yield f"  event {event.place} of the batch", "bold"
        yield f"  envelope: {_MODES.get(event.mode, event.mode)}", ""
        for fault in event.faults:
            yield f"    {self._no} {self._text(fault)}", "red"
        for candidate in event.candidates:
            yield from self._candidate(candidate)
        if event.more:
            yield f"  and {event.more} more candidate{'' if event.more == 1 else 's'} (--all shows all)", "dim"
        if event.why:
            yield f"  why: {event.why}", ""
        yield from self._outcome(event.outcome)

    def _candidate(self, candidate: ExplainedCandidate) -> Iterator[Line]:
        good = candidate.matches and candidate.schema in ((), FITS)
        style = "bold green" if candidate.wins else "green" if good else "yellow"
        sign = self._yes if good else self._no
        specific = f" ({counted(candidate.literals, 'literal')}, {counted(candidate.characters, 'character')})"
        yield f"  {sign} {candidate.message}: {candidate.verdict}{specific if candidate.matches else ''}", style
        for check in candidate.checks:
            yield self._check(check)
        fits = candidate.schema == FITS
        for verdict in candidate.schema:
            yield f"      {self._yes if fits else self._no} schema: {self._text(verdict)}", "" if fits else "red"

    def _check(self, check: ConstraintResult) -> Line:
        name, value = self._text(check.property), self._value(check)
        # ``expected`` is a description there, and the value or template elsewhere.
        described = check.constraint is not None and check.constraint.kind in ("present", "optional")
        expected = check.expected or "" if described else self._quoted(check.expected or "")
        if not check.holds:
            return f"      {self._no} {name}: expected {expected}, found {value}", "red"
        as_expected = "" if check.actual in (None, check.expected) else f", as {expected}"
        return f"      {self._yes} {name}: {value}{as_expected}", ""

    def _value(self, check: ConstraintResult) -> str:
        if check.actual is None:
            return "absent (optional)" if check.holds else "nothing"
        return self._quoted(check.actual)

    def _outcome(self, outcome: Mapping[str, Any]) -> Iterator[Line]:
        if outcome["outcome"] != "routed":
            # The candidates above already show the detail of this reason.
            detail = "" if outcome["reason"] == "no-match" else f": {self._text(outcome['detail'])}"
            yield f"  dead letter, {outcome['reason']}{detail}", "bold red"
            return
        yield f"  routed to {outcome['message']}", "bold green"
        for name in ("context", "cloudevent"):
            pairs = [f"{self._text(key)}={self._quoted(text)}" for key, text in outcome[name].items()]
            yield f"    {name}: {', '.join(pairs) or 'none'}", ""

    def _quoted(self, text: str) -> str:
        return f"'{self._text(text)}'"

    def _text(self, text: str | None) -> str:
        """Return an untrusted text without control characters, truncated."""
        shown = text or ""
        if len(shown) > _SHOWN:
            shown = shown[:_SHOWN] + self._cut
        return one_line(shown)


# ``xrouter match --expect``: compare outcomes with expected ones, in the format of cases of ``xrouter test``.

OPTION: Final = "--expect"
MAX_SHOWN: Final = 50
"""Records whose differences are shown; the others are counted."""
SHOWN: Final = 300
"""Characters of a value."""


class ExpectationUnreadable(ValueError):
    """An expectation is malformed, or about what `match` does not decide; one error per line."""


class Expectation:
    """The expected outcomes: one for all records, or one per record. Counts differences."""

    def __init__(self, forms: list[Mapping[str, Any]], *, each: bool) -> None:
        """With *each*, the only form applies to every record."""
        self._forms = forms
        self._each = each
        self._records = 0
        self._wrong = 0

    def compare(self, outcome: Mapping[str, Any]) -> Iterator[str]:
        """Compare the outcome of the next record, and yield a line per difference."""
        number = self._records
        self._records += 1
        wrong = tuple(self._of(number, outcome))
        self._wrong += bool(wrong)
        if wrong and self._wrong <= MAX_SHOWN:
            yield from (f"record {number + 1}: {_text(each)}" for each in wrong)

    def summary(self) -> tuple[str, bool]:
        """Return a summary line, and whether all outcomes and the number of records are as expected."""
        missing = 0 if self._each else max(0, len(self._forms) - self._records)
        good = self._records - self._wrong
        text = f"{good} of {counted(self._records, 'record')} as expected"
        if missing:
            text += f"; {counted(missing, 'record')} missing"
        return text, bool(self._records) and not self._wrong and not missing

    def _of(self, number: int, outcome: Mapping[str, Any]) -> Iterator[ValueMismatch]:
        if not self._each and number >= len(self._forms):
            yield ValueMismatch("/", None, {"outcome": outcome["outcome"]})
            return
        yield from differences(self._forms[0 if self._each else number], outcome, "")


def expectation_of(text: str) -> Expectation:
    """Parse ``--expect``: an outcome or a list of outcomes, inline or in a file.

    Raises:
        ExpectationUnreadable: it is none; names each fault and its place.
    """
    try:
        tree = parse_yaml(OPTION, text).tree if text.lstrip()[:1] in ("{", "[") else _tree_of(Path(text))
    except DocumentError as error:
        raise ExpectationUnreadable(str(error)) from error
    forms = tree if isinstance(tree, list) else [tree]
    if not forms:
        raise ExpectationUnreadable(f"{OPTION} is an empty list, which expects nothing")
    faults = [
        f"{f'/{number}' if isinstance(tree, list) else ''}{at or '/'} {fault}"
        for number, form in enumerate(forms)
        for at, fault in outcome_faults(form)
    ]
    if faults:
        raise ExpectationUnreadable("\n".join(faults[:MAX_SHOWN]))
    return Expectation(forms, each=not isinstance(tree, list))


def _tree_of(path: Path) -> Any:
    try:
        with open_input(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ExpectationUnreadable(
            f"{path} cannot be read: {reason}; give a file, or an outcome in braces such as '{{outcome: routed}}'"
        ) from error
    if len(data) > MAX_BYTES:
        raise ExpectationUnreadable(f"{path} has more than {MAX_BYTES} bytes")
    if path.suffix.lower() not in LINES:
        return parse_text(str(path), data).tree
    lines = enumerate(data.split(b"\n"), 1)
    return [parse_text(f"{path}:{number}", line.strip()).tree for number, line in lines if line.strip()]


def _text(each: ValueMismatch) -> str:
    return one_line(f"{each.pointer}: expected {_shown(each.expected)}, found {_shown(each.actual)}")


def _shown(value: Any) -> str:
    text = shown_value(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


NOT_AS_EXPECTED: Final = 1
"""The exit code when a record is not as ``--expect`` says."""


class Validate(StrEnum):
    """When bodies are validated against their schemas."""

    never = "never"
    ambiguous = "ambiguous"
    always = "always"


class AmbiguousPolicy(StrEnum):
    """Outcome of records that several definitions match equally well."""

    dead_letter = "dead-letter"
    first = "first"
    base = "base"


class MatchFraming(StrEnum):
    """Schema id framing of Kafka bodies."""

    auto = "auto"
    confluent = "confluent"
    apicurio = "apicurio"
    glue = "glue"
    none = "none"


def match(
    catalog: CatalogOption,
    more: MorePaths = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="XID", help="For all records, use the candidates of this endpoint.")
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="XID", help="For all records, use this message group as candidates; repeatable."),
    ] = None,
    validate: Annotated[
        Validate,
        typer.Option(help="When to validate bodies against their schemas; routes are ignored."),
    ] = Validate.ambiguous,
    explain: Annotated[bool, typer.Option("--explain", help="Explain each outcome as text instead of JSON.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help=f"With --explain: show all candidates, not only the best {BEST}.")
    ] = False,
    allow: AllowAddresses = None,
    base_uri: BaseUri = "",
    logins: LoginsOption = None,
    ambiguous: Annotated[
        AmbiguousPolicy, typer.Option(help="Outcome of a record that several definitions match equally well.")
    ] = AmbiguousPolicy.dead_letter,
    framing: Annotated[
        MatchFraming,
        typer.Option(help="Kafka: schema id framing of bodies; `auto`: `confluent` where present."),
    ] = MatchFraming.auto,
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
    expected = None if expect is None else _expected(expect)
    loaded = usable_catalog([*catalog, *(more or [])], fetcher(logins, allow or ()), base_uri=base_uri)
    if endpoint is not None:
        _require(endpoint, loaded.endpoints, "endpoint")
    how = partial(RecordMatcher, validation=validate.value, frames=Frames(framing.value), ambiguous=ambiguous.value)
    matcher = _matcher(how, loaded, endpoint, group or [])
    if explain:
        _explain(Explainer(matcher, everything=everything))
        return
    output = sys.stdout.buffer
    for outcome in matcher.outcomes(sys.stdin.buffer):
        output.write(escaped_json(to_line(outcome)))
        for line in () if expected is None else expected.compare(outcome):
            print_text(line, err=True)
    output.flush()
    if expected is not None:
        text, good = expected.summary()
        print_text(text, err=True)
        raise typer.Exit(0 if good else NOT_AS_EXPECTED)


def _expected(given: str) -> Expectation:
    try:
        return expectation_of(given)
    except ExpectationUnreadable as error:
        raise typer.BadParameter(f"{OPTION}: {error}") from error


def _explain(explainer: Explainer) -> None:
    writer = ExplanationWriter()
    for number, line in enumerate((line for line in sys.stdin.buffer if line.strip()), 1):
        writer.write(explainer.explain(number, line))


def _matcher(
    how: Callable[..., RecordMatcher], catalog: Catalog, endpoint: str | None, groups: list[str]
) -> RecordMatcher:
    """Return the matcher; the candidates of several groups are combined."""
    for xid in groups:
        _require(xid, catalog.groups, "message group")
    if len(groups) < 2:
        return how(catalog, endpoint=endpoint, group=groups[0] if groups else None)
    union = tuple(dict.fromkeys(member for xid in groups for member in catalog.groups[xid]))
    return how(replace(catalog, groups={groups[0]: union}), group=groups[0])


def _require(xid: str, among: Mapping[str, Any], what: str) -> None:
    if xid in among:
        return
    near = get_close_matches(xid, among, 1)
    hint = f"did you mean {near[0]}?" if near else f"the catalog has {', '.join(among) or 'none'}"
    raise RouterError(f"the catalog has no {what} {xid}", hint=hint)
