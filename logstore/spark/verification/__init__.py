"""``logstore verify`` as one Spark job.

``job`` plans and joins on the driver and checks segments on executors; ``tables`` gives
the result as tables.
"""

__all__ = ["job"]
