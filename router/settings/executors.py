"""What executors on other machines cannot reach: places on the router's own disk, and the router itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from router.settings.security import is_loopback
from router.settings.takers import event_sinks, letter_sinks
from router.settings.values import revealed

if TYPE_CHECKING:
    from router.settings.logins import KafkaLogin
    from router.settings.model import Settings
    from router.settings.values import Options

_DEPLOY_MODE: Final = "spark.submit.deployMode"
_AUTHENTICATE: Final = "spark.authenticate"
_SHARED: Final = "name it in spark.shared_folders if it is the same folder there"


def executor_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for what cannot work with the Spark master of the settings; nothing for a local one."""
    yield from _partition_faults(settings)
    spark = settings.spark
    if spark.is_local:
        return
    if spark.host is None:
        yield "spark.driver_host", "is required for a cluster; set the address by which executors reach this machine"
    if revealed(spark.conf).get(_DEPLOY_MODE, "client") != "client":
        yield f"spark.conf.{_DEPLOY_MODE}", "must be client: the router is the driver; leave it out"
    for name in sorted({*event_sinks(settings), *letter_sinks(settings)}):
        sink = settings.sinks[name]
        if sink.staged_at and not spark.reaches(sink.staged_at):
            fault = "is a folder of this machine, and executors write there; set an address that all of them reach, or "
            yield f"sinks.{name}.path", fault + _SHARED
        if (topics := sink.topics) is not None:
            yield from _file_faults(f"sinks.{name}", "options", topics, topics.options, settings)
    for index, source in enumerate(settings.sources):
        yield from _file_faults(f"sources.{index}", "kafka", source, source.kafka, settings)
    for name, registry in settings.schema_registries.items():
        if registry.bearer_file is not None and not spark.reaches(registry.bearer_file):
            fault = "is a file of this machine, and executors read it when they ask for schemas; "
            yield f"schema_registries.{name}.bearer_file", fault + _SHARED
    if (inbox := settings.inbox.kafka) is not None:
        yield from _file_faults("inbox.kafka", "options", inbox, inbox.options, settings)


def inbox_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield why executors cannot read the local inbox, for a router whose sources need one."""
    spark = settings.spark
    if spark.is_local or settings.inbox.kafka is not None:
        return
    if not spark.reaches(settings.state):
        fault = "is not set, and executors cannot read the inbox in `state` of this machine; set it, or for `state` "
        yield "inbox.kafka", fault + _SHARED
    elif spark.python is not None and not spark.python.startswith("/"):
        fault = "must be an absolute path for an inbox in `state`, which Spark reads on this machine as well; or set "
        yield "spark.python", fault + "inbox.kafka"


def executor_cautions(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, caution)`` for what works with a cluster and lays records or secrets open."""
    spark = settings.spark
    if spark.is_local or spark.host is None or is_loopback(spark.host):
        return
    if revealed(spark.conf).get(_AUTHENTICATE, "false").lower() != "true":
        yield (
            f"spark.conf.{_AUTHENTICATE}",
            "is not true: whoever reaches driver_host can run code here and read what executors are sent, passwords of "
            "brokers among it; set it, and spark.network.crypto.enabled",
        )


def _partition_faults(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.spark.min_partitions is None:
        return
    taking = sorted({*event_sinks(settings), *letter_sinks(settings)})
    if topics := [name for name in taking if settings.sinks[name].topics is not None]:
        yield (
            "spark.min_partitions",
            f"would let records of a partition overtake each other on their way to {', '.join(topics)}; leave it out, "
            "or give the source's topic more partitions",
        )


def _file_faults(
    key: str, name: str, login: KafkaLogin, options: Options, settings: Settings
) -> Iterator[tuple[str, str]]:
    """Yield files that Spark's Kafka client opens on executors; certificates of ``tls`` are sent to them."""
    files = {f"{name}.{each}": path for each, path in revealed(options).items() if each.endswith(".location")}
    if login.token_ca is not None:
        files["token_ca"] = login.token_ca
    for each, path in files.items():
        if not settings.spark.reaches(path):
            yield f"{key}.{each}", f"is a file of this machine, and executors open it; {_SHARED}"
