"""Spark reads, writes and verifies log directories: docs/spark.md, docs/spark-cluster.md.

Needs the extra ``spark`` (`logstore.common.extras`) and a JDK 17 or newer. Importing this package
imports neither pyspark nor pyarrow; the first use of a name does.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from logstore.common import siblings
from logstore.common.extras import Extra, load

_load = partial(load, extra=Extra.SPARK, feature="logstore.spark")
_FORMER = {"verify": "verify_on_spark"}  # until 0.2


def __getattr__(name: str) -> Any:
    if name in _FORMER:
        name, former = _FORMER[name], name
        text = f"logstore.spark.{former} is now logstore.spark.{name}"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
    return siblings.lazy_name(__name__, name, _load)


def __dir__() -> list[str]:
    return __getattr__("__all__")
