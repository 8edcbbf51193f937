"""Findings of ``xrouter check --config`` about settings, alone and together with a catalog."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bindings.http.request import iter_shadowing_routes
from catalog.documents.fetching import is_url
from catalog.findings import Declarations, Findings
from catalog.linting import MAPPING_RULES, Subject, mapping
from catalog.model import Catalog, Finding, Severity
from router.errors import ConfigError, SinkError, StateError
from router.evaluation.plan import Plan
from router.intake.intake import SHADOW_REMEDY, build_http_routes, shadow_text
from router.overview.picture import iter_route_findings
from router.schemaids.framing import IDS, unidentified_text
from router.settings import Settings, load_settings
from router.settings.checks import (
    iter_executor_warnings,
    iter_inbox_faults,
    iter_retention_warnings,
    iter_security_warnings,
)
from router.settings.load import DEFAULT_CATALOG, VARIABLE, key_to_pointer, split_key
from router.sinks import check_endpoints
from router.sources import MISSING_REMEDY, Source, find_missing_sources, resolve_sources
from router.state.durable import distrusted


def findings_with_settings(
    findings: Sequence[Finding], config: Path, catalog: Catalog, declarations: Declarations, loaded_from: Sequence[str]
) -> list[Finding]:
    """Return *findings* of the catalog, adapted to the settings at *config*, and findings about the settings.

    *loaded_from* are the sources of that catalog.

    Values that the `context` of sources supplies are not reported as missing. If the settings cannot be used,
    *findings* are unchanged.
    """
    try:
        settings = load_settings(config)
    except ConfigError as error:
        return [*findings, *_iter_settings_errors(config, error)]
    combined = [*findings, *_iter_mismatch(config, settings, loaded_from), *_iter_warnings(config, settings, catalog)]
    try:
        sources = resolve_sources(catalog, settings)
    except ConfigError as error:
        return [*combined, Finding(str(config), f"/{error.key}", "error", "source", error.message, error.hint)]
    supplied = _collect_context_names(catalog, sources)
    mapped = Findings()
    mapping(Subject(catalog, declarations, (), mapped), supplied)
    kept = (each for each in combined if each.rule not in MAPPING_RULES)
    return [*kept, *mapped.sorted(), *_check_sources(config, settings, catalog, sources)]


def _iter_mismatch(config: Path, settings: Settings, loaded_from: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding if the settings use another catalog than the checked one."""
    configured = settings.catalog.source
    default = config.resolve().parent / DEFAULT_CATALOG
    if {_normalize_source(each) for each in configured} == {_normalize_source(str(default))} and not default.exists():
        return  # they name none
    if {_normalize_source(each) for each in configured} != {_normalize_source(each) for each in loaded_from}:
        text = f"the settings use the catalog {', '.join(configured)}, but {', '.join(loaded_from)} is checked"
        hint = "check the catalog of the settings, or correct catalog.source, unless this is the next catalog"
        yield Finding(str(config), "/catalog/source", "info", "other-catalog", text, hint)


def _normalize_source(source: str) -> str:
    return source.rstrip("/") if is_url(source) else os.path.realpath(source.removeprefix("file://"))


def _collect_context_names(catalog: Catalog, sources: Sequence[Source]) -> dict[str, frozenset[str]]:
    """Return, by definition, the names that are in the `context` of all its sources."""
    supplied: dict[str, frozenset[str]] = {}
    for source in sources:
        names = frozenset(source.context)
        for xid in catalog.endpoints[source.endpoint].candidates:
            supplied[xid] = supplied.get(xid, names) & names
    return supplied


def _iter_settings_errors(config: Path, error: ConfigError) -> Iterator[Finding]:
    places = error.places or ("",) * len(error.problems)
    for problem, place in zip(error.problems, places, strict=True):
        key = split_key(problem)
        if place.startswith(VARIABLE):
            yield Finding(str(config), "", "error", "settings", f"{place}: {problem}", error.hint)
        else:
            fault = problem.removeprefix(f"{key}: ") if key else problem
            yield Finding(str(config), key_to_pointer(key) if key else "", "error", "settings", fault, error.hint)


def _iter_warnings(config: Path, settings: Settings, catalog: Catalog) -> Iterator[Finding]:
    for key, caution in iter_security_warnings(settings):
        yield Finding(str(config), key_to_pointer(key), "warning", "plain-text-credentials", f"{key} {caution}")
    for key, caution in iter_executor_warnings(settings):
        yield Finding(str(config), key_to_pointer(key), "warning", "open-cluster", f"{key} {caution}")
    for key, caution in iter_retention_warnings(settings):
        yield Finding(str(config), key_to_pointer(key), "warning", "kept-by-broker", caution)
    for xid, hint in find_missing_sources(catalog, settings).items():
        # Without a near name it may be one that a later catalog has.
        severity: Severity = "error" if hint != MISSING_REMEDY else "warning"
        yield Finding(str(config), "/sources", severity, "unknown-endpoint", f"the catalog has no endpoint {xid}", hint)


def _check_sources(config: Path, settings: Settings, catalog: Catalog, sources: Sequence[Source]) -> Iterator[Finding]:
    events = settings.catalog.events
    if events is not None and events not in {source.endpoint for source in sources}:
        hint = "name a source, or give that endpoint of the catalog the usage consumer"
        text = f"nothing is received from {events}, so changes are found only by polling"
        yield Finding(str(config), "/catalog/events", "warning", "unknown-endpoint", text, hint)
    if any(source.pushed for source in sources):
        for key, fault in iter_inbox_faults(settings):
            yield Finding(str(config), key_to_pointer(key), "error", "settings", fault)
    try:
        check_endpoints(settings, catalog)
    except SinkError as error:
        yield Finding(str(config), "/sinks", "error", "sink", error.message, error.hint)
    try:
        distrust = distrusted(settings, catalog, sources)
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
        if settings.realtime is not None:
            from router.realtime import require_real_time  # loads Kafka's client

            require_real_time(plan)
    except ConfigError as error:
        yield Finding(str(config), key_to_pointer(error.key), "error", "source", error.message, error.hint)
        return
    for earlier, later in iter_shadowing_routes(build_http_routes(plan)):
        text = shadow_text(earlier, later)
        yield Finding(str(config), "/sources", "error", "shadowed-route", text, SHADOW_REMEDY)
    yield from iter_route_findings(str(config), plan)
    for source, xids in plan.iter_unresolved_sources():
        asked = source.settings.framing != "auto"
        text = unidentified_text(source.settings, xids)
        yield Finding(str(config), "/sources", "warning" if asked else "info", "schema-ids", text, IDS)
