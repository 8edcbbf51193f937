"""The running router: everything that has a life between start and SIGTERM, in one place.

Starting checks what can be checked before anything is taken: settings, catalog, state folder, brokers. Then the
inbox and its gateways open, and one query per Kafka cluster and lane begins, as soon as its brokers answer. The loop
below watches them, looks for a new catalog, and on SIGTERM drains: gateways first, then every query between two
batches.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bindings.private_files import set_umask_for
from catalog.linting.attributes import rejecting_errors
from catalog.load import freeze_for_gc
from router.batches.plans import PlanHolder
from router.dead_letters.retention import Housekeeping
from router.errors import BrokerUnreachable, ConfigError, DiskError, SinkError
from router.evaluation.plan import Plan, plan_of
from router.intake.intake import Intake, Store, local_store, topic_store
from router.intake.subscriptions import RouterSubscriptions
from router.logs import configure_logs, get_logger
from router.machine import divided, raise_descriptor_limit
from router.overview.overview import Replays
from router.overview.picture import sink_topics
from router.preflight import gateway_checks, require_checks, router_checks
from router.reading.generations import Succession
from router.realtime import require_real_time, require_rest_topic
from router.request_reply import Pairing
from router.running.monitoring import BacklogWatch, Monitoring, check_state, load_startup_catalog, serve_monitoring
from router.running.queries import Queries, WarmUp
from router.running.reload import BackgroundReloads, CatalogComparisons, Reloader, ShadowReloader, in_background
from router.settings import Settings, load_settings
from router.settings.catalogs import logins_of
from router.sinks import check_endpoints, close_targets
from router.sources import REST, missing_sources
from router.spark.executors import require_context
from router.spark.session import Stopped, Stopping, jvm_alive, jvm_pid, require_jvm, signals, spark_session
from router.state.durable import Pins, admit, clients_of, disk_of
from router.state.state import Accounts, StateFolder
from router.watching.metrics import RelationMetrics, SubscriptionMetrics, watch_jvm
from router.watching.status import RouterStatus
from router.writing.outcomes import create_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How a changed catalog takes effect, step by step, in an order in which a crash after any step loses nothing.
#
# First the ledger gets the positions of what is to be read. Then queries whose topics change begin no more batches, the
# others judge theirs by the new plan, and watchers learn of it. The inbox is there before gateways write to it.

HOLD_FIRST: Final = 1.0
HOLD_MOST: Final = 60.0
_log = get_logger()


class CatalogActivation:
    """The change that waits to take effect, if there is one. Not for concurrent use."""

    def __init__(
        self,
        plans: PlanHolder,
        queries: Queries,
        intake: Intake,
        announce: Callable[[Plan], None],
        hold: Callable[[str], None],
    ) -> None:
        """``announce`` gets each plan that took effect; ``hold`` gets why one waits, or '' when none does."""
        self._plans = plans
        self._queries = queries
        self._intake = intake
        self._announce = announce
        self._hold = hold
        self._waiting: Plan | None = None
        self._pause = HOLD_FIRST
        self._again_at = 0.0

    def offer(self, plan: Plan) -> None:
        """Let a plan take effect at the next :meth:`check`, in place of one that still waits."""
        self._waiting, self._pause, self._again_at = plan, HOLD_FIRST, 0.0

    def check(self) -> None:
        """Let the plan that waits take effect.

        A broker that does not answer and a disk that refuses hold it, and the last good one goes on.

        Raises:
            RouterError: it cannot take effect at all.
        """
        if self._waiting is None or time.monotonic() < self._again_at:
            return
        plan = self._waiting
        try:
            self._intake.open_inbox(plan)
            self._queries.place(plan.sources)
        except (BrokerUnreachable, DiskError, OSError) as error:
            self._hold(str(error))
            _log.warning("catalog pending; keeping the last valid one", problem=str(error), retry_seconds=self._pause)
            self._again_at = time.monotonic() + self._pause
            self._pause = min(self._pause * 2, HOLD_MOST)
            return
        self._waiting = None
        self._hold("")
        self._queries.retarget(plan.sources)
        self._plans.activate(plan, self._queries.at_work)
        self._announce(plan)
        freeze_for_gc()
        self._intake.take(plan)


TICK: Final = 0.2


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a started router tells its caller."""

    metrics_port: int
    http_port: int | None
    stop: Callable[[], None]


def run(
    settings_path: Path, replays: Replays, *, once: bool = False, ready: Callable[[RunInfo], None] | None = None
) -> bool:
    """Run the router until SIGTERM or SIGINT has drained it, or with *once* until what was there is processed.

    *replays* is what replays dead letters for the status page.
    ``ready`` is called when all queries run and gateways listen. Returns False when a batch was cut off by the grace
    limit: its threads may go on until their sinks answer, and are not to be waited for.

    Raises:
        RouterError: it cannot start, or cannot go on; see :mod:`router.errors` for the exit codes.
    """
    settings = load_settings(settings_path)
    configure_logs(settings.log)
    set_umask_for(settings.readable_by)
    raise_descriptor_limit()
    stop = Stopping()
    with (
        signals(stop),
        StateFolder.open(Path(settings.state)) as state,
        serve_monitoring(settings, RouterStatus(), replays) as watched,
    ):
        loaded = load_startup_catalog(settings, stop, watched)
        if loaded is None:
            return True
        plan, stale = Plan(loaded[0], settings), loaded[1]
        _ = plan.sources
        _report(plan)
        base = settings_path.resolve().parent
        return Service(plan, state, base, stop, watched, stale=stale).run(once=once, ready=ready)


def _report(plan: Plan) -> None:
    findings = plan.catalog.findings
    errors = [finding for finding in findings if finding.severity == "error"]
    _log.info(
        "catalog loaded",
        epoch=plan.epoch,
        definitions=len(plan.catalog.definitions),
        endpoints=len(plan.catalog.endpoints),
        warnings=sum(finding.severity == "warning" for finding in findings),
        errors=len(errors),
    )
    left_out = rejecting_errors(errors)
    for finding in errors:
        _log.warning(
            "definition left out" if finding in left_out else "catalog error; the rest is used",
            file=finding.file,
            pointer=finding.pointer,
            rule=finding.rule,
            problem=finding.message,
            hint=finding.hint,
        )
    missing = missing_sources(plan.catalog, plan.settings)
    for endpoint, remedy in missing.items():
        _log.warning("source not found in the catalog; it is not read", endpoint=endpoint, hint=remedy)
    if not plan.sources:
        raise ConfigError(
            "no source to read: the catalog has none of the configured sources"
            + (f"; it has no {', '.join(missing)}" if missing else ""),
            key="sources",
            hint=next(iter(missing.values()), "list endpoints of the catalog under `sources`"),
        )


def _create_topics(plan: Plan) -> None:
    """Create missing topics of sinks that are configured so; a batch tries again what fails."""
    for name, topics in sink_topics(plan).items():
        sink = plan.settings.sinks[name].topics
        if sink is not None and sink.create_topics is not None:
            try:
                create_topics(sink, name, topics)
            except SinkError as error:
                _log.warning("topics not created", sink=name, problem=error.message, hint=error.hint)


class Service:
    """One started router."""

    def __init__(
        self, plan: Plan, state: StateFolder, base: Path, stop: Stopping, monitoring: Monitoring, *, stale: str = ""
    ) -> None:
        """*stale* is why the catalog of *plan* is the one that was in force last, '' when it was read."""
        self._first = plan
        self._stale = stale
        self._settings = plan.settings
        self._state = state
        self._accounts = Accounts(state)
        self._base = base
        self._stop = stop
        self._in_order = True
        self._port, self._monitoring = monitoring.port, monitoring
        self._metrics, self._status, self._overview = monitoring.metrics, monitoring.status, monitoring.overview
        self._comparisons = CatalogComparisons(self._metrics, self._status)
        make_metrics = partial(SubscriptionMetrics, self._metrics.registry)
        self._subscriptions = RouterSubscriptions(state.root, logins_of(plan.settings), self._status, make_metrics)
        endpoints = [source.endpoint for source in plan.sources]
        # This comes before their series begin: what an account adds to a series that was seen looks like traffic.
        for query, account in self._accounts.opened(endpoints).items():
            self._metrics.resume(query, account)
        self._metrics.expect(endpoints=endpoints)

    def run(self, *, once: bool, ready: Callable[[RunInfo], None] | None) -> bool:
        """Start all parts, supervise them, and take them down in order; see :func:`run`."""
        try:
            return self._run(once=once, ready=ready)
        except Stopped:
            _log.info("stopped")
            return True

    def _run(self, *, once: bool, ready: Callable[[RunInfo], None] | None) -> bool:
        with disk_of(self._state.root):
            wanted = [*self._first.queries, *(() if self._settings.realtime is None else (REST,))]
            names = [*wanted, *Succession(self._state).left(wanted)]
            check_state(self._state, names, inbox=self._settings.inbox.kafka is None)
        admit(clients_of(self._settings, self._first.catalog, self._first.sources), Pins(self._state.root))
        with self._stop.at_once():
            require_checks(router_checks(self._settings, self._first.catalog, self._first.sources, once=once))
        require_real_time(self._first, once=once)
        with suppress(BrokerUnreachable):  # Its query waits for them, and asks again.
            require_rest_topic(self._settings, self._state)
        check_endpoints(self._settings, self._first.catalog)
        with ExitStack() as stack:
            store = self._local_store if self._settings.inbox.kafka is None else None
            stack.callback(close_targets)
            intake = Intake(self._settings, self._metrics, self._status, store, once=once)
            stack.callback(intake.close)
            intake.open_inbox(self._first)
            division = divided(self._settings)
            _log.info("memory budget", **division.log_fields)
            self._metrics.coverage.keep_in(self._state.database)
            stack.callback(self._metrics.coverage.close)
            with self._stop.at_once():
                _log.info("starting Spark", master=self._settings.spark.master or division.master)
                spark = stack.enter_context(spark_session(self._settings, self._state.root, self._first.sources))
            watch_jvm(self._metrics.registry, jvm_pid())
            plans = PlanHolder(spark, self._state, self._first, self._metrics)
            plans.activate(self._first)
            shadowing = ShadowReloader(plans, self._metrics.shadow)
            pairing = stack.enter_context(self._pairs())
            warming = None if once else stack.enter_context(WarmUp(spark, plans.current(), self._status))
            shared = (spark, self._state, plans, self._metrics, self._status, self._restore)
            queries = Queries(*shared, once=once, pairing=pairing, accounts=self._accounts)
            with disk_of(self._state.root):
                queries.place(self._first.sources, waits=not once)
            self._announce(self._first, stale=self._stale)
            freeze_for_gc()
            self._stop.begin_work()
            # Whoever sends to us need not wait for the brokers of others.
            intake.take(self._first)
            if once:
                intake.until_idle(self._stop)
                shadowing.wait()
            queries.start(self._first.sources)
            self._overview.begin(spark)
            stack.callback(self._overview.end)
            if not once:
                stack.enter_context(Housekeeping(self._settings))
            page = f"http://{self._settings.metrics.host}:{self._port}/"
            _log.info("running", status_page=page, metrics=f"{page}metrics")
            if ready is not None:
                ready(RunInfo(self._port, intake.http_port, self._stop.set))
            # It is left after the last batch, so that the offsets of that are committed too.
            with BacklogWatch(self._state, lambda: plans.active, self._metrics.backlogs, self._status) as backlogs:
                try:
                    self._supervise(spark, plans, queries, intake, backlogs, shadowing, warming)
                finally:
                    self._drain(queries, intake)
                    shadowing.log()
                    self._metrics.flow.log(last=True)
        _log.info("stopped")
        return self._in_order

    def _supervise(
        self,
        spark: SparkSession,
        plans: PlanHolder,
        queries: Queries,
        intake: Intake,
        backlogs: BacklogWatch,
        shadowing: ShadowReloader,
        warming: WarmUp | None,
    ) -> None:
        """*warming* is None in a run that ends by itself."""
        once = warming is None
        changes = CatalogActivation(plans, queries, intake, self._announce, self._hold)
        nudged = threading.Event()
        unread = bool(self._stale)
        reloader = Reloader(self._settings, self._first, self._metrics, self._status, nudged.set, unread=unread)
        reloads = BackgroundReloads(reloader, nudged.set)
        while self._goes_on(nudged):
            self._status.beat()
            require_jvm()
            require_context(spark)
            queries.check()
            if warming is not None and queries.have_looked:
                warming.check()
            if once and queries.finished:
                return
            if not once:
                intake.check()
            changed = reloads.poll() if not once else None
            if changed is not None:
                changes.offer(changed)
            changes.check()
            shadowing.check()
            if not once:
                self._subscriptions.follow(plans.active.sources)
            queries.measure()
            self._metrics.inbox(*intake.size())
            backlogs.follow()
            self._overview.tick()
            self._metrics.flow.log()
            self._metrics.coverage.tick()

    def _goes_on(self, nudged: threading.Event) -> bool:
        """Wait for a tick, which a nudge ends early; False when the router is to stop."""
        nudged.wait(TICK)
        nudged.clear()
        return not self._stop.is_set()

    def _announce(self, plan: Plan, *, stale: str = "") -> None:
        self._monitoring.announce(plan, [source.endpoint for source in plan.sources], stale=stale)
        self._comparisons.follow(plan.catalog)
        if any(sink.topics is not None and sink.topics.create_topics for sink in self._settings.sinks.values()):
            in_background(partial(_create_topics, plan))

    def _hold(self, reason: str) -> None:
        self._status.holding(reason)
        self._metrics.catalog_held(bool(reason))

    def _drain(self, queries: Queries, intake: Intake) -> None:
        self._status.draining()
        grace = self._settings.drain_grace.total_seconds()
        deadline = time.monotonic() + grace
        self._subscriptions.stop(min(5.0, grace / 4), in_order=self._stop.is_set())
        intake.stop(min(10.0, grace / 2))
        if jvm_alive():
            self._in_order = queries.drain(max(1.0, deadline - time.monotonic()))

    def _pairs(self) -> AbstractContextManager[Pairing | None]:
        """Return what pairs messages by relations; None where the settings do not ask for it."""
        if self._settings.relations is None:
            return nullcontext()
        written = partial(self._metrics.sink_write, self._settings.relations.to)
        metrics = RelationMetrics(self._metrics.registry, written)
        return Pairing(self._settings, metrics, self._metrics.backlogs.read_until)

    def _local_store(self) -> Store:
        return local_store(self._settings, self._state)

    def _restore(self, document: bytes) -> Plan:
        return plan_of(document, environ=os.environ, base=self._base)


# ``xrouter gateway``: the gateways of the settings in a process of their own, with a Kafka topic as their inbox.
#
# Any number of these run side by side and with one ``run``, which reads the topic. A message is acknowledged once the
# topic has it. MQTT delivers to every process that subscribes, unless the endpoint's subscription is a shared one;
# queues of AMQP, queue groups and durable consumers of NATS share by themselves.


def serve(settings_path: Path) -> None:
    """Run the gateways until SIGTERM or SIGINT; what is in flight is stored and acknowledged first.

    Raises:
        RouterError: the settings have no inbox topic, no source needs a gateway, or a gateway can never work.
    """
    settings = load_settings(settings_path)
    configure_logs(settings.log)
    raise_descriptor_limit()
    if settings.inbox.kafka is None:
        hint = "set inbox.kafka, or use `xrouter run`, which has its gateways and inbox in one process"
        raise ConfigError("separate gateways require a Kafka topic as the inbox", key="inbox.kafka", hint=hint)
    stop = threading.Event()
    with signals(stop), serve_monitoring(settings, RouterStatus(routes=False)) as monitoring:
        loaded = load_startup_catalog(settings, stop, monitoring)
        if loaded is not None:
            _run(settings, Plan(loaded[0], settings), stop, monitoring, loaded[1])


def _run(settings: Settings, plan: Plan, stop: threading.Event, monitoring: Monitoring, stale: str) -> None:
    chosen = settings.inbox.kafka
    assert chosen is not None
    pushed = _pushed(plan)
    if not pushed:
        raise ConfigError("no source needs a gateway", key="sources", hint="name endpoints of MQTT, AMQP, NATS or HTTP")
    admit(clients_of(settings, plan.catalog, plan.sources), Pins(Path(settings.state)))
    require_checks(gateway_checks(settings, plan.catalog, plan.sources))
    metrics, status = monitoring.metrics, monitoring.status
    comparisons = CatalogComparisons(metrics, status)
    comparisons.follow(plan.catalog)
    metrics.expect(endpoints=pushed)
    with ExitStack() as stack:
        intake = Intake(settings, metrics, status, lambda: topic_store(chosen))
        stack.callback(intake.close)
        intake.take(plan)
        monitoring.announce(plan, pushed, stale=stale)
        reloads = BackgroundReloads(Reloader(settings, plan, metrics, status, unread=bool(stale)))
        _log.info("gateways running", topic=chosen.topic, endpoints=pushed)
        while not stop.wait(TICK):
            status.beat()
            monitoring.overview.tick()
            intake.check()
            changed = reloads.poll()
            if changed is not None:
                intake.take(changed)
                monitoring.announce(changed, _pushed(changed))
                comparisons.follow(changed.catalog)
        status.draining()
        intake.stop(settings.drain_grace.total_seconds())
    _log.info("stopped")


def _pushed(plan: Plan) -> list[str]:
    return [source.endpoint for source in plan.sources if source.pushed]
