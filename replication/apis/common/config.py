"""The keys of the APIs under Kafka's names, with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from logstore.common.config import MAX_INT, Properties, kafka_key


@dataclass(frozen=True, slots=True)
class ApisConfig(Properties):
    """Limits of what clients may do and get at once."""

    auto_create_topics_enable: bool = kafka_key("auto.create.topics.enable", True)
    delete_topic_enable: bool = kafka_key("delete.topic.enable", True)
    fetch_max_bytes: int = kafka_key("fetch.max.bytes", 55 << 20, 1024, MAX_INT)
    max_request_partition_size_limit: int = kafka_key(
        "max.request.partition.size.limit", 2000, 1, MAX_INT
    )

    def __post_init__(self) -> None:
        self._check()
