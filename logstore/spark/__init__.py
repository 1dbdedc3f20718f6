"""Spark reads, writes and verifies log directories: docs/spark.md, docs/spark-cluster.md.

Needs the extra ``spark`` (`logstore.common.extras`) and a JDK 17 or newer. Importing this package
imports neither pyspark nor pyarrow; the first use of a name does.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from logstore.common.extras import Extra, load

if TYPE_CHECKING:
    from logstore.spark.batches import count, map_batches
    from logstore.spark.executor_environment import package_archive, shipped, workers
    from logstore.spark.sessions import register, session, settings
    from logstore.spark.verification.job import verify_on_spark

# The module of each name, imported at its first use.
_HOMES = {
    "count": "logstore.spark.batches",
    "map_batches": "logstore.spark.batches",
    "package_archive": "logstore.spark.executor_environment",
    "register": "logstore.spark.sessions",
    "session": "logstore.spark.sessions",
    "settings": "logstore.spark.sessions",
    "shipped": "logstore.spark.executor_environment",
    "verify_on_spark": "logstore.spark.verification.job",
    "workers": "logstore.spark.executor_environment",
}
_ROOMS = {"segments", "source"}

_FORMER = {"verify": "verify_on_spark"}  # until 0.2


def __getattr__(name: str) -> Any:
    if name in _FORMER:
        name, former = _FORMER[name], name
        text = f"logstore.spark.{former} is now logstore.spark.{name}"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
    if name in _ROOMS:
        value = load(f"{__name__}.{name}", Extra.SPARK, "logstore.spark")
    elif name in _HOMES:
        value = getattr(load(_HOMES[name], Extra.SPARK, "logstore.spark"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "count",
    "map_batches",
    "package_archive",
    "register",
    "segments",
    "session",
    "settings",
    "shipped",
    "source",
    "verify_on_spark",
    "workers",
]
