"""Settings of Spark: where its executors are, and what they and the router need to know of each other."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Final

from pydantic import Field, field_validator

from router.settings.places import is_url
from router.settings.section import Section
from router.settings.values import Duration, Options, Texts, revealed

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
