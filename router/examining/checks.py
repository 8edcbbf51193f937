"""The one list of what is looked at before a start: ``doctor`` shows all of it, ``run`` ends on what would stop it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from catalog.model import Catalog
from router.examining.diagnosis import Check, Diagnosis, diagnoses, refusal
from router.examining.machine import cluster, connectors, java, memory, open_files, spark
from router.examining.places import http_port, metrics_port, sink_folders, state_folder
from router.examining.reaching import peer_checks
from router.logs import few, get_logger
from router.settings import Settings
from router.settings.takers import event_sinks
from router.sources.sources import INBOX, Source, by_query

_log = get_logger()


def machine_checks() -> list[Check]:
    """Return what every start of a router needs, whatever its settings."""
    return [
        Check("java", java),
        Check("pyspark", spark),
        Check("connectors", connectors),
        Check("open files", open_files),
    ]


def place_checks(settings: Settings) -> list[Check]:
    """Return the checks that need only the settings."""
    return [
        Check("memory", partial(memory, settings)),
        Check("state", partial(state_folder, settings)),
        Check("sinks", partial(sink_folders, settings)),
        Check("metrics port", partial(metrics_port, settings)),
    ]


def reach_checks(
    settings: Settings,
    catalog: Catalog,
    sources: Sequence[Source],
    *,
    gateways: bool = True,
    listens: bool = True,
    beside: bool = False,
    once: bool = False,
) -> Iterator[Check]:
    """Yield the checks that need settings and catalog.

    Kafka gets our credentials, so its addresses must be known to be the right ones. With *gateways* messages are
    taken in here, with *listens* those over HTTP too; with *beside* another process may do the latter.
    """
    if listens and gateways and any(source.served for source in sources):
        yield Check("http port", partial(http_port, settings, beside=beside))
    yield Check("queries", partial(_queries, settings, sources))
    pushed = any(source.pushed for source in sources)
    yield Check("cluster", partial(cluster, settings, pushed=pushed))
    yield from peer_checks(settings, catalog, sources, gateways=gateways, once=once)


def _queries(settings: Settings, sources: Sequence[Source]) -> Iterator[Diagnosis]:
    """Say which sources share a query, and so wait for the sinks of each other."""
    idle = [source.endpoint for source in sources if source.pushed and source.settings.lane]
    if idle:
        remedy = "leave it out; a router of their own, with another state, parts them"
        yield Diagnosis("queries", "warn", f"lane parts nothing for {few(idle)}, which share the inbox", remedy)
    for query, members in by_query(sources).items():
        if len(members) > 1 and len(event_sinks(settings)) > 1:
            part = "a router of its own, with another state," if query == INBOX else "`lane` on a source"
            names = few([member.endpoint for member in members])
            told = f"{names} share query {query}: a sink that takes nothing of one holds all; {part} parts them"
            yield Diagnosis("queries", "ok", told)


def require(checks: Iterable[Check]) -> None:
    """Look at everything at once; what does not stop a start goes to the log.

    Raises:
        RouterError: something would stop it; ``others`` are further things that would.
    """
    findings = list(diagnoses(list(checks)))
    error = refusal(findings)
    if error is not None:
        raise error
    for each in findings:
        if each.state == "warn":
            _log.warning("not as it should be", what=each.name, problem=each.observation, hint=each.remedy)


def router_checks(
    settings: Settings, catalog: Catalog, sources: Sequence[Source], *, once: bool = False
) -> Iterator[Check]:
    """Yield what ``run`` looks at; its metrics are served by then."""
    # A start fetches missing connectors, and says so.
    every = [*machine_checks(), *place_checks(settings)]
    yield from (check for check in every if check.name not in ("connectors", "metrics port"))
    apart = settings.inbox.kafka is not None
    yield from reach_checks(settings, catalog, sources, gateways=not apart, listens=not once, once=once)


def gateway_checks(settings: Settings, catalog: Catalog, sources: Sequence[Source]) -> Iterator[Check]:
    """Yield what ``gateway`` looks at; it starts no Spark and writes to no sink."""
    yield Check("open files", open_files)
    pushed = [source for source in sources if source.pushed]
    if any(source.served for source in pushed):
        yield Check("http port", partial(http_port, settings))
    yield from peer_checks(settings, catalog, pushed, gateways=True, sinks=False)
