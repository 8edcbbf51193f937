"""``xrouter doctor``: run the preflight checks of a router."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from catalog.findings import DocumentError
from catalog.load import load, new_errors
from catalog.model import Catalog
from router.errors import ConfigError, StateError
from router.preflight import CheckResult, iter_remote_checks, list_local_checks, list_machine_checks, run_checks
from router.settings import Settings, load_settings
from router.settings.catalogs import make_catalog_fetcher
from router.sources import find_missing_sources, resolve_sources
from router.state.durable import distrusted, pinned_addresses
from router.terminal import plural, print_text, terminal, to_text

# The checks of ``doctor``: those of startup, plus settings and catalog.


def run_doctor(config: Path | None = None) -> Iterator[CheckResult]:
    """Yield the findings; without *config*, those of the machine only. No check waits longer than 30 s."""
    if config is None:
        yield from run_checks(list_machine_checks())
        return
    try:
        settings = load_settings(config)
    except ConfigError as error:
        yield from run_checks(list_machine_checks())
        yield CheckResult("settings", "fail", "; ".join(error.problems), error.hint or f"correct {config}")
        return
    yield from run_checks([*list_machine_checks(), *list_local_checks(settings)])
    yield CheckResult("settings", "ok", str(config))
    chosen = settings.catalog
    try:
        catalog = _load_catalog(chosen.source, settings)
    except DocumentError as error:
        yield CheckResult("catalog", "fail", str(error), error.hint or "correct catalog.source")
        return
    yield _check_catalog(catalog, settings)
    if chosen.shadow:
        yield _check_shadow(catalog, settings)
    yield from _check_servers(catalog, settings)


def _load_catalog(sources: Sequence[str], settings: Settings) -> Catalog:
    return load(sources, fetcher=make_catalog_fetcher(settings), base_uri=settings.catalog.base_uri)


def _check_catalog(catalog: Catalog, settings: Settings) -> CheckResult:
    summary = f"{len(catalog.definitions)} definitions, {len(catalog.endpoints)} endpoints, epoch {catalog.epoch}"
    sources = " ".join(map(str, settings.catalog.source))
    if not catalog.definitions:
        return CheckResult("catalog", "fail", "no usable definition", f"see `xrouter check {sources}`")
    if missing := find_missing_sources(catalog, settings):
        return CheckResult("catalog", "warn", f"{summary}; missing: {', '.join(missing)}", next(iter(missing.values())))
    errors = [finding for finding in catalog.findings if finding.severity == "error"]
    if errors:
        text = f"{summary}; {plural(len(errors), 'error')}, first: {errors[0].message}"
        return CheckResult("catalog", "warn", text, f"see `xrouter check {sources}`")
    return CheckResult("catalog", "ok", summary)


def _check_shadow(catalog: Catalog, settings: Settings) -> CheckResult:
    """Check the shadow catalog; a router runs without a usable one."""
    read = settings.catalog
    sources = " ".join(map(str, read.shadow))
    try:
        shadow = _load_catalog(read.shadow, settings)
    except DocumentError as error:
        return CheckResult("shadow", "warn", str(error), error.hint or "correct catalog.shadow")
    errors = new_errors(shadow, catalog.findings, elsewhere=True)
    if errors or not shadow.definitions:
        what = errors[0].message if errors else "no usable definition"
        return CheckResult("shadow", "warn", f"would be ignored: {what}", f"see `xrouter check {sources}`")
    return CheckResult("shadow", "ok", f"{len(shadow.definitions)} definitions, epoch {shadow.epoch}")


def _check_servers(catalog: Catalog, settings: Settings) -> Iterator[CheckResult]:
    """Yield the findings about brokers and servers; those that must not see our credentials are not contacted."""
    try:
        sources = resolve_sources(catalog, settings)
    except ConfigError as error:
        yield CheckResult("sources", "fail", error.message, error.hint)
        return
    try:
        wrong = distrusted(settings, catalog, sources)
        known = pinned_addresses(Path(settings.state))
    except StateError as error:
        yield CheckResult("addresses", "fail", error.message, error.hint)
        return
    for finding in wrong:
        yield CheckResult("addresses", "fail", finding.message, finding.hint)
    if wrong:
        return
    for name, addresses in known.items():
        yield CheckResult("addresses", "ok", f"{name}: credentials are sent to {', '.join(addresses)}")
    yield from run_checks(list(iter_remote_checks(settings, catalog, sources, beside=True)))


_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="Settings; also check what they name.")
    ] = None,
) -> None:
    """Check Java, Spark and open files; with CONFIG also memory, disk, ports, catalog and brokers.

    `fail`: `run` would not start; the exit code is 1. `warn`: `run` would start, and wait or do without.

    Example: xrouter doctor router.yaml
    """
    diagnoses = list(run_doctor(config))
    console = terminal()
    table = Table("", "check", "result", "remedy")
    for each in diagnoses:
        table.add_row(to_text((each.state, _COLOURS[each.state])), each.name, each.observation, each.remedy)
        if not console.is_terminal:
            remedy = f" (remedy: {each.remedy})" if each.remedy else ""
            print_text(f"{each.state:4} {each.name}: {each.observation}{remedy}")
    if console.is_terminal:
        console.print(table)
    raise typer.Exit(1 if any(each.state == "fail" for each in diagnoses) else 0)
