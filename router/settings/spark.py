"""Settings of Spark and of Kafka clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import Field, field_validator

from bindings.kafka.binding import Brokers, find_contradiction, parse_brokers
from bindings.kafka.client import SaslLogin
from router.settings.catalogs import KafkaLogin, iter_login_faults, reveal
from router.settings.values import Duration, FilePaths, Options, Section, is_url, plain_options

if TYPE_CHECKING:
    from bindings.kafka.client import KafkaClient

# Spark.

LOOPBACK: Final = "127.0.0.1"
_LOCAL: Final = re.compile(r"local(?:\[[^\]]*\])?")
_MASTER: Final = re.compile(
    r"local(\[(\d+|\*)(,\s*\d+)?\])?|local-cluster\[\s*\d+\s*(,\s*\d+\s*){2}\]"
    r"|spark://[^\s/,@:]+:\d+(,[^\s/,@:]+:\d+)*|spark://\[[0-9a-fA-F:.]+\]:\d+|yarn|k8s://\S+"
)
_HOST: Final = "spark.driver.host"


def is_local(master: str) -> bool:
    """Whether a Spark master is local rather than a cluster."""
    return _LOCAL.fullmatch(master) is not None


class SparkSettings(Section):
    """The Spark session."""

    master: str | None = Field(
        None,
        description=(
            "Spark master: a cluster (`spark://HOST:7077`, `yarn` or `k8s://URL`), or `local[N]` for N concurrent "
            "tasks on this machine. Unset is local, with two tasks per core if memory allows."
        ),
        min_length=1,
    )
    driver_host: str | None = Field(
        None, description="Cluster, required: address where executors reach the router. Local masters use loopback."
    )
    driver_bind: str | None = Field(
        None, description="Cluster: address to listen on for executors; unset is `driver_host`."
    )
    driver_port: int = Field(0, ge=0, le=65535, description="Driver port for executors; 0 picks a free one.")
    block_port: int = Field(0, ge=0, le=65535, description="Block manager port for executors; 0 picks a free one.")
    python: str | None = Field(
        None,
        description=(
            "Cluster: Python interpreter on executors, such as `./environment/bin/python` from an archive in "
            "`spark.archives`; unset is the path of the router's interpreter."
        ),
    )
    shared_folders: FilePaths = Field(
        (), description="Cluster: folders that the router's machine and all executors share under the same path."
    )
    executor_wait: Duration = Field(
        timedelta(minutes=2), description="Cluster: how long to wait at startup for the first executor."
    )
    min_partitions: int | None = Field(
        None,
        ge=1,
        description=(
            "Kafka: minimum number of tasks that read a batch, for topics with fewer partitions; not allowed with "
            "Kafka sinks, where records of one partition could be reordered."
        ),
    )
    conf: Options = Field({}, description="More Spark configuration, by its Spark names.")

    @field_validator("master")
    @classmethod
    def _known_master(cls, master: str | None) -> str | None:
        """Reject what Spark would reject only after its JVM has started."""
        if master is not None and _MASTER.fullmatch(master) is None:
            raise ValueError(
                f"{master!r} is not a valid Spark master; write local[*], spark://HOST:PORT, yarn or k8s://URL"
            )
        return master

    @property
    def is_local(self) -> bool:
        """Whether all work is done by child processes of the router, on its own machine."""
        return self.master is None or is_local(self.master)

    @property
    def host(self) -> str | None:
        """The address where executors reach the router; None if a cluster's is missing."""
        return plain_options(self.conf).get(_HOST) or (LOOPBACK if self.is_local else self.driver_host)

    def reaches(self, path: str) -> bool:
        """Whether executors see the same file as the router at *path*, which is absolute or a URL."""
        if self.is_local or (is_url(path) and not path.startswith("file:")):
            return True
        place = Path(path.removeprefix("file://"))
        return any(place.is_relative_to(folder) for folder in self.shared_folders)


# Kafka clients.

_HOST_CHECK: Final = "ssl.endpoint.identification.algorithm"
_MECHANISM: Final = ("sasl.mechanism", "sasl.mechanisms")
_OURS: Final = ("bootstrap.servers", "group.id", "enable.auto.commit", "client.id")
"""Kafka options that only the router may set, for its guarantees to hold."""
_ISOLATIONS: Final = ("read_committed", "read_uncommitted")


def make_kafka_client(brokers: Brokers, settings: KafkaLogin, options: Options) -> KafkaClient:
    """Return the client configuration of a cluster; imports the library."""
    from bindings.kafka.client import KafkaClient

    tls = settings.tls
    return KafkaClient(
        brokers.servers,
        _make_sasl_login(settings),
        tls=tls is not None or brokers.tls,
        security=brokers.security,
        ca=tls.ca if tls else None,
        cert=tls.cert if tls else None,
        key=tls.key if tls else None,
        options=plain_options(options),
    )


def iter_client_faults(
    key: str, client: KafkaLogin, name: str, options: Options, servers: str | None
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with login, *options* (whose key is *name*) and brokers of the Kafka client at *key*."""
    yield from iter_login_faults(key, client.username, client.password is not None)
    if client.sasl is not None and client.username is None:
        yield f"{key}.sasl", "requires username and password; add them, or remove it"
    if client.sasl == "oauthbearer" and client.token_endpoint is None:
        yield f"{key}.token_endpoint", "is required with sasl: oauthbearer; add the OAuth 2 token endpoint"
    if client.sasl != "oauthbearer":
        for field in ("token_endpoint", "token_scope", "token_ca"):
            if getattr(client, field) is not None:
                yield f"{key}.{field}", "is for sasl: oauthbearer only; remove it"
    yield from ((f"{key}.{name}.{option}", fault) for option, fault in _iter_option_faults(options, client))
    try:
        security = parse_brokers([servers or ""]).security
    except ValueError as error:
        yield f"{key}.bootstrap_servers", str(error)
        return
    tls, named = client.tls is not None, client.username is not None
    fault = find_contradiction(security, tls=tls, login=named, options=plain_options(options))
    if fault:
        yield f"{key}.bootstrap_servers", fault


def _iter_option_faults(options: Options, client: KafkaLogin) -> Iterator[tuple[str, str]]:
    """Yield options that only the router may set, or that contradict its login, and an invalid isolation level."""
    for name in _OURS:
        if name in options:
            yield name, "is set by the router; remove it"
    isolation = options.get("isolation.level")
    if isolation is not None and isolation.get_secret_value() not in _ISOLATIONS:
        yield "isolation.level", f"must be {' (the default) or '.join(_ISOLATIONS)}"
    for name in _MECHANISM:
        if name in options and client.username is not None:
            yield name, "is known to only one of the two Kafka clients; set sasl instead"
    if _HOST_CHECK in options:
        yield _HOST_CHECK, "host names are always verified; remove it, and fix the certificate"


def _make_sasl_login(settings: KafkaLogin) -> SaslLogin | None:
    if settings.username is None:
        return None
    return SaslLogin(
        settings.username,
        reveal(settings.password) or "",
        settings.sasl or "plain",
        settings.token_endpoint or "",
        settings.token_scope,
        settings.token_ca,
    )
