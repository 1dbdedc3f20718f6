"""Configuration of replication under Kafka's keys, with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from logstore.common.config import MAX_INT, MAX_LONG, Properties, kafka_key
from logstore.common.errors import ConfigError

TRUNCATION_RULES = ("fetch", "epoch", "hw")


@dataclass(frozen=True, slots=True)
class ReplicationConfig(Properties):
    """The keys of a broker as replica and controller. ``*_ms`` are milliseconds.

    ``truncation.rule`` is ours: ``fetch`` (KIP-320 and KIP-595, the default), ``epoch`` (KIP-101
    and KIP-279) or ``hw`` (Kafka before 0.11); the older two lose data and exist to show it.
    """

    truncation_rule: str = kafka_key("truncation.rule", "fetch")
    replica_lag_time_max_ms: int = kafka_key("replica.lag.time.max.ms", 30_000, 1)
    replica_fetch_max_bytes: int = kafka_key("replica.fetch.max.bytes", 1 << 20, 0, MAX_INT)
    replica_fetch_response_max_bytes: int = kafka_key(
        "replica.fetch.response.max.bytes", 10 << 20, 0, MAX_INT
    )
    replica_fetch_min_bytes: int = kafka_key("replica.fetch.min.bytes", 1, 0, MAX_INT)
    replica_fetch_wait_max_ms: int = kafka_key("replica.fetch.wait.max.ms", 500, 0)
    replica_socket_timeout_ms: int = kafka_key("replica.socket.timeout.ms", 30_000, 1)
    controller_socket_timeout_ms: int = kafka_key("controller.socket.timeout.ms", 30_000, 1)
    request_timeout_ms: int = kafka_key("request.timeout.ms", 30_000, 1)
    initial_broker_registration_timeout_ms: int = kafka_key(
        "initial.broker.registration.timeout.ms", 60_000, 1
    )
    replica_fetch_backoff_ms: int = kafka_key("replica.fetch.backoff.ms", 1000, 0)
    num_replica_fetchers: int = kafka_key("num.replica.fetchers", 1, 1)
    high_watermark_checkpoint_interval_ms: int = kafka_key(
        "replica.high.watermark.checkpoint.interval.ms", 5000, 1
    )
    fetch_purge_interval: int = kafka_key("fetch.purgatory.purge.interval.requests", 1000, 1)
    produce_purge_interval: int = kafka_key("producer.purgatory.purge.interval.requests", 1000, 1)
    fetch_session_slots: int = kafka_key("max.incremental.fetch.session.cache.slots", 1000, 0)
    delete_purge_interval: int = kafka_key("delete.records.purgatory.purge.interval.requests", 1, 1)
    leader_throttled_rate: int = kafka_key("leader.replication.throttled.rate", MAX_LONG, 0)
    follower_throttled_rate: int = kafka_key("follower.replication.throttled.rate", MAX_LONG, 0)
    log_dirs_throttled_rate: int = kafka_key(
        "replica.alter.log.dirs.io.max.bytes.per.second", MAX_LONG, 0
    )
    eligible_leader_replicas: bool = kafka_key("eligible.leader.replicas.enable", True)
    unclean_election_interval_ms: int = kafka_key("unclean.leader.election.interval.ms", 300_000, 1)
    auto_leader_rebalance: bool = kafka_key("auto.leader.rebalance.enable", True)
    leader_imbalance_check_interval_s: int = kafka_key(
        "leader.imbalance.check.interval.seconds", 300, 1
    )
    controlled_shutdown_max_retries: int = kafka_key("controlled.shutdown.max.retries", 3, 1)
    controlled_shutdown_retry_backoff_ms: int = kafka_key(
        "controlled.shutdown.retry.backoff.ms", 5000, 1
    )
    default_replication_factor: int = kafka_key("default.replication.factor", 1, 1)
    num_partitions: int = kafka_key("num.partitions", 1, 1)
    verify_transactions: bool = kafka_key("transaction.partition.verification.enable", True)
    replica_selector: str = kafka_key("replica.selector.class", "")

    def __post_init__(self) -> None:
        self._check()
        if self.truncation_rule not in TRUNCATION_RULES:
            raise ConfigError(f"truncation.rule = {self.truncation_rule!r} is not known")
