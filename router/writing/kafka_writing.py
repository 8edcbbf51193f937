"""Spark's own write to Kafka, and whose fault it is when it fails."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from bindings.kafka.client import KafkaUnreachable
from bindings.kafka.ends import KafkaEnds
from router.errors import SinkError
from router.faults import fault_of, is_lost, is_unreadable, registry_away
from router.settings import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ABSENT: Final = re.compile(r"Topic ([A-Za-z0-9._-]{1,249}) not present in metadata")
_DENIED: Final = "TopicAuthorizationException"


def save_to_kafka(rows: DataFrame, sink: KafkaSink, name: str, *, again: bool = False) -> None:
    """Write rows with the columns topic, key, value and headers, each acknowledged; *name* is that of the sink.

    Topics that do not exist are created where the sink says so, and all is written *again*.

    Raises:
        SinkError: the brokers did not take them all now; writing again is safe, at least once.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    options = sink.cluster().writing()
    try:
        rows.write.format("kafka").options(**options).save()
    except (PySparkException, Py4JJavaError) as error:
        if is_lost(str(error)) or is_unreadable(error) or registry_away(error) or fault_of(error) is not None:
            raise  # Not the sink's fault, and none that writing again can mend.
        told = str(error)
        if lacking := _ABSENT.search(told):
            if sink.create_topics is not None and not again:
                _create(rows, sink, name)
                return save_to_kafka(rows, sink, name, again=True)
            problem = f"Kafka at {sink.bootstrap_servers} has no topic {lacking[1]}, or shows it to no such login"
            hint = f"make topic {lacking[1]}, or grant the login Describe and Write on it; the batch is then written"
            raise SinkError(name, problem, hint=hint) from error
        problem = f"Kafka at {sink.bootstrap_servers} did not take the batch: {_cause(error)}"
        hint = "grant the login of the sink Write on it; the batch is then written" if _DENIED in told else ""
        raise SinkError(name, problem, hint=hint) from error


def _create(rows: DataFrame, sink: KafkaSink, name: str) -> None:
    """Create the topics of rows that do not exist; the rows are judged once more for it.

    Raises:
        SinkError: the brokers do not create one.
    """
    create_topics(sink, name, [each[0] for each in rows.select("topic").distinct().collect() if each[0]])


def create_topics(sink: KafkaSink, name: str, topics: Iterable[str]) -> None:
    """Create topics of a sink that do not exist, as it says.

    Raises:
        SinkError: the brokers do not answer, or do not create one.
    """
    wanted = sink.create_topics
    assert wanted is not None
    names = sorted(set(topics))
    how: dict[str, Any] = {
        "partitions": wanted.partitions,
        "replication": wanted.replication,
        "options": wanted.options,
    }
    try:
        failed = KafkaEnds(sink.cluster()).create(names, **how)
    except KafkaUnreachable as error:
        raise SinkError(name, str(error), hint="start the broker; the batch is then written") from error
    if failed:
        topic, why = next(iter(failed.items()))
        hint = f"correct create_topics of the sink, grant its login Create, or make topic {topic}"
        raise SinkError(name, f"Kafka at {sink.bootstrap_servers} does not create topic {topic}: {why}", hint=hint)


def _cause(error: Exception) -> str:
    """Return the line of a Spark error that says what happened."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    exceptions = [line for line in lines if "kafka" in line.lower() and "Exception" in line]
    return (exceptions or lines or ["unknown"])[-1 if exceptions else 0][:300]
