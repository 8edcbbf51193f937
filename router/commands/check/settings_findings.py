"""Findings of ``xrouter check --config`` about settings, alone and together with a catalog."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bindings.http.request import shadowing_routes
from catalog.documents.fetching import is_url
from catalog.findings import Declarations, Findings
from catalog.linting import MAPPING_RULES, Subject, mapping
from catalog.model import Catalog, Finding, Severity
from router.errors import ConfigError, SinkError, StateError
from router.evaluation.plan import Plan
from router.intake.intake import SHADOW_REMEDY, http_routes, shadow_text
from router.overview.picture import route_findings
from router.realtime import require_real_time
from router.schemaids.framing import IDS, unidentified_text
from router.settings import Settings, load_settings
from router.settings.checks import executor_warnings, inbox_faults, retention_warnings, security_warnings
from router.settings.load import DEFAULT_CATALOG, VARIABLE, key_of, pointer_of
from router.sinks import check_endpoints
from router.sources import MISSING_REMEDY, Source, missing_sources, sources_of
from router.state.durable import Pins, clients_of, distrusted


def findings_with_settings(
    findings: Sequence[Finding], config: Path, catalog: Catalog, declarations: Declarations, given: Sequence[str]
) -> list[Finding]:
    """Return *findings* of the catalog as they stand beside the settings at *config*, and what is wrong with those.

    *given* are the sources of that catalog.

    What the `context` of sources supplies is lacking nowhere. Where the settings cannot be used, all stay as they are.
    """
    try:
        settings = load_settings(config)
    except ConfigError as error:
        return [*findings, *_unusable(config, error)]
    combined = [*findings, *_other_catalog(config, settings, given), *_by_themselves(config, settings, catalog)]
    try:
        sources = sources_of(catalog, settings)
    except ConfigError as error:
        return [*combined, Finding(str(config), f"/{error.key}", "error", "source", error.message, error.hint)]
    supplied = _supplied(catalog, sources)
    mapped = Findings()
    mapping(Subject(catalog, declarations, (), mapped), supplied)
    kept = (each for each in combined if each.rule not in MAPPING_RULES)
    return [*kept, *mapped.sorted(), *_with_sources(config, settings, catalog, sources)]


def _other_catalog(config: Path, settings: Settings, given: Sequence[str]) -> Iterator[Finding]:
    """Report that the settings use another catalog than the checked one, which may be the next one."""
    named = settings.catalog.source
    default = config.resolve().parent / DEFAULT_CATALOG
    if {_place(each) for each in named} == {_place(str(default))} and not default.exists():
        return  # they name none
    if {_place(each) for each in named} != {_place(each) for each in given}:
        text = f"the settings use the catalog {', '.join(named)}, but {', '.join(given)} is checked"
        hint = "check the catalog of the settings, or correct catalog.source, unless this is the next catalog"
        yield Finding(str(config), "/catalog/source", "info", "other-catalog", text, hint)


def _place(source: str) -> str:
    return source.rstrip("/") if is_url(source) else os.path.realpath(source.removeprefix("file://"))


def _supplied(catalog: Catalog, sources: Sequence[Source]) -> dict[str, frozenset[str]]:
    """Return, by xid of definitions, the names that the `context` of each of their sources has."""
    supplied: dict[str, frozenset[str]] = {}
    for source in sources:
        names = frozenset(source.context)
        for xid in catalog.endpoints[source.endpoint].candidates:
            supplied[xid] = supplied.get(xid, names) & names
    return supplied


def _unusable(config: Path, error: ConfigError) -> Iterator[Finding]:
    places = error.places or ("",) * len(error.problems)
    for problem, place in zip(error.problems, places, strict=True):
        key = key_of(problem)
        if place.startswith(VARIABLE):
            yield Finding(str(config), "", "error", "settings", f"{place}: {problem}", error.hint)
        else:
            fault = problem.removeprefix(f"{key}: ") if key else problem
            yield Finding(str(config), pointer_of(key) if key else "", "error", "settings", fault, error.hint)


def _by_themselves(config: Path, settings: Settings, catalog: Catalog) -> Iterator[Finding]:
    for key, caution in security_warnings(settings):
        yield Finding(str(config), pointer_of(key), "warning", "plain-text-credentials", f"{key} {caution}")
    for key, caution in executor_warnings(settings):
        yield Finding(str(config), pointer_of(key), "warning", "open-cluster", f"{key} {caution}")
    for key, caution in retention_warnings(settings):
        yield Finding(str(config), pointer_of(key), "warning", "kept-by-broker", caution)
    for xid, hint in missing_sources(catalog, settings).items():
        # Without a near name it may be one that a later catalog has.
        severity: Severity = "error" if hint != MISSING_REMEDY else "warning"
        yield Finding(str(config), "/sources", severity, "unknown-endpoint", f"the catalog has no endpoint {xid}", hint)


def _with_sources(config: Path, settings: Settings, catalog: Catalog, sources: Sequence[Source]) -> Iterator[Finding]:
    events = settings.catalog.events
    if events is not None and events not in {source.endpoint for source in sources}:
        hint = "name a source, or give that endpoint of the catalog the usage consumer"
        text = f"nothing is received from {events}, so changes are found only by polling"
        yield Finding(str(config), "/catalog/events", "warning", "unknown-endpoint", text, hint)
    if any(source.pushed for source in sources):
        for key, fault in inbox_faults(settings):
            yield Finding(str(config), pointer_of(key), "error", "settings", fault)
    try:
        check_endpoints(settings, catalog)
    except SinkError as error:
        yield Finding(str(config), "/sinks", "error", "sink", error.message, error.hint)
    try:
        distrust = distrusted(clients_of(settings, catalog, sources), Pins(Path(settings.state)))
    except StateError as error:
        yield Finding(str(config), "/state", "error", "moved-address", error.message, error.hint)
        return
    yield from (replace(each, file=str(config)) for each in distrust)
    if not sources:
        hint = "name endpoints under sources, or give endpoints of the catalog the usage consumer"
        yield Finding(str(config), "/sources", "warning", "no-source", "nothing would be received", hint)
        return
    plan = Plan(catalog, settings)
    try:
        require_real_time(plan)
    except ConfigError as error:
        yield Finding(str(config), pointer_of(error.key), "error", "source", error.message, error.hint)
        return
    for earlier, later in shadowing_routes(http_routes(plan)):
        text = shadow_text(earlier, later)
        yield Finding(str(config), "/sources", "error", "shadowed-route", text, SHADOW_REMEDY)
    yield from route_findings(str(config), plan)
    for source, xids in plan.unidentified():
        asked = source.settings.framing != "auto"
        text = unidentified_text(source.settings, xids)
        yield Finding(str(config), "/sources", "warning" if asked else "info", "schema-ids", text, IDS)
