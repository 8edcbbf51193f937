"""Monitoring of a router or gateway process, its saved catalog, state checks, and backlogs."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from bindings.background import Background
from bindings.gateways import GatewayError
from bindings.http.monitor import MetricsServer
from bindings.http.request import Reply, RequestHead
from bindings.http.server import AcceptedRequest
from bindings.inbox.format import NAME as LAYOUT
from bindings.inbox.format import (
    InboxPosition,
    count_rows,
    list_segments,
    parse_offset,
    partition_directory,
    read_layout,
    segment_path,
)
from bindings.inbox.space import InboxDamaged, InboxError
from bindings.kafka.client import KafkaClient, KafkaUnreachable
from catalog.load import catalog_from_json, catalog_to_json
from catalog.model import Catalog
from router.batches.splitting import PartsNote
from router.errors import BatchPinError, CatalogUnavailable, ConfigError, RouterError, StateError
from router.evaluation.plan import VERSION, Plan, read_catalog
from router.logs import get_logger, shorten_list
from router.overview.overview import Overview, Replays
from router.reading import generations
from router.reading.backlogs import InboxBacklog, TopicBacklogs
from router.reading.generations import Generation, Offsets, Positions, cluster_of, reads, topics_of
from router.running.reload import wait_unless_stopped
from router.settings import Settings
from router.settings.catalogs import OtlpSettings
from router.sinks.tables.head import local_folder
from router.sources import INBOX, REST, Source, make_query_client
from router.state.durable import RESTORE, CheckpointProgress, damaged, missing, progress_of, unreadable, write_durably
from router.state.state import BatchNote, BlockedKeys, Hold, Park, StateFolder
from router.watching.backlogs import Backlog, Backlogs
from router.watching.metrics import DiskCollector, Metrics, StatusCollector, make_certificate_collector
from router.watching.status import RouterStatus

HOLD_SECONDS: Final = 5.0
"""Time between two looks at what a catalog refers to before the first start, when the catalog is not polled."""
_USER: Final = re.compile(r"//[^/@]*@")
"""User and password of a URL, which are not written down."""
_log = get_logger()


@dataclass(frozen=True, slots=True)
class Monitoring:
    """The metrics, status and status page of this process, served at ``port`` even before it has a catalog."""

    metrics: Metrics
    status: RouterStatus
    port: int
    overview: Overview
    saved: SavedCatalog

    def show_plan(self, plan: Plan, endpoints: Iterable[str], *, stale: str = "") -> None:
        """Show a plan as active, with series of these endpoints; *stale* is why its catalog could not be read."""
        self.metrics.set_findings(plan.catalog.findings)
        self.status.set_catalog(plan.epoch, len(plan.catalog.definitions))
        self.metrics.init_series(endpoints=endpoints)
        self.overview.show_plan(plan)
        self.status.stale = stale
        if not stale:
            self.saved.save(plan.catalog)


class SavedCatalog:
    """The last active catalog, saved in ``catalog.json`` of the state folder for starts while its source is away.

    It counts for the sources that it was read from, and for the version that wrote it. Who writes last has kept it.
    """

    def __init__(self, settings: Settings) -> None:
        self._path = Path(settings.state) / "catalog.json"
        read = settings.catalog
        told = json.dumps([[_USER.sub("//", source) for source in read.source], read.base_uri])
        self._of = {"format": 1, "version": VERSION, "sources": hashlib.sha256(told.encode()).hexdigest()}
        self._kept = ""

    def save(self, catalog: Catalog) -> None:
        """Save the active catalog, unless it is saved already."""
        if catalog.pending or catalog.epoch == self._kept:
            return
        try:
            write_durably(self._path, json.dumps({**self._of, "catalog": catalog_to_json(catalog)}).encode())
            self._kept = catalog.epoch
        except OSError as error:
            _log.warning("catalog not saved for starts without its registry", file=self._path, problem=str(error))

    def read(self) -> tuple[Catalog, str] | None:
        """Return the saved catalog and its time; None if there is none of these sources and this version."""
        try:
            form = json.loads(self._path.read_bytes())
            if {name: form.get(name) for name in self._of} != self._of:
                return None
            catalog = catalog_from_json(form["catalog"])
            kept = datetime.fromtimestamp(self._path.stat().st_mtime, UTC).isoformat(timespec="seconds")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("saved catalog cannot be used", file=self._path, problem=str(error))
            return None
        self._kept = catalog.epoch
        return catalog, kept


class MonitorServer(MetricsServer):
    """Serves metrics, status and pages in a separate thread; can be started and stopped once.

    ``port`` 0 selects a free port; after :meth:`start`, ``port`` is the one in use.
    """

    def __init__(
        self, host: str, port: int, metrics: Metrics, status: RouterStatus, pages: Overview | None = None
    ) -> None:
        metrics.registry.register(StatusCollector(status))
        checks = {b"/healthz": status.check_health, b"/readyz": status.check_readiness}
        super().__init__("metrics server", (host, port), metrics.registry, checks)
        self._pages = pages

    @property
    def base_url(self) -> str:
        """The URL of the server, without path."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def start(self) -> None:
        """Listen; requests are answered when this returns.

        Raises:
            ConfigError: the port is taken or not allowed (``metrics.port``), or the host is unknown (``metrics.host``).
        """
        try:
            super().start()
        except GatewayError as error:
            if isinstance(error.__cause__, socket.gaierror):
                hint = "set metrics.host to an address of this machine, such as 127.0.0.1"
                raise ConfigError(str(error), key="metrics.host", hint=hint) from error
            hint = "set metrics.port to another port, or to 0 for a free one, or stop what uses it"
            raise ConfigError(str(error), key="metrics.port", hint=hint) from error

    def admit(self, head: RequestHead) -> AcceptedRequest | Reply:
        """Answer a request, or pass it to the pages."""
        page = None if self._pages is None else self._pages.admit(head)
        return super().admit(head) if page is None else page


@contextmanager
def serve_monitoring(settings: Settings, status: RouterStatus, replays: Replays | None = None) -> Iterator[Monitoring]:
    """Serve metrics and status during the block; without *replays*, the status page shows no records.

    Raises:
        ConfigError: as :meth:`MonitorServer.start`.
    """
    metrics = Metrics(settings.sinks)
    metrics.registry.register(make_certificate_collector(settings))
    sinks = ((name, local_folder(sink.folder)) for name, sink in settings.sinks.items() if sink.folder)
    folders = {f"sinks.{name}": folder for name, folder in sinks if folder is not None}
    metrics.registry.register(DiskCollector({"state": Path(settings.state), **folders}))
    overview = Overview(settings, metrics, status, replays)
    server = MonitorServer(settings.metrics.host, settings.metrics.port, metrics, status, overview)
    server.start()
    try:
        with _send_telemetry(settings.telemetry.otlp, metrics, status):
            yield Monitoring(metrics, status, server.port, overview, SavedCatalog(settings))
    finally:
        server.stop()
        overview.close()


def _send_telemetry(
    settings: OtlpSettings | None, metrics: Metrics, status: RouterStatus
) -> AbstractContextManager[None]:
    """Send spans of batches and the metrics during the block; OpenTelemetry is loaded only if it is configured."""
    if settings is None:
        return nullcontext()
    from router.telemetry.exporting import export_telemetry

    return export_telemetry(settings, metrics.registry, status.steps)


def load_startup_catalog(
    settings: Settings, stop: threading.Event, monitoring: Monitoring
) -> tuple[Catalog, str] | None:
    """Load the catalog, or the saved one if it is unreachable; return it, and why it is the saved one.

    Without such a one a start holds until all that its catalog refers to is loaded or known to be unloadable. None when
    *stop* came first, however long somebody takes to answer.

    Raises:
        CatalogUnavailable: as :func:`read_catalog`, and none was in force before.
    """
    reported: tuple[str, ...] = ()
    while not stop.is_set():
        try:
            catalog = wait_unless_stopped(lambda: read_catalog(settings), stop)
        except CatalogUnavailable as error:
            if not error.awaited or (last := monitoring.saved.read()) is None:
                raise
            return _use_saved(monitoring, (error.awaited,), *last)
        if catalog is None:
            return None
        monitoring.status.awaited = tuple(catalog.pending)
        if not catalog.pending:
            return catalog, ""
        if (last := monitoring.saved.read()) is not None:
            return _use_saved(monitoring, catalog.pending, *last)
        if catalog.pending != reported:
            reported = catalog.pending
            _log.warning("waiting to start: the catalog has unreachable references", unreachable=list(reported))
        stop.wait(settings.catalog.poll.total_seconds() or HOLD_SECONDS)
    return None


def _use_saved(monitoring: Monitoring, awaited: tuple[str, ...], catalog: Catalog, kept: str) -> tuple[Catalog, str]:
    """Report the use of the saved catalog because of unreachable addresses; return it and the reason."""
    monitoring.status.awaited = awaited
    reason = f"the catalog is unreachable at {shorten_list(awaited)}; using the last valid one, saved {kept}"
    _log.warning("started with the last valid catalog", unreachable=list(awaited), epoch=catalog.epoch, kept=kept)
    return catalog, reason


# Checks of the state folder before anything reads from it; a start fails and names the damage.
#
# Otherwise emptied, truncated or foreign files, and missing folders, would look like a fresh start, a passing fault, or
# a crash.

_FILES: Final = ("lock.jvm",)
_FOLDERS: Final = ("checkpoints", "inbox", "spill")


def require_intact(state: StateFolder, queries: Iterable[str], *, inbox: bool) -> None:
    """Raise if a router with these queries cannot continue from this folder; *inbox* if they read a local one.

    It notes what exists and a crash kept from being noted.

    Raises:
        StateError: a file or folder is damaged, missing, unreadable, or of another router; names it and the remedy.
    """
    _require_file_kinds(state.root)
    state.database.check()
    for query in queries:
        begun = require_intact_query(state, query)
        if query == INBOX and inbox:
            _require_inbox(state, begun[1] if begun is not None else CheckpointProgress())
        if begun is not None:
            state.inventory.note_generation(query, begun[0].number, begun[0].id)


def require_intact_query(state: StateFolder, query: str) -> tuple[Generation, CheckpointProgress] | None:
    """Check a query; return its current generation and progress, None before its first start.

    Raises:
        StateError: as :func:`require_intact`, of what belongs to the query.
    """
    generation = generations.current(state, query)
    noted = state.inventory.holdings().generations.get(query)
    if noted is not None and (generation is None or generation.number < noted.number):
        hint = (
            f'{RESTORE}; to restart the query at `start` and repeat its records, remove "{query}" from '
            f'"generations" in {state.inventory.path}'
        )
        raise missing(state.checkpoints / query / str(noted.number), f"query {query} had started it", hint=hint)
    if generation is None:
        return None
    if noted is not None and generation.number == noted.number and generation.id != noted.id:
        raise _foreign_error(generation.path, f"generation {generation.id}, not {noted.id}")
    progress = progress_of(generation.path)
    _require_pins(state, query, generation, progress)
    return generation, progress


def _require_pins(state: StateFolder, query: str, generation: Generation, progress: CheckpointProgress) -> None:
    """Check what there is beside a batch that will be repeated, and that the pinned batches are known to Spark."""
    newest, file = state.batches.newest_batch(query), state.database.path
    if newest is not None and newest > (-1 if progress.planned is None else progress.planned):
        raise missing(generation.path / "offsets" / str(newest), f"batch {newest} was begun, as {file} says")
    batch = progress.pending
    if batch is None:
        return
    plan = state.batches.pinned(query, batch)
    if plan is not None:
        document = state.batches.plan(plan)
        if document is None:
            text = f"{file} has no plan {plan}: batch {batch} of query {query} is pinned to it"
            raise BatchPinError(text, hint=RESTORE)
        if not hashlib.sha256(document).hexdigest().startswith(plan):
            raise damaged(file, f"plan {plan} is not the document that its id is the hash of")
    kinds: tuple[type[BatchNote], ...] = (Hold, Park, BlockedKeys, PartsNote)
    for kind in kinds:
        state.batches.noted(kind, query, batch, generation.id)


def _require_inbox(state: StateFolder, progress: CheckpointProgress) -> None:
    """Check that the inbox is the recorded one, and that it has the uncommitted rows."""
    noted = state.inventory.holdings().inbox
    file = state.inbox / LAYOUT
    if not file.exists():
        if noted or progress.end is not None:
            hint = (
                f"{RESTORE}; without it, its records are lost; to start with an empty one, remove "
                f'{state.checkpoints / INBOX}, and from {state.inventory.path} "inbox", and "{INBOX}" in "generations"'
            )
            raise missing(file, "there was an inbox", hint=hint)
        return
    try:
        layout = read_layout(state.inbox)
        if noted and layout.inbox != noted:
            raise _foreign_error(file, f"inbox {layout.inbox}, not {noted}")
        positions = parse_offset(progress.start, layout.inbox) if progress.start else {}
    except InboxError as error:
        raise StateError(f"{state.inbox}: {error}", hint=RESTORE) from error
    except OSError as error:
        raise unreadable(file, error) from error
    for partition in range(layout.partitions):
        _require_partition(partition_directory(state.inbox, partition), positions.get(partition, InboxPosition(0, 0)))
    state.inventory.note_inbox(layout.inbox)


def _require_partition(directory: Path, position: InboxPosition) -> None:
    """Check that the log reaches *position*; otherwise new rows would get positions that other rows had."""
    if not directory.is_dir():
        raise missing(directory, "the inbox has this partition")
    segments = [number for number in list_segments(directory) if number >= position.segment]
    if not segments and position == (0, 0):
        return
    for expected, number in enumerate(segments, position.segment):
        if number != expected:
            raise missing(segment_path(directory, expected), "its rows were not committed")
    if not segments:
        raise missing(segment_path(directory, position.segment), "the checkpoint continues from it")
    first = segment_path(directory, position.segment)
    try:
        # The last segment may end in the middle of a write; all before it were closed and are whole.
        rows = count_rows(first) if len(segments) > 1 or position.row > 0 else 0
    except InboxError as error:
        if len(segments) > 1:
            raise StateError(str(error), hint=RESTORE) from error
        return
    if rows < position.row:
        raise damaged(first, f"it has {rows} rows, and the checkpoint continues from row {position.row}")


def _require_file_kinds(root: Path) -> None:
    for name in _FILES:
        if (root / name).is_dir():
            raise damaged(root / name, "it is a folder", hint="remove it")
    for name in _FOLDERS:
        if (root / name).exists() and not (root / name).is_dir():
            raise damaged(root / name, "it is not a folder", hint=f"move it away; {RESTORE}")


def _foreign_error(path: Path, what: str) -> StateError:
    hint = "restore the parts of this state folder; parts of two folders cannot be mixed"
    return StateError(f"{path} belongs to another state folder: it is {what}", hint=hint)


# Polling of backlogs at regular intervals, independently of the queries, with one thread per query.
#
# A query that is held, fails or was never started cannot say how far it is behind. So nothing here asks the query: its
# checkpoint says where it reads on, and its sources say where they end. A broker that does not answer holds up only its
# own thread, and its figures are absent meanwhile.

TOPICS_SECONDS: Final = 5.0
"""Interval at which brokers are polled."""
INBOX_SECONDS: Final = 0.5
"""Interval at which a local inbox is polled, which is cheap."""
_STOP_SECONDS: Final = 1.0


class BacklogPoller:
    """Polls backlogs during the block. *active* returns the active plan.

    *status* is told which sources do not answer.
    """

    def __init__(
        self,
        state: StateFolder,
        active: Callable[[], Plan],
        backlogs: Backlogs,
        status: RouterStatus,
        *,
        topics_seconds: float = TOPICS_SECONDS,
        inbox_seconds: float = INBOX_SECONDS,
    ) -> None:
        self.state, self.active, self.backlogs, self.status = state, active, backlogs, status
        self.topics_seconds, self.inbox_seconds = topics_seconds, inbox_seconds
        self.ending = threading.Event()
        self._threads: dict[str, Background] = {}

    def __enter__(self) -> Self:
        self.poll_active_plan()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        for thread in self._threads.values():
            thread.ask_to_end()
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads.values():
            # A thread that waits for a broker ends with the process; nothing depends on it.
            thread.join(max(0.0, deadline - time.monotonic()))

    def poll_active_plan(self) -> None:
        """Poll the sources of the active plan; call it again when the plan may have changed."""
        for query in _sources_by_query(self.active(), self.state):
            known = self._threads.get(query)
            if known is None or not known.alive:
                # Until it answers, nobody knows how far it is read.
                self.backlogs.update(query, {})
                asking = _QueryPoller(self, query)
                self._threads[query] = Background("backlogs", asking.run, name=f"backlogs-{query}")
                self._threads[query].start()


class _QueryPoller:
    """Polls the backlogs of one query for a *poller*, until it has no sources."""

    def __init__(self, poller: BacklogPoller, query: str) -> None:
        self._poller = poller
        self._query = query
        self._client: KafkaClient | None = None
        self._trouble = ""
        self._uncommitted: dict[str, str] = {}
        self._inbox = InboxBacklog(poller.state.inbox)

    def run(self) -> None:
        """Poll until the query has no sources, or everything stops."""
        while not self._poller.ending.is_set() and self._current_sources is not None:
            self._client = self._find_client(self._poller.active())
            connection = nullcontext() if self._client is None else TopicBacklogs(self._client)
            with connection as topics:
                self._poll(topics)
        self._poller.backlogs.forget(self._query)
        self._poller.status.set_source(self._query, "")

    @property
    def _current_sources(self) -> Sequence[Source] | None:
        return _sources_by_query(self._poller.active(), self._poller.state).get(self._query)

    def _poll(self, topics: TopicBacklogs | None) -> None:
        """Poll over these connections while they match the active plan."""
        read = self._inbox.read_until if topics is None else topics.read_until
        while (sources := self._current_sources) is not None:
            if self._find_client(self._poller.active()) != self._client:
                return
            wanted = self._topics_to_poll(sources)
            try:
                backlogs = {INBOX: self._ask_inbox()} if topics is None else topics.look(wanted, self._read_positions())
            except (KafkaUnreachable, InboxError, RouterError, OSError, ValueError) as error:
                self._report_trouble(sources, str(error))
                backlogs = dict.fromkeys(wanted if topics is not None else (INBOX,))
            else:
                self._report_trouble(sources, "")
            self._poller.backlogs.update(self._query, self._group_by_endpoint(backlogs, sources), read.seconds)
            seconds = self._poller.inbox_seconds if topics is None else self._poller.topics_seconds
            ending = self._poller.ending.wait(seconds)
            if topics is not None and not self._trouble:
                self._commit_offsets(topics, sources)
            if ending:
                return

    def _commit_offsets(self, topics: TopicBacklogs, sources: Sequence[Source]) -> None:
        """Commit how far sources are read to the groups that they name. It is for people to look at: nothing waits for
        it, and one that fails is tried again at the next look.
        """
        groups: dict[str, set[str]] = {}
        for source in sources:
            if source.settings.commit_offsets_to:
                groups.setdefault(source.settings.commit_offsets_to, set()).add(source.topic)
        for group, named in groups.items():
            try:
                topics.commit(group, named, self._read_positions())
                problem = ""
            except (KafkaUnreachable, RouterError, OSError, ValueError) as error:
                problem = str(error)
            before, self._uncommitted[group] = self._uncommitted.get(group, ""), problem
            if problem and not before:
                hint = "records are still read; allow the router to commit to this group, which nothing else may use"
                _log.warning("offsets not committed", group=group, topics=sorted(named), problem=problem, hint=hint)
            elif before and not problem:
                _log.info("offsets are committed again", group=group, topics=sorted(named))

    def _report_trouble(self, sources: Sequence[Source], trouble: str) -> None:
        """Log once that a source does not respond, and once that it responds again."""
        before, self._trouble = self._trouble, trouble
        self._poller.status.set_source(self._query, trouble)
        if bool(trouble) == bool(before):
            return
        inputs = reads(sources, self._query) or {"source": self._query}
        if trouble:
            _log.warning("source unreachable; its lag is unknown", **inputs, problem=trouble)
        else:
            _log.info("source reachable again", **inputs)

    def _find_client(self, plan: Plan) -> KafkaClient | None:
        if self._query in (INBOX, REST):
            return make_query_client(plan.settings, self._query, ())
        sources = plan.queries.get(self._query)
        return make_query_client(plan.settings, self._query, sources) if sources else self._client

    def _topics_to_poll(self, sources: Sequence[Source]) -> tuple[str, ...]:
        inbox, realtime = self._poller.active().settings.inbox.kafka, self._poller.active().settings.realtime
        if self._query == INBOX:
            return () if inbox is None else (inbox.topic,)
        if self._query == REST:
            return () if realtime is None else (realtime.rest,)
        return topics_of(sources)

    def _read_positions(self) -> Offsets:
        """Return the saved positions at which each topic is continued."""
        generation = generations.current(self._poller.state, self._query)
        known = {} if generation is None else generation.positions()
        if self._query in (INBOX, REST):
            return known
        return {**Positions(self._poller.state).of(cluster_of(self._query)), **known}

    def _ask_inbox(self) -> Backlog:
        reached = self._read_inbox_position()
        try:
            return self._inbox.look(reached)
        except InboxDamaged:
            # It was trimmed, if a batch of it was committed meanwhile.
            if (now := self._read_inbox_position()) == reached:
                raise
            return self._inbox.look(now)

    def _read_inbox_position(self) -> Mapping[str, Any] | None:
        generation = generations.current(self._poller.state, INBOX)
        return None if generation is None else generation.reached()

    def _group_by_endpoint(
        self, backlogs: Mapping[str, Backlog | None], sources: Sequence[Source]
    ) -> dict[str, Backlog | None]:
        if self._query in (INBOX, REST):
            found = {self._query: next(iter(backlogs.values()), None)}
            if self._query == INBOX and self._client is None:
                known = None if found[INBOX] is None else self._inbox.endpoints
                names = {*(source.endpoint for source in sources), *(known or ())} - {""}
                found |= {name: None if known is None else known.get(name, Backlog(0)) for name in names}
            return found
        return {source.endpoint: backlogs.get(source.topic) for source in sources}


def _sources_by_query(plan: Plan, state: StateFolder) -> dict[str, tuple[Source, ...]]:
    """Return the sources of each query of a plan, including the query of an existing inbox without sources."""
    queries = dict(plan.queries)
    if (state.inbox / LAYOUT).exists():
        queries.setdefault(INBOX, ())
    return queries if plan.settings.realtime is None else {**queries, REST: ()}
