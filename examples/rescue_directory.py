"""Salvage damaged Kafka log directories, and read what was in them.

    python examples/rescue_directory.py TARGET SOURCE...

Stop the brokers first. Several sources are taken for replicas: what one has lost is taken from
another. Sources are only read. A Kafka broker starts on the target.
"""

from __future__ import annotations

import sys

from logstore import LogManager
from logstore.rescue import rescue
from logstore.verify import verify


def main(target: str, sources: list[str]) -> None:
    for finding in verify(sources).findings:
        print(finding)

    report = rescue(sources, target)
    for partition in report.partitions:
        print(f"{partition.topic}-{partition.partition}: {partition.records} records rescued")
        for gap in partition.gaps:
            print(f"  {gap}")

    with LogManager([target]) as manager:
        for tp, log in sorted(manager.logs.items()):
            print(f"{tp}: {sum(1 for _ in log.records())} records read")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
