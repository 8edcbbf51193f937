"""Settings of Spark and of Kafka clusters: what executors and clients need to know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import Field, field_validator

from bindings.kafka.binding import Brokers, brokers_of, contradiction
from bindings.kafka.client import SaslLogin
from router.settings.catalogs import KafkaLogin
from router.settings.values import Duration, Options, Section, Texts, is_url, revealed

if TYPE_CHECKING:
    from bindings.kafka.client import KafkaClient

# Settings of Spark: where its executors are, and what they and the router need to know of each other.

LOOPBACK: Final = "127.0.0.1"
_LOCAL: Final = re.compile(r"local(?:\[[^\]]*\])?")
_MASTER: Final = re.compile(
    r"local(\[(\d+|\*)(,\s*\d+)?\])?|local-cluster\[\s*\d+\s*(,\s*\d+\s*){2}\]"
    r"|spark://[^\s/,@:]+:\d+(,[^\s/,@:]+:\d+)*|spark://\[[0-9a-fA-F:.]+\]:\d+|yarn|k8s://\S+"
)
_HOST: Final = "spark.driver.host"


def is_local(master: str) -> bool:
    """Tell whether a Spark master is no cluster."""
    return _LOCAL.fullmatch(master) is not None


class SparkSettings(Section):
    """The Spark session."""

    master: str | None = Field(
        None,
        description=(
            "Spark master: that of a cluster, such as `spark://HOST:7077`, `yarn`, `k8s://URL`; or `local[N]` for N "
            "tasks at a time on this machine. Unset is local, with two tasks for each core where memory allows."
        ),
        min_length=1,
    )
    driver_host: str | None = Field(
        None, description="Cluster: address by which executors reach the router; required. Local masters take loopback."
    )
    driver_bind: str | None = Field(
        None, description="Cluster: address to listen at for executors; unset is `driver_host`."
    )
    driver_port: int = Field(0, ge=0, le=65535, description="Port for executors; 0 takes a free one.")
    block_port: int = Field(0, ge=0, le=65535, description="Port for the data of executors; 0 takes a free one.")
    python: str | None = Field(
        None,
        description=(
            "Cluster: Python of executors, such as `./environment/bin/python` in an archive of `spark.archives`; unset "
            "is the path of the router's own."
        ),
    )
    shared_folders: Texts = Field(
        (), description="Cluster: folders that are the same on the router's machine and on those of all executors."
    )
    executor_wait: Duration = Field(
        timedelta(minutes=2), description="Cluster: longest wait at the start until an executor takes a task."
    )
    min_partitions: int | None = Field(
        None,
        ge=1,
        description=(
            "Kafka: least number of tasks that read a batch, where topics have fewer partitions; not beside Kafka "
            "sinks, since records of a partition would overtake each other."
        ),
    )
    conf: Options = Field({}, description="More Spark configuration, by its own names.")

    @field_validator("master")
    @classmethod
    def _known_master(cls, master: str | None) -> str | None:
        """Refuse what Spark would only refuse once its JVM runs."""
        if master is not None and _MASTER.fullmatch(master) is None:
            raise ValueError(f"{master!r} is no Spark master; write local[*], spark://HOST:PORT, yarn or k8s://URL")
        return master

    @property
    def is_local(self) -> bool:
        """Whether all work is done by children of the router, on its own machine."""
        return self.master is None or is_local(self.master)

    @property
    def host(self) -> str | None:
        """The address by which executors reach the router; None when a cluster's is missing."""
        return revealed(self.conf).get(_HOST) or (LOOPBACK if self.is_local else self.driver_host)

    def reaches(self, path: str) -> bool:
        """Tell whether executors see what the router sees at *path*, which is absolute or a URL."""
        if self.is_local or (is_url(path) and not path.startswith("file:")):
            return True
        place = Path(path.removeprefix("file://"))
        return any(place.is_relative_to(folder) for folder in self.shared_folders)


# What the settings of Kafka clients say: how to reach a cluster, and what contradicts itself in that.

_HOST_CHECK: Final = "ssl.endpoint.identification.algorithm"
_MECHANISM: Final = ("sasl.mechanism", "sasl.mechanisms")
_OURS: Final = ("bootstrap.servers", "group.id", "enable.auto.commit", "client.id")
"""Kafka options that the router itself must set for its promises to hold."""
_ISOLATIONS: Final = ("read_committed", "read_uncommitted")


def kafka_client(brokers: Brokers, settings: KafkaLogin, options: Options) -> KafkaClient:
    """Return how to reach a cluster, whose library is imported here."""
    from bindings.kafka.client import KafkaClient

    tls = settings.tls
    return KafkaClient(
        brokers.servers,
        _login(settings),
        tls=tls is not None or brokers.tls,
        security=brokers.security,
        ca=tls.ca if tls else None,
        cert=tls.cert if tls else None,
        key=tls.key if tls else None,
        options=revealed(options),
    )


def kafka_login_faults(key: str, login: KafkaLogin, name: str, options: object) -> Iterator[tuple[str, str]]:
    """Yield what is missing or too much in a login; *name* is the key of the client's *options*."""
    if login.sasl is not None and login.username is None:
        yield f"{key}.sasl", "needs username and password; add them, or leave it out"
    if login.sasl == "oauthbearer" and login.token_endpoint is None:
        yield f"{key}.token_endpoint", "is missing beside sasl: oauthbearer; add the URL that gives tokens"
    if login.sasl != "oauthbearer":
        for field in ("token_endpoint", "token_scope", "token_ca"):
            if getattr(login, field) is not None:
                yield f"{key}.{field}", "is for sasl: oauthbearer only; leave it out"
    if not isinstance(options, dict):
        return
    for option in _MECHANISM:
        if option in options and login.username is not None:
            yield f"{key}.{name}.{option}", "is only known to one of the two clients; set sasl instead"
    if _HOST_CHECK in options:
        yield f"{key}.{name}.{_HOST_CHECK}", "host names are always checked; leave it out, and mend the certificate"


def broker_faults(key: str, servers: str | None, login: KafkaLogin, options: Options) -> Iterator[tuple[str, str]]:
    """Yield how the addresses of Kafka brokers contradict each other or what is set beside them."""
    try:
        security = brokers_of([servers or ""]).security
    except ValueError as error:
        yield key, str(error)
        return
    tls, named = login.tls is not None, login.username is not None
    fault = contradiction(security, tls=tls, login=named, options=revealed(options))
    if fault:
        yield key, fault


def option_faults(key: str, options: object) -> Iterator[tuple[str, str]]:
    """Yield the options of a reading client that are the router's, and what its ``isolation.level`` may not be."""
    for name in _OURS:
        if isinstance(options, dict) and name in options:
            yield f"{key}.{name}", "is set by the router; leave it out"
    isolation = options.get("isolation.level") if isinstance(options, dict) else None
    if isolation is not None and isolation.get_secret_value() not in _ISOLATIONS:
        yield f"{key}.isolation.level", f"is {' (the default) or '.join(_ISOLATIONS)}"


def _login(settings: KafkaLogin) -> SaslLogin | None:
    if settings.username is None:
        return None
    return SaslLogin(
        settings.username,
        settings.password.get_secret_value() if settings.password else "",
        settings.sasl or "plain",
        settings.token_endpoint or "",
        settings.token_scope,
        settings.token_ca,
    )
