"""Writes the hashes of all jars anew, for a change of their versions: ``make pins``, then read the difference.

The manifests list the files of a Maven repository by path; which files a version needs, its build says.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from router.spark.connectors import CACHE_VARIABLE, PINS, read_pins, retrieve_files, sha256_of
from tests.benchmarks.peers import STREAMS_PINS
from tests.benchmarks.spark_delta import DELTA_PINS
from tests.support.apicurio import APICURIO_PINS
from tests.support.brokers import KAFKA_PINS
from tests.support.qpid import QPID_PINS
from tests.support.spark_versions import JARS

MANIFESTS = (PINS, KAFKA_PINS, QPID_PINS, APICURIO_PINS, DELTA_PINS, STREAMS_PINS, JARS)


def main() -> None:
    """Fetch every jar anew, since the cache is what the manifests are to be held against."""
    for manifest in MANIFESTS:
        with tempfile.TemporaryDirectory() as fresh, pytest.MonkeyPatch.context() as patch:
            patch.setenv(CACHE_VARIABLE, fresh)
            paths = list(read_pins(manifest))
            retrieve_files(paths, Path(fresh))
            pins = {path: sha256_of(Path(fresh, path)) for path in sorted(paths)}
        manifest.write_text(json.dumps(pins, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{manifest}\n")


if __name__ == "__main__":
    main()
