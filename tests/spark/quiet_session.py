"""A first session, whose stderr a test reads.

python -m tests.spark.quiet_session DIRECTORY TARGET well|badly
"""

from __future__ import annotations

import sys
from contextlib import suppress

from logstore.spark import session, verify_on_spark
from tests.spark.conftest import TEST_CONF


def main(directory: str, target: str, ends: str) -> None:
    spark = session("local[2]", conf=TEST_CONF)
    for name in ("logstore", "logstore-python"):
        rows = spark.read.format(name).load(directory)
        rows.show(3)
        rows.take(1)
        rows.limit(5).collect()
        print(rows.count())
    chosen = rows.select("key", "value", "timestamp").limit(100)
    chosen.write.format("logstore").option("topic", "t").mode("append").save(target)
    found = verify_on_spark(spark, directory)
    found.findings.show()
    print(repr(found))
    if ends == "badly":
        with suppress(Exception):
            spark.sparkContext.parallelize([1], 1).map(lambda one: one / 0).collect()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
