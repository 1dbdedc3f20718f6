"""What a page takes for granted: log directories with something in them."""

from __future__ import annotations

from logstore import LogManager


def broker(path: str, *topics: str, partitions: int = 1, records: int = 100) -> None:
    """Make a log directory, unless the last run has."""
    with LogManager([path], background=False) as manager:
        for topic in topics:
            for partition in range(partitions):
                log = manager.get_or_create(topic, partition)
                if not log.log_end_offset:
                    log.append([(f"N{n % 7}".encode(), b"two of these") for n in range(records)])
