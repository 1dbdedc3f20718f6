"""The process that dies: appends blocks round-robin over all partitions until it is killed.

Prints the bytes appended so far, a line for each round; nothing is ever flushed.
"""

from __future__ import annotations

import sys
from itertools import count

from workloads import CONFIG, blocks

from logstore import AppendOrigin, LogManager


def main() -> None:
    directory, partitions = sys.argv[1], int(sys.argv[2])
    manager = LogManager([directory], CONFIG.with_properties({"segment.bytes": str(1 << 30)}))
    logs = manager.create_topic("bench", partitions)
    source = blocks(100)
    size = 0
    for _ in count():
        block = next(source)
        for log in logs:
            log.append_as_leader(block, 0, AppendOrigin.COORDINATOR)
            size += len(block)
            if size % (64 << 20) < len(block):
                print(size, flush=True)


if __name__ == "__main__":
    main()
