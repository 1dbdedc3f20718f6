"""The process that Spark forks workers of the columnar source from, one for each task at a time.

Spark's own daemon starts, reuses and ends them. It imports the worker's module after the fork, and
accepts only a name that begins with ``pyspark``. This module registers itself under such a name, so
that its imports are done once for all workers.
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads are of no use to a worker

from logstore.spark.columnar import serve

WORKER = "pyspark_logstore_worker"
"""``Python.WORKER`` in the JVM."""


def main(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer one request of the JVM. The daemon calls again while it keeps the worker."""
    try:
        serve(source, sink)
    except (EOFError, OSError):
        sys.exit(1)  # the JVM released it


if __name__ == "__main__":
    from logstore.spark.quiet_daemon import run

    sys.modules[WORKER] = sys.modules[__name__]
    run()
