"""Spark reads, writes and verifies log directories: docs/spark.md, docs/spark-cluster.md.

Needs the extra ``spark`` (`logstore.common.extras`) and a JDK 17 or newer. Importing this package
imports neither pyspark nor pyarrow; the first use of a name does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logstore.common.extras import Extra, load

if TYPE_CHECKING:
    from logstore.spark.batches import count, map_batches
    from logstore.spark.executor_environment import package_archive, shipped
    from logstore.spark.sessions import register, session, settings
    from logstore.spark.verify.verification import verify

# Where each name lives; imported when first asked for.
_HOMES = {
    "count": "logstore.spark.batches",
    "map_batches": "logstore.spark.batches",
    "package_archive": "logstore.spark.executor_environment",
    "register": "logstore.spark.sessions",
    "session": "logstore.spark.sessions",
    "settings": "logstore.spark.sessions",
    "shipped": "logstore.spark.executor_environment",
    "verify": "logstore.spark.verify.verification",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(load(_HOMES[name], Extra.SPARK, "logstore.spark"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "count",
    "map_batches",
    "package_archive",
    "register",
    "session",
    "settings",
    "shipped",
    "verify",
]
