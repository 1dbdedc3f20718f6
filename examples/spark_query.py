"""Ask Kafka's log directories a question in SQL. No broker needs to run.

    python examples/spark_query.py LOG_DIR...

Needs the extra ``spark`` and a JDK 17 or newer. Columns are those of Spark's own Kafka source.
"""

from __future__ import annotations

import sys

from logstore.spark import session

BUSIEST = """
    SELECT topic, partition, count(*) AS records, max(offset) AS last, max(timestamp) AS latest
    FROM records
    GROUP BY topic, partition
    ORDER BY records DESC, topic, partition
    LIMIT 10
"""


def main(log_dirs: list[str]) -> None:
    spark = session("local[*]")
    records = spark.read.format("logstore").load(log_dirs)
    records.createOrReplaceTempView("records")
    spark.sql(BUSIEST).show(truncate=False)


if __name__ == "__main__":
    main(sys.argv[1:])
