"""Writes the manifests of all jars anew, for a change of their versions: ``make pins``, then read the difference."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from router.spark.connectors import KAFKA, PINS, JarRequest, resolve_jars, sha256_of
from tests.benchmarks.peers import STREAMS, STREAMS_PINS
from tests.benchmarks.spark_delta import DELTA
from tests.benchmarks.spark_delta import PINS as DELTA_PINS
from tests.support.apicurio import APICURIO, APICURIO_PINS
from tests.support.brokers import KAFKA_PINS, KAFKA_SERVER
from tests.support.qpid import QPID_PINS, QPID_SERVER

MANIFESTS: tuple[tuple[JarRequest, Path], ...] = (
    (KAFKA, PINS),
    (KAFKA_SERVER, KAFKA_PINS),
    (QPID_SERVER, QPID_PINS),
    (APICURIO, APICURIO_PINS),
    (DELTA, DELTA_PINS),
    (STREAMS, STREAMS_PINS),
)


def write_pins(jars: Iterable[Path], manifest: Path) -> None:
    """Write the manifest of *jars*, which somebody must have good reason to trust."""
    pins = {jar.name: sha256_of(jar) for jar in sorted(jars)}
    manifest.write_text(json.dumps(pins, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Fetch every jar into a folder of its own, since the cache is what the manifests are to be held against."""
    with tempfile.TemporaryDirectory() as fresh:
        for request, manifest in MANIFESTS:
            write_pins(resolve_jars(request, Path(fresh)), manifest)
            sys.stdout.write(f"{manifest}\n")


if __name__ == "__main__":
    main()
