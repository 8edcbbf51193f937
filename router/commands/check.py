"""``xrouter check``: everything lint has to say about a catalog, and about settings that go with it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from catalog.errors import DocumentError
from catalog.listing import finding_to_json
from catalog.load import load
from catalog.model import Catalog, Finding
from router.commands.arguments import Format, Sources
from router.errors import ConfigError
from router.settings import load_settings
from router.sources import missing_sources, sources_of

CLEAN: Final = 0
ERRORS: Final = 1
UNREADABLE: Final = 2
_COLOURS: Final = {"error": "red", "warning": "yellow", "info": "cyan"}


def check(
    sources: Sources,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="CONFIG", help="Settings to check against the catalog.")
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="`json` is one list.")] = Format.text,
) -> None:
    """Check catalogs. Ends with 0 when there are no errors, 1 when there are, 2 when a source cannot be read."""
    findings, status = examined(sources, config)
    if format is Format.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode([*map(finding_to_json, findings)])) + b"\n")
        sys.stdout.buffer.flush()
    elif status == UNREADABLE:
        for each in findings:
            typer.echo(f"xrouter: error: {each.message}" + (f"\nhint: {each.hint}" if each.hint else ""), err=True)
    else:
        _write(findings)
    raise typer.Exit(status)


def examined(sources: Sequence[str], config: Path | None = None) -> tuple[list[Finding], int]:
    """Return all findings, by file and place, and the exit code they make."""
    try:
        catalog = load(sources, network=True)
    except DocumentError as error:
        finding = Finding(error.file, error.pointer, "error", "unreadable-document", str(error), error.hint)
        return [finding], UNREADABLE
    found = list(catalog.findings)
    if config is not None:
        found += _settings_findings(config, catalog)
    severities = {finding.severity for finding in found}
    return sorted(found), ERRORS if "error" in severities else CLEAN


def _settings_findings(config: Path, catalog: Catalog) -> Iterable[Finding]:
    try:
        settings = load_settings(config)
    except ConfigError as error:
        for problem in error.problems:
            key, mark, fault = problem.partition(": ")
            pointer = "/" + key.replace(".", "/") if mark and " " not in key else ""
            yield Finding(str(config), pointer, "error", "settings", fault if pointer else problem, error.hint)
        return
    for xid in missing_sources(catalog, settings):
        hint = "correct the xid, or add the endpoint to the catalog"
        yield Finding(
            str(config), "/sources", "warning", "unknown-endpoint", f"the catalog has no endpoint {xid}", hint
        )
    try:
        sources = sources_of(catalog, settings)
    except ConfigError as error:
        yield Finding(str(config), f"/{error.key}", "error", "source", error.message, error.hint)
        return
    if not sources:
        hint = "name endpoints under sources, or give endpoints of the catalog the usage consumer"
        yield Finding(str(config), "/sources", "warning", "no-source", "nothing would be received", hint)


def _write(findings: Sequence[Finding]) -> None:
    """Write findings by file: coloured on a terminal, else one finding a line with its hint below."""
    console = Console(highlight=False, soft_wrap=True)
    for file, members in groupby(findings, key=lambda finding: finding.file):
        console.print(f"[bold]{escape(file)}[/bold]")
        for each in members:
            colour = _COLOURS[each.severity]
            place, rule = escape(each.pointer or "/"), escape(f"[{each.rule}]")
            console.print(f"  [{colour}]{each.severity}[/{colour}] {place} {rule} {escape(each.message)}")
            if each.hint:
                console.print(f"    hint: {escape(each.hint)}", style="dim")
    counts = {kind: sum(each.severity == kind for each in findings) for kind in _COLOURS}
    console.print(", ".join(_counted(number, kind) for kind, number in counts.items()))


def _counted(number: int, kind: str) -> str:
    return f"{number} {kind}{'' if number == 1 else 's'}"
