"""A Spark session with the recommended settings, which the benchmarks use."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow  # noqa: F401 (a missing extra shows at import, where it is explained)
import pyspark
from pyspark.errors import AnalysisException

from checkpoints.loggers import get_logger
from logstore.common.errors import ConfigError
from logstore.spark.executor_environment import check_workers, driver_context, is_connect

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
# For local sessions that `session` starts: nothing between the lines of a script but what needs a
# look. On a cluster there is a configuration already, and workers may lack our daemon.
_QUIET_SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": "logstore.spark.quiet_daemon",
}
_CONNECT = "sc://"
_NAME_OF_A_CLASS = "DATA_SOURCE_ALREADY_EXISTS"
"""Spark's answer if the class path has a source of the name."""
_JARS = "spark.jars"
_CLASS = "logstore.DefaultSource"
_JAR = Path(__file__).with_name("logstore-spark.jar")
_SPARK = "4.3."
"""The Spark version of the classes in the jar. They use parts that may change with the next one."""

logger = get_logger(__name__)


def jar() -> Path | None:
    """The path of the jar, if the installed Spark can use it."""
    return None if why_not() else _JAR


def why_not() -> str:
    """Say why this installation cannot use the columnar source; "" if it can."""
    if not pyspark.__version__.startswith(_SPARK):
        return f"it is for Spark {_SPARK}x, and this is {pyspark.__version__}"
    if not _JAR.is_file():
        return "this installation was built without a JDK or PySpark"
    return ""


def settings(master: str = "local[*]") -> dict[str, str]:
    """The recommended configuration, for a session that is built by other means.

    ``spark.jars`` has the jar of the columnar source if this installation has it.
    """
    found = _SETTINGS | (_LOCAL_SETTINGS if _is_local(master) else {})
    path = jar()
    if path is not None:
        found[_JARS] = str(path)
        found["spark.logstore.python"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
    return found


def _quiet() -> dict[str, str]:
    home = os.environ.get("SPARK_HOME", "")
    if any(Path(os.environ.get("SPARK_CONF_DIR", f"{home}/conf")).glob("log4j2*")):
        return _QUIET_SETTINGS  # the user says what is logged
    log4j = Path(__file__).with_name("log4j2.properties").as_uri()
    # Unlike those of the same name with "extra", the default options leave the user's alone.
    option = {"spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={log4j}"}
    return _QUIET_SETTINGS | option


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("logstore")`` known to a session.

    It is the columnar source if the session was started with its jar (`settings`). Otherwise it is
    the Python source, and a log line says so. ``logstore-python`` is always the Python source. Of a
    session of Spark Connect it is the server that has the jar, and a Python with logstore.
    """
    from logstore.spark.data_source import LogstoreDataSource, PythonDataSource

    spark.dataSource.register(PythonDataSource)
    if is_connect(spark):
        try:
            spark.dataSource.register(LogstoreDataSource)
        except AnalysisException as error:
            if _NAME_OF_A_CLASS not in str(error):
                raise
            return
        reason = "the server was started without its jar, see settings()"
    elif is_columnar(spark):
        return
    else:
        spark.dataSource.register(LogstoreDataSource)
        reason = why_not() or "the session was started without its jar, see settings()"
    logger.warning("no columnar source, the Python source reads instead: %s", reason)


def is_columnar(spark: SparkSession) -> bool:
    """Whether ``format("logstore")`` is the columnar source in this session.

    Raises:
        ConfigError: a session of Spark Connect.
    """
    from py4j.protocol import Py4JJavaError

    jvm: Any = driver_context(spark, "is_columnar")._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_CLASS)
    except Py4JJavaError:
        return False
    return True


def session(
    master: str = "local[*]", app_name: str = "logstore", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark, or take the running session of this process, and register the source.

    Python workers run this interpreter unless ``PYSPARK_PYTHON`` names another one. A running
    session keeps its master and all settings that Spark reads only at a start. A local one that is
    started here logs warnings and errors, not what each start has to say. On a cluster it is
    checked at once that the workers have what they need (``executor_environment``).

    Args:
        master: ``local[*]``, ``spark://host:port``, ``yarn``, ``k8s://…``; or the ``sc://host:port``
            of a Spark Connect server, which was started with the ``settings`` and is not checked.
        conf: overrides the recommended ``settings``. Its ``spark.jars`` are added to theirs.

    Raises:
        ConfigError: Spark did not start, because Java is missing or because of its master or
            configuration; or workers lack logstore.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    # Without it workers run the first ``python3`` on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    running = SparkSession.getActiveSession()
    builder = SparkSession.builder.appName(app_name)
    if master.startswith(_CONNECT):
        builder, ours = builder.remote(master), {}
    else:
        is_new = running is None and _is_one_process(master)
        builder, ours = builder.master(master), settings(master) | (_quiet() if is_new else {})
    for key, value in _merged(ours, conf or {}).items():
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
        if not is_connect(spark) and not _is_one_process(spark.sparkContext.master or ""):
            check_workers(spark)
    except ConfigError:
        if running is None:
            spark.stop()
        raise
    return spark


def _merged(ours: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    jars = [jars for conf in (given, ours) if (jars := conf.get(_JARS))]
    return {**ours, **given, **({_JARS: ",".join(jars)} if jars else {})}


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _is_one_process(master: str) -> bool:
    """Of ``local-cluster[…]`` the executors are processes of their own."""
    return master == "local" or master.startswith("local[")


__all__ = ["is_columnar", "register", "session", "settings"]
