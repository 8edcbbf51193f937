"""``xrouter gateway``: the gateways of the settings in a process of their own, with a Kafka topic as their inbox.

Any number of these run side by side and with one ``run``, which reads the topic. A message is acknowledged once the
topic has it. MQTT delivers to every process that subscribes, unless the endpoint's subscription is a shared one; queues
of AMQP, queue groups and durable consumers of NATS share by themselves.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

from router.errors import ConfigError
from router.examining.checks import gateway_checks, require
from router.intake.intake import Intake, topic_store
from router.judging.plan import Plan
from router.logs import configure_logs, get_logger
from router.machine.descriptors import raise_descriptor_limit
from router.running.differences import Comparisons
from router.running.monitoring import Monitored, monitored, whole_catalog
from router.running.reload import BackgroundReloads, Reloader
from router.running.service import TICK
from router.settings import Settings, load_settings
from router.spark.signals import signals
from router.state.trust import Pins, admit, clients_of
from router.watching.status import Status

_log = get_logger()


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
        raise ConfigError("gateways of their own need a Kafka topic as their inbox", key="inbox.kafka", hint=hint)
    stop = threading.Event()
    with signals(stop), monitored(settings, Status(routes=False)) as monitoring:
        loaded = whole_catalog(settings, stop, monitoring)
        if loaded is not None:
            _run(settings, Plan(loaded[0], settings), stop, monitoring, loaded[1])


def _run(settings: Settings, plan: Plan, stop: threading.Event, monitoring: Monitored, stale: str) -> None:
    chosen = settings.inbox.kafka
    assert chosen is not None
    pushed = _pushed(plan)
    if not pushed:
        raise ConfigError("no source needs a gateway", key="sources", hint="name endpoints of MQTT, AMQP, NATS or HTTP")
    admit(clients_of(settings, plan.catalog, plan.sources), Pins(Path(settings.state)))
    require(gateway_checks(settings, plan.catalog, plan.sources))
    metrics, status = monitoring.metrics, monitoring.status
    comparisons = Comparisons(metrics, status)
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
