"""Configuration of the transaction coordinator under Kafka's keys, with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from logstore.common.config import MAX_INT, Properties, kafka_key


@dataclass(frozen=True, slots=True)
class TransactionConfig(Properties):
    """``*_ms`` are milliseconds."""

    max_timeout_ms: int = kafka_key("transaction.max.timeout.ms", 900_000, 1, MAX_INT)
    id_expiration_ms: int = kafka_key("transactional.id.expiration.ms", 604_800_000, 1, MAX_INT)
    abort_interval_ms: int = kafka_key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms", 10_000, 1, MAX_INT
    )
    forget_interval_ms: int = kafka_key(
        "transaction.remove.expired.transaction.cleanup.interval.ms", 3_600_000, 1, MAX_INT
    )
    partitions: int = kafka_key("transaction.state.log.num.partitions", 50, 1, MAX_INT)
    replication_factor: int = kafka_key("transaction.state.log.replication.factor", 0, 0, 32767)
    min_isr: int = kafka_key("transaction.state.log.min.isr", 2, 1, MAX_INT)
    segment_bytes: int = kafka_key(
        "transaction.state.log.segment.bytes", 100 << 20, 1 << 20, MAX_INT
    )

    def __post_init__(self) -> None:
        self._check()
