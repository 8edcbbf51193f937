"""The class archive of routers: made by one that takes a message over HTTP into lines and tables, and ends."""

from __future__ import annotations

import functools
import json
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.class_archive import start_options
from tests.support.ports import LOOPBACK, free_ports
from tests.support.process_tree import below, command_of
from tests.support.waiting import wait_until

SECONDS: Final = 180.0


@functools.cache
def router_options() -> str:
    """Return options for the JVM of a router, or of another Spark session of the tests."""
    import pyspark

    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    return " ".join(start_options("spark", jars, _run_one))


def submit_options() -> dict[str, str]:
    """Return the same as a variable that Spark's own scripts read, for a router whose settings are not the test's."""
    return {"SPARK_SUBMIT_OPTS": router_options()}


def _run_one(options: Sequence[str]) -> None:
    from tests.support.router import RouterProcess

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (port,) = free_ports(1)
        (root / "catalog.json").write_text(json.dumps(_CATALOG))
        router = RouterProcess(
            root,
            {
                "catalog": {"source": str(root / "catalog.json")},
                "sources": [{"endpoint": "/endpoints/web"}],
                "http": {"port": port},
                "sinks": {
                    "lines": {"type": "jsonl", "path": str(root / "lines")},
                    "table": {"type": "table", "path": str(root / "table")},
                    "dead": {"type": "table", "path": str(root / "dead")},
                },
                "routes": [{"to": ["lines", "table"]}],
                "dead_letters": {"sinks": ["dead"]},
                "spark": {"conf": {"spark.driver.extraJavaOptions": " ".join(options)}},
            },
        )
        try:
            router.start()
            for body in (b"{}", b"x"):
                headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "a"}
                request = urllib.request.Request(f"http://{LOOPBACK}:{port}/in", body, headers, method="POST")
                urllib.request.urlopen(request, timeout=SECONDS).close()
            wait_until(lambda: router.total("xrouter_records_total") >= 2, SECONDS, lambda: router.log[-2000:])
            below_it = below(router.pid)[1:]
            assert router.stop() == 0, router.log[-2000:]
            # Its JVM writes the archive when the router has ended.
            wait_until(lambda: not any(map(command_of, below_it)), SECONDS, "the end of the JVM")
        finally:
            router.end()


_CATALOG: Final[dict[str, Any]] = {
    "specversion": "1.0-rc2",
    "endpoints": {
        "web": {
            "usage": ["consumer"],
            "protocol": "HTTP",
            "protocoloptions": {"endpoints": [{"uri": "http://any.example/in"}]},
            "envelope": "CloudEvents/1.0",
            "messages": {"a": {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "a"}}}},
        }
    },
}
