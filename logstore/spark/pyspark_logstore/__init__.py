"""A top-level package that Spark finds by its name, so that no ``register`` is needed.

Spark imports every ``pyspark_*`` package when a session first uses any format. So a missing
dependency of this one, such as pyarrow, must not break the others: it is logged, and the format
stays unknown.
"""

import warnings

try:
    from logstore.spark.data_source import LogstoreDataSource as DefaultSource
except ImportError as error:
    warnings.warn(f'format("logstore") is not available: {error}', RuntimeWarning, stacklevel=2)
else:
    __all__ = ["DefaultSource"]

__all__ = []
