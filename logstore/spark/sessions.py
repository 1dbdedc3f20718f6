"""A Spark session with the settings that logstore is measured with."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow  # noqa: F401 (a missing extra shows at import, where it is explained)
import pyspark  # noqa: F401

from logstore.common.errors import ConfigError
from logstore.spark.executor_environment import check_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    # Record batches reach the JVM over a Unix socket rather than through TCP on loopback.
    "spark.python.unix.domain.socket.enabled": "true",
    # A crash inside native code shows the Python stack instead of "worker exited unexpectedly".
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
# One machine: no port is open to the network, and its host name need not resolve.
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def settings(master: str = "local[*]") -> dict[str, str]:
    """The recommended configuration, for a session that is built by other means."""
    return _SETTINGS | (_LOCAL_SETTINGS if _is_local(master) else {})


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("logstore")`` known to a session.

    Not needed where logstore is installed in the driver's environment: Spark finds the module
    ``pyspark_logstore`` by itself.
    """
    from logstore.spark.data_source import LogstoreDataSource

    spark.dataSource.register(LogstoreDataSource)


def session(
    master: str = "local[*]", app_name: str = "logstore", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark, or take the session that runs in this process already, with the source known.

    Python workers run this interpreter, unless ``PYSPARK_PYTHON`` names another one. A session that
    runs already keeps its master and everything else that Spark reads only at a start. On a cluster
    the workers are asked at once whether they have what they need: see ``shipping``.

    Args:
        master: ``local[*]``, ``spark://host:port``, ``yarn``, ``k8s://…``.
        conf: goes before the recommended ``settings``.

    Raises:
        ConfigError: Spark did not start, for want of Java or by what it says of its master or
            configuration; or workers without logstore.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    # Without it workers run whatever ``python3`` comes first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    running = SparkSession.getActiveSession()
    builder = SparkSession.builder.master(master).appName(app_name)
    for key, value in (settings(master) | dict(conf or {})).items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise ConfigError(
            f"Spark did not start with master {master} (see the lines above): it needs a JDK 17 or "
            "newer, found by JAVA_HOME or as `java` on the PATH, and a master that it knows"
        ) from error
    except Py4JJavaError as error:
        reason = str(error.java_exception.getMessage()).strip().partition("\n")[0]
        raise ConfigError(f"Spark did not start with master {master}: {reason}") from error
    register(spark)
    try:
        if not _is_local(spark.sparkContext.master or ""):
            check_workers(spark)
    except ConfigError:
        if running is None:
            spark.stop()
        raise
    return spark


def _is_local(master: str) -> bool:
    return master.startswith("local")


__all__ = ["register", "session", "settings"]
