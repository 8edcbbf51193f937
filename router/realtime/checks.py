"""What must hold before a real-time query begins, besides what the settings alone show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bindings.kafka.client import KafkaUnreachable
from bindings.kafka.ends import KafkaEnds
from router.errors import BrokerUnreachable, ConfigError
from router.judging.plan import Plan
from router.settings import Settings
from router.settling.types import settled_types
from router.sources.clusters import rest_client, source_client
from router.sources.sources import REST
from router.state.state import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_real_time(plan: Plan, *, once: bool = False) -> None:
    """Make sure that real-time mode can read the sources of a plan; nothing is asked of one in batches.

    With *once* the router would end when all is read, which only batches can do.

    Raises:
        ConfigError: a source is no Kafka topic, they are not of one query, one is the rest topic, or no definition can
            be settled without the matcher; names it.
    """
    settings = plan.settings
    if settings.realtime is not None:
        for source in plan.sources:
            if source.topic == settings.realtime.rest:
                raise ConfigError(
                    f"source {source.endpoint}: its topic is the rest topic, so that records would go round for ever",
                    key="realtime.rest",
                    hint="name a topic that is the router's alone",
                )
    if not settings.is_real_time:
        return
    if once:
        raise ConfigError(
            "--once ends when all is read, and real-time mode waits for more",
            key="trigger",
            hint="set trigger to a duration; XROUTER_TRIGGER=500ms does so for one run",
        )
    for source in plan.sources:
        if source.pushed:
            raise ConfigError(
                f"source {source.endpoint}: real-time mode reads Kafka topics, and this is {source.kind}",
                key="sources",
                hint="leave it to another router, or set trigger to a duration",
            )
    if len({source.query for source in plan.sources}) > 1:
        names = ", ".join(source.endpoint for source in plan.sources)
        raise ConfigError(
            f"sources {names}: real-time mode reads one Kafka cluster, with one login and without lanes",
            key="sources",
            hint="give each cluster a router of its own, and leave out lanes",
        )
    if plan.sources and not settled_types(plan):
        raise ConfigError(
            "no definition can be settled without the matcher, so that nothing would be quicker in real-time mode",
            key="trigger",
            hint="see the operations notes on real-time mode for what definitions it takes, or set a duration",
        )


def require_rest_topic(settings: Settings, state: State) -> None:
    """Make sure that the rest topic is there, and that none is left whose records would never be read.

    Raises:
        ConfigError: it does not exist; or the settings have none, or another, and one was read before.
        BrokerUnreachable: its brokers do not answer.
    """
    checkpoint = state.checkpoints / REST
    if settings.realtime is None:
        if checkpoint.exists():
            raise ConfigError(
                f"a rest topic was read before, as {checkpoint} says, and may hold records that are not routed",
                key="realtime.rest",
                hint=f"keep realtime.rest; once `xrouter_rest_records` is 0, remove that folder and {REST!r} from "
                f'"generations" in {state.inventory.path}',
            )
        return
    try:
        known = KafkaEnds(rest_client(settings)).partitions([settings.realtime.rest])
    except KafkaUnreachable as error:
        raise BrokerUnreachable(
            f"rest topic: {error}", hint="start the broker, or correct bootstrap_servers"
        ) from error
    if settings.realtime.rest not in known:
        raise ConfigError(
            f"the rest topic {settings.realtime.rest} does not exist",
            key="realtime.rest",
            hint="create it, with a retention that fits; each of its partitions takes a core",
        )


def require_cores(spark: SparkSession, plan: Plan, topics: Sequence[str]) -> None:
    """Make sure that each partition of the sources has a core for itself, and each of the rest topic another.

    A real-time query keeps its cores, and waits silently for one that it lacks.

    Raises:
        ConfigError: Spark has fewer; names both numbers.
        BrokerUnreachable: the brokers do not say how many partitions there are.
    """
    assert plan.settings.realtime is not None
    try:
        read = KafkaEnds(source_client(plan.sources[0])).partitions(topics)
        rest = KafkaEnds(rest_client(plan.settings)).partitions([plan.settings.realtime.rest])
    except KafkaUnreachable as error:
        raise BrokerUnreachable(str(error)) from error
    sources, others, there = sum(map(len, read.values())), sum(map(len, rest.values())), cores_of(spark)
    needed = sources + others
    if there < needed:
        raise ConfigError(
            f"real-time mode needs {needed} cores, one for each partition: of sources {sources}, of the rest topic "
            f"{others}; spark.master has {there}",
            key="spark.master",
            hint=f"set spark.master: local[{needed}], which may be more than the machine has; or add executors",
        )


def cores_of(spark: SparkSession) -> int:
    """Return how many tasks run at the same time."""
    context = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
