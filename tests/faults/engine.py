"""Clean log directories of three brokers, written by this library's engine.

Nothing is wrong in them, yet no two replicas have the same files: segments end elsewhere, a
follower indexes at once what it fetched at once, one broker crashed, one lags behind, and above the
high watermark two leaders wrote different records to the same offsets, as leaders do that lose
their office before a follower fetched (S-1).
"""

from __future__ import annotations

import random
import uuid
from pathlib import Path

from logstore.common.config import LogConfig
from logstore.log import PartitionLog, run_inline
from logstore.manager import LogManager, ManagerOwner
from logstore.testing import ManualClock
from tests.unit.verify.verify_logs import CODECS, fill

CLUSTER_ID = "bG9nc3RvcmUtZmF1bHRzMA"
TOPICS = {"orders": 2, "payments": 1}
TRANSACTIONAL = "payments"
SEGMENT_BYTES = (4000, 6000, 4000)
"""Of each broker. The first one leads, until it crashes; the second one is elected then."""


def build(directory: Path, *, batches: int = 50, seed: int = 1) -> list[str]:
    """Write the three directories below ``directory``; returns their paths."""
    clock, rng = ManualClock(), random.Random(seed)
    paths = [str(directory / f"broker-{number}") for number in (1, 2, 3)]
    brokers = [
        LogManager(
            [path],
            _config(size),
            clock=clock,
            owner=ManagerOwner(
                run_later=run_inline,
                cluster_id=CLUSTER_ID,
                node_id=number,
                replicated=True,
                random_id=lambda: f"{rng.getrandbits(128):032x}",
            ),
        )
        for number, (path, size) in enumerate(zip(paths, SEGMENT_BYTES, strict=True), 1)
    ]
    for topic, partitions in TOPICS.items():
        topic_id = uuid.UUID(int=rng.getrandbits(128))
        for partition in range(partitions):
            replicas = [
                broker.get_or_create(topic, partition, topic_id=topic_id) for broker in brokers
            ]
            _write(replicas, clock, rng, batches, topic == TRANSACTIONAL)
    for broker in brokers:
        broker.housekeeper.checkpoint_recovery_points()
        broker.housekeeper.checkpoint_high_watermarks()
    crashed, *others = brokers
    crashed.crash()
    for broker in others:
        broker.close()
    return paths


def _config(segment_bytes: int) -> LogConfig:
    return LogConfig(
        segment_bytes=segment_bytes,
        index_interval_bytes=400,
        segment_index_bytes=4096,
        retention_ms=-1,
    )


def _write(
    replicas: list[PartitionLog],
    clock: ManualClock,
    rng: random.Random,
    batches: int,
    transactions: bool,
) -> None:
    leader, elected, follower = replicas
    codecs = ("none",) if transactions else ("none", *CODECS)
    fill(leader, clock, batches, rng, transactions, codecs)
    for replica in (elected, follower):
        _fetch(replica, leader, rng)
    committed = leader.log_end_offset
    for replica in (leader, elected):
        replica.replica.update_high_watermark(committed)
    follower.replica.update_high_watermark(committed - rng.randrange(1, 5))
    fill(leader, clock, 3, rng)
    elected.epochs.assign(leader.epochs.latest + 1)
    fill(elected, clock, 6, rng)
    _fetch(follower, elected, rng, stop_at=committed + 6)
    for replica in replicas:
        replica.flusher.save_epochs()


def _fetch(
    follower: PartitionLog, leader: PartitionLog, rng: random.Random, stop_at: int = 2**63 - 1
) -> None:
    """One or several batches at once, as responses hold them."""
    end = min(leader.log_end_offset, stop_at)
    while follower.log_end_offset < end:
        fetched = leader.read(follower.log_end_offset, rng.randrange(1, 1500))
        follower.replica.append_as_follower(bytes(fetched.data))
