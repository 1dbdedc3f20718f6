"""Installed as a top-level package, which Spark finds by its name: no ``register`` is needed.

Spark imports every ``pyspark_*`` when a session first asks for a format, whichever it is. So what
is missing for this one, such as pyarrow, must not fail the others: it is told, and the format stays
unknown.
"""

import warnings

try:
    from logstore.spark.data_source import LogstoreDataSource as DefaultSource
except ImportError as error:
    warnings.warn(f'format("logstore") is not available: {error}', RuntimeWarning, stacklevel=2)
else:
    __all__ = ["DefaultSource"]
