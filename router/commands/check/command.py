"""``xrouter check``: lint findings of a catalog, and of settings that use it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

import msgspec
import typer

from bindings.envelope import STRUCTURED, build_attribute_part
from bindings.events import encode_event
from bindings.protocols import BINDINGS
from catalog.definitions.candidates import schema_key_of
from catalog.findings import Declarations, DocumentError, Findings, to_one_line
from catalog.linting.attributes import explain_rule, load_rules
from catalog.linting.overlaps import Overlap, find_overlaps
from catalog.load import finding_to_json, load
from catalog.model import Catalog, Definition, Endpoint, Finding, Property, Severity
from catalog.parsing.pointers import lines_of_findings
from router.commands.arguments import AllowAddresses, LoginsOption, Sources, make_fetcher
from router.errors import GOOD, USAGE, WRONG, ConfigError, RouterError, hint_near
from router.matching.records import RecordMatcher
from router.terminal import MAX_LISTED, Terminal, plural, print_json, print_text, terminal, to_text

# Findings as SARIF 2.1.0 (OASIS), which code hosts and editors show beside the affected lines.

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS: Final[Mapping[Severity, str]] = {"error": "error", "warning": "warning", "info": "note"}


def make_sarif_log(
    findings: Iterable[Finding], lines: Mapping[tuple[str, str], int], folder: Path, *, exit_code: int
) -> dict[str, Any]:
    """Return findings as a SARIF log with one run.

    All known rules are listed. A result has the file (relative to *folder* if it is below it), the line from *lines* if
    known, and the JSON pointer as its logical location. Its fingerprint is made of rule, pointer and message, so that
    it stays the same when lines move.
    """
    known = load_rules()
    numbers = {name: number for number, name in enumerate(known)}
    driver = {
        "name": "xrouter check",
        "semanticVersion": version("xregistry-router"),
        "rules": [
            {
                "id": rule.id,
                "shortDescription": {"text": rule.doc},
                "fullDescription": {"text": f"{rule.doc} {rule.why}"},
                "help": {"text": f"{rule.why} Basis: {rule.basis}."},
                "defaultConfiguration": {"level": _LEVELS[rule.severity]},
                "properties": {"tags": [rule.family]},
            }
            for rule in known.values()
        ],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": exit_code != 2, "exitCode": exit_code}],
        "columnKind": "unicodeCodePoints",
        "results": [_finding_to_sarif(finding, lines, folder, numbers) for finding in findings],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _finding_to_sarif(
    finding: Finding, lines: Mapping[tuple[str, str], int], folder: Path, numbers: Mapping[str, int]
) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": artifact_uri(finding.file, folder)}}
    line = lines.get((finding.file, finding.pointer))
    if line is not None:
        physical["region"] = {"startLine": line}
    location: dict[str, Any] = {"physicalLocation": physical} if finding.file else {}
    if finding.pointer:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.pointer, "kind": "member"}]
    mark = hashlib.sha256("\0".join((finding.rule, finding.pointer, finding.message)).encode()).hexdigest()[:32]
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}; {finding.hint}" if finding.hint else finding.message},
        "locations": [location] if location else [],
        "partialFingerprints": {"ruleAndPointer/v1": mark},
    }
    if finding.rule in numbers:
        result["ruleIndex"] = numbers[finding.rule]
    return result


def artifact_uri(file: str, folder: Path) -> str:
    """Return a file as a URI reference: relative if it is below *folder*, else absolute; URLs are unchanged."""
    if "://" in file:
        return file
    path = Path(file) if Path(file).is_absolute() else folder / file
    try:
        return quote(path.resolve().relative_to(folder.resolve()).as_posix())
    except ValueError:
        return path.resolve().as_uri()


ALL_RULES: Final = "all"
_COLOURS: Final = {"error": "red", "warning": "yellow", "info": "cyan"}


def _explain_rule(rule: str | None) -> None:
    """Explain a rule and exit."""
    if rule is None:
        return
    table = load_rules()
    if rule != ALL_RULES and rule not in table:
        hint = hint_near(rule, table, f"`xrouter check --explain {ALL_RULES}` shows them all")
        raise RouterError(f"unknown rule {rule}", hint=hint)
    chosen = table.values() if rule == ALL_RULES else [table[rule]]
    print_text("\n\n".join(explain_rule(each) for each in chosen))
    raise typer.Exit(GOOD)


def check(
    sources: Sources,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="CONFIG", help="Settings to check against the catalog.")
    ] = None,
    format: Annotated[
        Literal["text", "json", "sarif"],
        typer.Option("--format", help="`json` prints one list, `sarif` a SARIF 2.1.0 log."),
    ] = "text",
    everything: Annotated[
        bool, typer.Option("--all", help=f"Text: show more than {MAX_LISTED} findings of one rule in one file.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 also if there are warnings.")] = False,
    allow: AllowAddresses = None,
    logins: LoginsOption = None,
    _explained: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="RULE",
            callback=_explain_rule,
            is_eager=True,
            help=f"Explain a rule (or `{ALL_RULES}`): what it finds, why, and its basis; then exit.",
        ),
    ] = None,
) -> None:
    """Lint catalogs, and with --config settings.

    Exit codes: 0 no errors, 1 errors, 2 a source cannot be read.

    Example: xrouter check catalog.xreg.json --config router.yaml
    """
    findings, status = collect_findings(sources, config, allow or (), logins)
    if strict and status == GOOD and any(finding.severity == "warning" for finding in findings):
        status = WRONG
    if format == "json":
        print_json([*map(finding_to_json, findings)])
    elif format == "sarif":
        print_json(make_sarif_log(findings, lines_of_findings(findings), Path.cwd(), exit_code=status))
    elif status == USAGE:
        for each in findings:
            print_text(f"xrouter: error: {each.message}" + (f"\nhint: {each.hint}" if each.hint else ""), err=True)
    else:
        _print_findings(findings, everything=everything)
    raise typer.Exit(status)


def collect_findings(
    sources: Sequence[str], config: Path | None = None, allow: Sequence[str] = (), logins: Path | None = None
) -> tuple[list[Finding], int]:
    """Return all findings, by file and location, and the exit code.

    Logins are those of *logins*, else of *config*; errors of the latter are findings.

    Raises:
        ConfigError: *logins* cannot be used.
    """
    try:
        fetcher = make_fetcher(logins or config, allow)
    except ConfigError:
        if logins is not None:
            raise
        fetcher = make_fetcher(None, allow)
    declarations = Declarations()
    try:
        catalog = load(sources, fetcher=fetcher, declarations=declarations)
    except DocumentError as error:
        finding = Finding(error.file, error.pointer, "error", "unreadable-document", str(error), error.hint)
        return [finding], USAGE
    findings = list(catalog.findings)
    findings += report_overlaps(tuple(find_overlaps(catalog)), catalog, declarations)
    if config is not None:
        # Imported here: catalogs alone need neither Arrow nor the clients of sinks, which are slow to import.
        from router.commands.check.settings_findings import findings_with_settings

        findings = findings_with_settings(findings, config, catalog, declarations, sources)
    return sorted(findings), WRONG if any(each.severity == "error" for each in findings) else GOOD


def _print_findings(findings: Sequence[Finding], *, everything: bool) -> None:
    """Print findings by file and line, each with its hint below; in colour on a terminal."""
    console = terminal(soft_wrap=True)
    lines = lines_of_findings(findings)
    for file, grouped in groupby(findings, key=lambda finding: finding.file):
        members = sorted(grouped, key=lambda finding: lines.get((finding.file, finding.pointer), 0))
        console.print(to_text((to_one_line(file), "bold")))
        shown: Counter[str] = Counter()
        for each in members:
            shown[each.rule] += 1
            if everything or shown[each.rule] <= MAX_LISTED:
                _print_finding(console, each, lines.get((file, each.pointer)))
        for rule, number in shown.items():
            if not everything and number > MAX_LISTED:
                more = f"… and {number - MAX_LISTED} more of [{rule}]"
                console.print(to_text((f"  {more} (--all shows all)", "dim")))
    counts = {kind: sum(each.severity == kind for each in findings) for kind in _COLOURS}
    console.print(", ".join(plural(number, kind) for kind, number in counts.items()))


def _print_finding(console: Terminal, finding: Finding, line: int | None) -> None:
    number = f"{line}: " if line is not None else ""
    text = f" {finding.pointer or '/'} [{finding.rule}] {finding.message}"
    console.print(to_text(f"  {number}", (finding.severity, _COLOURS[finding.severity]), to_one_line(text)))
    if finding.hint:
        console.print(to_text((to_one_line(f"    hint: {finding.hint}"), "dim")))


# Overlapping definitions, each with an example record that both match.

_ANY_PROTOCOL: Final = "HTTP"
"""The protocol of an example record when neither definition has one."""
_REQUIRED: Final = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


def report_overlaps(overlaps: Sequence[Overlap], catalog: Catalog, declarations: Declarations) -> tuple[Finding, ...]:
    """Return the findings about overlaps, without those whose record does not match both definitions."""
    findings = Findings()
    for overlap, record, both in iter_proven_overlaps(overlaps, catalog):
        text = msgspec.json.encode(record).decode()
        for mine, its in ((overlap.one, overlap.other), (overlap.other, overlap.one)):
            message = f"on {overlap.scope}: {its.xid} overlaps with this one; both match {text}"
            place = declarations.messages[mine.xid].place
            if both.get("reason") == "ambiguous" and not _schema_decides(overlap):
                hint = "make a common value differ, or make one more specific: such a record is ambiguous"
                findings.warning(place, "overlap", message, hint)
            else:
                winner = both.get("message", "the one of the two that counts")
                hint = f"nothing is to be done if such a record is rightly for {winner}"
                findings.info(place, "overlap", message, hint)
    return findings.sorted()


def iter_proven_overlaps(
    overlaps: Sequence[Overlap], catalog: Catalog
) -> Iterator[tuple[Overlap, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the overlaps whose example record matches both definitions.

    Each with the record, and with its outcome where both are candidates.
    """
    records = [make_example_record(each) for each in overlaps]
    for overlap, record, (one, other, both) in zip(overlaps, records, _match(overlaps, records, catalog), strict=True):
        # Unmappable records count as matches, since settings may change that.
        if all(each["outcome"] == "routed" or each["reason"] == "unmappable" for each in (one, other)):
            yield overlap, record, both


def make_example_record(overlap: Overlap) -> dict[str, Any]:
    """Return an example record (in the form of MATCHING.md#records) with the values of an overlap."""
    binding = BINDINGS[overlap.protocol or _ANY_PROTOCOL]
    attributes = {key[2:]: text for key, text in overlap.values.items() if key.startswith("e.")}
    kinds = {each.name: each.type for one in (overlap.other, overlap.one) for each in one.protocoloptions}
    given = {key[2:]: text for key, text in overlap.values.items() if key.startswith("p.")}
    options = [(Property(name, kinds.get(name, "string")), text) for name, text in given.items()]
    parts = binding.sending.build_option_parts(options)
    record: dict[str, Any] = {"protocol": binding.protocol}
    if overlap.event:
        event = {**_REQUIRED, **attributes}
        content_type = overlap.values.get(f"p.{binding.rule.content_type}", "")
        if binding.binary and not content_type.lower().startswith(STRUCTURED):
            parts += [build_attribute_part(binding.rule, *each) for each in event.items()]
        else:
            record["body"] = encode_event(event, None).decode()
            if binding.binary:
                parts += [build_attribute_part(binding.rule, "datacontenttype", STRUCTURED)]
    return {**record, "native": binding.build(parts)}


def _match(
    overlaps: Sequence[Overlap], records: Sequence[Mapping[str, Any]], catalog: Catalog
) -> list[tuple[Mapping[str, Any], ...]]:
    """Return three outcomes per overlap: of its record with either definition alone, and with both.

    One matcher is compiled for all, from the definitions involved, each on its own channels.
    """
    definitions: dict[str, Definition] = {}
    endpoints: dict[str, Endpoint] = {}
    lines: list[bytes | str] = []
    for number, (overlap, record) in enumerate(zip(overlaps, records, strict=True)):
        pair = (overlap.one, overlap.other)
        definitions.update({each.xid: each for each in pair})
        like = overlap.endpoint or Endpoint(overlap.scope)
        for name, members in enumerate(((pair[0],), (pair[1],), pair)):
            xid = f"/endpoints/{number}.{name}"
            endpoints[xid] = replace(like, xid=xid, messagegroups=(), candidates=tuple(each.xid for each in members))
            lines.append(msgspec.json.encode({**record, "endpoint": xid}))
    only = replace(catalog, definitions=definitions, groups={}, endpoints=endpoints)
    outcomes = RecordMatcher(only, validation="never").decide(lines)
    return [tuple(outcomes[place : place + 3]) for place in range(0, len(outcomes), 3)]


def _schema_decides(overlap: Overlap) -> bool:
    """Whether the definitions have different schemas, so that a body may be valid for only one of them."""
    schemas = {schema_key_of(overlap.one), schema_key_of(overlap.other)}
    return len(schemas) == 2 and None not in schemas
