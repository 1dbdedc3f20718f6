"""Prints by how many bytes a fresh process grows when it opens a log directory."""

from __future__ import annotations

import gc
import sys

from workloads import START_CONFIG, resident_bytes

from logstore import LogManager


def main() -> None:
    with LogManager([sys.argv[1] + "-warm"], START_CONFIG) as manager:
        manager.create_topic("warm", 1)  # imports, pools and first allocations are not counted
    gc.collect()
    before = resident_bytes()
    manager = LogManager([sys.argv[1]], START_CONFIG)
    gc.collect()
    print(resident_bytes() - before)
    manager.close()


if __name__ == "__main__":
    main()
