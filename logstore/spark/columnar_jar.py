"""The columnar source's classes: one jar, compiled by the package's build where a JDK is."""

from __future__ import annotations

from pathlib import Path

import pyspark

_JAR = Path(__file__).with_name("logstore-spark.jar")
_SPARK = "4.3."
"""What the classes were made for: they use parts of Spark that may change with its next version."""


def jar() -> Path | None:
    """The jar, where Spark can use it."""
    return None if why_not() else _JAR


def why_not() -> str:
    """What keeps this installation from the columnar source; "" for nothing."""
    if not pyspark.__version__.startswith(_SPARK):
        return f"it is for Spark {_SPARK}x, and this is {pyspark.__version__}"
    if not _JAR.is_file():
        return "this installation was built without a JDK"
    return ""


__all__ = ["jar", "why_not"]
