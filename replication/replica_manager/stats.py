"""Counters of a broker since its start, for metrics (R-157, R-164, R-166)."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class BrokerStats:
    """Change it under ``lock``. A single number may be read without."""

    bytes_in: int = 0  # of producers
    messages_in: int = 0
    bytes_rejected: int = 0
    bytes_out: int = 0  # to consumers
    replication_bytes_out: int = 0  # to followers
    isr_expands: int = 0
    isr_shrinks: int = 0
    failed_isr_updates: int = 0
    produce_expirations: int = 0  # partitions that a produce request gave up
    follower_fetch_expirations: int = 0
    consumer_fetch_expirations: int = 0
    delete_records_expirations: int = 0  # partitions
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
