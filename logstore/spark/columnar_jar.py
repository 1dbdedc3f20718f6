"""The jar with the classes of the columnar source, which the build compiles where a JDK and PySpark
are (``spark_jar.py``).
"""

from __future__ import annotations

from pathlib import Path

import pyspark

_JAR = Path(__file__).with_name("logstore-spark.jar")
_SPARK = "4.3."
"""The Spark version of the classes. They use parts of Spark that may change with the next one."""


def jar() -> Path | None:
    """The path of the jar, if the installed Spark can use it."""
    return None if why_not() else _JAR


def why_not() -> str:
    """Why this installation cannot use the columnar source; "" if it can."""
    if not pyspark.__version__.startswith(_SPARK):
        return f"it is for Spark {_SPARK}x, and this is {pyspark.__version__}"
    if not _JAR.is_file():
        return "this installation was built without a JDK or PySpark"
    return ""


__all__ = ["jar", "why_not"]
