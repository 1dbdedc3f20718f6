"""Configuration of groups under Kafka's keys, with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from logstore.common.config import MAX_INT, Properties, kafka_key


@dataclass(frozen=True, slots=True)
class GroupConfig(Properties):
    """The keys of a broker as coordinator of groups. ``*_ms`` are milliseconds."""

    group_min_session_timeout_ms: int = kafka_key("group.min.session.timeout.ms", 6000, 1, MAX_INT)
    group_max_session_timeout_ms: int = kafka_key(
        "group.max.session.timeout.ms", 1_800_000, 1, MAX_INT
    )
    group_initial_rebalance_delay_ms: int = kafka_key(
        "group.initial.rebalance.delay.ms", 3000, 0, MAX_INT
    )
    group_max_size: int = kafka_key("group.max.size", MAX_INT, 1, MAX_INT)
    offset_metadata_max_bytes: int = kafka_key("offset.metadata.max.bytes", 4096, 0, MAX_INT)
    offsets_retention_minutes: int = kafka_key("offsets.retention.minutes", 10_080, 1, MAX_INT)
    offsets_retention_check_interval_ms: int = kafka_key(
        "offsets.retention.check.interval.ms", 600_000, 1
    )
    offsets_commit_timeout_ms: int = kafka_key("offsets.commit.timeout.ms", 5000, 1, MAX_INT)
    offsets_load_buffer_size: int = kafka_key("offsets.load.buffer.size", 5 << 20, 1, MAX_INT)
    offsets_topic_num_partitions: int = kafka_key("offsets.topic.num.partitions", 50, 1, MAX_INT)
    offsets_topic_replication_factor: int = kafka_key("offsets.topic.replication.factor", 0, 0)
    offsets_topic_segment_bytes: int = kafka_key(
        "offsets.topic.segment.bytes", 100 << 20, 1, MAX_INT
    )

    def __post_init__(self) -> None:
        self._check()
