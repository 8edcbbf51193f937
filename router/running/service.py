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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bindings.background import run_in_background
from bindings.private_files import set_umask_for
from catalog.linting.attributes import rejecting_errors
from catalog.load import freeze_for_gc
from router.batches.plans import PlanCache, SharedParts
from router.dead_letters.retention import RetentionThread
from router.errors import BrokerUnreachable, ConfigError, DiskError, SinkError
from router.evaluation.plan import Plan, compile_plan
from router.intake.intake import Intake, open_local_store, open_topic_store
from router.intake.subscriptions import RouterSubscriptions
from router.logs import configure_logs, get_logger
from router.machine import divide_memory, raise_descriptor_limit
from router.overview.picture import sink_topics
from router.preflight import iter_gateway_checks, iter_router_checks, require_checks
from router.reading.generations import Succession
from router.realtime import require_real_time, require_rest_topic
from router.replay.replay import SingleReplays
from router.request_reply import Pairing
from router.running.monitoring import BacklogPoller, Monitoring, load_startup_catalog, require_intact, serve_monitoring
from router.running.queries import Queries, WarmUp
from router.running.reload import (
    BackgroundReloader,
    CatalogComparisons,
    Reloader,
    ShadowReloader,
    finding_fields,
)
from router.settings import Settings, load_settings
from router.settings.catalogs import make_logins
from router.sinks import check_endpoints
from router.sinks.messages.sink import close_publishers
from router.sources import REST, find_missing_sources
from router.spark.executors import require_context
from router.spark.session import (
    Stopped,
    Stopping,
    handle_signals,
    is_jvm_alive,
    jvm_pid,
    open_spark_session,
    require_jvm,
)
from router.state.durable import admit, disk_of
from router.state.state import StateFolder
from router.watching.metrics import RelationMetrics, SubscriptionMetrics, add_jvm_metrics
from router.watching.status import RouterStatus
from router.writing.outcomes import create_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How a changed catalog takes effect, step by step, in an order in which a crash after any step loses nothing.
#
# First the ledger gets the positions of what is to be read. Then queries whose topics change begin no more batches, the
# others judge theirs by the new plan, and watchers learn of it. The inbox is there before gateways write to it.

FIRST_RETRY_SECONDS: Final = 1.0
MAX_RETRY_SECONDS: Final = 60.0
_log = get_logger()


class CatalogActivation:
    """The change that waits to take effect, if there is one. Not for concurrent use."""

    def __init__(
        self,
        plans: PlanCache,
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
        self._pause = FIRST_RETRY_SECONDS
        self._again_at = 0.0

    def schedule(self, plan: Plan) -> None:
        """Let a plan take effect at the next :meth:`activate_if_ready`, in place of one that still waits."""
        self._waiting, self._pause, self._again_at = plan, FIRST_RETRY_SECONDS, 0.0

    def activate_if_ready(self) -> None:
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
            self._queries.set_start_positions(plan.sources)
        except (BrokerUnreachable, DiskError, OSError) as error:
            self._hold(str(error))
            _log.warning("catalog pending; keeping the last valid one", problem=str(error), retry_seconds=self._pause)
            self._again_at = time.monotonic() + self._pause
            self._pause = min(self._pause * 2, MAX_RETRY_SECONDS)
            return
        self._waiting = None
        self._hold("")
        self._queries.change_sources(plan.sources)
        self._plans.activate(plan, self._queries.active_names)
        self._announce(plan)
        freeze_for_gc()
        self._intake.receive_for_plan(plan)


TICK: Final = 0.2


def run(settings_path: Path, *, once: bool = False) -> bool:
    """Run the router until SIGTERM or SIGINT has drained it, or with *once* until what was there is processed.

    Returns False when a batch was cut off by the grace limit: its threads may go on until their sinks answer, and are
    not to be waited for.

    Raises:
        RouterError: it cannot start, or cannot go on; see :mod:`router.errors` for the exit codes.
    """
    settings = load_settings(settings_path)
    configure_logs(settings.log)
    set_umask_for(settings.readable_by)
    raise_descriptor_limit()
    stop, base = Stopping(), settings_path.resolve().parent
    with (
        handle_signals(stop),
        StateFolder.open(Path(settings.state)) as state,
        serve_monitoring(settings, RouterStatus(), SingleReplays(base)) as watched,
    ):
        loaded = load_startup_catalog(settings, stop, watched)
        if loaded is None:
            return True
        plan, stale = Plan(loaded[0], settings), loaded[1]
        _ = plan.sources
        _report_catalog(plan)
        return Service(plan, state, base, stop, watched, stale=stale).run(once=once)


def _report_catalog(plan: Plan) -> None:
    catalog, errors = plan.catalog, [each for each in plan.catalog.findings if each.severity == "error"]
    found = {"warnings": sum(each.severity == "warning" for each in catalog.findings), "errors": len(errors)}
    size = {"definitions": len(catalog.definitions), "endpoints": len(catalog.endpoints)}
    _log.info("catalog loaded", epoch=plan.epoch, **size, **found)
    left_out = rejecting_errors(errors)
    for finding in errors:
        text = "definition left out" if finding in left_out else "catalog error; the rest is used"
        _log.warning(text, **finding_fields(finding))
    missing = find_missing_sources(plan.catalog, plan.settings)
    for endpoint, remedy in missing.items():
        _log.warning("source not found in the catalog; it is not read", endpoint=endpoint, hint=remedy)
    if not plan.sources:
        lacking = f"; it has no {', '.join(missing)}" if missing else ""
        text = f"no source to read: the catalog has none of the configured sources{lacking}"
        hint = next(iter(missing.values()), "list endpoints of the catalog under `sources`")
        raise ConfigError(text, key="sources", hint=hint)


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
        self._base = base
        self._stop = stop
        self._in_order = True
        self._port, self._monitoring = monitoring.port, monitoring
        self._metrics, self._status, self._overview = monitoring.metrics, monitoring.status, monitoring.overview
        self._comparisons = CatalogComparisons(self._metrics, self._status)
        make_metrics = partial(SubscriptionMetrics, self._metrics.registry)
        self._subscriptions = RouterSubscriptions(state.root, make_logins(plan.settings), self._status, make_metrics)
        endpoints = [source.endpoint for source in plan.sources]
        # This comes before their series begin: what an account adds to a series that was seen looks like traffic.
        state.accounts.keep_endpoints(endpoints)
        for query, account in state.accounts.known.items():
            self._metrics.resume(query, account)
        self._metrics.init_series(endpoints=endpoints)

    def run(self, *, once: bool) -> bool:
        """Start all parts, supervise them, and take them down in order; see :func:`run`."""
        try:
            return self._run(once=once)
        except Stopped:
            _log.info("stopped")
            return True

    def _run(self, *, once: bool) -> bool:
        with disk_of(self._state.root):
            wanted = [*self._first.queries, *(() if self._settings.realtime is None else (REST,))]
            names = [*wanted, *Succession(self._state).left(wanted)]
            require_intact(self._state, names, inbox=self._settings.inbox.kafka is None)
        admit(self._settings, self._first.catalog, self._first.sources)
        with self._stop.interruptible():
            require_checks(iter_router_checks(self._settings, self._first.catalog, self._first.sources, once=once))
        require_real_time(self._first, once=once)
        with suppress(BrokerUnreachable):  # Its query waits for them, and asks again.
            require_rest_topic(self._settings, self._state)
        check_endpoints(self._settings, self._first.catalog)
        with ExitStack() as stack:
            store = (
                partial(open_local_store, self._settings, self._state) if self._settings.inbox.kafka is None else None
            )
            stack.callback(close_publishers)
            intake = Intake(self._settings, self._metrics, self._status, store, once=once)
            stack.callback(intake.close)
            intake.open_inbox(self._first)
            division = divide_memory(self._settings)
            _log.info("memory budget", **division.log_fields)
            self._metrics.coverage.keep_in(self._state.database)
            stack.callback(self._metrics.coverage.close)
            compiling = run_in_background(lambda: self._first.evaluator)
            with self._stop.interruptible():
                _log.info("starting Spark", master=self._settings.spark.master or division.master)
                spark = stack.enter_context(open_spark_session(self._settings, self._state.root, self._first.sources))
            add_jvm_metrics(self._metrics.registry, jvm_pid())
            restore = partial(compile_plan, environ=os.environ, base=self._base)
            plans = PlanCache(spark, self._state.batches, self._first, self._metrics, restore)
            compiling.result()
            plans.activate(self._first)
            shadowing = ShadowReloader(plans, self._metrics.shadow)
            pairing = stack.enter_context(self._make_pairing())
            warming = None if once else stack.enter_context(WarmUp(spark, plans.current(), self._status))
            queries = Queries(SharedParts(self._state, plans, self._metrics, self._status, pairing), once=once)
            with disk_of(self._state.root):
                queries.set_start_positions(self._first.sources, waits=not once)
            self._show_plan(self._first, stale=self._stale)
            freeze_for_gc()
            self._stop.begin_work()
            # Whoever sends to us need not wait for the brokers of others.
            intake.receive_for_plan(self._first)
            if once:
                intake.receive_until_idle(self._stop)
                shadowing.wait_for_first()
            queries.start(self._first.sources)
            self._overview.enable_replays(spark)
            stack.callback(self._overview.disable_replays)
            if not once:
                stack.enter_context(RetentionThread(self._settings))
            page = f"http://{self._settings.metrics.host}:{self._port}/"
            _log.info("running", status_page=page, metrics=f"{page}metrics")
            # It is left after the last batch, so that the offsets of that are committed too.
            with BacklogPoller(self._state, lambda: plans.active, self._metrics.backlogs, self._status) as backlogs:
                try:
                    self._supervise(spark, plans, queries, intake, backlogs, shadowing, warming)
                finally:
                    self._drain(queries, intake)
                    shadowing.log_summary()
                    self._metrics.flow.log_if_due(last=True)
        _log.info("stopped")
        return self._in_order

    def _supervise(
        self,
        spark: SparkSession,
        plans: PlanCache,
        queries: Queries,
        intake: Intake,
        backlogs: BacklogPoller,
        shadowing: ShadowReloader,
        warming: WarmUp | None,
    ) -> None:
        """*warming* is None in a run that ends by itself."""
        once = warming is None
        changes = CatalogActivation(plans, queries, intake, self._show_plan, self._set_pending_reason)
        nudged = threading.Event()
        unread = bool(self._stale)
        reloader = Reloader(self._settings, self._first, self._metrics, self._status, nudged.set, unread=unread)
        reloads = BackgroundReloader(reloader, nudged.set)
        while self._wait_for_tick(nudged):
            self._status.note_heartbeat()
            require_jvm()
            require_context(spark)
            queries.supervise()
            if warming is not None and queries.have_polled:
                warming.finish_if_done()
            if once and queries.is_finished:
                return
            if not once:
                intake.check_state()
            changed = reloads.poll() if not once else None
            if changed is not None:
                changes.schedule(changed)
            changes.activate_if_ready()
            shadowing.judge_if_found()
            if not once:
                self._subscriptions.follow_sources(plans.active.sources)
            queries.collect_progress()
            self._metrics.set_inbox_size(*intake.inbox_size())
            backlogs.poll_active_plan()
            self._overview.take_sample()
            self._metrics.flow.log_if_due()
            self._metrics.coverage.save_if_due()

    def _wait_for_tick(self, nudged: threading.Event) -> bool:
        """Wait for a tick, which a nudge ends early; False when the router is to stop."""
        nudged.wait(TICK)
        nudged.clear()
        return not self._stop.is_set()

    def _show_plan(self, plan: Plan, *, stale: str = "") -> None:
        self._monitoring.show_plan(plan, [source.endpoint for source in plan.sources], stale=stale)
        self._comparisons.set_active(plan.catalog)
        if any(sink.topics is not None and sink.topics.create_topics for sink in self._settings.sinks.values()):
            run_in_background(partial(_create_topics, plan))

    def _set_pending_reason(self, reason: str) -> None:
        self._status.pending_reason = reason

    def _drain(self, queries: Queries, intake: Intake) -> None:
        self._status.draining = True
        grace = self._settings.drain_grace.total_seconds()
        deadline = time.monotonic() + grace
        self._subscriptions.stop(min(5.0, grace / 4), in_order=self._stop.is_set())
        intake.stop(min(10.0, grace / 2))
        if is_jvm_alive():
            self._in_order = queries.drain(max(1.0, deadline - time.monotonic()))

    def _make_pairing(self) -> AbstractContextManager[Pairing | None]:
        """Return what pairs messages by relations; None where the settings do not ask for it."""
        if self._settings.relations is None:
            return nullcontext()
        written = partial(self._metrics.count_sink_write, self._settings.relations.to)
        metrics = RelationMetrics(self._metrics.registry, written)
        return Pairing(self._settings, metrics, self._metrics.backlogs.read_until)


# ``xrouter gateway``: the gateways of the settings in a process of their own, with a Kafka topic as their inbox.
#
# Any number of these run side by side and with one ``run``, which reads the topic. A message is acknowledged once the
# topic has it. MQTT delivers to every process that subscribes, unless the endpoint's subscription is a shared one;
# queues of AMQP, queue groups and durable consumers of NATS share by themselves.


def run_gateways(settings_path: Path) -> None:
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
    with handle_signals(stop), serve_monitoring(settings, RouterStatus(routes=False)) as monitoring:
        loaded = load_startup_catalog(settings, stop, monitoring)
        if loaded is not None:
            _run_gateways(settings, Plan(loaded[0], settings), stop, monitoring, loaded[1])


def _run_gateways(settings: Settings, plan: Plan, stop: threading.Event, monitoring: Monitoring, stale: str) -> None:
    chosen = settings.inbox.kafka
    assert chosen is not None
    pushed = _pushed_endpoints(plan)
    if not pushed:
        raise ConfigError("no source needs a gateway", key="sources", hint="name endpoints of MQTT, AMQP, NATS or HTTP")
    admit(settings, plan.catalog, plan.sources)
    require_checks(iter_gateway_checks(settings, plan.catalog, plan.sources))
    metrics, status = monitoring.metrics, monitoring.status
    comparisons = CatalogComparisons(metrics, status)
    comparisons.set_active(plan.catalog)
    metrics.init_series(endpoints=pushed)
    with ExitStack() as stack:
        intake = Intake(settings, metrics, status, lambda: open_topic_store(chosen))
        stack.callback(intake.close)
        intake.receive_for_plan(plan)
        monitoring.show_plan(plan, pushed, stale=stale)
        reloads = BackgroundReloader(Reloader(settings, plan, metrics, status, unread=bool(stale)))
        _log.info("gateways running", topic=chosen.topic, endpoints=pushed)
        while not stop.wait(TICK):
            status.note_heartbeat()
            monitoring.overview.take_sample()
            intake.check_state()
            changed = reloads.poll()
            if changed is not None:
                intake.receive_for_plan(changed)
                monitoring.show_plan(changed, _pushed_endpoints(changed))
                comparisons.set_active(changed.catalog)
        status.draining = True
        intake.stop(settings.drain_grace.total_seconds())
    _log.info("stopped")


def _pushed_endpoints(plan: Plan) -> list[str]:
    return [source.endpoint for source in plan.sources if source.pushed]
