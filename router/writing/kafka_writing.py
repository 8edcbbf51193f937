"""Spark's own write to Kafka, and whose fault it is when it fails."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from router.errors import SinkError
from router.faults import fault_of, is_lost, is_unreadable, registry_away
from router.settings import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ABSENT: Final = re.compile(r"Topic ([A-Za-z0-9._-]{1,249}) not present in metadata")
_DENIED: Final = "TopicAuthorizationException"


def save_to_kafka(rows: DataFrame, sink: KafkaSink, name: str) -> None:
    """Write rows with the columns topic, key, value and headers, each acknowledged; *name* is that of the sink.

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
            problem = f"Kafka at {sink.bootstrap_servers} has no topic {lacking[1]}, or shows it to no such login"
            hint = f"make topic {lacking[1]}, or grant the login Describe and Write on it; the batch is then written"
            raise SinkError(name, problem, hint=hint) from error
        problem = f"Kafka at {sink.bootstrap_servers} did not take the batch: {_cause(error)}"
        hint = "grant the login of the sink Write on it; the batch is then written" if _DENIED in told else ""
        raise SinkError(name, problem, hint=hint) from error


def _cause(error: Exception) -> str:
    """Return the line of a Spark error that says what happened."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    exceptions = [line for line in lines if "kafka" in line.lower() and "Exception" in line]
    return (exceptions or lines or ["unknown"])[-1 if exceptions else 0][:300]
