"""Where Python workers of the router's own JVM come from, and find pyspark: where the driver has it, compiled. And what
Spark need not start Python for.

Spark puts its archive ``pyspark.zip`` first on their path. Python keeps no compiled code of an archive, so each process
would compile anew what it needs of it: nearly a second of CPU for each of five processes before the first batch.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from router.settings.spark import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAEMON_CONF: Final = {"spark.python.daemon.module": "router.spark.worker_daemon"}
"""Has workers forked from :mod:`router.spark.worker_daemon`; for machines that have the driver's installation."""
_HOME: Final = "SPARK_HOME"


def import_as_driver(spark: SparkSession) -> None:
    """Have the workers that start from here on import pyspark as the driver does, where both are of this machine.

    It comes before the first worker. A Spark that ``SPARK_HOME`` names is left as it is: its archive may be another
    pyspark than the driver's.
    """
    if _HOME in os.environ or not is_local(spark.sparkContext.master or ""):
        return
    from py4j.protocol import Py4JError

    # Spark asks the JVM's environment for this variable, which the scripts that start the JVM have set, and looks for
    # the archive below it. Java shows the environment as an unmodifiable view of the map that is asked. Where Java does
    # not let us change that map, workers merely start slower.
    with suppress(Py4JError):
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        shown = jvm.java.lang.System.getenv()
        inner = shown.getClass().getDeclaredField("m")
        inner.setAccessible(True)
        inner.get(shown).remove(_HOME)


def seek_no_data_sources(spark: SparkSession) -> None:
    """Have Spark look for no data sources in installed packages: the router registers its own.

    Before it opens any source or sink it would else start Python, and import each package there is whose name begins
    with ``pyspark_``: half a second of each start, and code that nobody asked for.
    """
    from py4j.protocol import Py4JError

    # Spark keeps the result for its whole JVM. A test fails if another version of Spark keeps it elsewhere.
    with suppress(Py4JError):
        jvm: Any = spark.sparkContext._jvm
        manager = getattr(jvm.org.apache.spark.sql.execution.datasources, "DataSourceManager$")
        none = jvm.scala.Option.apply(jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap()))
        getattr(getattr(manager, "MODULE$"), "dataSourceBuilders_$eq")(none)
